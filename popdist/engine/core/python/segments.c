/* The general entry point: arrays given by the addresses of their rows. */
#include "python/binding.h"

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

uint64_t *addresses_from(PyObject *list, uint64_t count, const char *what)
{
    uint64_t *addresses = PyMem_Calloc(count + 1, sizeof *addresses);
    const Py_ssize_t given =
        addresses ? numbers_from(list, addresses, (Py_ssize_t)count) : -1;
    if (addresses && given == (Py_ssize_t)count)
        return addresses;
    if (!addresses)
        PyErr_NoMemory();
    else if (given >= 0)
        PyErr_Format(PyExc_ValueError, "%zd addresses of %s are given, but there are %llu.",
                     given, what, (unsigned long long)count);
    PyMem_Free(addresses);
    return NULL;
}

static bool segment_from(PyObject *item, uint32_t rows, segment *to)
{
    unsigned long long count;
    PyObject *in, *out;
    if (!PyArg_ParseTuple(item, "KOO", &count, &in, &out))
        return false;
    to->count = count;
    to->in = (char **)addresses_from(in, rows, "rows");
    to->out = to->in && out != Py_None ? (char **)addresses_from(out, rows, "rows") : NULL;
    return to->in && (to->out || out == Py_None);
}

static segment *segments_from(PyObject *list, const replica_split *split, Py_ssize_t count,
                              uint64_t *total)
{
    segment *segments = PyMem_Calloc((size_t)count + 1, sizeof *segments);
    if (!segments)
        return (segment *)PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        bool read = item && segment_from(item, split->rows[split->rank], &segments[i]);
        Py_XDECREF(item);
        if (!read) {
            free_segments(segments, count);
            return NULL;
        }
        *total += segments[i].count;
    }
    return segments;
}

bool hash_shapes(PyObject *shapes, uint64_t *hash)
{
    uint64_t axis_lengths[MOST_AXES];
    ssize_t lengths[MOST_AXES];
    const Py_ssize_t count = PySequence_Size(shapes);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(shapes, i);
        Py_ssize_t axes = item ? numbers_from(item, axis_lengths, MOST_AXES) : -1;
        Py_XDECREF(item);
        if (axes < 0)
            return false;
        for (Py_ssize_t axis = 0; axis < axes; axis++)
            lengths[axis] = (ssize_t)axis_lengths[axis];
        *hash = hash_with_shape(*hash, lengths, (int)axes);
    }
    return count >= 0;
}

bool find_segments(call *k, PyObject *list, PyObject *shapes)
{
    const Py_ssize_t count = PySequence_Size(list);
    if (count < 0 || !hash_shapes(shapes, &k->shapes_hash))
        return false;
    k->count_of_segments = (uint32_t)count;
    k->segments = segments_from(list, k->split, count, &k->total);
    return k->segments;
}

void give_back_segments(const call *k)
{
    free_segments(k->segments, k->count_of_segments);
}
