#include "python/comm_object.h"

#include "hosts/reduce.h"
#include "move/exchange.h"

static status scatter_anywhere(const call *k, char *out)
{
    return k->split->over_hosts ? reduce_over_hosts(k, out) : reduce_scatter(k, out);
}

PyObject *comm_reduce_rows(CommObject *self, PyObject *args)
{
    PyObject *split_object, *list, *shapes, *result = NULL;
    int op, type, reduction, wanted, root;
    unsigned long long name, out;
    if (!PyArg_ParseTuple(args, "O!OOiiiiiKK", split_type, &split_object, &list, &shapes, &op,
                          &type, &reduction, &wanted, &root, &name, &out))
        return NULL;
    call k = call_of(&self->c, split_of(split_object), (operation)op, type, reduction);
    k.root = root;
    k.name = name;
    if (!find_segments(&k, list, shapes))
        return NULL;
    if (enter(self, k.total * element_bytes(k.type) * k.split->rows[k.split->rank])) {
        prepare(&k, wanted);
        result = leave(self, k.op == REDUCE_SCATTER
                                 ? scatter_anywhere(&k, (char *)(uintptr_t)out)
                                 : reduce_counted(self, &k));
    }
    give_back_segments(&k);
    return result;
}

PyObject *comm_exchange(CommObject *self, PyObject *args)
{
    int op, prelude_to, type, root;
    unsigned long long name, in, out;
    PyObject *list, *shapes;
    uint64_t lengths[MAX_MEMBERS], all = 0, shapes_hash = 0;
    if (!PyArg_ParseTuple(args, "iiiiKOOKK", &op, &prelude_to, &type, &root, &name, &list, &shapes,
                          &in, &out)
        || !hash_shapes(shapes, &shapes_hash))
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
        .prelude_to = (operation)prelude_to,
        .type = (dtype)type,
        .name = name,
        .root = root,
        .lengths = lengths,
        .shapes_hash = shapes_hash,
        .in = (const char *)(uintptr_t)in,
        .out = (char *)(uintptr_t)out,
    };
    if (!enter_step(self, all))
        return NULL;
    return leave(self, exchange_run(&x));
}

PyObject *comm_barrier(CommObject *self, PyObject *args)
{
    unsigned long long name;
    if (!PyArg_ParseTuple(args, "K", &name) || !enter_step(self, 0))
        return NULL;
    return leave(self, barrier(&self->c, name));
}

PyObject *comm_send(CommObject *self, PyObject *args)
{
    int to, type;
    unsigned long long from, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &to, &type, &from, &bytes) || !enter_step(self, bytes))
        return NULL;
    return leave(self, send_message(&self->c, to, (dtype)type,
                                    (const char *)(uintptr_t)from, bytes));
}

PyObject *comm_receive(CommObject *self, PyObject *args)
{
    int from, type;
    unsigned long long to, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &from, &type, &to, &bytes) || !enter_step(self, bytes))
        return NULL;
    return leave(self, receive_message(&self->c, from, (dtype)type,
                                       (char *)(uintptr_t)to, bytes));
}
