/* The calls of a member's endpoint: Python describes each by the fields of an EngineCall. */
#include "python/comm_object.h"

#include "hosts/exchange.h"
#include "hosts/reduce.h"

/* TensorFlow's tensors have at most 254 axes, numpy's arrays 64. */
enum { MOST_AXES = 254 };

/* The places of the fields of an EngineCall, which popdist/engine/call_table.py describes. */
enum {
    OPERATION, ARRAYS, DTYPE, REDUCTION, ALGORITHM, ROOT, NAME, PRELUDE_TO, LENGTHS, FIELDS
};

typedef struct {
    int op, type, reduction, algorithm, root, prelude_to;
    uint64_t name;
    PyObject *arrays, *lengths;
} call_fields;

/* False, with an exception, unless an object is a tuple of so many items. */
static bool is_tuple(PyObject *object, const char *what, Py_ssize_t items)
{
    if (PyTuple_Check(object) && PyTuple_Size(object) == items)
        return true;
    PyErr_Format(PyExc_TypeError, "%s is %R, but must be a tuple of %zd.", what, object, items);
    return false;
}

static int number_at(PyObject *fields, Py_ssize_t place)
{
    return (int)PyLong_AsLong(PyTuple_GetItem(fields, place));
}

/* PyArg_ParseTuple() would take three times as long. */
static bool fields_from(PyObject *given, call_fields *f)
{
    if (!is_tuple(given, "A call", FIELDS))
        return false;
    *f = (call_fields){
        .op = number_at(given, OPERATION),
        .type = number_at(given, DTYPE),
        .reduction = number_at(given, REDUCTION),
        .algorithm = number_at(given, ALGORITHM),
        .root = number_at(given, ROOT),
        .prelude_to = number_at(given, PRELUDE_TO),
        .name = PyLong_AsUnsignedLongLong(PyTuple_GetItem(given, NAME)),
        .arrays = PyTuple_GetItem(given, ARRAYS),
        .lengths = PyTuple_GetItem(given, LENGTHS),
    };
    if (PyErr_Occurred())
        return false;
    if (f->op >= 0 && f->op < NEGOTIATION && f->type >= 0 && f->type < DTYPES
        && f->reduction >= 0 && f->reduction <= REDUCTIONS)
        return true;
    PyErr_Format(PyExc_ValueError, "There is no operation %d, no dtype %d or no reduction %d.",
                 f->op, f->type, f->reduction);
    return false;
}

/* --- Rows */

/* Return an attribute of Rows, which is a tuple of numbers. */
static PyObject *tuple_of(PyObject *rows, PyObject *name)
{
    PyObject *numbers = PyObject_GetAttr(rows, name);
    if (numbers && !PyTuple_Check(numbers)) {
        PyErr_Format(PyExc_TypeError, "The %U of rows are %R, but must be a tuple.", name, numbers);
        Py_CLEAR(numbers);
    }
    return numbers;
}

/* Read the addresses of at most so many rows. Return how many there are, or -1 with an
 * exception. */
static Py_ssize_t addresses_from(PyObject *rows, char **to, Py_ssize_t most)
{
    PyObject *addresses = tuple_of(rows, name_addresses);
    const Py_ssize_t count = addresses ? PyTuple_Size(addresses) : -1;
    for (Py_ssize_t i = 0; i < count && i < most; i++)
        to[i] = PyLong_AsVoidPtr(PyTuple_GetItem(addresses, i));
    Py_XDECREF(addresses);
    return PyErr_Occurred() ? -1 : count;
}

/* Count the elements of a row, and mix the lengths of its axes into a hash. */
static bool shape_from(PyObject *rows, uint64_t *count, uint64_t *shapes_hash)
{
    ssize_t lengths[MOST_AXES];
    PyObject *shape = tuple_of(rows, name_shape);
    const Py_ssize_t axes = shape ? PyTuple_Size(shape) : -1;
    if (axes > MOST_AXES)
        PyErr_Format(PyExc_ValueError, "An array has %zd axes, but can have at most %d.", axes,
                     MOST_AXES);
    *count = 1;
    for (Py_ssize_t axis = 0; axis < axes && axes <= MOST_AXES; axis++) {
        lengths[axis] = PyLong_AsSsize_t(PyTuple_GetItem(shape, axis));
        *count *= (uint64_t)lengths[axis];
    }
    Py_XDECREF(shape);
    if (PyErr_Occurred())
        return false;
    *shapes_hash = hash_with_shape(*shapes_hash, lengths, (int)axes);
    return true;
}

/* The rows of one array: where they lie, the elements of a row, and a hash of its shape. */
typedef struct {
    char **in, **out;
    uint64_t count, shapes_hash;
} row_pair;

/* Read the rows of one of a call's arrays: so many to read, and one or as many to write,
 * with room for as many of both. */
static bool pair_from(PyObject *arrays, Py_ssize_t i, uint32_t rows, bool has_shape, row_pair *p)
{
    PyObject *pair = PySequence_GetItem(arrays, i);
    Py_ssize_t sources = -1, targets = -1;
    if (pair && is_tuple(pair, "An array of a call", 2)) {
        PyObject *source = PyTuple_GetItem(pair, 0);
        if (!has_shape || shape_from(source, &p->count, &p->shapes_hash))
            sources = addresses_from(source, p->in, rows);
        if (sources >= 0)
            targets = addresses_from(PyTuple_GetItem(pair, 1), p->out, rows);
    }
    Py_XDECREF(pair);
    if (targets >= 0 && (sources != rows || (targets != 1 && targets != rows)))
        PyErr_Format(PyExc_ValueError,
                     "%zd rows of an array are to be read and %zd to be written, but this "
                     "call reads %u, and writes 1 or as many.", sources, targets, rows);
    for (uint32_t row = 1; targets == 1 && row < rows; row++)
        p->out[row] = p->out[0];
    return !PyErr_Occurred();
}

/* --- Reductions */

static status reduce_arrays(CommObject *self, call *k, int wanted)
{
    if (k->op == REDUCE_SCATTER) {
        /* The only array has one target, for all of this member's shares. */
        const array_rows whole = {k->arrays->count, k->arrays->in, NULL};
        char *out = k->arrays->out[0];
        k->arrays = &whole;
        return k->split->over_hosts ? reduce_over_hosts(k, out) : reduce_scatter(k, out);
    }
    reduce_prepare(k, wanted);
    const status s = k->split->over_hosts ? reduce_over_hosts(k, NULL) : reduce_run(k);
    if (s == DONE)
        self->runs[self->c.ran]++;
    return s;
}

PyObject *comm_reduce(CommObject *self, call *k, int wanted)
{
    const uint64_t rows = k->split->rows[k->split->rank];
    if (!enter(self, k->total * rows * element_bytes(k->type)))
        return NULL;
    return leave(self, reduce_arrays(self, k, wanted));
}

PyObject *comm_reduce_row(CommObject *self, call *k, int wanted, char *in, char *out,
                          uint64_t count)
{
    const ssize_t length = (ssize_t)count;
    const array_rows whole = {count, &in, &out};
    k->arrays = &whole;
    k->count_of_arrays = 1;
    k->total = count;
    k->shapes_hash = hash_with_shape(0, &length, 1);
    return comm_reduce(self, k, wanted);
}

bool reduction_begin(reduction_call *r, comm *c, const replica_split *split, operation op,
                     int type, long reduction, size_t arrays)
{
    r->k = call_of(c, split, op, type, reduction);
    r->rows = split->rows[split->rank];
    const size_t addresses = 2 * arrays * r->rows;
    const bool is_small = arrays <= 1 && r->rows <= FEW_ROWS;
    r->memory = is_small ? NULL : PyMem_Malloc(arrays * sizeof *r->arrays
                                               + addresses * sizeof *r->next + 1);
    r->arrays = is_small ? &r->one : r->memory;
    r->next = is_small ? r->few : (char **)(r->arrays + arrays);
    r->k.arrays = r->arrays;
    return is_small || r->memory;
}

static bool read_arrays(reduction_call *r, PyObject *arrays, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        row_pair p = {r->next, r->next + r->rows, 0, r->k.shapes_hash};
        if (!pair_from(arrays, (Py_ssize_t)i, r->rows, true, &p))
            return false;
        r->k.shapes_hash = p.shapes_hash;
        reduction_add(r, p.count);
    }
    return true;
}

/* Read the arrays of a table: see Group.all_reduce_table(). */
static bool read_table(reduction_call *r, const char *table, size_t words)
{
    const uint64_t *at = (const uint64_t *)(uintptr_t)table;
    const uint64_t *end = at + words;
    ssize_t lengths[MOST_AXES];
    while (at < end) {
        const uint64_t axes = *at++;
        if (axes > MOST_AXES || (uint64_t)(end - at) < axes + r->rows + 1) {
            PyErr_SetString(PyExc_ValueError, "The table of arrays ends within one.");
            return false;
        }
        uint64_t count = 1;
        for (uint64_t axis = 0; axis < axes; axis++) {
            lengths[axis] = (ssize_t)at[axis];
            count *= at[axis];
        }
        r->k.shapes_hash = hash_with_shape(r->k.shapes_hash, lengths, (int)axes);
        at += axes;
        for (uint32_t row = 0; row < r->rows; row++) {
            r->next[row] = (char *)(uintptr_t)at[row];
            r->next[r->rows + row] = (char *)(uintptr_t)at[r->rows];
        }
        at += r->rows + 1;
        reduction_add(r, count);
    }
    return true;
}

/* Return the number of members of the group, on all its hosts. */
static int members_of(const comm *c)
{
    return c->links ? (int)c->links->count_of_members : c->size;
}

/* False, with an exception, unless the call's root is a member of the group. */
static bool has_root(const comm *c, const call_fields *f)
{
    if (f->root >= 0 && f->root < members_of(c))
        return true;
    PyErr_Format(PyExc_ValueError, "The group has no member %d.", f->root);
    return false;
}

static PyObject *run_reduction(CommObject *self, PyObject *split, const call_fields *f)
{
    if (Py_TYPE(split) != split_type)
        return PyErr_Format(PyExc_TypeError, "A reduction needs a Split.");
    if (f->op == REDUCE && !has_root(&self->c, f))
        return NULL;
    const replica_split *s = split_of(split);
    const char *table = PyBytes_Check(f->arrays) ? PyBytes_AsString(f->arrays) : NULL;
    const Py_ssize_t given = PyObject_Size(f->arrays);
    if (given < 0)
        return NULL;
    const size_t words = (size_t)given / sizeof(uint64_t);
    const size_t most = table ? words / (s->rows[s->rank] + 2) : (size_t)given;
    if (f->op == REDUCE_SCATTER && most != 1)
        return PyErr_Format(PyExc_ValueError, "The call has %zu arrays, but needs one.", most);
    reduction_call r;
    if (!reduction_begin(&r, &self->c, s, (operation)f->op, f->type, f->reduction, most))
        return PyErr_NoMemory();
    r.k.root = f->root;
    r.k.name = f->name;
    const bool is_read = table ? read_table(&r, table, words)
                               : read_arrays(&r, f->arrays, most);
    PyObject *result = is_read ? comm_reduce(self, &r.k, f->algorithm) : NULL;
    reduction_free(&r);
    return result;
}

/* --- Exchanges and messages */

static bool only_pair_from(const call_fields *f, bool has_shape, row_pair *p)
{
    const Py_ssize_t count = PySequence_Size(f->arrays);
    if (count >= 0 && count != 1)
        PyErr_Format(PyExc_ValueError, "The call has %zd arrays, but needs one.", count);
    return count == 1 && pair_from(f->arrays, 0, 1, has_shape, p);
}

/* End a call. If it has failed, links may read and write its arrays until the process ends:
 * then these are never freed. */
static PyObject *leave_with_arrays(CommObject *self, const call_fields *f, status s)
{
    PyObject *result = leave(self, s);
    if (!result && self->c.links && self->c.links->under_way)
        Py_INCREF(f->arrays);
    return result;
}

/* Carry out an exchange of so many members; `lengths` has room for them. */
static PyObject *exchange_shares(CommObject *self, const call_fields *f, uint64_t *lengths,
                                 int members)
{
    char *in, *out;
    row_pair p = {&in, &out, 0, 0};
    /* The rows of a prelude are headers, which all have one shape. */
    const bool have_one_shape = f->prelude_to == NO_PRELUDE
                                && (f->op == BROADCAST || f->op == ALL_TO_ALL);
    const Py_ssize_t room = members > MAX_MEMBERS ? members : MAX_MEMBERS;
    const Py_ssize_t count = numbers_from(f->lengths, (int64_t *)lengths, room);
    if (count < 0 || !only_pair_from(f, have_one_shape, &p))
        return NULL;
    if (count != members)
        return PyErr_Format(PyExc_ValueError, "%zd lengths are given for %d members.", count,
                            members);
    for (Py_ssize_t i = 0; i < count; i++)
        if (lengths[i] > INT64_MAX)
            return PyErr_Format(PyExc_ValueError, "A length is less than 0.");
    if (f->op != ALL_GATHER && f->op != ALL_TO_ALL && !has_root(&self->c, f))
        return NULL;
    const exchange x = {
        .c = &self->c,
        .op = (operation)f->op,
        .prelude_to = (operation)f->prelude_to,
        .type = (dtype)f->type,
        .name = f->name,
        .root = f->root,
        .lengths = (const uint64_t *)lengths,
        .shapes_hash = p.shapes_hash,
        .in = in,
        .out = out,
    };
    const uint64_t elements = exchange_described(&x, (size_t)members).count;
    if (!enter(self, elements * element_bytes(x.type)))
        return NULL;
    const status s = self->c.links ? exchange_over_hosts(&x) : exchange_run(&x);
    return leave_with_arrays(self, f, s);
}

static PyObject *run_exchange(CommObject *self, const call_fields *f)
{
    uint64_t few[MAX_MEMBERS];
    const int members = members_of(&self->c);
    if (members <= MAX_MEMBERS)
        return exchange_shares(self, f, few, members);
    uint64_t *lengths = PyMem_Calloc((size_t)members, sizeof *lengths);
    PyObject *result = lengths ? exchange_shares(self, f, lengths, members) : PyErr_NoMemory();
    PyMem_Free(lengths);
    return result;
}

static PyObject *run_message(CommObject *self, const call_fields *f)
{
    const operation op = (operation)f->op;
    const dtype type = (dtype)f->type;
    char *row, *same;
    row_pair p = {&row, &same, 0, 0};
    if (!only_pair_from(f, true, &p) || !has_root(&self->c, f))
        return NULL;
    const uint64_t bytes = p.count * element_bytes(type);
    if (!enter(self, bytes))
        return NULL;
    comm *c = &self->c;
    const status s = c->links     ? message_over_hosts(c, op, f->root, type, row, bytes)
                     : op == SEND ? send_message(c, f->root, type, row, bytes)
                                  : receive_message(c, f->root, type, row, bytes);
    return leave_with_arrays(self, f, s);
}

static PyObject *run_barrier(CommObject *self, uint64_t name)
{
    if (!enter(self, 0))
        return NULL;
    return leave(self, self->c.links ? barrier_over_hosts(&self->c, name)
                                     : barrier_run(&self->c, name));
}

static PyObject *run_call(CommObject *self, PyObject *split, const call_fields *f)
{
    switch (f->op) {
    case BARRIER:
        return run_barrier(self, f->name);
    case ALL_REDUCE:
    case REDUCE:
    case REDUCE_SCATTER:
        return run_reduction(self, split, f);
    case SEND:
    case RECEIVE:
        return run_message(self, f);
    default:
        return run_exchange(self, f);
    }
}

/* Takes a Split, or None if the call is no reduction, and the fields of an EngineCall. */
PyObject *comm_run(CommObject *self, PyObject *const *args, Py_ssize_t count)
{
    call_fields f;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "A Split and the fields of a call are needed.");
    return fields_from(args[1], &f) ? explained(self, run_call(self, args[0], &f)) : NULL;
}
