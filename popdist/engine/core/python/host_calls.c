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
static bool integers_from(PyObject *list, int *to, Py_ssize_t count)
{
    if (PySequence_Size(list) != count && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "A list does not have %zd numbers.", count);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        PyObject *item = PySequence_GetItem(list, i);
        to[i] = item ? (int)PyLong_AsLong(item) : -1;
        Py_XDECREF(item);
    }
    return !PyErr_Occurred();
}

static bool members_from(links *l, PyObject *processes, PyObject *tags, Py_ssize_t count)
{
    int *numbers = PyMem_Calloc(2 * (size_t)count + 1, sizeof *numbers);
    if (!numbers)
        PyErr_NoMemory();
    const bool read = numbers && integers_from(processes, numbers, count)
                      && integers_from(tags, numbers + count, count);
    for (Py_ssize_t i = 0; read && i < count; i++) {
        l->members[i].process = numbers[i];
        l->members[i].tag = numbers[count + i];
    }
    PyMem_Free(numbers);
    return read;
}

/* Takes links, this host's number, whether this member leads it, its rank, its
 * counterparts on all hosts, the processes and first tags of all members, and the object
 * with methods for failures. */
PyObject *comm_connect_hosts(CommObject *self, PyObject *args)
{
    int here, leads, rank;
    PyObject *capsule, *counterparts, *processes, *tags, *hooks;
    if (!PyArg_ParseTuple(args, "OipiOOOO", &capsule, &here, &leads, &rank, &counterparts,
                          &processes, &tags, &hooks))
        return NULL;
    const link_table *table = PyCapsule_GetPointer(capsule, LINK_TABLE);
    const Py_ssize_t hosts = PySequence_Size(counterparts), members = PySequence_Size(tags);
    if (!table || hosts < 0 || members < 0)
        return NULL;
    if (here < 0 || here >= hosts)
        return PyErr_Format(PyExc_ValueError, "There is no host %d.", here);
    links *l = &self->links;
    *l = (links){
        .calls = table->calls,
        .own = table->own,
        .here = (uint32_t)here,
        .leads = leads,
        .rank = rank,
        .sockets = arrivals_of(table->epoll),
        .during_wait = during_wait,
        .on_mismatch = on_mismatch,
        .on_link_error = on_link_error,
        .on_death = on_death,
        .on_not_ready = on_not_ready,
    };
    self->c.links = l;
    Py_INCREF(hooks);
    self->hooks = hooks;
    Py_INCREF(capsule);
    self->link_capsule = capsule;
    if (!links_open(l, (uint32_t)hosts, (uint32_t)members))
        return PyErr_NoMemory();
    if (!integers_from(counterparts, l->counterparts, hosts)
        || !members_from(l, processes, tags, members))
        return NULL;
    l->count_of_members = (uint32_t)members;
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

/* --- A call in steps */

/* Takes a call in the form of described(), a hash of its details, and the function that
 * carries out its steps. The function is called here, because an exception of a signal's
 * handler comes between any two statements of Python, and must not leave the turn taken. */
PyObject *comm_run_larger_call(CommObject *self, PyObject *args)
{
    int op, type, reduction, how, root, prelude_to;
    unsigned long long count, name, details;
    PyObject *steps;
    if (!PyArg_ParseTuple(args, "iiiiiKKiKO", &op, &type, &reduction, &how, &root, &count,
                          &name, &prelude_to, &details, &steps)
        || !take_open_turn(self))
        return NULL;
    const descriptor d = {
        .count = count,
        .name = name,
        .details_hash = details,
        .operation = (uint8_t)op,
        .dtype = (uint8_t)type,
        .reduction = (uint8_t)reduction,
        .algorithm = (uint8_t)how,
        .root = (int16_t)root,
        .prelude_to = (uint8_t)prelude_to,
    };
    self->call_thread = PyThread_get_thread_ident();
    self->in_steps = true;
    self->entered_ns = 0;
    begin_call(self, count * element_bytes((dtype)type));
    /* Others take no part in a message between two members. */
    if (op == SEND || op == RECEIVE) {
        self->c.larger_call = d;
        self->c.in_larger_call = false;
    } else {
        begin_larger_call(&self->c, &d);
    }
    if (self->c.record)
        record_description(self->c.record, &self->c.larger_call);
    if (self->c.record && self->c.in_larger_call)
        self->c.record->number = self->c.larger_calls;
    PyObject *result = PyObject_CallNoArgs(steps);
    self->in_steps = false;
    end_call(self, result ? DONE : ENDED);
    give_turn(self);
    return result;
}

PyObject *comm_larger_call(CommObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(NK)", described(&self->c.larger_call),
                         (unsigned long long)self->c.larger_calls);
}

/* Begin a message of the current call, and return its number among them. */
static PyObject *begin_transfer(CommObject *self, PyObject *args, bool sends)
{
    unsigned int member;
    int kind;
    unsigned long long address, bytes;
    if (!PyArg_ParseTuple(args, "IiKK", &member, &kind, &address, &bytes))
        return NULL;
    links *l = self->c.links;
    if (!l || member >= l->count_of_members)
        return PyErr_Format(PyExc_ValueError, "No member %u can be reached.", member);
    message *m = links_new_transfer(l);
    if (!m)
        return PyErr_NoMemory();
    const uint32_t number = l->count_of_transfers - 1;
    if (!enter_step(self, 0))
        return NULL;
    void *data = (void *)(uintptr_t)address;
    const status s = sends ? send_to(&self->c, m, (int)member, kind, data, bytes)
                           : receive_from(&self->c, m, (int)member, kind, data, bytes);
    PyObject *result = leave(self, s);
    if (!result)
        return NULL;
    Py_DECREF(result);
    return PyLong_FromUnsignedLong(number);
}

PyObject *comm_begin_send(CommObject *self, PyObject *args)
{
    return begin_transfer(self, args, true);
}

PyObject *comm_begin_receive(CommObject *self, PyObject *args)
{
    return begin_transfer(self, args, false);
}

/* Wait for messages of the current call; they are copied to be next to each other. */
static PyObject *await_copies(CommObject *self, const uint64_t *numbers, message *copies,
                              Py_ssize_t count)
{
    message *transfers = self->c.links->transfers;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (numbers[i] >= self->c.links->count_of_transfers)
            return PyErr_Format(PyExc_ValueError, "There is no such transfer.");
        copies[i] = transfers[numbers[i]];
    }
    if (!enter_step(self, 0))
        return NULL;
    const status s = await_messages(&self->c, copies, (uint32_t)count);
    for (Py_ssize_t i = 0; i < count; i++)
        transfers[numbers[i]] = copies[i];
    return leave(self, s);
}

PyObject *comm_await_transfers(CommObject *self, PyObject *list)
{
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0 || !self->c.links)
        return count < 0 ? NULL : PyErr_Format(PyExc_ValueError, "There are no links.");
    uint64_t *numbers = PyMem_Calloc((size_t)count + 1, sizeof *numbers);
    message *copies = PyMem_Calloc((size_t)count + 1, sizeof *copies);
    PyObject *result = NULL;
    if (!numbers || !copies)
        PyErr_NoMemory();
    else if (numbers_from(list, numbers, count) == count)
        result = await_copies(self, numbers, copies, count);
    PyMem_Free(numbers);
    PyMem_Free(copies);
    return result;
}

/* Forget the messages of a call that is over; return whether one may be in transit. */
PyObject *comm_end_transfers(CommObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(self->c.links && links_end_transfers(self->c.links));
}

/* Return the data from each host. */
static PyObject *list_of(const links *l, const unsigned char **data_of,
                         const uint64_t *bytes_of)
{
    PyObject *list = PyList_New(0);
    for (uint32_t host = 0; list && host < l->hosts; host++) {
        PyObject *data = PyBytes_FromStringAndSize((const char *)data_of[host],
                                                   (Py_ssize_t)bytes_of[host]);
        if (!data || PyList_Append(list, data) < 0)
            Py_CLEAR(list);
        Py_XDECREF(data);
    }
    return list;
}

static status share_noting_failure(CommObject *self, const Py_buffer *data,
                                   const unsigned char **data_of, uint64_t *bytes_of)
{
    status s = begin_records(&self->c, data->buf, (uint64_t)data->len);
    if (s == DONE)
        s = finish_records(&self->c, data_of, bytes_of);
    if (s != DONE)
        links_note_failure(self->c.links);
    return s;
}

/* Share a leader's data with the others, who must make the same call. */
PyObject *comm_share_records(CommObject *self, PyObject *given)
{
    links *l = self->c.links;
    Py_buffer data;
    if (PyObject_GetBuffer(given, &data, PyBUF_SIMPLE) < 0)
        return NULL;
    const unsigned char **data_of = PyMem_Calloc(l->hosts, sizeof *data_of);
    uint64_t *bytes_of = PyMem_Calloc(l->hosts, sizeof *bytes_of);
    PyObject *result = NULL;
    if (data.len > RECORD_DATA_BYTES)
        PyErr_Format(PyExc_ValueError, "%zd bytes are more than go with a record.", data.len);
    else if (!data_of || !bytes_of || !links_reserve(l, 0, RECORD_MESSAGES))
        PyErr_NoMemory();
    else if (enter_step(self, 0))
        result = leave(self, share_noting_failure(self, &data, data_of, bytes_of));
    if (result) {
        Py_DECREF(result);
        result = list_of(l, data_of, bytes_of);
    }
    PyMem_Free(data_of);
    PyMem_Free(bytes_of);
    PyBuffer_Release(&data);
    return result;
}
