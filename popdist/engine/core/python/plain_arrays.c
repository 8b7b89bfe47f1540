/* The fast way in: arrays as they lie in their buffers. */
#include "python/plain_arrays.h"

#include "python/comm_object.h"

#include <stdlib.h>
#include <string.h>

int dtype_of(const Py_buffer *view)
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

static bool same_shape(const Py_buffer *x, const Py_buffer *out)
{
    if (x->ndim != out->ndim)
        return false;
    for (int i = 0; i < x->ndim; i++)
        if (x->shape[i] != out->shape[i])
            return false;
    return true;
}

/* Whether two buffers are alike, and either the same place or apart. */
static bool simple_pair(const Py_buffer *x, const Py_buffer *out)
{
    const char *a = x->buf, *b = out->buf;
    return same_shape(x, out) && dtype_of(x) == dtype_of(out)
           && (a == b || a + x->len <= b || b + out->len <= a);
}

static void release(Py_buffer *x, Py_buffer *out, bool same)
{
    PyBuffer_Release(x);
    if (!same)
        PyBuffer_Release(out);
}

/* Whether the core can take them as they are. */
static bool fits(const Py_buffer *x, const Py_buffer *out, bool same, int type,
                 long reduction, uint32_t rows, bool leading)
{
    if (type < 0 || (type == BOOL && reduction == MEAN)
        || (size_t)x->itemsize != element_bytes((dtype)type)
        || (uintptr_t)x->buf % (size_t)x->itemsize != 0)
        return false;
    if (leading && (x->ndim < 1 || x->shape[0] != (Py_ssize_t)rows))
        return false;
    return same
           || ((uintptr_t)out->buf % (size_t)x->itemsize == 0 && simple_pair(x, out));
}

/* Memory that an array takes up. */
typedef struct {
    uintptr_t begin, end;
    bool written;
} stretch;

/* Arrays as their buffers, and the segments that the core makes of them. */
typedef struct {
    Py_ssize_t count;
    Py_buffer *x, *out;
    bool *same;
    char **addresses;
    segment *segments;
    stretch *stretches; /* room for two of each array */
    uint64_t bytes, shapes_hash;
} plain_arrays;

static void let_go(plain_arrays *p)
{
    for (Py_ssize_t i = 0; i < p->count; i++)
        release(&p->x[i], &p->out[i], p->same[i]);
}

/* Put down an array whose buffers are there as the next segment. */
static void add_segment(plain_arrays *p, uint32_t rows, bool leading)
{
    const Py_ssize_t i = p->count;
    const Py_buffer *x = &p->x[i];
    char *from = x->buf, *to = p->same[i] ? x->buf : p->out[i].buf;
    const uint64_t row = (uint64_t)x->len / rows;
    char **in_rows = p->addresses + 2 * (uint64_t)i * rows, **out_rows = in_rows + rows;
    for (uint32_t r = 0; r < rows; r++) {
        in_rows[r] = from + r * row;
        out_rows[r] = to + r * row;
    }
    p->segments[i] = (segment){row / (uint64_t)x->itemsize, in_rows, out_rows};
    p->shapes_hash = hash_with_shape(p->shapes_hash, x->shape + leading, x->ndim - leading);
    p->bytes += (uint64_t)x->len;
    p->count++;
}

/* Take one more array, if it is plain and of the same dtype as those before. */
static bool take(plain_arrays *p, PyObject *from, PyObject *to, const replica_split *split,
                 long reduction, bool leading)
{
    const int how = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    const uint32_t rows = split->rows[split->rank];
    const Py_ssize_t i = p->count;
    Py_buffer *x = &p->x[i], *out = &p->out[i];
    const bool same = p->same[i] = from == to;
    if (PyObject_GetBuffer(from, x, same ? how | PyBUF_WRITABLE : how) < 0)
        return false;
    if (!same && PyObject_GetBuffer(to, out, how | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(x);
        return false;
    }
    const int type = dtype_of(x);
    if (!fits(x, out, same, type, reduction, rows, leading)
        || (i > 0 && type != dtype_of(&p->x[0]))) {
        release(x, out, same);
        return false;
    }
    add_segment(p, rows, leading);
    return true;
}

static PyObject *reduce_plain(CommObject *self, const replica_split *split, plain_arrays *p,
                              long reduction, int wanted)
{
    call k = call_of(&self->c, split, ALL_REDUCE, dtype_of(&p->x[0]), reduction);
    k.segments = p->segments;
    k.count_of_segments = (uint32_t)p->count;
    k.shapes_hash = p->shapes_hash;
    for (Py_ssize_t i = 0; i < p->count; i++)
        k.total += p->segments[i].count;
    if (!enter(self, p->bytes))
        return NULL;
    prepare(&k, wanted);
    return leave(self, reduce_counted(self, &k));
}

PyObject *reduce_arrays(PyObject *object, PyObject *given, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = ((SplitObject *)given)->split;
    Py_buffer x, out;
    bool same;
    char *few[2 * FEW_ROWS];
    segment whole;
    const uint32_t rows = split->rows[split->rank];
    char **addresses = rows > FEW_ROWS ? PyMem_Calloc(2 * (size_t)rows, sizeof *few) : few;
    plain_arrays p = {.x = &x, .out = &out, .same = &same, .addresses = addresses,
                      .segments = &whole};
    PyObject *result = NULL;
    const bool plain = addresses && !self->queued && take(&p, from, to, split, reduction, leading);
    if (plain)
        result = reduce_plain(self, split, &p, reduction, wanted);
    let_go(&p);
    if (addresses != few)
        PyMem_Free(addresses);
    if (plain)
        return result;
    /* The caller's next attempt, in Python, finds out what they are and reports it. */
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

PyObject *reduce_memory(PyObject *object, PyObject *given, uint64_t address,
                        uint64_t count, int type, int reduction, int wanted,
                        bool in_turn)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = ((SplitObject *)given)->split;
    char *row = (char *)(uintptr_t)address;
    const ssize_t length = (ssize_t)count;
    const segment whole = {count, &row, &row};
    if ((self->queued && !in_turn) || split->rows[split->rank] != 1)
        Py_RETURN_NOTIMPLEMENTED;
    call k = call_of(&self->c, split, ALL_REDUCE, type, reduction);
    k.segments = &whole;
    k.count_of_segments = 1;
    k.total = count;
    k.shapes_hash = hash_with_shape(0, &length, 1);
    if (!enter(self, count * element_bytes(k.type)))
        return NULL;
    prepare(&k, wanted);
    return leave(self, reduce_counted(self, &k));
}

static int by_begin(const void *one, const void *other)
{
    const uintptr_t a = ((const stretch *)one)->begin, b = ((const stretch *)other)->begin;
    return (a > b) - (a < b);
}

/* Whether a result would be written over what another array reads or writes. */
static bool crossing(plain_arrays *p)
{
    size_t many = 0;
    for (Py_ssize_t i = 0; i < p->count; i++) {
        const uintptr_t length = (uintptr_t)p->x[i].len;
        const uintptr_t from = (uintptr_t)p->segments[i].in[0];
        const uintptr_t to = (uintptr_t)p->segments[i].out[0];
        if (length && from != to)
            p->stretches[many++] = (stretch){from, from + length, false};
        if (length)
            p->stretches[many++] = (stretch){to, to + length, true};
    }
    qsort(p->stretches, many, sizeof *p->stretches, by_begin);
    uintptr_t used = 0, written = 0; /* up to where, by those that begin before */
    for (size_t i = 0; i < many; i++) {
        const stretch s = p->stretches[i];
        if (s.begin < written || (s.written && s.begin < used))
            return true;
        used = s.end > used ? s.end : used;
        written = s.written && s.end > written ? s.end : written;
    }
    return false;
}

/* Take all arrays of two lists. False where one is not plain, results would cross
 * other arrays, or memory is short. */
static bool take_all(plain_arrays *p, PyObject *from, PyObject *to, Py_ssize_t count,
                     const replica_split *split, long reduction, bool leading)
{
    const size_t many = (size_t)count;
    p->x = PyMem_Calloc(many, sizeof *p->x);
    p->out = PyMem_Calloc(many, sizeof *p->out);
    p->same = PyMem_Calloc(many, sizeof *p->same);
    p->segments = PyMem_Calloc(many, sizeof *p->segments);
    p->stretches = PyMem_Calloc(2 * many, sizeof *p->stretches);
    p->addresses = PyMem_Calloc(2 * many * split->rows[split->rank], sizeof(char *));
    bool plain = p->x && p->out && p->same && p->segments && p->stretches && p->addresses;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        PyObject *one = PySequence_GetItem(from, i), *other = PySequence_GetItem(to, i);
        /* The buffers keep the arrays. */
        plain = one && other && take(p, one, other, split, reduction, leading);
        Py_XDECREF(one);
        Py_XDECREF(other);
    }
    return plain && !crossing(p);
}

static void free_all(plain_arrays *p)
{
    let_go(p);
    PyMem_Free(p->x);
    PyMem_Free(p->out);
    PyMem_Free(p->same);
    PyMem_Free(p->segments);
    PyMem_Free(p->stretches);
    PyMem_Free(p->addresses);
}

PyObject *reduce_lists(PyObject *object, PyObject *given, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const replica_split *split = ((SplitObject *)given)->split;
    const Py_ssize_t count = PySequence_Size(from);
    plain_arrays p = {.count = 0};
    PyObject *result = NULL;
    if (count > 0 && count == PySequence_Size(to) && !self->queued
        && take_all(&p, from, to, count, split, reduction, leading))
        result = reduce_plain(self, split, &p, reduction, wanted);
    else {
        PyErr_Clear();
        Py_INCREF(Py_NotImplemented);
        result = Py_NotImplemented;
    }
    free_all(&p);
    return result;
}
