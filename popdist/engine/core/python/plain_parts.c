/* The entry points without a Python frame for operations that split an array into
 * shares, or join shares. */
#include "python/plain_arrays.h"

#include "python/comm_object.h"

#include <string.h>

/* The words that members exchange before they gather: see calls/array_transport.py. */
enum { HEADER = 16, HEADER_AXES = 14 };

/* Get two arrays. False if one is not plain or has no elements, or both are the same. */
static bool get_parts(pair *p, PyObject *from, PyObject *to)
{
    if (from == to || !get_pair(p, from, to))
        return false;
    if (p->x.len > 0)
        return true;
    release_pair(p);
    return false;
}

/* Whether `out` has the shape of a member's share of the reduction of x. */
static bool has_parts(const pair *p, const replica_split *split, bool leading)
{
    const Py_buffer *x = &p->x, *out = &p->out;
    if (x->ndim <= leading || out->ndim != x->ndim)
        return false;
    const Py_ssize_t rows = (Py_ssize_t)split->rows[split->rank];
    if (leading && (x->shape[0] != rows || out->shape[0] != rows))
        return false;
    return same_lengths(x, leading + 1, out, leading + 1)
           && x->shape[leading] == out->shape[leading] * (Py_ssize_t)split->replicas;
}

static PyObject *scatter_pair(CommObject *self, const replica_split *split, const pair *p,
                              long reduction, bool leading)
{
    const uint32_t rows = split->rows[split->rank];
    char *in_rows[FEW_ROWS], *out = p->out.buf;
    const uint64_t row = (uint64_t)p->x.len / rows;
    for (uint32_t r = 0; r < rows; r++)
        in_rows[r] = (char *)p->x.buf + r * row;
    const segment whole = {row / element_bytes((dtype)p->type), in_rows, &out};
    call k = call_of(&self->c, split, REDUCE_SCATTER, p->type, reduction);
    k.segments = &whole;
    k.count_of_segments = 1;
    k.total = whole.count;
    k.shapes_hash = hash_with_shape(0, p->x.shape + leading, p->x.ndim - leading);
    return comm_reduce(self, &k, DIRECT);
}

PyObject *scatter_array(PyObject *object, PyObject *split_object, PyObject *from, PyObject *to,
                        long reduction, bool leading)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = split_of(split_object);
    pair p;
    if (self->queued || self->c.links || !get_parts(&p, from, to))
        return not_plain();
    PyObject *result = NULL;
    const bool plain = are_apart(&p) && has_parts(&p, split, leading)
                       && split->rows[split->rank] <= FEW_ROWS
                       && !(p.type == BOOL && reduction == MEAN);
    if (plain)
        result = scatter_pair(self, split, &p, reduction, leading);
    release_pair(&p);
    return plain ? result : not_plain();
}

/* Whether `out` has an array like x for each member, and x is this member's one or lies
 * apart. */
static bool has_places(const pair *p, const comm *c)
{
    const Py_buffer *x = &p->x, *out = &p->out;
    if (x->ndim > HEADER_AXES || out->ndim < 1 || out->shape[0] != c->size
        || !same_lengths(x, 0, out, 1))
        return false;
    return are_apart(p) || (char *)x->buf == (char *)out->buf + x->len * c->rank;
}

status exchange_equal(exchange x, uint64_t bytes)
{
    uint64_t lengths[MAX_MEMBERS];
    for (int q = 0; q < x.c->size; q++)
        lengths[q] = bytes;
    x.lengths = lengths;
    return exchange_run(&x);
}

static status gather_equal(CommObject *self, operation prelude_to, dtype type,
                           uint64_t bytes, const void *in, void *out)
{
    const exchange x = {
        .c = &self->c,
        .op = ALL_GATHER,
        .prelude_to = prelude_to,
        .type = type,
        .root = -1,
        .in = in,
        .out = out,
    };
    return exchange_equal(x, bytes);
}

static PyObject *gather_pair(CommObject *self, const pair *p)
{
    int64_t mine[HEADER] = {p->type, p->x.ndim};
    const size_t bytes = sizeof mine, all = bytes * (size_t)self->c.size;
    char *headers = PyMem_Malloc(all);
    if (!headers)
        return PyErr_NoMemory();
    for (int i = 0; i < p->x.ndim; i++)
        mine[2 + i] = p->x.shape[i];
    PyObject *result = NULL;
    if (enter(self, (uint64_t)p->out.len)) {
        status s = gather_equal(self, ALL_GATHER, INT64, bytes, mine, headers);
        bool alike = true;
        for (int q = 0; s == DONE && q < self->c.size; q++)
            alike = alike && memcmp(headers + (size_t)q * bytes, mine, bytes) == 0;
        if (s == DONE && alike)
            s = gather_equal(self, NO_PRELUDE, UINT8, (uint64_t)p->x.len, p->x.buf, p->out.buf);
        result = leave(self, s);
        if (result && !alike) {
            Py_DECREF(result);
            result = PyBytes_FromStringAndSize(headers, (Py_ssize_t)all);
        }
    }
    PyMem_Free(headers);
    return result;
}

PyObject *gather_array(PyObject *object, PyObject *from, PyObject *to)
{
    CommObject *self = (CommObject *)object;
    pair p;
    if (self->queued || self->c.links || !get_parts(&p, from, to))
        return not_plain();
    const bool plain = has_places(&p, &self->c);
    PyObject *result = plain ? gather_pair(self, &p) : NULL;
    release_pair(&p);
    return plain ? result : not_plain();
}
