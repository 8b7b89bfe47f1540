/* The shortest way to torch's most common calls: on one dense tensor of the CPU each, or on
 * one source and one result.
 *
 * Tensors are read by DLPack's table of functions, which torch has in all its versions
 * since 2.10: it needs neither torch's headers nor Python objects for their numbers. Any
 * other call is not made, and no error is reported: the caller makes the call in its own
 * way, and reports its errors.
 */
#include "python/plain_arrays.h"

#include "python/deferred.h"

#include <stddef.h>
#include <structmember.h>

/* These are defined by DLPack, version 1. */
typedef struct {
    void *data;
    struct { int32_t type, id; } device;
    int32_t axes;
    struct { uint8_t kind, bits; uint16_t lanes; } element;
    const int64_t *shape, *strides;
    uint64_t byte_offset;
} dlpack_tensor;

typedef struct {
    struct { uint32_t major, minor; } version;
    const void *older;
    void (*others_before[3])(void);
    int (*tensor_from)(void *object, dlpack_tensor *to); /* may be NULL */
} dlpack_functions;

enum { DLPACK_MAJOR = 1, DLPACK_CPU = 1 };

enum {
    /* Callers begin larger calls at once, in parallel to the program. */
    MOST_DEFERRED_BYTES = 1 << 20,
    NO_PASS = -1, /* torch's number of a backward pass, outside of all */
};

typedef struct {
    PyObject_HEAD
    PyObject *group; /* a Reducer */
    PyObject *torch; /* owns the following references */
    PyObject *tensor_type, *is_negative, *is_profiled, *backward_pass, *no_time, *done;
    bool overlaps; /* whether a call beside a backward pass takes no time from it */
    const char *reductions; /* the core's numbers, by the hash of torch's; negative for
                             * others */
    Py_ssize_t count_of_reductions;
    const dlpack_functions *dlpack; /* NULL if torch has no table of a known version */
    unsigned long long made; /* calls that have succeeded */
} TensorCallsObject;

/* The core's dtype of a tensor's elements, or -1. */
static int dtype_of(const dlpack_tensor *t)
{
    static const struct { uint8_t kind, bits, type; } known[] = {
        {2, 32, FLOAT32}, {2, 64, FLOAT64}, {2, 16, FLOAT16}, {4, 16, BFLOAT16},
        {0, 8, INT8},     {0, 16, INT16},   {0, 32, INT32},   {0, 64, INT64},
        {1, 8, UINT8},    {1, 16, UINT16},  {1, 32, UINT32},  {1, 64, UINT64},
        {6, 8, BOOL},
    };
    for (size_t i = 0; t->element.lanes == 1 && i < sizeof known / sizeof *known; i++)
        if (known[i].kind == t->element.kind && known[i].bits == t->element.bits)
            return known[i].type;
    return -1;
}

/* Count the elements, if they lie in memory in their order. */
static bool count_in_order(const dlpack_tensor *t, uint64_t *count)
{
    bool in_order = true;
    *count = 1;
    for (int axis = t->axes; axis-- > 0;) {
        in_order = in_order && (t->shape[axis] == 1 || t->strides[axis] == (int64_t)*count);
        *count *= (uint64_t)t->shape[axis];
    }
    return in_order || *count == 0;
}

/* Whether a function returns False. One that raises does not. */
static bool is_false(PyObject *result)
{
    Py_XDECREF(result); /* True and False live on */
    return result == Py_False;
}

static bool read_tensor(const TensorCallsObject *self, PyObject *tensor, tensor_row *row)
{
    dlpack_tensor t;
    if ((PyObject *)Py_TYPE(tensor) != self->tensor_type
        || self->dlpack->tensor_from(tensor, &t) != 0 || t.device.type != DLPACK_CPU
        || (row->type = dtype_of(&t)) < 0 || !count_in_order(&t, &row->count)
        /* The memory of such a tensor has its numbers with the other sign. */
        || !is_false(PyObject_CallFunctionObjArgs(self->is_negative, tensor, NULL)))
        return false;
    row->data = (char *)t.data + t.byte_offset;
    row->bytes = row->count * element_bytes((dtype)row->type);
    return true;
}

/* Compare an attribute of a call's options with a value. */
static bool compares(PyObject *options, PyObject *name, PyObject *value, int how)
{
    PyObject *given = PyObject_GetAttr(options, name);
    const bool yes = given && PyObject_RichCompareBool(given, value, how) == 1;
    Py_XDECREF(given);
    return yes;
}

/* Read whether a call may return before it is over. False if the options set a
 * timeout, or torch's profiler records the call. */
static bool read_when(const TensorCallsObject *self, PyObject *options, bool *is_async)
{
    PyObject *given = PyObject_GetAttr(options, name_asyncOp);
    *is_async = given == Py_True;
    Py_XDECREF(given);
    return given && compares(options, name_timeout, self->no_time, Py_LE)
           && is_false(PyObject_CallNoArgs(self->is_profiled));
}

/* Read the core's reduction of a call on such a tensor. */
static bool read_reduction(const TensorCallsObject *self, PyObject *options,
                           const tensor_row *row, int *reduction)
{
    PyObject *given = PyObject_GetAttr(options, name_reduceOp);
    /* A comparison would take twice the time: torch tries several types of the other. */
    const Py_hash_t hash = given ? PyObject_Hash(given) : -1;
    Py_XDECREF(given);
    if (hash < 0 || hash >= self->count_of_reductions || self->reductions[hash] < 0)
        return false;
    *reduction = self->reductions[hash];
    return row->type != BOOL || *reduction != MEAN;
}

/* The given tensor, or the only one of a list; NULL if there are more. */
static PyObject *only(PyObject *tensors)
{
    if (!PyList_CheckExact(tensors))
        return tensors;
    return PyList_Size(tensors) == 1 ? PyList_GetItem(tensors, 0) : NULL;
}

static bool read_call(const TensorCallsObject *self, tensor_call *k, operation op,
                      PyObject *source, PyObject *target)
{
    const ReducerObject *group = (const ReducerObject *)self->group;
    CommObject *comm = group->comm;
    if (!self->dlpack || !comm || split_of(group->split)->rows[comm->c.rank] != 1)
        return false;
    *k = (tensor_call){
        .comm = comm,
        .split = group->split,
        .usual = group->usual,
        .op = op,
        .root = -1,
        .source = only(source),
        .target = only(target),
    };
    if (!k->source || !k->target || !read_tensor(self, k->source, &k->in))
        return false;
    k->out = k->in;
    return k->source == k->target || read_tensor(self, k->target, &k->out);
}

/* Whether one tensor has a share like the other for each member, and both are apart, or
 * the smaller one is the member's share in the larger one, if that is allowed. */
static bool are_parts(const tensor_call *k, const tensor_row *whole, const tensor_row *part,
                      bool may_be_own)
{
    const comm *c = &k->comm->c;
    const char *own = whole->data + part->bytes * (uint64_t)c->rank;
    return !c->links && part->type == whole->type && part->count
           && whole->count == part->count * (uint64_t)c->size
           && (part->data + part->bytes <= whole->data || whole->data + whole->bytes <= part->data
               || (may_be_own && part->data == own));
}

static PyObject *not_made(void)
{
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
        return NULL;
    PyErr_Clear();
    Py_RETURN_NONE;
}

/* Defer a call, and return it; None if the group's worker cannot watch it. */
static PyObject *make_later(TensorCallsObject *self, const tensor_call *k)
{
    if (!k->comm->is_watched) {
        PyObject *result = PyObject_CallMethodObjArgs(self->group, name_watch_deferred, NULL);
        if (!result)
            return not_made();
        Py_DECREF(result);
    }
    PyObject *later = defer(k, self->group);
    self->made += later != NULL;
    return later;
}

/* Make a call now, and return its work or, for an asynchronous one, True. Return None if
 * it was not made. */
static PyObject *make_now(TensorCallsObject *self, tensor_call *k, bool is_async)
{
    tensor_call_keep(k); /* while other threads run */
    PyObject *result = tensor_call_make(k);
    tensor_call_release(k);
    Py_XDECREF(result); /* None lives on */
    if (result == Py_None) {
        PyObject *work = is_async ? Py_True : self->done;
        Py_INCREF(work);
        self->made++;
        return work;
    }
    /* If the group has ended, the caller's own way reports the reason. */
    if (!PyErr_Occurred() || PyErr_ExceptionMatches(failure))
        return not_made();
    return NULL;
}

/* Whether to make an asynchronous call at once: in a backward pass, if no core is free to
 * make it beside that. */
static bool is_at_once(const TensorCallsObject *self)
{
    if (self->overlaps)
        return false;
    PyObject *number = PyObject_CallNoArgs(self->backward_pass);
    const bool is_in_one = number && PyLong_AsLong(number) != NO_PASS;
    Py_XDECREF(number);
    return is_in_one;
}

/* Make a call now or later, as its options say. */
static PyObject *make(TensorCallsObject *self, tensor_call *k, PyObject *options)
{
    bool is_async;
    if (k->comm->queued || !read_when(self, options, &is_async))
        return not_made();
    if (!is_async || is_at_once(self))
        return make_now(self, k, is_async);
    return k->out.bytes > MOST_DEFERRED_BYTES ? not_made() : make_later(self, k);
}

/* Takes a list of a tensor, and torch's options. */
static PyObject *make_all_reduce(TensorCallsObject *self, PyObject *const *args,
                                 Py_ssize_t count)
{
    tensor_call k;
    if (count != 2 || !read_call(self, &k, ALL_REDUCE, args[0], args[0])
        || !read_reduction(self, args[1], &k.in, &k.reduction))
        return not_made();
    return make(self, &k, args[1]);
}

/* Takes the output, the input, and torch's options. */
static PyObject *make_all_gather(TensorCallsObject *self, PyObject *const *args,
                                 Py_ssize_t count)
{
    tensor_call k;
    if (count != 3 || !read_call(self, &k, ALL_GATHER, args[1], args[0])
        || !are_parts(&k, &k.out, &k.in, true))
        return not_made();
    return make(self, &k, args[2]);
}

/* Takes the same as all_gather. */
static PyObject *make_reduce_scatter(TensorCallsObject *self, PyObject *const *args,
                                     Py_ssize_t count)
{
    tensor_call k;
    if (count != 3 || !read_call(self, &k, REDUCE_SCATTER, args[1], args[0])
        || !are_parts(&k, &k.in, &k.out, false)
        || !read_reduction(self, args[2], &k.in, &k.reduction))
        return not_made();
    return make(self, &k, args[2]);
}

/* Read an option that is a whole number. False if it is none. */
static bool read_number(PyObject *options, PyObject *name, long *number)
{
    PyObject *given = PyObject_GetAttr(options, name);
    *number = given ? PyLong_AsLong(given) : -1;
    Py_XDECREF(given);
    return !PyErr_Occurred();
}

/* Takes the same as all_reduce. */
static PyObject *make_broadcast(TensorCallsObject *self, PyObject *const *args,
                                Py_ssize_t count)
{
    tensor_call k;
    long root, index;
    if (count != 2 || !read_call(self, &k, BROADCAST, args[0], args[0]) || k.comm->c.links
        || !read_number(args[1], name_rootRank, &root)
        || !read_number(args[1], name_rootTensor, &index) || index != 0 || root < 0
        || root >= k.comm->c.size)
        return not_made();
    k.root = (int)root;
    return make(self, &k, args[1]);
}

static bool take_torch(TensorCallsObject *self, PyObject *torch)
{
    PyObject *table;
    if (!PyArg_ParseTuple(torch, "OOOOOy#OO", &table, &self->tensor_type, &self->is_negative,
                          &self->is_profiled, &self->backward_pass, &self->reductions,
                          &self->count_of_reductions, &self->no_time, &self->done))
        return false;
    Py_INCREF(torch);
    self->torch = torch;
    const char *name = "dlpack_exchange_api";
    const dlpack_functions *dlpack =
        PyCapsule_IsValid(table, name) ? PyCapsule_GetPointer(table, name) : NULL;
    if (dlpack && dlpack->version.major == DLPACK_MAJOR && dlpack->tensor_from)
        self->dlpack = dlpack;
    return !PyErr_Occurred();
}

static PyObject *calls_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"group", "torch", "overlaps", NULL};
    PyObject *group, *torch;
    int overlaps;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO!p", names, &group, &PyTuple_Type,
                                     &torch, &overlaps))
        return NULL;
    TensorCallsObject *self = new_object(type);
    if (!self)
        return NULL;
    Py_INCREF(group);
    self->group = group;
    self->overlaps = overlaps;
    if (take_torch(self, torch))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void calls_end(PyObject *object)
{
    TensorCallsObject *self = (TensorCallsObject *)object;
    Py_XDECREF(self->group);
    Py_XDECREF(self->torch);
    free_object(object);
}

static PyMethodDef calls_methods[] = {
    METHOD("all_reduce", make_all_reduce, METH_FASTCALL),
    METHOD("all_gather", make_all_gather, METH_FASTCALL),
    METHOD("reduce_scatter", make_reduce_scatter, METH_FASTCALL),
    METHOD("broadcast", make_broadcast, METH_FASTCALL),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef calls_members[] = {
    {"made", T_ULONGLONG, offsetof(TensorCallsObject, made), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot calls_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)calls_new},
    {Py_tp_dealloc, (void *)(uintptr_t)calls_end},
    {Py_tp_methods, calls_methods},
    {Py_tp_members, calls_members},
    {0, NULL},
};

PyType_Spec tensor_calls_spec = TYPE("TensorCalls", TensorCallsObject, 0, calls_slots);
