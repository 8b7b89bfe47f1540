/* The calls of a group on several hosts, as its member on this host makes them. */
#include "python/comm_object.h"

#include <string.h>

/* Hooks are called with the GIL, in the middle of a call of this thread. */
static void begin_hook(CommObject *self)
{
    if (self->saved)
        PyEval_RestoreThread(self->saved);
    else
        self->call_thread = PyThread_get_thread_ident();
}

/* Return whether the hook has raised. */
static bool end_hook(CommObject *self, PyObject *result)
{
    const bool raised = !result;
    Py_XDECREF(result);
    if (self->saved)
        self->saved = PyEval_SaveThread();
    return raised;
}

static bool during_wait(comm *c, int peer, uint64_t waited_ns)
{
    CommObject *self = c->owner;
    begin_hook(self);
    PyObject *result = NULL;
    if (PyErr_CheckSignals() == 0)
        result = PyObject_CallMethod(self->hooks, "look_while_waiting", "id", peer,
                                     (double)waited_ns / 1e9);
    return end_hook(self, result);
}

/* Let a hook end the group; if it raises, its exception ends the call of this member. */
static status ended_by(CommObject *self, PyObject *result)
{
    return end_hook(self, result) ? end_group(&self->c, STOPPED, self->c.rank) : ENDED;
}

static status on_mismatch(comm *c, int peer, const descriptor *theirs)
{
    CommObject *self = c->owner;
    begin_hook(self);
    return ended_by(self, PyObject_CallMethod(self->hooks, "end_for_mismatch", "iN", peer,
                                              described(theirs)));
}

static status on_link_error(comm *c, int error)
{
    CommObject *self = c->owner;
    begin_hook(self);
    return ended_by(self, PyObject_CallMethod(self->hooks, "end_after_link_error", "i", error));
}

static status on_death(comm *c, int peer)
{
    CommObject *self = c->owner;
    begin_hook(self);
    return ended_by(self, PyObject_CallMethod(self->hooks, "end_for_death", "i", peer));
}

static status on_not_ready(comm *c, int peer)
{
    CommObject *self = c->owner;
    begin_hook(self);
    if (end_hook(self, PyObject_CallMethod(self->hooks, "prepare", "i", peer)))
        return end_group(c, STOPPED, c->rank);
    return atomic_load(&c->head->ended) ? ENDED : DONE;
}

/* --- The other hosts */

/* Read a list of `count` numbers. */
static bool all_from(PyObject *list, int *to, Py_ssize_t count)
{
    const Py_ssize_t given = integers_from(list, to, count);
    if (given >= 0 && given != count)
        PyErr_Format(PyExc_ValueError, "A list does not have %zd numbers.", count);
    return given == count;
}

/* Open links to so many members with these hosts, processes and tags. */
static bool open_links(links *l, const int *hosts, const int *processes, const int *tags,
                       int count)
{
    int most = -1;
    for (int q = 0; q < count; q++) {
        if (hosts[q] < 0 || hosts[q] > most + 1) {
            PyErr_Format(PyExc_ValueError, "Member %d cannot be on host %d.", q, hosts[q]);
            return false;
        }
        most = hosts[q] > most ? hosts[q] : most;
    }
    if (!links_open(l, (uint32_t)most + 1, (uint32_t)count)) {
        PyErr_NoMemory();
        return false;
    }
    for (int q = 0; q < count; q++) {
        l->members[q].host = (uint32_t)hosts[q];
        l->members[q].process = processes[q];
        l->members[q].tag = tags[q];
    }
    links_place(l);
    return true;
}

/* Takes links, this member's rank, the hosts, processes and first tags of all members, and
 * the object with methods for failures. */
PyObject *comm_connect_hosts(CommObject *self, PyObject *args)
{
    int rank;
    PyObject *capsule, *hosts, *processes, *tags, *hooks;
    if (!PyArg_ParseTuple(args, "OiOOOO", &capsule, &rank, &hosts, &processes, &tags, &hooks))
        return NULL;
    const link_table *table = PyCapsule_GetPointer(capsule, LINK_TABLE);
    const Py_ssize_t count = PySequence_Size(hosts);
    if (!table || count < 0)
        return NULL;
    if (rank < 0 || rank >= count)
        return PyErr_Format(PyExc_ValueError, "There is no member %d.", rank);
    links *l = &self->links;
    *l = (links){
        .calls = table->calls,
        .own = table->own,
        .rank = rank,
        .sockets = arrivals_of(table->epoll),
        .during_wait = during_wait,
        .on_mismatch = on_mismatch,
        .on_link_error = on_link_error,
        .on_death = on_death,
        .on_not_ready = on_not_ready,
    };
    self->c.links = l;
    self->c.larger_rank = rank;
    Py_INCREF(hooks);
    self->hooks = hooks;
    Py_INCREF(capsule);
    self->link_capsule = capsule;
    int *numbers = PyMem_Calloc(3 * (size_t)count, sizeof *numbers);
    if (!numbers)
        return PyErr_NoMemory();
    const bool is_open = all_from(hosts, numbers, count)
                         && all_from(processes, numbers + count, count)
                         && all_from(tags, numbers + 2 * count, count)
                         && open_links(l, numbers, numbers + count, numbers + 2 * count,
                                       (int)count);
    PyMem_Free(numbers);
    if (!is_open)
        return NULL;
    Py_RETURN_NONE;
}

/* Send nothing any more to a member; any thread may call it. */
PyObject *comm_note_death(CommObject *self, PyObject *args)
{
    unsigned int member;
    if (!PyArg_ParseTuple(args, "I", &member))
        return NULL;
    if (self->c.links && member < self->c.links->count_of_members)
        atomic_store(&self->c.links->members[member].dead, true);
    Py_RETURN_NONE;
}

/* Return the description of the last call, and how many there have been. */
PyObject *comm_larger_call(CommObject *self, PyObject *unused)
{
    return Py_BuildValue("(NK)", described(&self->c.larger_call),
                         (unsigned long long)self->c.larger_calls);
}
