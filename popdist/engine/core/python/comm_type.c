/* A member's endpoint of a group, as Python holds it. */
#include "python/binding.h"

#include "python/comm_object.h"
#include "reduce/block_size.h"

#include <string.h>
#include <unistd.h>

/* --- About the group */

static PyObject *comm_end(CommObject *self, PyObject *args)
{
    int error, lost[MOST_LOST];
    const char *message;
    PyObject *given = NULL;
    if (!PyArg_ParseTuple(args, "is|O", &error, &message, &given))
        return NULL;
    const Py_ssize_t count = given ? integers_from(given, lost, MOST_LOST) : 0;
    if (count < 0)
        return NULL;
    if (self->open && comm_is_ours(&self->c))
        end_with_error(&self->c, (status)error, lost, (uint32_t)count, message);
    Py_RETURN_NONE;
}

PyObject *described(const descriptor *d)
{
    return Py_BuildValue("(iiiiiKKi)", d->operation, d->dtype, d->reduction, d->algorithm,
                         d->root, (unsigned long long)d->count,
                         (unsigned long long)d->name, d->prelude_to);
}

static PyObject *lost_instances(const ending *why)
{
    PyObject *list = PyList_New(0), *lost = NULL;
    for (uint32_t i = 0; i < why->lost_count; i++)
        append_to(&list, PyLong_FromLong(why->lost[i]));
    if (list)
        lost = PyList_AsTuple(list);
    Py_XDECREF(list);
    return lost;
}

static PyObject *comm_ending(CommObject *self, PyObject *unused)
{
    ending why;
    const uint32_t state = self->open ? atomic_load(&self->c.head->ended) : 0;
    bool ended = state == EXPLAINED && why_ended(&self->c, &why);
    if (!ended && state) {
        /* Another member is still writing the reason. Meanwhile our other threads may
         * run, but not close the group: in a call of this thread they cannot. */
        const bool in_call = in_own_call(self);
        if (!in_call && !take_turn(self))
            return NULL;
        if (self->open) {
            Py_BEGIN_ALLOW_THREADS
            ended = why_ended(&self->c, &why);
            Py_END_ALLOW_THREADS
        }
        if (!in_call)
            give_turn(self);
    }
    if (!ended)
        Py_RETURN_NONE;
    PyObject *message = PyUnicode_DecodeUTF8(why.message, (Py_ssize_t)strlen(why.message),
                                           "replace");
    return Py_BuildValue("(iiiKNN(iNN))", (int)why.reason, why.by, why.about,
                         (unsigned long long)why.call, described(&why.mine),
                         described(&why.theirs), (int)why.error, message,
                         lost_instances(&why));
}

static PyObject *comm_set_heap(CommObject *self, PyObject *args)
{
    unsigned long long address, span;
    if (!PyArg_ParseTuple(args, "KK", &address, &span))
        return NULL;
    self->c.heap_span = span;
    self->c.heap = (unsigned char *)(uintptr_t)address;
    Py_RETURN_NONE;
}

static PyObject *comm_queue(CommObject *self, PyObject *args)
{
    int more;
    if (!PyArg_ParseTuple(args, "i", &more))
        return NULL;
    self->queued += more;
    return PyLong_FromLong(self->queued);
}

static PyObject *comm_last(CommObject *self, PyObject *unused)
{
    return Py_BuildValue("(iK)", (int)self->c.ran, (unsigned long long)calls_of(&self->c));
}

static PyObject *comm_doing(CommObject *self, PyObject *unused)
{
    if (!self->open)
        Py_RETURN_NONE;
    descriptor doing;
    copy_descriptor(&doing, description_at(&self->c, self->c.rank, calls_of(&self->c)));
    return described(&doing);
}

/* Whether a thread is in a call: True if it is this one, False another one, else None. */
static PyObject *comm_in_call(CommObject *self, PyObject *unused)
{
    if (!self->busy)
        Py_RETURN_NONE;
    return PyBool_FromLong(in_own_call(self));
}

static PyObject *comm_ring_share(CommObject *self, PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i", &type))
        return NULL;
    return PyLong_FromUnsignedLongLong(ring_share(&self->c, (dtype)type));
}

static PyObject *comm_runs(CommObject *self, PyObject *unused)
{
    const uint64_t *runs = self->runs;
    return Py_BuildValue("(KKKK)", (unsigned long long)runs[ONESHOT],
                         (unsigned long long)runs[DIRECT], (unsigned long long)runs[RING],
                         (unsigned long long)runs[IN_ARENA]);
}

static PyObject *comm_blocks(CommObject *self, PyObject *args)
{
    unsigned long long bytes;
    if (!PyArg_ParseTuple(args, "K", &bytes))
        return NULL;
    if (!self->open)
        Py_RETURN_NONE;
    const uint64_t usual = block_size_usual(&self->c, bytes);
    const bool past_caches = streaming_usual(&self->c, usual < bytes ? usual : bytes);
    return Py_BuildValue("(Ki)", (unsigned long long)usual, (int)past_caches);
}

static PyObject *comm_waits(CommObject *self, PyObject *unused)
{
    const waiting *w = &self->c.waits;
    return Py_BuildValue("(KKKK)", (unsigned long long)w->spins,
                         (unsigned long long)w->yields,
                         (unsigned long long)w->late_yields,
                         (unsigned long long)w->sleeps);
}

/* Close in the middle of a call of this thread: the call's end cannot be awaited, but
 * the call and the other members can be told. */
static PyObject *end_own_call(CommObject *self)
{
    end_group(&self->c, STOPPED, self->c.rank);
    PyErr_SetString(PyExc_RuntimeError,
                    "close() was called in the middle of a call to the same group, by "
                    "what interrupted it, a signal's handler perhaps, so the group has "
                    "come to its end for all members. Let the handler raise an exception, "
                    "and close the group once the call is over.");
    return NULL;
}

static PyObject *comm_shut(CommObject *self, PyObject *unused)
{
    if (!self->open)
        Py_RETURN_NONE;
    /* In a forked child, the thread that had the turn is in the parent. */
    if (self->c.pid == getpid()) {
        if (in_own_call(self))
            return end_own_call(self);
        if (!make_deferred(self, NULL) || !take_turn(self))
            return NULL;
    }
    /* Its thread, too. */
    if (self->c.pid != getpid())
        self->maker = 0;
    /* Another thread may have closed it while this one waited. */
    if (!self->open) {
        give_turn(self);
        Py_RETURN_NONE;
    }
    self->open = false;
    comm_close(&self->c);
    PyBuffer_Release(&self->memory);
    give_turn(self);
    Py_RETURN_NONE;
}

/* --- Its life */

/* Return a number of seconds in nanoseconds, at most the largest that a clock can count. */
static uint64_t nanoseconds(double seconds)
{
    if (!(seconds > 0)) /* also if it is not a number */
        return 0;
    return seconds < 9e9 ? (uint64_t)(seconds * 1e9) : UINT64_MAX / 2;
}

static bool open_endpoint(CommObject *self, PyObject *memory, int rank, int instance,
                          const char *simd, PyObject *pidfds, PyObject *pids,
                          double timeout, double stall)
{
    int fds[MAX_MEMBERS], processes[MAX_MEMBERS];
    if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0)
        return false;
    const header *head = self->memory.buf;
    const kernels *level = kernels_named(simd);
    const uint64_t length = (uint64_t)self->memory.len;
    /* The header says where everything else lies, and all of it must be there. */
    bool is_valid = length >= sizeof *head && head->magic == ARENA_MAGIC
                 && head->layout == arena_layout() && settings_possible(&head->agreed)
                 && places_of(&head->agreed).total <= length && rank >= 0
                 && (uint64_t)rank < head->agreed.size;
    if (!is_valid)
        PyErr_Format(PyExc_ValueError,
                     "These %zd bytes are no arena of this build with a member %d.",
                     self->memory.len, rank);
    else if (!level)
        PyErr_Format(PyExc_ValueError, "This processor has no SIMD level %s.", simd);
    else if (!comm_open(&self->c, self->memory.buf, rank, instance))
        PyErr_NoMemory();
    if (PyErr_Occurred()) {
        PyBuffer_Release(&self->memory);
        return false;
    }
    self->open = true;
    const Py_ssize_t count = integers_from(pidfds, fds, MAX_MEMBERS);
    const Py_ssize_t others = count < 0 ? -1 : integers_from(pids, processes, MAX_MEMBERS);
    for (Py_ssize_t i = 0; i < count && i < others; i++)
        watch_peer(&self->c.peers[i], fds[i], processes[i]);
    self->c.simd = level;
    self->c.timeout_ns = nanoseconds(timeout);
    self->stall_ns = nanoseconds(stall);
    self->c.owner = self;
    self->c.before_long_wait = release_gil;
    self->c.during_long_wait = run_python_hooks;
    return others >= 0;
}

static PyObject *comm_set_timeout(CommObject *self, PyObject *args)
{
    double seconds;
    if (!PyArg_ParseTuple(args, "d", &seconds))
        return NULL;
    self->c.timeout_ns = nanoseconds(seconds);
    Py_RETURN_NONE;
}

static PyObject *comm_set_trace(CommObject *self, PyObject *trace)
{
    hold(&self->trace, trace);
    Py_RETURN_NONE;
}

static PyObject *comm_explain_by(CommObject *self, PyObject *explain)
{
    hold(&self->explain, explain);
    Py_RETURN_NONE;
}

static PyObject *comm_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"memory",  "rank",  "simd",     "pidfds",   "pids",
                            "timeout", "stall", "on_stall", "instance", NULL};
    PyObject *memory, *pidfds, *pids, *on_stall;
    const char *simd;
    int rank, instance = -1;
    double timeout, stall;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OizOOddO|i", names, &memory, &rank,
                                     &simd, &pidfds, &pids, &timeout, &stall, &on_stall,
                                     &instance))
        return NULL;
    instance = instance < 0 ? rank : instance;
    CommObject *self = new_object(type);
    if (!self)
        return NULL;
    self->gate = PyThread_allocate_lock();
    Py_INCREF(on_stall);
    self->on_stall = on_stall;
    if (self->gate)
        PyThread_acquire_lock(self->gate, NOWAIT_LOCK);
    if (!self->gate)
        PyErr_NoMemory();
    else if (open_endpoint(self, memory, rank, instance, simd, pidfds, pids, timeout, stall))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void comm_end_of_life(PyObject *object)
{
    CommObject *self = (CommObject *)object;
    if (self->open) {
        comm_close(&self->c);
        PyBuffer_Release(&self->memory);
    }
    if (self->gate)
        PyThread_free_lock(self->gate);
    if (self->c.links)
        links_close(self->c.links);
    Py_XDECREF(self->hooks);
    Py_XDECREF(self->link_capsule);
    Py_XDECREF(self->on_stall);
    Py_XDECREF(self->explain);
    Py_XDECREF(self->trace);
    Py_XDECREF(self->recorder);
    free_object(object);
}

static PyMethodDef comm_methods[] = {
    METHOD("run", comm_run, METH_FASTCALL),
    METHOD("end", comm_end, METH_VARARGS),
    METHOD("ending", comm_ending, METH_NOARGS),
    METHOD("set_timeout", comm_set_timeout, METH_VARARGS),
    METHOD("in_call", comm_in_call, METH_NOARGS),
    METHOD("connect_hosts", comm_connect_hosts, METH_VARARGS),
    METHOD("note_death", comm_note_death, METH_VARARGS),
    METHOD("larger_call", comm_larger_call, METH_NOARGS),
    METHOD("explain_by", comm_explain_by, METH_O),
    METHOD("set_trace", comm_set_trace, METH_O),
    METHOD("missing", comm_missing, METH_NOARGS),
    METHOD("recent", comm_recent, METH_VARARGS),
    METHOD("record_to", comm_record_to, METH_VARARGS),
    METHOD("set_heap", comm_set_heap, METH_VARARGS),
    METHOD("queue", comm_queue, METH_VARARGS),
    METHOD("deferred_seconds", comm_deferred_seconds, METH_NOARGS),
    METHOD("make_deferred", comm_make_deferred, METH_NOARGS),
    METHOD("watch", comm_watch, METH_O),
    METHOD("last", comm_last, METH_NOARGS),
    METHOD("runs", comm_runs, METH_NOARGS),
    METHOD("waits", comm_waits, METH_NOARGS),
    METHOD("blocks", comm_blocks, METH_VARARGS),
    METHOD("doing", comm_doing, METH_NOARGS),
    METHOD("ring_share", comm_ring_share, METH_VARARGS),
    METHOD("close", comm_shut, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot comm_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)comm_make},
    {Py_tp_dealloc, (void *)(uintptr_t)comm_end_of_life},
    {Py_tp_methods, comm_methods},
    {0, NULL},
};

PyType_Spec comm_spec = TYPE("Comm", CommObject, 0, comm_slots);
