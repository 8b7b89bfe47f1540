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

/* Arrays as their buffers, and the segments that the core makes of them. */
typedef struct {
    Py_ssize_t count;
    pair *pairs;
    segment *segments;
    stretch *stretches; /* room for two of each array */
    char **addresses;   /* room for two of each row */
    uint64_t total, shapes_hash;
} plain_arrays;

/* Make room for so many arrays in one block, which the caller frees. */
static void *make_room(plain_arrays *p, size_t count, size_t rows)
{
    void *room = PyMem_Malloc(count * (sizeof *p->pairs + sizeof *p->segments
                                       + 2 * sizeof *p->stretches
                                       + 2 * rows * sizeof *p->addresses));
    if (!room)
        return NULL;
    p->pairs = room;
    p->segments = (segment *)(p->pairs + count);
    p->stretches = (stretch *)(p->segments + count);
    p->addresses = (char **)(p->stretches + 2 * count);
    return room;
}

/* Whether the core can reduce one into the other, if they do not overlap. */
static bool is_reducible(const pair *p, long reduction, uint32_t rows, bool leading)
{
    if (p->type == BOOL && reduction == MEAN)
        return false;
    if (leading && (p->x.ndim < 1 || p->x.shape[0] != (Py_ssize_t)rows))
        return false;
    return p->same || same_lengths(&p->x, 0, &p->out, 0);
}

/* Append the array in the last buffers as a segment. */
static void add_segment(plain_arrays *p, uint32_t rows, bool leading)
{
    const Py_ssize_t i = p->count;
    const Py_buffer *x = &p->pairs[i].x;
    char *from = x->buf, *to = p->pairs[i].same ? from : p->pairs[i].out.buf;
    const uint64_t row = (uint64_t)x->len / rows, count = row / (uint64_t)x->itemsize;
    char **in_rows = p->addresses + 2 * (uint64_t)i * rows, **out_rows = in_rows + rows;
    for (uint32_t r = 0; r < rows; r++) {
        in_rows[r] = from + r * row;
        out_rows[r] = to + r * row;
    }
    p->segments[i] = (segment){count, in_rows, out_rows};
    p->shapes_hash = hash_with_shape(p->shapes_hash, x->shape + leading, x->ndim - leading);
    p->total += count;
    p->count++;
}

/* Add one more array, if it is plain and of the same dtype as those before. */
static bool add_array(plain_arrays *p, PyObject *from, PyObject *to, uint32_t rows,
                      long reduction, bool leading)
{
    pair *added = &p->pairs[p->count];
    if (!get_pair(added, from, to))
        return false;
    if (is_reducible(added, reduction, rows, leading) && added->type == p->pairs[0].type) {
        add_segment(p, rows, leading);
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

static PyObject *reduce_plain(CommObject *self, const replica_split *split,
                              const plain_arrays *p, long reduction, int wanted)
{
    call k = call_of(&self->c, split, ALL_REDUCE, p->pairs[0].type, reduction);
    k.segments = p->segments;
    k.count_of_segments = (uint32_t)p->count;
    k.total = p->total;
    k.shapes_hash = p->shapes_hash;
    return comm_reduce(self, &k, wanted);
}

PyObject *plain_reduce(const ReducerObject *group, PyObject *from, PyObject *to, bool lists,
                       long reduction, int wanted)
{
    CommObject *self = group->comm;
    const replica_split *split = split_of(group->split);
    const uint32_t rows = split->rows[split->rank];
    const Py_ssize_t count = lists ? PySequence_Size(from) : 1;
    struct {
        pair pair;
        segment segment;
        stretch stretches[2];
        char *addresses[2 * FEW_ROWS];
    } one;
    plain_arrays p = {0, &one.pair, &one.segment, one.stretches, one.addresses, 0, 0};
    const bool fits = count == 1 && rows <= FEW_ROWS;
    if (count < 1 || (lists && PySequence_Size(to) != count) || self->queued)
        return not_plain();
    void *room = fits ? NULL : make_room(&p, (size_t)count, rows);
    bool plain = fits || room;
    for (Py_ssize_t i = 0; plain && i < count; i++) {
        PyObject *source = lists ? PySequence_GetItem(from, i) : Py_NewRef(from);
        PyObject *target = lists ? PySequence_GetItem(to, i) : Py_NewRef(to);
        plain = source && target && add_array(&p, source, target, rows, reduction, group->leading);
        /* The buffers keep the arrays. */
        Py_XDECREF(source);
        Py_XDECREF(target);
    }
    plain = plain && !overlapping(&p);
    PyObject *result = plain ? reduce_plain(self, split, &p, reduction, wanted) : not_plain();
    for (Py_ssize_t i = 0; i < p.count; i++)
        release_pair(&p.pairs[i]);
    PyMem_Free(room);
    return result;
}
