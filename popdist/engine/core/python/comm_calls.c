#include "python/comm_object.h"

#include "move/exchange.h"
#include "reduce/nodes.h"

#include <stdlib.h>

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
    if (k.split->of_part && !k.split->over_hosts)
        return PyErr_Format(PyExc_ValueError, "The split is that of a part of a job, "
                                              "which can only be reduced to nodes.");
    if (!find_segments(&k, list, shapes))
        return NULL;
    if (enter(self, k.total * element_bytes(k.type) * k.split->rows[k.split->rank])) {
        prepare(&k, wanted);
        result = leave(self, k.op == REDUCE_SCATTER && !k.split->over_hosts
                                 ? reduce_scatter(&k, (char *)(uintptr_t)out)
                                 : reduce_counted(self, &k));
    }
    give_back_segments(&k);
    return result;
}

/* Read the lengths of all members' shares, which must make up the row. */
static bool shares_from(const CommObject *self, PyObject *list, uint64_t total,
                        uint64_t *lengths)
{
    const Py_ssize_t count = numbers_from(list, lengths, MAX_MEMBERS);
    uint64_t left = total;
    bool right = count == self->c.size;
    for (Py_ssize_t i = 0; right && i < count; i++) {
        right = lengths[i] <= left;
        left -= lengths[i];
    }
    if (count >= 0 && (!right || left))
        PyErr_Format(PyExc_ValueError,
                     "The %zd lengths given must be those of %d members and make up the "
                     "%llu elements of a row.",
                     count, self->c.size, (unsigned long long)total);
    return right && !left;
}

PyObject *comm_reduce_to_nodes(CommObject *self, PyObject *args)
{
    PyObject *split_object, *list, *shapes, *shares, *nodes, *result = NULL;
    int type, reduction;
    unsigned long long name;
    uint64_t lengths[MAX_MEMBERS];
    if (!PyArg_ParseTuple(args, "O!OOiiKOO", split_type, &split_object, &list, &shapes, &type,
                          &reduction, &name, &shares, &nodes))
        return NULL;
    call k = call_of(&self->c, split_of(split_object), REDUCE_TO_NODES, type, reduction);
    k.name = name;
    if (!k.split->of_part)
        return PyErr_Format(PyExc_ValueError, "The split is not that of a part of a job.");
    if (!find_segments(&k, list, shapes))
        return NULL;
    uint64_t *out = shares_from(self, shares, k.total, lengths)
                        ? addresses_from(nodes, k.split->part_nodes, "nodes")
                        : NULL;
    if (out && enter_step(self, k.total * element_bytes(k.type) * k.split->rows[k.split->rank]))
        result = leave(self, reduce_to_nodes(&k, lengths, (char *const *)out));
    PyMem_Free(out);
    give_back_segments(&k);
    return result;
}

/* Complete elements between enter() and leave(). */
static PyObject *complete(CommObject *self, const arithmetic *a, const program *p,
                          uint64_t count, PyObject *nodes, PyObject *out)
{
    PyObject *result = NULL;
    const Py_ssize_t rows = PySequence_Size(out);
    uint64_t *from = rows < 0 ? NULL : addresses_from(nodes, p->leaves, "nodes");
    uint64_t *to = from ? addresses_from(out, (uint64_t)rows, "rows") : NULL;
    if (to && enter_step(self, count * a->accumulated * p->leaves)) {
        /* No trace: no other member takes part, so nothing describes it. */
        self->entered_ns = 0;
        if (rows > 0)
            complete_nodes(&self->c, a, p, (const char *const *)from, false, count,
                           (char *const *)to, (uint32_t)rows);
        result = leave(self, DONE);
    }
    PyMem_Free(from);
    PyMem_Free(to);
    return result;
}

PyObject *comm_complete_nodes(CommObject *self, PyObject *args)
{
    PyObject *list_of_parts, *nodes, *out;
    int type, reduction;
    unsigned long long count;
    if (!PyArg_ParseTuple(args, "OiiKOO", &list_of_parts, &type, &reduction, &count, &nodes, &out))
        return NULL;
    uint64_t parts[MAX_MEMBERS], all = 0;
    const Py_ssize_t size = numbers_from(list_of_parts, parts, MAX_MEMBERS);
    if (size < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < size && all <= MAX_LEAVES; i++)
        all = parts[i] > MAX_LEAVES ? parts[i] : all + parts[i];
    if (all < 1 || all > MAX_LEAVES)
        return PyErr_Format(PyExc_ValueError,
                            "The parts of a job have %llu replicas in all, but can have 1 "
                            "to %d.",
                            (unsigned long long)all, MAX_LEAVES);
    program p = {0};
    if (!program_of_parts(&p, parts, (uint32_t)size)) {
        free(p.merges);
        return PyErr_NoMemory();
    }
    const arithmetic a = arithmetic_of(&self->c, (dtype)type, (unsigned)reduction, all);
    PyObject *result = complete(self, &a, &p, count, nodes, out);
    free(p.merges);
    return result;
}

PyObject *comm_exchange(CommObject *self, PyObject *args)
{
    int op, headers_of, type, root;
    unsigned long long name, in, out;
    PyObject *list, *shapes;
    uint64_t lengths[MAX_MEMBERS], all = 0, shapes_hash = 0;
    if (!PyArg_ParseTuple(args, "iiiiKOOKK", &op, &headers_of, &type, &root, &name, &list, &shapes,
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
        .headers_of = (operation)headers_of,
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
