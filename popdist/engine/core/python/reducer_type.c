/* The base of a group: the shortest way from Python to an all-reduce in place.
 *
 * For tiny arrays a call costs more in Python than among the members. So the common case is
 * handled here, and everything else is left to the group's own method.
 */
#include "python/plain_arrays.h"

PyDoc_STRVAR(all_reduce_doc,
"all_reduce($self, x, op='sum', *, out=None, algorithm=None,\n"
"           reproducible=False, async_op=False, name=None)\n"
"--\n"
"\n"
"Reduce the replicas' arrays, and give every replica the result.\n"
"\n"
"All members must call this with arrays of the same shape and dtype. The order\n"
"of the additions follows from the topology alone, so the result has the same\n"
"bits on every member and in every run. With `reproducible` it also has the\n"
"same bits however the replicas are spread over instances; all algorithms but\n"
"\"ring\" keep that order anyway. float16 and bfloat16 are added up in float32\n"
"and rounded once; means of integers are truncated; NaNs are canonical.\n"
"\n"
"Args:\n"
"    op: \"sum\", \"mean\", \"min\", \"max\" or \"prod\".\n"
"    out: The array for the result; x itself to reduce in place. None for a\n"
"        new array.\n"
"    algorithm: \"auto\", \"oneshot\", \"direct\" or \"ring\"; None for the usual one.\n"
"    async_op: Return a handle at once. Do not use x and out until its wait()\n"
"        returns.\n"
"    name: A name for the call, the same on all members.\n"
"\n"
"Raises:\n"
"    PeerLostError: An instance died. This and all other errors end the group.\n");

static PyObject *reductions[REDUCTIONS + 1];
/* "auto" and the algorithms that a call can name; the code of each is one less than its
 * place. */
static PyObject *choices[4];

/* The arguments of a call. */
typedef struct {
    PyObject *op, *out, *algorithm;
    bool reproducible;
} arguments;

static PyObject *reducer_bind(ReducerObject *self, PyObject *args)
{
    PyObject *comm, *split, *types, *empty_like;
    int usual, leading, only_types;
    if (!PyArg_ParseTuple(args, "OOipOOp", &comm, &split, &usual, &leading, &types,
                          &empty_like, &only_types))
        return NULL;
    hold((PyObject **)&self->comm, comm);
    hold(&self->split, split);
    hold(&self->types, types);
    hold(&self->empty_like, empty_like);
    self->only_types = only_types;
    self->usual = usual;
    self->leading = leading;
    Py_RETURN_NONE;
}

/* The index of a word among others, or -1. Most words are the very same objects. */
static int place_of(PyObject *word, PyObject *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (word == words[i])
            return i;
    for (int i = 0; PyUnicode_Check(word) && i < count; i++)
        if (PyUnicode_Compare(word, words[i]) == 0)
            return i;
    return -1;
}

/* Read all arguments. False if the call has a name, is asynchronous, or is an error. */
static bool arguments_from(PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                           arguments *a)
{
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    if (count < 1 || count > 2)
        return false;
    *a = (arguments){.op = count == 2 ? args[1] : reductions[SUM], .out = Py_None};
    for (Py_ssize_t i = 0; i < named; i++) {
        PyObject *name = PyTuple_GetItem(keywords, i), *value = args[count + i];
        if (name == name_out)
            a->out = value;
        else if (name == name_op && count == 1)
            a->op = value;
        else if (name == name_algorithm)
            a->algorithm = value == Py_None ? NULL : value;
        else if (name == name_reproducible)
            a->reproducible = value != Py_False;
        else if ((name != name_async_op || value != Py_False)
                 && (name != name_name || value != Py_None))
            return false;
    }
    return true;
}

static PyObject *call_general(PyObject *self, PyObject *const *args, Py_ssize_t count,
                              PyObject *keywords)
{
    Py_ssize_t named = keywords ? PyTuple_Size(keywords) : 0;
    PyObject *method = PyObject_GetAttr(self, name__all_reduce), *result = NULL;
    PyObject *positional = PyTuple_New(count), *by_name = PyDict_New();
    bool ready = method && positional && by_name;
    for (Py_ssize_t i = 0; ready && i < count; i++) {
        Py_INCREF(args[i]);
        ready = PyTuple_SetItem(positional, i, args[i]) == 0;
    }
    for (Py_ssize_t i = 0; ready && i < named; i++)
        ready = PyDict_SetItem(by_name, PyTuple_GetItem(keywords, i), args[count + i]) == 0;
    if (ready)
        result = PyObject_Call(method, positional, by_name);
    Py_XDECREF(method);
    Py_XDECREF(positional);
    Py_XDECREF(by_name);
    return result;
}

/* Return an array for the result, or NULL, perhaps with an exception. */
static PyObject *result_for(const ReducerObject *self, PyObject *x, PyObject *out)
{
    const bool is_known = out == Py_None || self->only_types;
    if (is_known && PySet_Contains(self->types, (PyObject *)Py_TYPE(x)) != 1)
        return NULL;
    if (out == Py_None)
        return PyObject_CallFunctionObjArgs(self->empty_like, x, NULL);
    return Py_NewRef(out);
}

static PyObject *reducer_all_reduce(ReducerObject *self, PyObject *const *args,
                                    Py_ssize_t count, PyObject *keywords)
{
    arguments a;
    PyObject *result = NULL, *done = NULL;
    CommObject *comm = self->comm; /* close() in a trace or another thread drops it */
    if (comm && arguments_from(args, count, keywords, &a)) {
        const int reduction = place_of(a.op, reductions, REDUCTIONS + 1);
        const int how = a.algorithm ? place_of(a.algorithm, choices, 4) - 1 : self->usual;
        if (reduction >= 0 && how >= -1 && !(a.reproducible && how == RING))
            result = result_for(self, args[0], a.out);
        if (result)
            done = plain_reduce(self, args[0], result, false, reduction, how);
        if (done == Py_None) {
            Py_DECREF(done);
            return result;
        }
        Py_XDECREF(result);
        Py_XDECREF(done);
        if (result && !done)
            return explained(comm, NULL);
        /* _all_reduce() reports it if memory is short. */
        PyErr_Clear();
    }
    return call_general((PyObject *)self, args, count, keywords);
}

static PyObject *reducer_reduce_lists(ReducerObject *self, PyObject *args)
{
    PyObject *from, *to;
    int reduction, how;
    if (!PyArg_ParseTuple(args, "OOii", &from, &to, &reduction, &how))
        return NULL;
    CommObject *comm = self->comm;
    return comm ? explained(comm, plain_reduce(self, from, to, true, reduction, how)) : not_plain();
}

/* Takes address, count, dtype and reduction: as numbers, without a tuple to parse. */
static PyObject *reducer_reduce_at(ReducerObject *self, PyObject *const *args,
                                   Py_ssize_t given)
{
    if (given != 4)
        return PyErr_Format(PyExc_TypeError, "%zd numbers are given for 4.", given);
    const unsigned long long address = PyLong_AsUnsignedLongLong(args[0]);
    const unsigned long long count = PyLong_AsUnsignedLongLong(args[1]);
    const long type = PyLong_AsLong(args[2]), reduction = PyLong_AsLong(args[3]);
    if (PyErr_Occurred())
        return NULL;
    if (type < 0 || type >= DTYPES || reduction < 0 || reduction > REDUCTIONS)
        return PyErr_Format(PyExc_ValueError, "There is no dtype %ld or no reduction %ld.",
                            type, reduction);
    CommObject *comm = self->comm;
    const replica_split *split = comm ? split_of(self->split) : NULL;
    if (!comm || comm->queued || split->rows[split->rank] != 1)
        Py_RETURN_NOTIMPLEMENTED;
    call k = call_of(&comm->c, split, ALL_REDUCE, (int)type, reduction);
    char *row = (char *)(uintptr_t)address;
    return explained(comm, comm_reduce_row(comm, &k, self->usual, row, row, count));
}

static PyObject *reducer_scatter_array(ReducerObject *self, PyObject *args)
{
    PyObject *from, *to;
    int reduction;
    if (!PyArg_ParseTuple(args, "OOi", &from, &to, &reduction))
        return NULL;
    CommObject *comm = self->comm;
    return comm ? explained(comm, plain_scatter(self, from, to, reduction)) : not_plain();
}

static PyObject *reducer_gather_array(ReducerObject *self, PyObject *args)
{
    PyObject *from, *to;
    if (!PyArg_ParseTuple(args, "OO", &from, &to))
        return NULL;
    CommObject *comm = self->comm;
    return comm ? explained(comm, plain_gather(self, from, to)) : not_plain();
}

static void reducer_end(PyObject *object)
{
    ReducerObject *self = (ReducerObject *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF((PyObject *)self->comm);
    Py_XDECREF(self->split);
    Py_XDECREF(self->types);
    Py_XDECREF(self->empty_like);
    free_object(object);
}

static int reducer_traverse(PyObject *object, visitproc visit, void *arg)
{
    ReducerObject *self = (ReducerObject *)object;
    Py_VISIT((PyObject *)self->comm);
    Py_VISIT(self->split);
    Py_VISIT(self->types);
    Py_VISIT(self->empty_like);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

bool reducer_intern_words(void)
{
    static const char *const names[] = {"sum", "min", "max", "prod", "mean"};
    static const char *const ways[] = {"auto", "oneshot", "direct", "ring"};
    for (size_t i = 0; i <= REDUCTIONS; i++)
        if (!(reductions[i] = PyUnicode_InternFromString(names[i])))
            return false;
    for (size_t i = 0; i < 4; i++)
        if (!(choices[i] = PyUnicode_InternFromString(ways[i])))
            return false;
    return true;
}

static PyMethodDef reducer_methods[] = {
    {"all_reduce", (PyCFunction)(void (*)(void))reducer_all_reduce,
     METH_FASTCALL | METH_KEYWORDS,
     all_reduce_doc},
    METHOD("_bind", reducer_bind, METH_VARARGS),
    METHOD("_reduce_lists", reducer_reduce_lists, METH_VARARGS),
    METHOD("_reduce_at", reducer_reduce_at, METH_FASTCALL),
    METHOD("_scatter_array", reducer_scatter_array, METH_VARARGS),
    METHOD("_gather_array", reducer_gather_array, METH_VARARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot reducer_slots[] = {
    {Py_tp_dealloc, (void *)(uintptr_t)reducer_end},
    {Py_tp_traverse, (void *)(uintptr_t)reducer_traverse},
    {Py_tp_methods, reducer_methods},
    {0, NULL},
};

PyType_Spec reducer_spec = TYPE("Reducer", ReducerObject,
                                Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, reducer_slots);
