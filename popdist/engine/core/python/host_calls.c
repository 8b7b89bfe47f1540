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

static status on_mpi_error(comm *c, int error)
{
    CommObject *self = c->owner;
    begin_hook(self);
    return ended_by(self, PyObject_CallMethod(self->hooks, "end_after_mpi", "i", error));
}

static status on_death(comm *c, int peer)
{
    CommObject *self = c->owner;
    begin_hook(self);
    return ended_by(self, PyObject_CallMethod(self->hooks, "end_for_death", "i", peer));
}

static status on_hangup(comm *c, int peer)
{
    CommObject *self = c->owner;
    begin_hook(self);
    if (end_hook(self, PyObject_CallMethod(self->hooks, "await_news_of", "i", peer)))
        return end_group(c, STOPPED, c->rank);
    return atomic_load(&c->head->ended) ? ENDED : DONE;
}

/* --- The other hosts */

static bool counterparts_from(links *l, PyObject *members, PyObject *ranks, PyObject *tags)
{
    PyObject *const lists[] = {members, ranks, tags};
    for (uint32_t host = 0; host < l->hosts; host++) {
        int *const places[] = {&l->counterparts[host].member, &l->counterparts[host].rank,
                               &l->counterparts[host].tag};
        for (int i = 0; i < 3; i++) {
            PyObject *item = PySequence_GetItem(lists[i], host);
            const long value = item ? PyLong_AsLong(item) : -1;
            Py_XDECREF(item);
            if (PyErr_Occurred())
                return false;
            *places[i] = (int)value;
        }
    }
    return true;
}

static void *pointer(unsigned long long address)
{
    return (void *)(uintptr_t)address;
}

/* Takes the addresses of MPI_Isend, MPI_Irecv and MPI_Test, the handles of a communicator
 * and of MPI_BYTE, this host's number, whether this member leads it, the counterparts on all
 * hosts, their ranks and first tags, the epolls of this process's connections and of those
 * of MPI that hang up, and whose methods are told of what goes wrong. */
PyObject *comm_connect_hosts(CommObject *self, PyObject *args)
{
    unsigned long long isend, irecv, test, group, byte;
    int here, leads, epoll, hangups;
    PyObject *members, *ranks, *tags, *hooks;
    if (!PyArg_ParseTuple(args, "KKKKKipOOOiiO", &isend, &irecv, &test, &group, &byte, &here,
                          &leads, &members, &ranks, &tags, &epoll, &hangups,
                          &hooks))
        return NULL;
    const Py_ssize_t hosts = PySequence_Size(members);
    if (hosts < 0 || here < 0 || here >= hosts)
        return hosts < 0 ? NULL : PyErr_Format(PyExc_ValueError, "There is no host %d.", here);
    links *l = &self->links;
    *l = (links){
        .isend = (isend_fn *)(uintptr_t)isend,
        .irecv = (irecv_fn *)(uintptr_t)irecv,
        .test = (test_fn *)(uintptr_t)test,
        .group = pointer(group),
        .byte = pointer(byte),
        .here = (uint32_t)here,
        .leads = leads,
        .sockets = arrivals_of(epoll, hangups),
        .during_wait = during_wait,
        .on_mismatch = on_mismatch,
        .on_mpi_error = on_mpi_error,
        .on_death = on_death,
        .on_hangup = on_hangup,
    };
    self->c.links = l;
    Py_INCREF(hooks);
    self->hooks = hooks;
    if (!links_open(l, (uint32_t)hosts))
        return PyErr_NoMemory();
    if (!counterparts_from(l, members, ranks, tags))
        return NULL;
    Py_RETURN_NONE;
}

/* Send nothing any more to the counterpart on a host; any thread may call it. */
PyObject *comm_note_death(CommObject *self, PyObject *args)
{
    unsigned int host;
    if (!PyArg_ParseTuple(args, "I", &host))
        return NULL;
    if (self->c.links && host < self->c.links->hosts)
        atomic_store(&self->c.links->counterparts[host].dead, true);
    Py_RETURN_NONE;
}

/* --- A call in steps */

/* Takes a call as described() has it, a hash of its details, and what carries out its
 * steps. That is called here, because an exception of a signal's handler comes between any
 * two statements of Python, and must not leave the turn taken. */
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

/* Wait for requests of MPI, given by where their handles are, and the members at their
 * other ends. */
PyObject *comm_await_requests(CommObject *self, PyObject *args)
{
    PyObject *handles, *peers, *result = NULL;
    if (!PyArg_ParseTuple(args, "OO", &handles, &peers))
        return NULL;
    const Py_ssize_t count = PySequence_Size(handles);
    uint64_t *at = count < 0 ? NULL : addresses_from(handles, (uint64_t)count, "requests");
    uint64_t *members = at ? addresses_from(peers, (uint64_t)count, "members") : NULL;
    message *messages = PyMem_Calloc((size_t)count + 1, sizeof *messages);
    if (members && !messages)
        PyErr_NoMemory();
    if (members && messages && enter_step(self, 0)) {
        for (Py_ssize_t i = 0; i < count; i++)
            messages[i] = (message){.request = pointer(at[i]), .peer = (int)members[i]};
        result = leave(self, await_messages(&self->c, messages, (uint32_t)count));
    }
    PyMem_Free(at);
    PyMem_Free(members);
    PyMem_Free(messages);
    return result;
}

/* Return what of each host has come. */
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
