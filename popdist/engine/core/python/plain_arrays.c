/* The entry points without a Python frame: arrays as they lie in their buffers. */
#include "python/plain_arrays.h"

#include "python/comm_object.h"

#include <stdlib.h>
#include <string.h>

/* The dtype of a buffer's elements, or -1 if the core does not support it. */
static int dtype_of(const Py_buffer *view)
{
    const char *f = view->format ? view->format : "B";
    if (f[0] == '\0' || f[1] != '\0')
        return -1;
    switch (f[0]) {
    case 'f': return FLOAT32;
    case 'd': return FLOAT64;
    case 'e': return FLOAT16;
    case 'b': return INT8;
    case 'h': return INT16;
    case 'i': return INT32;
    case 'l': return sizeof(long) == 8 ? INT64 : INT32;
    case 'q': return INT64;
    case 'B': return UINT8;
    case 'H': return UINT16;
    case 'I': return UINT32;
    case 'L': return sizeof(long) == 8 ? UINT64 : UINT32;
    case 'Q': return UINT64;
    case '?': return BOOL;
    default: return -1;
    }
}

/* Whether a buffer's elements have the size and the alignment of this dtype. */
static bool is_row(const Py_buffer *view, int type)
{
    const size_t bytes = type < 0 ? 0 : element_bytes((dtype)type);
    return bytes && (size_t)view->itemsize == bytes && (uintptr_t)view->buf % bytes == 0;
}

bool get_pair(pair *p, PyObject *from, PyObject *to)
{
    const int how = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    p->same = from == to;
    if (PyObject_GetBuffer(from, &p->x, p->same ? how | PyBUF_WRITABLE : how) < 0)
        return false;
    if (!p->same && PyObject_GetBuffer(to, &p->out, how | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(&p->x);
        return false;
    }
    p->type = dtype_of(&p->x);
    if (is_row(&p->x, p->type)
        && (p->same || (dtype_of(&p->out) == p->type && is_row(&p->out, p->type))))
        return true;
    release_pair(p);
    return false;
}

void release_pair(pair *p)
{
    PyBuffer_Release(&p->x);
    if (!p->same)
        PyBuffer_Release(&p->out);
}

bool are_apart(const pair *p)
{
    const char *x = p->x.buf, *out = p->out.buf;
    return x + p->x.len <= out || out + p->out.len <= x;
}

bool same_lengths(const Py_buffer *x, int from, const Py_buffer *out, int to)
{
    if (x->ndim - from != out->ndim - to)
        return false;
    for (; from < x->ndim; from++, to++)
        if (x->shape[from] != out->shape[to])
            return false;
    return true;
}

PyObject *not_plain(void)
{
    /* The caller tries again in Python, and reports what the arrays are. */
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

/* Whether the core can reduce one into the other. */
static bool is_reducible(const pair *p, long reduction, uint32_t rows, bool leading)
{
    if (p->type == BOOL && reduction == MEAN)
        return false;
    if (leading && (p->x.ndim < 1 || p->x.shape[0] != (Py_ssize_t)rows))
        return false;
    return p->same
           || (same_lengths(&p->x, 0, &p->out, 0)
               && (p->x.buf == p->out.buf || are_apart(p)));
}

/* Memory that an array takes up. */
typedef struct {
    uintptr_t begin, end;
    bool written;
} stretch;

/* Arrays as their buffers, and the segments that the core makes of them. */
typedef struct {
    Py_ssize_t count;
    pair *pairs;
    char **addresses;
    segment *segments;
    stretch *stretches; /* room for two of each array */
    uint64_t shapes_hash;
} plain_arrays;

static void let_go(plain_arrays *p)
{
    for (Py_ssize_t i = 0; i < p->count; i++)
        release_pair(&p->pairs[i]);
}

/* Append the array in the last buffers as a segment. */
static void add_segment(plain_arrays *p, uint32_t rows, bool leading)
{
    const Py_ssize_t i = p->count;
    const Py_buffer *x = &p->pairs[i].x;
    char *from = x->buf, *to = p->pairs[i].same ? from : p->pairs[i].out.buf;
    const uint64_t row = (uint64_t)x->len / rows;
    char **in_rows = p->addresses + 2 * (uint64_t)i * rows, **out_rows = in_rows + rows;
    for (uint32_t r = 0; r < rows; r++) {
        in_rows[r] = from + r * row;
        out_rows[r] = to + r * row;
    }
    p->segments[i] = (segment){row / (uint64_t)x->itemsize, in_rows, out_rows};
    p->shapes_hash = hash_with_shape(p->shapes_hash, x->shape + leading, x->ndim - leading);
    p->count++;
}

/* Add one more array, if it is plain and of the same dtype as those before. */
static bool add_array(plain_arrays *p, PyObject *from, PyObject *to,
                      const replica_split *split, long reduction, bool leading)
{
    const uint32_t rows = split->rows[split->rank];
    pair *added = &p->pairs[p->count];
    if (!get_pair(added, from, to))
        return false;
    if (!is_reducible(added, reduction, rows, leading) || added->type != p->pairs[0].type) {
        release_pair(added);
        return false;
    }
    add_segment(p, rows, leading);
    return true;
}

static PyObject *reduce_plain(CommObject *self, const replica_split *split, plain_arrays *p,
                              long reduction, int wanted)
{
    call k = call_of(&self->c, split, ALL_REDUCE, p->pairs[0].type, reduction);
    k.segments = p->segments;
    k.count_of_segments = (uint32_t)p->count;
    k.shapes_hash = p->shapes_hash;
    for (Py_ssize_t i = 0; i < p->count; i++)
        k.total += p->segments[i].count;
    return comm_reduce(self, &k, wanted);
}

PyObject *reduce_arrays(PyObject *object, PyObject *split_object, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = split_of(split_object);
    pair only;
    char *few[2 * FEW_ROWS];
    segment whole;
    const uint32_t rows = split->rows[split->rank];
    char **addresses = rows > FEW_ROWS ? PyMem_Calloc(2 * (size_t)rows, sizeof *few) : few;
    plain_arrays p = {.pairs = &only, .addresses = addresses, .segments = &whole};
    PyObject *result = NULL;
    const bool plain = addresses && !self->queued 
                       && add_array(&p, from, to, split, reduction, leading);
    if (plain)
        result = reduce_plain(self, split, &p, reduction, wanted);
    let_go(&p);
    if (addresses != few)
        PyMem_Free(addresses);
    return plain ? result : not_plain();
}

PyObject *reduce_memory(PyObject *object, PyObject *split_object, uint64_t address,
                        uint64_t count, int type, int reduction, int wanted,
                        bool in_turn)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = split_of(split_object);
    char *row = (char *)(uintptr_t)address;
    if ((self->queued && !in_turn) || split->rows[split->rank] != 1)
        Py_RETURN_NOTIMPLEMENTED;
    call k = call_of(&self->c, split, ALL_REDUCE, type, reduction);
    return comm_reduce_row(self, &k, wanted, row, row, count);
}

static int by_begin(const void *one, const void *other)
{
    const uintptr_t a = ((const stretch *)one)->begin, b = ((const stretch *)other)->begin;
    return (a > b) - (a < b);
}

/* Whether a result would overwrite memory that another array reads or writes. */
static bool overlapping(plain_arrays *p)
{
    size_t many = 0;
    for (Py_ssize_t i = 0; i < p->count; i++) {
        const uintptr_t length = (uintptr_t)p->pairs[i].x.len;
        const uintptr_t from = (uintptr_t)p->segments[i].in[0];
        const uintptr_t to = (uintptr_t)p->segments[i].out[0];
        if (length && from != to)
            p->stretches[many++] = (stretch){from, from + length, false};
        if (length)
            p->stretches[many++] = (stretch){to, to + length, true};
    }
    qsort(p->stretches, many, sizeof *p->stretches, by_begin);
    uintptr_t used = 0, written = 0; /* the ends of all stretches that begin before */
    for (size_t i = 0; i < many; i++) {
        const stretch s = p->stretches[i];
        if (s.begin < written || (s.written && s.begin < used))
            return true;
        used = s.end > used ? s.end : used;
        written = s.written && s.end > written ? s.end : written;
    }
    return false;
}

/* Add all arrays of two lists. False if one is not plain, results would overlap other
 * arrays, or memory is short. */
static bool add_all(plain_arrays *p, PyObject *from, PyObject *to, Py_ssize_t count,
                     const replica_split *split, long reduction, bool leading)
{
    const size_t many = (size_t)count;
    p->pairs = PyMem_Calloc(many, sizeof *p->pairs);
    p->segments = PyMem_Calloc(many, sizeof *p->segments);
    p->stretches = PyMem_Calloc(2 * many, sizeof *p->stretches);
    p->addresses = PyMem_Calloc(2 * many * split->rows[split->rank], sizeof(char *));
    bool plain = p->pairs && p->segments && p->stretches && p->addresses;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        PyObject *one = PySequence_GetItem(from, i), *other = PySequence_GetItem(to, i);
        /* The buffers keep the arrays. */
        plain = one && other && add_array(p, one, other, split, reduction, leading);
        Py_XDECREF(one);
        Py_XDECREF(other);
    }
    return plain && !overlapping(p);
}

static void free_all(plain_arrays *p)
{
    let_go(p);
    PyMem_Free(p->pairs);
    PyMem_Free(p->segments);
    PyMem_Free(p->stretches);
    PyMem_Free(p->addresses);
}

PyObject *reduce_lists(PyObject *object, PyObject *split_object, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = split_of(split_object);
    const Py_ssize_t count = PySequence_Size(from);
    plain_arrays p = {.count = 0};
    PyObject *result;
    if (count > 0 && count == PySequence_Size(to) && !self->queued
        && add_all(&p, from, to, count, split, reduction, leading))
        result = reduce_plain(self, split, &p, reduction, wanted);
    else
        result = not_plain();
    free_all(&p);
    return result;
}
