/* The entry points without a Python frame: arrays as they lie in their buffers. */
#include "python/plain_arrays.h"

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

/* Memory that an array takes up. */
typedef struct {
    uintptr_t begin, end;
    bool written;
} stretch;

/* Arrays as their buffers. */
typedef struct {
    Py_ssize_t count;
    pair *pairs;
    stretch *stretches; /* room for two of each array */
} plain_arrays;

/* Whether the core can reduce one into the other, if they do not overlap. */
static bool is_reducible(const pair *p, long reduction, uint32_t rows, bool leading)
{
    if (p->type == BOOL && reduction == MEAN)
        return false;
    if (leading && (p->x.ndim < 1 || p->x.shape[0] != (Py_ssize_t)rows))
        return false;
    return p->same || same_lengths(&p->x, 0, &p->out, 0);
}

/* Add the arrays in two buffers to a reduction. */
static void add_pair(reduction_call *r, const pair *p, bool leading)
{
    const Py_buffer *x = &p->x;
    char *from = x->buf, *to = p->same ? from : p->out.buf;
    const uint64_t bytes = (uint64_t)x->len / r->rows;
    for (uint32_t row = 0; row < r->rows; row++) {
        r->next[row] = from + row * bytes;
        r->next[r->rows + row] = to + row * bytes;
    }
    r->k.shapes_hash = hash_with_shape(r->k.shapes_hash, x->shape + leading,
                                       x->ndim - leading);
    reduction_add(r, bytes / (uint64_t)x->itemsize);
}

/* Add one more array, if it is plain and of the same dtype as those before. */
static bool add_array(plain_arrays *p, reduction_call *r, PyObject *from, PyObject *to,
                      bool leading)
{
    pair *added = &p->pairs[p->count];
    if (!get_pair(added, from, to))
        return false;
    if (p->count == 0)
        r->k.type = (dtype)added->type;
    if (is_reducible(added, r->k.reduction, r->rows, leading)
        && added->type == p->pairs[0].type) {
        add_pair(r, added, leading);
        p->count++;
        return true;
    }
    release_pair(added);
    return false;
}

static int by_begin(const void *one, const void *other)
{
    const uintptr_t a = ((const stretch *)one)->begin, b = ((const stretch *)other)->begin;
    return (a > b) - (a < b);
}

/* Whether a result would overwrite memory that another array reads or writes. */
static bool overlapping(const plain_arrays *p, const array_rows *arrays)
{
    size_t many = 0;
    for (Py_ssize_t i = 0; i < p->count; i++) {
        const uintptr_t length = (uintptr_t)p->pairs[i].x.len;
        const uintptr_t from = (uintptr_t)arrays[i].in[0];
        const uintptr_t to = (uintptr_t)arrays[i].out[0];
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

PyObject *plain_reduce(const ReducerObject *group, PyObject *from, PyObject *to, bool lists,
                       long reduction, int wanted)
{
    CommObject *self = group->comm;
    const Py_ssize_t count = lists ? PySequence_Size(from) : 1;
    if (count < 1 || (lists && PySequence_Size(to) != count) || self->queued)
        return not_plain();
    pair one;
    stretch two[2];
    plain_arrays p = {0, &one, two};
    void *room = NULL;
    if (count > 1) {
        room = PyMem_Malloc((size_t)count * (sizeof *p.pairs + 2 * sizeof *p.stretches));
        p.pairs = room;
        p.stretches = (stretch *)(p.pairs + count);
    }
    reduction_call r;
    const replica_split *split = split_of(group->split);
    bool plain = reduction_begin(&r, &self->c, split, ALL_REDUCE, 0, reduction, (size_t)count)
                 && (count == 1 || room);
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        PyObject *source = lists ? PySequence_GetItem(from, i) : Py_NewRef(from);
        PyObject *target = lists ? PySequence_GetItem(to, i) : Py_NewRef(to);
        plain = source && target && add_array(&p, &r, source, target, group->leading);
        /* The buffers keep the arrays. */
        Py_XDECREF(source);
        Py_XDECREF(target);
    }
    plain = plain && !overlapping(&p, r.arrays);
    PyObject *result = plain ? comm_reduce(self, &r.k, wanted) : not_plain();
    for (Py_ssize_t i = 0; i < p.count; i++)
        release_pair(&p.pairs[i]);
    reduction_free(&r);
    PyMem_Free(room);
    return result;
}
