/* Operations of graphs that hand their tensors' memory to a Python function at once.
 *
 * PopdistCall gives the function the tensors' memory, and takes its results' memory. Only
 * the function knows their shapes.
 *
 * PopdistReduce takes the tensors of this instance's first replica, and one bundle for each
 * other replica. It gives the function tables of the addresses of tensors and results, as
 * Group.all_reduce_table() takes them: one for each run of tensors of one dtype. A complex
 * tensor is one of real numbers with one more axis. Results replace the first replica's
 * tensors where nothing else needs those. PopdistPack and PopdistUnpack make a bundle, and
 * tensors of it. */
#include "memory.h"

#include "bundle.h"

#include <stdlib.h>
#include <string.h>

/* It is equal to KERNELS_VERSION in ../__init__.py. Both go up when Python's side needs
 * other operations. */
#define KERNELS_VERSION 1

/* TensorFlow's tensors have at most 254 axes. Most of them have fewer than these. */
enum { MOST_AXES = 254, USUAL_AXES = 4 };

/* The Python function that carries out all PopdistReduce and PopdistCall. */
static PyObject *carry_out;

/* An operation as it stands in a graph. */
typedef struct {
    int64_t key;   /* what the function knows the call by */
    int64_t count; /* of tensors */
    int64_t others;
} kernel;

/* One execution of an operation. */
typedef struct {
    TF_OpKernelContext *context;
    TF_Status *status;
    const kernel *of;
    TF_Tensor **tensors;       /* to delete in the end: bundles, results and others */
    TF_Tensor *const **others; /* the tensors of each bundle */
    uint64_t *numbers; /* the numbers of all tables */
    int64_t used, room;
    int64_t *begins; /* of each table */
    int64_t tables;
} execution;

static bool is_well(const execution *e)
{
    return TF_GetCode(e->status) == TF_OK;
}

static bool fail(execution *e, TF_Code code, const char *text)
{
    TF_SetStatus(e->status, code, text);
    return false;
}

static TF_Tensor *input(execution *e, int64_t index)
{
    TF_Tensor *tensor = NULL;
    TF_GetInput(e->context, (int)index, &tensor, e->status);
    return is_well(e) ? tensor : NULL;
}

static void delete_all(TF_Tensor **tensors, int64_t count)
{
    for (int64_t i = 0; tensors && i < count; i++)
        if (tensors[i])
            TF_DeleteTensor(tensors[i]);
}

/* --- Kernels. */

static void *create(TF_OpKernelConstruction *construction, bool has_others, bool has_key)
{
    TF_Status *status = TF_NewStatus();
    int32_t count = 0, unused;
    kernel *op = calloc(1, sizeof *op);
    if (!op)
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "There is no memory for an operation.");
    else
        TF_OpKernelConstruction_GetAttrSize(construction, "T", &count, &unused, status);
    if (TF_GetCode(status) == TF_OK && has_others)
        TF_OpKernelConstruction_GetAttrInt64(construction, "N", &op->others, status);
    if (TF_GetCode(status) == TF_OK && has_key)
        TF_OpKernelConstruction_GetAttrInt64(construction, "key", &op->key, status);
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelConstruction_Failure(construction, status);
    else
        op->count = count;
    TF_DeleteStatus(status);
    return op;
}

static void *create_reduce(TF_OpKernelConstruction *construction)
{
    return create(construction, true, true);
}

static void *create_call(TF_OpKernelConstruction *construction)
{
    return create(construction, false, true);
}

static void *create_other(TF_OpKernelConstruction *construction)
{
    return create(construction, false, false);
}

/* Run an operation's steps, with room for so many tensors. */
static void execute(void *of, TF_OpKernelContext *context, int64_t tensors,
                    bool (*steps)(execution *))
{
    execution e = {.context = context, .status = TF_NewStatus(), .of = of};
    e.tensors = calloc((size_t)tensors + 1, sizeof *e.tensors);
    if (!e.tensors)
        fail(&e, TF_RESOURCE_EXHAUSTED, "There is no memory for an operation.");
    else
        steps(&e);
    if (!is_well(&e))
        TF_OpKernelContext_Failure(context, e.status);
    delete_all(e.tensors, tensors);
    free(e.tensors);
    free(e.others);
    free(e.numbers);
    free(e.begins);
    TF_DeleteStatus(e.status);
}

/* --- Calls of Python. */

/* Let Python carry a call out. Returns what it results in, a tuple with an item for each
 * output, or NULL. */
static PyObject *call_python(execution *e, PyObject *arguments)
{
    TF_Code code;
    const char *text;
    PyObject *results = NULL;
    PyObject *answer = PyObject_CallFunction(carry_out, "LN", (long long)e->of->key,
                                             arguments);
    if (answer
        && PyArg_ParseTuple(answer, "IsO!", &code, &text, &PyTuple_Type, &results)) {
        if (code == TF_OK)
            Py_INCREF(results);
        else
            results = NULL, fail(e, code, text);
    }
    Py_XDECREF(answer);
    return results;
}

/* Take steps that need Python's lock. */
static bool with_python(execution *e, void (*steps)(execution *))
{
    const PyGILState_STATE state = PyGILState_Ensure();
    release_owners();
    steps(e);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        fail(e, TF_INTERNAL, "A call of popdist failed, and its error cannot be shown.");
    }
    PyGILState_Release(state);
    return is_well(e);
}

/* --- PopdistPack and PopdistUnpack. */

static bool set_bundle(execution *e, TF_Tensor **tensors, int64_t first, int64_t outputs)
{
    TF_Tensor *bundle = bundle_of(tensors, e->of->count);
    if (!bundle)
        return fail(e, TF_RESOURCE_EXHAUSTED, "There is no memory for a bundle.");
    /* They are the bundle's from here on. */
    memset(tensors, 0, (size_t)e->of->count * sizeof *tensors);
    for (int64_t i = 0; i < outputs && is_well(e); i++)
        TF_SetOutput(e->context, (int)(first + i), bundle, e->status);
    TF_DeleteTensor(bundle);
    return is_well(e);
}

static bool pack(execution *e)
{
    for (int64_t i = 0; i < e->of->count; i++)
        if (!(e->tensors[i] = input(e, i)))
            return false;
    return set_bundle(e, e->tensors, 0, 1);
}

static TF_Tensor *const *contents(execution *e, const TF_Tensor *bundle)
{
    TF_Tensor *const *tensors = tensors_in(bundle, e->of->count);
    if (!tensors)
        fail(e, TF_INTERNAL, "An operation has copied a bundle of popdist's tensors.");
    return tensors;
}

static bool unpack(execution *e)
{
    TF_Tensor *const *tensors = NULL;
    if ((e->tensors[0] = input(e, 0)))
        tensors = contents(e, e->tensors[0]);
    for (int64_t i = 0; tensors && is_well(e) && i < e->of->count; i++)
        TF_SetOutput(e->context, (int)i, tensors[i], e->status);
    return is_well(e);
}

static void compute_pack(void *of, TF_OpKernelContext *context)
{
    execute(of, context, ((kernel *)of)->count, pack);
}

static void compute_unpack(void *of, TF_OpKernelContext *context)
{
    execute(of, context, 1, unpack);
}

/* --- PopdistReduce. */

static bool get_others(execution *e)
{
    const int64_t first = 1 + e->of->count;
    e->others = calloc((size_t)e->of->others + 1, sizeof *e->others);
    if (!e->others)
        return fail(e, TF_RESOURCE_EXHAUSTED, "There is no memory for an operation.");
    for (int64_t i = 0; i < e->of->others; i++)
        if (!(e->tensors[i] = input(e, first + i))
            || !(e->others[i] = contents(e, e->tensors[i])))
            return false;
    return true;
}

static bool same_shape(const TF_Tensor *one, const TF_Tensor *other)
{
    if (TF_NumDims(one) != TF_NumDims(other))
        return false;
    for (int axis = 0; axis < TF_NumDims(one); axis++)
        if (TF_Dim(one, axis) != TF_Dim(other, axis))
            return false;
    return true;
}

/* Make room for so many more numbers. */
static bool extend(execution *e, int64_t numbers)
{
    if (e->used + numbers <= e->room)
        return true;
    const int64_t room = 2 * e->room + numbers;
    uint64_t *larger = realloc(e->numbers, (size_t)room * sizeof *larger);
    if (!larger)
        return fail(e, TF_RESOURCE_EXHAUSTED, "There is no memory for an operation.");
    e->numbers = larger;
    e->room = room;
    return true;
}

static void add(execution *e, uint64_t number)
{
    e->numbers[e->used++] = number;
}

static void add_address(execution *e, const TF_Tensor *tensor)
{
    add(e, (uint64_t)(uintptr_t)TF_TensorData(tensor));
}

static bool is_complex(const TF_Tensor *tensor)
{
    const TF_DataType type = TF_TensorType(tensor);
    return type == TF_COMPLEX64 || type == TF_COMPLEX128;
}

/* Add a tensor's shape and rows to a table. */
static bool add_rows(execution *e, int64_t index, const TF_Tensor *tensor, int64_t *lengths)
{
    const int axes = TF_NumDims(tensor);
    const bool has_parts = is_complex(tensor);
    if (axes > MOST_AXES)
        return fail(e, TF_INVALID_ARGUMENT, "A tensor has over 254 axes.");
    /* With their number, the axis of a complex tensor's parts, and the result. */
    if (!extend(e, axes + e->of->others + 4))
        return false;
    add(e, (uint64_t)axes + has_parts);
    for (int axis = 0; axis < axes; axis++) {
        lengths[axis] = TF_Dim(tensor, axis);
        add(e, (uint64_t)lengths[axis]);
    }
    if (has_parts)
        add(e, 2);
    add_address(e, tensor);
    for (int64_t i = 0; i < e->of->others; i++) {
        if (!same_shape(tensor, e->others[i][index]))
            return fail(e, TF_INVALID_ARGUMENT,
                        "The local replicas' tensors differ in their shapes. All replicas "
                        "must have equal ones.");
        add_address(e, e->others[i][index]);
    }
    return true;
}

/* Add a tensor to the last table, or to a new one if the dtype differs, and allocate its
 * result. */
static bool add_tensor(execution *e, int64_t index, TF_DataType *type)
{
    const int from = (int)index + 1;
    int64_t lengths[MOST_AXES];
    int forwarded;
    TF_Tensor *tensor = input(e, from);
    if (!tensor)
        return false;
    const int axes = TF_NumDims(tensor);
    if (!index || TF_TensorType(tensor) != *type)
        e->begins[e->tables++] = e->used;
    *type = TF_TensorType(tensor);
    const bool added = add_rows(e, index, tensor, lengths);
    /* Its memory is the result's only if nothing else refers to it, as we have here. */
    TF_DeleteTensor(tensor);
    if (!added)
        return false;
    TF_Tensor *result = TF_ForwardInputOrAllocateOutput(e->context, &from, 1, (int)index,
                                                        lengths, axes, &forwarded, e->status);
    if (!is_well(e))
        return false;
    e->tensors[e->of->others + index] = result;
    add_address(e, result);
    return true;
}

/* Return the tables as a tuple of bytes. */
static PyObject *tables_of(const execution *e)
{
    PyObject *tables = PyTuple_New((Py_ssize_t)e->tables);
    for (int64_t i = 0; tables && i < e->tables; i++) {
        const int64_t end = i + 1 < e->tables ? e->begins[i + 1] : e->used;
        PyObject *table = PyBytes_FromStringAndSize(
            (const char *)(e->numbers + e->begins[i]),
            (Py_ssize_t)((size_t)(end - e->begins[i]) * sizeof *e->numbers));
        if (table)
            PyTuple_SetItem(tables, (Py_ssize_t)i, table);
        else
            Py_CLEAR(tables);
    }
    return tables;
}

static void reduce_tables(execution *e)
{
    Py_XDECREF(call_python(e, tables_of(e)));
}

static bool reduce(execution *e)
{
    TF_DataType type = 0;
    e->begins = calloc((size_t)e->of->count, sizeof *e->begins);
    if (!e->begins)
        return fail(e, TF_RESOURCE_EXHAUSTED, "There is no memory for an operation.");
    if (!get_others(e) || !extend(e, e->of->count * (e->of->others + 4 + USUAL_AXES)))
        return false;
    for (int64_t i = 0; i < e->of->count; i++)
        if (!add_tensor(e, i, &type))
            return false;
    if (!with_python(e, reduce_tables) || !e->of->others)
        return is_well(e);
    return set_bundle(e, e->tensors + e->of->others, e->of->count, e->of->others);
}

static void compute_reduce(void *of, TF_OpKernelContext *context)
{
    execute(of, context, ((kernel *)of)->others + ((kernel *)of)->count, reduce);
}

/* --- PopdistCall. */

/* Return a tensor's memory and shape. The tensor is the memory's from now on. */
static PyObject *argument_of(TF_Tensor *tensor)
{
    const int axes = TF_NumDims(tensor);
    PyObject *shape = PyTuple_New(axes);
    for (int axis = 0; shape && axis < axes; axis++) {
        PyObject *length = PyLong_FromLongLong(TF_Dim(tensor, axis));
        if (length)
            PyTuple_SetItem(shape, axis, length);
        else
            Py_CLEAR(shape);
    }
    return Py_BuildValue("(NN)", memory_of(tensor), shape);
}

/* Set an output to what Python has made: its owner, address, bytes, type and shape. */
static bool set_result(execution *e, int64_t index, PyObject *result)
{
    PyObject *owner, *shape;
    unsigned long long address, bytes;
    TF_DataType type;
    int64_t lengths[MOST_AXES];
    if (!PyArg_ParseTuple(result, "OKKIO!", &owner, &address, &bytes, &type, &PyTuple_Type,
                          &shape))
        return false;
    const Py_ssize_t axes = PyTuple_Size(shape);
    if (axes > MOST_AXES)
        return fail(e, TF_INVALID_ARGUMENT, "A tensor has over 254 axes.");
    for (Py_ssize_t axis = 0; axis < axes; axis++)
        lengths[axis] = PyLong_AsLongLong(PyTuple_GetItem(shape, axis));
    if (PyErr_Occurred())
        return false;
    TF_Tensor *tensor = tensor_over(owner, type, lengths, (int)axes,
                                    (void *)(uintptr_t)address, (size_t)bytes);
    if (!tensor)
        return fail(e, TF_RESOURCE_EXHAUSTED, "There is no memory for a result.");
    TF_SetOutput(e->context, (int)index, tensor, e->status);
    TF_DeleteTensor(tensor);
    return is_well(e);
}

static void call_with_tensors(execution *e)
{
    PyObject *arguments = PyTuple_New((Py_ssize_t)e->of->count);
    for (int64_t i = 0; arguments && i < e->of->count; i++) {
        TF_Tensor *tensor = input(e, i + 1);
        PyObject *argument = tensor ? argument_of(tensor) : NULL;
        if (argument)
            PyTuple_SetItem(arguments, (Py_ssize_t)i, argument);
        else
            Py_CLEAR(arguments);
    }
    PyObject *results = arguments ? call_python(e, arguments) : NULL;
    for (Py_ssize_t i = 0; results && i < PyTuple_Size(results); i++)
        if (!set_result(e, i, PyTuple_GetItem(results, i)))
            break;
    Py_XDECREF(results);
}

static bool call(execution *e)
{
    return with_python(e, call_with_tensors);
}

static void compute_call(void *of, TF_OpKernelContext *context)
{
    execute(of, context, 0, call);
}

/* --- Registration. */

static void infer_nothing(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF_ShapeInferenceContextSetUnknownShape(context, status);
}

typedef struct {
    const char *name;
    const char *attributes[4], *inputs[4], *outputs[3];
    TF_create create;
    TF_compute compute;
} operation;

static const operation operations[] = {
    {
        "PopdistCall",
        {"T: list(type) >= 0", "U: list(type) >= 0", "key: int"},
        {"order: resource", "tensors: T"},
        {"results: U"},
        create_call,
        compute_call,
    },
    {
        "PopdistReduce",
        {"T: list(type) >= 1", "N: int >= 0", "key: int"},
        {"order: resource", "tensors: T", "others: N * int64"},
        {"results: T", "shared: N * int64"},
        create_reduce,
        compute_reduce,
    },
    {
        "PopdistPack",
        {"T: list(type) >= 1"},
        {"tensors: T"},
        {"bundle: int64"},
        create_other,
        compute_pack,
    },
    {
        "PopdistUnpack",
        {"T: list(type) >= 1"},
        {"bundle: int64"},
        {"tensors: T"},
        create_other,
        compute_unpack,
    },
};

static void define(const operation *o, TF_Status *status)
{
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder(o->name);
    for (const char *const *each = o->attributes; *each; each++)
        TF_OpDefinitionBuilderAddAttr(builder, *each);
    for (const char *const *each = o->inputs; *each; each++)
        TF_OpDefinitionBuilderAddInput(builder, *each);
    for (const char *const *each = o->outputs; *each; each++)
        TF_OpDefinitionBuilderAddOutput(builder, *each);
    /* TensorFlow leaves out operations without a state, or makes one of two, or carries
     * them out once for all: a bundle would outlive its tensors. */
    TF_OpDefinitionBuilderSetIsStateful(builder, true);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, infer_nothing);
    TF_RegisterOpDefinition(builder, status);
    if (TF_GetCode(status) == TF_OK)
        TF_RegisterKernelBuilder(
            o->name, TF_NewKernelBuilder(o->name, "CPU", o->create, o->compute, free), status);
}

static PyObject *register_operations(PyObject *module, PyObject *args)
{
    (void)module;
    const char *path;
    PyObject *function;
    if (!PyArg_ParseTuple(args, "sO", &path, &function))
        return NULL;
    if (carry_out)
        return PyErr_Format(PyExc_RuntimeError, "The operations are registered already.");
    const char *missing = find_tensorflow(path);
    if (missing)
        return PyErr_Format(PyExc_LookupError, "%s is not there", missing);
    TF_Status *status = TF_NewStatus();
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        if (TF_GetCode(status) == TF_OK)
            define(&operations[i], status);
    if (TF_GetCode(status) != TF_OK)
        PyErr_SetString(PyExc_RuntimeError, TF_Message(status));
    else
        carry_out = Py_NewRef(function);
    TF_DeleteStatus(status);
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"register_operations", register_operations, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "popdist.tensorflow.tensors._kernels",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__kernels(void);

PyMODINIT_FUNC PyInit__kernels(void)
{
    if (!make_memory_type())
        return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "VERSION", KERNELS_VERSION) != 0)
        Py_CLEAR(module);
    return module;
}
