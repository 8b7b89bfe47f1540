#include "python/binding.h"

#include "python/comm_calls.h"
#include "python/segments.h"

PyObject *comm_reduce_rows(CommObject *self, PyObject *args)
{
    PyObject *given, *list, *shapes, *result = NULL;
    int op, type, reduction, wanted, root;
    unsigned long long name, out;
    if (!PyArg_ParseTuple(args, "O!OOiiiiiKK", layout_type, &given, &list, &shapes, &op,
                          &type, &reduction, &wanted, &root, &name, &out))
        return NULL;
    call k = {
        .c = &self->c,
        .l = ((LayoutObject *)given)->l,
        .type = (dtype)type,
        .reduction = (unsigned)reduction,
        .op = (operation)op,
        .root = root,
        .name = name,
    };
    if (!find_segments(&k, list, shapes))
        return NULL;
    if (enter(self, k.total * element_bytes(k.type) * k.l->rows[k.l->rank])) {
        prepare(&k, wanted);
        result = leave(self, k.op == REDUCE_SCATTER
                                 ? reduce_scatter(&k, (char *)(uintptr_t)out)
                                 : reduce_counted(self, &k));
    }
    give_back_segments(&k);
    return result;
}

PyObject *comm_exchange(CommObject *self, PyObject *args)
{
    int op, headers_of, type, root;
    unsigned long long name, in, out;
    PyObject *list, *shapes;
    uint64_t lengths[MAX_MEMBERS], all = 0, shape = 0;
    if (!PyArg_ParseTuple(args, "iiiiKOOKK", &op, &headers_of, &type, &root, &name, &list, &shapes,
                          &in, &out)
        || !shape_from(shapes, &shape))
        return NULL;
    Py_ssize_t count = numbers_from(list, lengths, MAX_MEMBERS);
    if (count < 0)
        return NULL;
    if (count != self->c.size)
        return PyErr_Format(PyExc_ValueError, "%zd lengths are given for %d members.",
                            count, self->c.size);
    for (Py_ssize_t i = 0; i < count; i++)
        all += lengths[i];
    const exchange x = {
        .c = &self->c,
        .op = (operation)op,
        .headers_of = (operation)headers_of,
        .type = (dtype)type,
        .name = name,
        .root = root,
        .lengths = lengths,
        .shape = shape,
        .in = (const char *)(uintptr_t)in,
        .out = (char *)(uintptr_t)out,
    };
    if (!enter(self, all))
        return NULL;
    return leave(self, exchange_run(&x));
}

PyObject *comm_barrier(CommObject *self, PyObject *args)
{
    unsigned long long name;
    if (!PyArg_ParseTuple(args, "K", &name) || !enter(self, 0))
        return NULL;
    return leave(self, barrier(&self->c, name));
}

PyObject *comm_send(CommObject *self, PyObject *args)
{
    int to, type;
    unsigned long long from, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &to, &type, &from, &bytes) || !enter(self, bytes))
        return NULL;
    return leave(self, send_message(&self->c, to, (dtype)type,
                                    (const char *)(uintptr_t)from, bytes));
}

PyObject *comm_receive(CommObject *self, PyObject *args)
{
    int from, type;
    unsigned long long to, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &from, &type, &to, &bytes) || !enter(self, bytes))
        return NULL;
    return leave(self, receive_message(&self->c, from, (dtype)type,
                                       (char *)(uintptr_t)to, bytes));
}

PyObject *comm_peek(CommObject *self, PyObject *unused)
{
    (void)unused;
    if (!enter(self, 0))
        return NULL;
    comm *c = &self->c;
    const uint64_t next = calls_of(c) + 1;
    member *first = member_at(c, 0);
    status s = DONE;
    uint64_t name = 0;
    /* For messages: what this member does between two calls. */
    describe(c, &(const descriptor){.operation = PEEK});
    if (c->rank != 0)
        s = wait_word(c, 0, &first->announcements[next & 1].stamp, next, &first->posted);
    if (s == DONE)
        name = first->calls[next & 1].name;
    PyObject *result = leave(self, s);
    if (!result)
        return NULL;
    Py_DECREF(result);
    return PyLong_FromUnsignedLongLong(name);
}
