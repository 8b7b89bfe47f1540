#include "python/binding.h"

#include "python/segments.h"

/* numpy's arrays have at most 64 axes. */
enum { MOST_AXES = 64 };

static void free_segments(const segment *segments, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; segments && i < count; i++) {
        PyMem_Free((void *)(uintptr_t)segments[i].in);
        PyMem_Free((void *)(uintptr_t)segments[i].out);
    }
    PyMem_Free((void *)(uintptr_t)segments);
}

static char **addresses_from(PyObject *sequence, uint32_t rows)
{
    uint64_t *found = PyMem_Calloc(rows, sizeof *found);
    if (!found)
        return (char **)PyErr_NoMemory();
    Py_ssize_t count = numbers_from(sequence, found, rows);
    if (count == (Py_ssize_t)rows)
        return (char **)found;
    if (count >= 0)
        PyErr_Format(PyExc_ValueError, "%zd addresses are given, but there are %u rows.",
                     count, rows);
    PyMem_Free(found);
    return NULL;
}

static bool segment_from(PyObject *item, uint32_t rows, segment *to)
{
    unsigned long long count;
    PyObject *in, *out;
    if (!PyArg_ParseTuple(item, "KOO", &count, &in, &out))
        return false;
    to->count = count;
    to->in = addresses_from(in, rows);
    to->out = to->in && out != Py_None ? addresses_from(out, rows) : NULL;
    return to->in && (to->out || out == Py_None);
}

static segment *segments_from(PyObject *list, const layout *l, Py_ssize_t count,
                              uint64_t *total)
{
    segment *segments = PyMem_Calloc((size_t)count + 1, sizeof *segments);
    if (!segments)
        return (segment *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        bool read = item && segment_from(item, l->rows[l->rank], &segments[i]);
        Py_XDECREF(item);
        if (!read) {
            free_segments(segments, count);
            return NULL;
        }
        *total += segments[i].count;
    }
    return segments;
}

bool shape_from(PyObject *shapes, uint64_t *shape)
{
    uint64_t found[MOST_AXES];
    ssize_t lengths[MOST_AXES];
    const Py_ssize_t count = PySequence_Size(shapes);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(shapes, i);
        Py_ssize_t axes = item ? numbers_from(item, found, MOST_AXES) : -1;
        Py_XDECREF(item);
        if (axes < 0)
            return false;
        for (Py_ssize_t axis = 0; axis < axes; axis++)
            lengths[axis] = (ssize_t)found[axis];
        *shape = add_shape(*shape, lengths, (int)axes);
    }
    return count >= 0;
}

bool find_segments(call *k, PyObject *list, PyObject *shapes)
{
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0 || !shape_from(shapes, &k->shape))
        return false;
    k->count_of_segments = (uint32_t)count;
    k->segments = segments_from(list, k->l, count, &k->total);
    return k->segments;
}

void give_back_segments(const call *k)
{
    free_segments(k->segments, k->count_of_segments);
}
