/* A member's calls, as it shows them to others and records them, and the others' calls. */
#include "python/comm_object.h"

#include <string.h>
#include <unistd.h>

void end_record(CommObject *self, status s)
{
    /* In a child that a signal's handler has forked, the record belongs to the parent.
     * The owner is checked only in this case: getpid() takes longer than all else here. */
    if (s != STOPPED || comm_is_ours(&self->c))
        record_end(self->c.record, s, self->c.ran);
    self->c.record = NULL;
}

/* Return the members of a mask as a list. */
static PyObject *members_in(const uint64_t mask[MASK_WORDS], int size)
{
    PyObject *list = PyList_New(0);
    for (int q = 0; q < size; q++)
        if (mask[q / 64] >> q % 64 & 1)
            append_to(&list, PyLong_FromLong(q));
    return list;
}

/* The members that have not begun the current call; once the group has ended, the
 * members that had not begun its last call. */
PyObject *comm_missing(CommObject *self, PyObject *unused)
{
    uint64_t mask[MASK_WORDS] = {0};
    if (self->open && atomic_load(&self->c.head->ended) == EXPLAINED)
        memcpy(mask, self->c.head->end.missing, sizeof mask);
    else if (self->open)
        find_missing(&self->c, -1, mask);
    return members_in(mask, self->c.size);
}

/* Whether a member is in a call, and its last calls with their numbers, the last one
 * first. It may write them meanwhile: they are for messages. */
PyObject *comm_recent(CommObject *self, PyObject *args)
{
    int member;
    if (!PyArg_ParseTuple(args, "i", &member))
        return NULL;
    if (!self->open || member < 0 || member >= self->c.size)
        return PyErr_Format(PyExc_ValueError, "The group has no member %d.", member);
    const activity *a = activity_at(&self->c, member);
    const uint64_t begun = atomic_load(&a->begun), over = atomic_load(&a->over);
    /* Only the member itself knows its last description, but descriptions have growing
     * numbers. */
    descriptor calls[RECENT_CALLS];
    uint64_t last = 0;
    for (int i = 0; i < RECENT_CALLS; i++) {
        copy_descriptor(&calls[i], &a->calls[i]);
        last = calls[i].number > last ? calls[i].number : last;
    }
    PyObject *list = PyList_New(0);
    for (uint64_t n = last; n && n + RECENT_CALLS > last; n--) {
        int i = 0;
        /* Over hosts, all steps of a call have its number. */
        while (i < RECENT_CALLS && calls[i].number != n)
            i++;
        if (i < RECENT_CALLS)
            append_to(&list, Py_BuildValue("(KN)", (unsigned long long)n,
                                           described(&calls[i])));
    }
    return list ? Py_BuildValue("(NN)", PyBool_FromLong(begun != over), list) : NULL;
}

/* Record all calls from now on with a Recorder, under this number of the group. */
PyObject *comm_record_to(CommObject *self, PyObject *args)
{
    PyObject *recorder;
    unsigned int group;
    if (!PyArg_ParseTuple(args, "O!I", recorder_type, &recorder, &group) || !take_turn(self))
        return NULL;
    hold(&self->recorder, recorder);
    self->group = group;
    give_turn(self);
    Py_RETURN_NONE;
}
