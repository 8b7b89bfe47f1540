/* The entry points without a Python frame for operations that split an array into
 * shares, or join shares. */
#include "python/plain_arrays.h"

#include <stddef.h>
#include <string.h>

/* Before they gather arrays, members exchange packets, each with a header of an array and
 * the array itself, if that fits: see calls/array_transport.py. */
enum { HEADER_AXES = 14, PACKET_DATA_BYTES = 384 };

typedef struct {
    int64_t type, num_axes, axes[HEADER_AXES];
    char data[PACKET_DATA_BYTES];
} packet;

/* Get two different arrays. False if one is not plain or has no elements. */
static bool get_two(pair *p, PyObject *from, PyObject *to)
{
    if (from == to || !get_pair(p, from, to))
        return false;
    if (p->x.len > 0)
        return true;
    release_pair(p);
    return false;
}

/* Whether `out` has the shape of a member's share of the reduction of x. */
static bool has_share(const pair *p, const replica_split *split, bool leading)
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
    reduction_call r;
    if (!reduction_begin(&r, &self->c, split, REDUCE_SCATTER, p->type, reduction, 1))
        return PyErr_NoMemory();
    const uint64_t bytes = (uint64_t)p->x.len / r.rows;
    for (uint32_t row = 0; row < r.rows; row++)
        r.next[row] = (char *)p->x.buf + row * bytes;
    r.next[r.rows] = p->out.buf;
    r.k.shapes_hash = hash_with_shape(0, p->x.shape + leading, p->x.ndim - leading);
    reduction_add(&r, bytes / element_bytes((dtype)p->type));
    PyObject *result = comm_reduce(self, &r.k, DIRECT);
    reduction_free(&r);
    return result;
}

PyObject *plain_scatter(const ReducerObject *group, PyObject *from, PyObject *to,
                        long reduction)
{
    CommObject *self = group->comm;
    const replica_split *split = split_of(group->split);
    const bool leading = group->leading;
    pair p;
    if (self->queued || self->c.links || !get_two(&p, from, to))
        return not_plain();
    PyObject *result = NULL;
    const bool plain = are_apart(&p) && has_share(&p, split, leading)
                       && !(p.type == BOOL && reduction == MEAN);
    if (plain)
        result = scatter_pair(self, split, &p, reduction, leading);
    release_pair(&p);
    return plain ? result : not_plain();
}

/* Whether `out` has an array like x for each member, and x is this member's one or lies
 * apart. */
static bool has_shares(const pair *p, const comm *c)
{
    const Py_buffer *x = &p->x, *out = &p->out;
    if (x->ndim > HEADER_AXES || out->ndim < 1 || out->shape[0] != c->size
        || !same_lengths(x, 0, out, 1))
        return false;
    return are_apart(p) || (char *)x->buf == (char *)out->buf + x->len * c->rank;
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

/* Gather the arrays of all members' packets, or their memory if it does not fit there.
 * `alike` is false, and nothing is gathered, if the arrays differ. */
static status gather_packets(CommObject *self, const pair *p, packet *packets, bool *alike)
{
    const size_t bytes = (size_t)p->x.len, size = (size_t)self->c.size;
    const bool fits = bytes <= PACKET_DATA_BYTES;
    packet mine = {p->type, p->x.ndim, {0}, {0}};
    for (int i = 0; i < p->x.ndim; i++)
        mine.axes[i] = p->x.shape[i];
    if (fits)
        memcpy(mine.data, p->x.buf, bytes);
    status s = gather_equal(self, ALL_GATHER, INT64, sizeof mine, &mine, packets);
    for (size_t q = 0; s == DONE && q < size; q++)
        *alike = *alike && memcmp(packets + q, &mine, offsetof(packet, data)) == 0;
    if (s != DONE || !*alike)
        return s;
    if (!fits)
        return gather_equal(self, NO_PRELUDE, UINT8, bytes, p->x.buf, p->out.buf);
    for (size_t q = 0; q < size; q++)
        memcpy((char *)p->out.buf + q * bytes, packets[q].data, bytes);
    return s;
}

static PyObject *gather_pair(CommObject *self, const pair *p)
{
    const size_t bytes = sizeof(packet) * (size_t)self->c.size;
    packet *packets = PyMem_Malloc(bytes);
    if (!packets)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    if (enter(self, (uint64_t)p->out.len)) {
        bool alike = true;
        const status s = gather_packets(self, p, packets, &alike);
        result = leave(self, s);
        if (result && !alike) {
            Py_DECREF(result);
            result = PyBytes_FromStringAndSize((char *)packets, (Py_ssize_t)bytes);
        }
    }
    PyMem_Free(packets);
    return result;
}

PyObject *plain_gather(const ReducerObject *group, PyObject *from, PyObject *to)
{
    CommObject *self = group->comm;
    pair p;
    if (self->queued || self->c.links || !get_two(&p, from, to))
        return not_plain();
    const bool plain = has_shares(&p, &self->c);
    PyObject *result = plain ? gather_pair(self, &p) : NULL;
    release_pair(&p);
    return plain ? result : not_plain();
}
