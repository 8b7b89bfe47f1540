/* The calls of a member's endpoint: each is described by a table. */
#include "python/call_table.h"
#include "python/comm_object.h"

#include "hosts/reduce.h"
#include "move/exchange.h"

#include <string.h>

/* TensorFlow's tensors have at most 254 axes, numpy's arrays 64. */
enum { MOST_AXES = 254 };

typedef struct {
    call_head head;
    const uint64_t *lengths;
    const uint64_t *at, *end; /* the arrays that are still to be read */
} call_table;

/* One array of a table. */
typedef struct {
    uint64_t count; /* elements of a row */
    const uint64_t *sources, *targets;
} table_array;

static bool table_open(call_table *t, const Py_buffer *view)
{
    const size_t head_words = sizeof t->head / sizeof(uint64_t);
    const size_t words = (size_t)view->len / sizeof(uint64_t);
    const call_head *h = &t->head;
    const uint64_t *begin = view->buf;
    bool is_valid = words >= head_words && (uintptr_t)begin % sizeof *begin == 0;
    if (is_valid)
        memcpy(&t->head, begin, sizeof t->head);
    is_valid = is_valid && h->operation >= 0 && h->operation < NEGOTIATION && h->dtype >= 0
               && h->dtype < DTYPES && h->reduction >= 0 && h->reduction <= REDUCTIONS
               && h->num_lengths <= words - head_words && h->num_sources <= MAX_LEAVES
               && h->num_targets <= MAX_LEAVES;
    if (!is_valid) {
        PyErr_SetString(PyExc_ValueError, "The table is not one of a call.");
        return false;
    }
    t->lengths = begin + head_words;
    t->at = t->lengths + h->num_lengths;
    t->end = begin + words;
    return true;
}

/* Read the next array, and mix its axes into a hash. False, with an exception, if the
 * table ends within it. */
static bool table_next(call_table *t, table_array *array, uint64_t *shapes_hash)
{
    const uint64_t rows = t->head.num_sources + t->head.num_targets;
    const uint64_t axes = t->at < t->end ? *t->at++ : MOST_AXES + 1;
    ssize_t axis_lengths[MOST_AXES];
    if (axes > MOST_AXES || (uint64_t)(t->end - t->at) < axes + rows) {
        PyErr_SetString(PyExc_ValueError, "The table of arrays ends within one.");
        return false;
    }
    array->count = 1;
    for (uint64_t axis = 0; axis < axes; axis++) {
        axis_lengths[axis] = (ssize_t)t->at[axis];
        array->count *= t->at[axis];
    }
    *shapes_hash = hash_with_shape(*shapes_hash, axis_lengths, (int)axes);
    array->sources = t->at + axes;
    array->targets = array->sources + t->head.num_sources;
    t->at += axes + rows;
    return true;
}

static char *pointer(uint64_t address)
{
    return (char *)(uintptr_t)address;
}

/* --- Reductions */

/* Read all arrays as segments, with room for their addresses. */
static bool read_segments(call *k, call_table *t, segment *to, char **addresses)
{
    const uint64_t rows = t->head.num_sources, targets = t->head.num_targets;
    table_array array;
    k->segments = to;
    while (t->at < t->end) {
        if (!table_next(t, &array, &k->shapes_hash))
            return false;
        for (uint64_t row = 0; row < rows; row++) {
            addresses[row] = pointer(array.sources[row]);
            addresses[rows + row] = pointer(array.targets[targets > 1 ? row : 0]);
        }
        *to++ = (segment){array.count, addresses, addresses + rows};
        addresses += 2 * rows;
        k->total += array.count;
        k->count_of_segments++;
    }
    return true;
}

/* Carry a reduction out, and count its algorithm. */
static status reduce_segments(CommObject *self, call *k, int wanted)
{
    if (k->op != REDUCE_SCATTER) {
        reduce_prepare(k, wanted);
        return reduce_counted(self, k);
    }
    /* The only array has one target, for all of this member's shares. */
    const segment whole = {k->segments->count, k->segments->in, NULL};
    char *out = k->segments->out[0];
    k->segments = &whole;
    return k->split->over_hosts ? reduce_over_hosts(k, out) : reduce_scatter(k, out);
}

static PyObject *make_reduction(CommObject *self, const replica_split *split, call_table *t)
{
    const call_head *h = &t->head;
    const uint32_t rows = split->rows[split->rank];
    if (h->num_sources != rows || (h->num_targets != 1 && h->num_targets != rows))
        return PyErr_Format(PyExc_ValueError,
                            "The table has %llu rows to read and %llu to write of each array, "
                            "but this member has %u.", (unsigned long long)h->num_sources,
                            (unsigned long long)h->num_targets, rows);
    call k = call_of(&self->c, split, (operation)h->operation, (int)h->dtype, (long)h->reduction);
    k.root = (int)h->root;
    k.name = h->name;
    const size_t most = (size_t)(t->end - t->at) / (1 + rows + h->num_targets);
    segment *segments = PyMem_Calloc(most + 1, sizeof *segments);
    char **addresses = PyMem_Calloc(2 * rows * most + 1, sizeof *addresses);
    PyObject *result = NULL;
    if (!segments || !addresses)
        PyErr_NoMemory();
    else if (read_segments(&k, t, segments, addresses)
             && enter(self, k.total * element_bytes(k.type) * rows))
        result = leave(self, reduce_segments(self, &k, (int)h->algorithm));
    PyMem_Free(segments);
    PyMem_Free(addresses);
    return result;
}

/* --- Exchanges */

static PyObject *make_exchange(CommObject *self, const call_table *t, const table_array *array,
                               uint64_t shapes_hash)
{
    const call_head *h = &t->head;
    uint64_t all = 0;
    if (h->num_lengths != (uint64_t)self->c.size)
        return PyErr_Format(PyExc_ValueError, "%llu lengths are given for %d members.",
                            (unsigned long long)h->num_lengths, self->c.size);
    for (uint64_t i = 0; i < h->num_lengths; i++)
        all += t->lengths[i];
    const exchange x = {
        .c = &self->c,
        .op = (operation)h->operation,
        .prelude_to = (operation)h->prelude_to,
        .type = (dtype)h->dtype,
        .name = h->name,
        .root = (int)h->root,
        .lengths = t->lengths,
        .shapes_hash = shapes_hash,
        .in = pointer(array->sources[0]),
        .out = pointer(array->targets[0]),
    };
    if (!enter_step(self, all))
        return NULL;
    return leave(self, exchange_run(&x));
}

static PyObject *make_message(CommObject *self, const call_head *h, const table_array *array)
{
    const dtype type = (dtype)h->dtype;
    const uint64_t bytes = array->count * element_bytes(type);
    char *row = pointer(array->sources[0]);
    if (h->root < 0 || h->root >= self->c.size)
        return PyErr_Format(PyExc_ValueError, "The group has no member %lld.",
                            (long long)h->root);
    if (!enter_step(self, bytes))
        return NULL;
    return leave(self, h->operation == SEND
                           ? send_message(&self->c, (int)h->root, type, row, bytes)
                           : receive_message(&self->c, (int)h->root, type, row, bytes));
}

static PyObject *make_step(CommObject *self, call_table *t)
{
    const call_head *h = &t->head;
    table_array array;
    uint64_t shapes_hash = 0;
    if (h->operation == BARRIER)
        return enter_step(self, 0) ? leave(self, barrier_run(&self->c, h->name)) : NULL;
    if (h->num_sources != 1 || h->num_targets != 1)
        return PyErr_Format(PyExc_ValueError, "An exchange has one row to read and one to write.");
    if (!table_next(t, &array, &shapes_hash))
        return NULL;
    if (h->operation == SEND || h->operation == RECEIVE)
        return make_message(self, h, &array);
    return make_exchange(self, t, &array, shapes_hash);
}

PyObject *comm_run(CommObject *self, PyObject *args)
{
    PyObject *split, *given, *result = NULL;
    Py_buffer view;
    call_table t;
    if (!PyArg_ParseTuple(args, "OO", &split, &given)
        || PyObject_GetBuffer(given, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (table_open(&t, &view)) {
        const int64_t op = t.head.operation;
        if (op != ALL_REDUCE && op != REDUCE && op != REDUCE_SCATTER)
            result = make_step(self, &t);
        else if (Py_TYPE(split) == split_type)
            result = make_reduction(self, split_of(split), &t);
        else
            PyErr_SetString(PyExc_TypeError, "A reduction needs a Split.");
    }
    PyBuffer_Release(&view);
    return result;
}

bool add_call_fields(PyObject *module)
{
#define FIELD(type, format, name) #name,
    static const char *const names[] = {CALL_FIELDS(FIELD)};
#undef FIELD
#define FIELD(type, format, name) format
    static const char formats[] = CALL_FIELDS(FIELD);
#undef FIELD
    enum { COUNT = sizeof names / sizeof *names };
    PyObject *tuple = PyTuple_New(COUNT);
    for (Py_ssize_t i = 0; tuple && i < COUNT; i++) {
        PyObject *name = PyUnicode_FromString(names[i]);
        if (!name || PyTuple_SetItem(tuple, i, name) < 0)
            Py_CLEAR(tuple);
    }
    const bool is_added = tuple && PyModule_AddObjectRef(module, "CALL_FIELDS", tuple) == 0
                          && PyModule_AddStringConstant(module, "CALL_FORMAT", formats) == 0;
    Py_XDECREF(tuple);
    return is_added;
}
