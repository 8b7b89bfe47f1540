#include "python/binding.h"

#include "python/reducer_object.h"
#include "shm/pages.h"

/* Equal to CORE_VERSION in popdist/engine/__init__.py: both go up when Python's side
 * needs another core. */
#define CORE_VERSION 13

PyObject *failure;

/* Check a sequence's length. Returns it, or -1 with an exception. */
static Py_ssize_t length_of(PyObject *sequence, Py_ssize_t most)
{
    const Py_ssize_t count = PySequence_Size(sequence);
    if (count <= most)
        return count;
    PyErr_Format(PyExc_ValueError, "%zd are given, but at most %zd can be.", count, most);
    return -1;
}

static int64_t number_at(PyObject *sequence, Py_ssize_t i)
{
    PyObject *item = PySequence_GetItem(sequence, i);
    const int64_t number = item ? PyLong_AsLongLong(item) : -1;
    Py_XDECREF(item);
    return number;
}

Py_ssize_t numbers_from(PyObject *sequence, int64_t *to, Py_ssize_t most)
{
    const Py_ssize_t count = length_of(sequence, most);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
        to[i] = number_at(sequence, i);
    return PyErr_Occurred() ? -1 : count;
}

Py_ssize_t integers_from(PyObject *sequence, int *to, Py_ssize_t most)
{
    const Py_ssize_t count = length_of(sequence, most);
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++) {
        const int64_t number = number_at(sequence, i);
        to[i] = (int)number;
        if (to[i] != number)
            PyErr_Format(PyExc_OverflowError, "%lld is no number of 32 bits.",
                         (long long)number);
    }
    return PyErr_Occurred() ? -1 : count;
}

void append_to(PyObject **list, PyObject *object)
{
    if (!*list || !object || PyList_Append(*list, object) < 0)
        Py_CLEAR(*list);
    Py_XDECREF(object);
}

void hold(PyObject **held, PyObject *object)
{
    PyObject *before = *held;
    *held = object == Py_None ? NULL : Py_NewRef(object);
    Py_XDECREF(before);
}

/* --- Types */

void *new_object(PyTypeObject *type)
{
    return ((allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

void free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    ((freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* --- Functions */

static bool settings_from(PyObject *sizes, settings *s)
{
    unsigned long long size, block, oneshot, spin_us;
    if (!PyArg_ParseTuple(sizes, "KKKK", &size, &block, &oneshot, &spin_us))
        return false;
    *s = (settings){size, block, oneshot, spin_us};
    if (!settings_possible(s)) {
        PyErr_Format(PyExc_ValueError,
                     "An arena for %llu members with blocks of %llu bytes and one-shot "
                     "up to %llu bytes cannot be: it can have 1 to %d members, blocks of "
                     "%d bytes to 4 GiB, and one-shot up to %d.",
                     size, block, oneshot, MAX_MEMBERS, LEAST_BLOCK_BYTES,
                     MOST_ONESHOT_BYTES);
        return false;
    }
    return true;
}

/* The bytes of an arena, and where its slots for send and receive begin and end. */
static PyObject *arena_sizes(PyObject *module, PyObject *args)
{
    settings s;
    if (!settings_from(args, &s))
        return NULL;
    const places at = places_of(&s);
    return Py_BuildValue("(KKK)", (unsigned long long)at.total,
                         (unsigned long long)at.channels, (unsigned long long)at.slots);
}

static PyObject *layout_of_arenas(PyObject *module, PyObject *unused)
{
    return PyLong_FromUnsignedLongLong(arena_layout());
}

static PyObject *initialise(PyObject *module, PyObject *args)
{
    settings s;
    PyObject *memory, *sizes;
    Py_buffer view;
    const char *cache_of = NULL;
    Py_ssize_t caches = 0;
    if (!PyArg_ParseTuple(args, "OO!|y#", &memory, &PyTuple_Type, &sizes, &cache_of, &caches)
        || !settings_from(sizes, &s)
        || PyObject_GetBuffer(memory, &view, PyBUF_WRITABLE) < 0)
        return NULL;
    bool fits = (uint64_t)view.len >= places_of(&s).total
                && (!cache_of || (uint64_t)caches == s.size);
    if (fits)
        arena_initialise(view.buf, &s, (const uint8_t *)cache_of);
    PyBuffer_Release(&view);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "The memory is smaller than that of arena_sizes(), or "
                            "there is not a number of a cache for each member.");
    Py_RETURN_NONE;
}

static PyObject *simd_levels(PyObject *module, PyObject *unused)
{
    static const char *const names[] = {"baseline", "avx2", "avx512", "neon"};
    PyObject *levels = PyList_New(0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (kernels_named(names[i]))
            append_to(&levels, PyUnicode_FromString(names[i]));
    return levels;
}

static PyObject *on_pages(PyObject *args, bool (*function)(void *, size_t))
{
    unsigned long long address, length;
    if (!PyArg_ParseTuple(args, "KK", &address, &length))
        return NULL;
    if (!function((void *)(uintptr_t)address, (size_t)length))
        return PyErr_SetFromErrno(PyExc_OSError);
    Py_RETURN_NONE;
}

static PyObject *make_pages_accessible(PyObject *module, PyObject *args)
{
    return on_pages(args, make_accessible);
}

static PyObject *remove_these_pages(PyObject *module, PyObject *args)
{
    return on_pages(args, remove_pages);
}

/* The contents of an array's __array_struct__: numpy's array interface in C. */
typedef struct {
    int version, axes;
    char kind;
    int item_bytes, flags;
    Py_ssize_t *shape, *strides;
    void *data;
} array_struct;

static PyObject *address_of(PyObject *module, PyObject *array)
{
    PyObject *capsule = PyObject_GetAttr(array, name___array_struct__);
    const array_struct *numpy_array = capsule ? PyCapsule_GetPointer(capsule, NULL) : NULL;
    PyObject *address = numpy_array ? PyLong_FromVoidPtr(numpy_array->data) : NULL;
    Py_XDECREF(capsule);
    return address;
}

static PyMethodDef functions[] = {
    {"address_of", address_of, METH_O, NULL},
    {"make_accessible", make_pages_accessible, METH_VARARGS, NULL},
    {"remove_pages", remove_these_pages, METH_VARARGS, NULL},
    {"arena_sizes", arena_sizes, METH_VARARGS, NULL},
    {"arena_layout", layout_of_arenas, METH_NOARGS, NULL},
    {"initialise", initialise, METH_VARARGS, NULL},
    {"simd_levels", simd_levels, METH_NOARGS, NULL},
    {"mpi_links", make_mpi_links, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "popdist.engine._core",
    .m_size = -1,
    .m_methods = functions,
};

PyTypeObject *recorder_type, *split_type, *tensor_call_type;

/* All types, and where the core itself refers to some of them. */
static const struct {
    PyType_Spec *spec;
    PyTypeObject **type;
} types[] = {
    {&comm_spec, NULL},
    {&mapping_spec, NULL},
    {&recorder_spec, &recorder_type},
    {&reducer_spec, NULL},
    {&split_spec, &split_type},
    {&tcp_spec, NULL},
    {&tensor_call_spec, &tensor_call_type},
    {&tensor_calls_spec, NULL},
};

static bool add_types(PyObject *module)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        /* Kept for good, like the module. */
        PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        if (!type || PyModule_AddType(module, type) < 0)
            return false;
        if (types[i].type)
            *types[i].type = type;
    }
    return true;
}

#define DEFINE_NAME(name) PyObject *name_##name;
FOR_EACH_NAME(DEFINE_NAME)

static bool intern_names(void)
{
#define INTERN_NAME(name) && (name_##name = PyUnicode_InternFromString(#name))
    return reducer_intern_words() FOR_EACH_NAME(INTERN_NAME);
}

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    failure = PyErr_NewException("popdist.engine._core.Failure", NULL, NULL);
    if (module && intern_names() && add_types(module)
        && PyModule_AddObjectRef(module, "Failure", failure) == 0
        && PyModule_AddIntConstant(module, "VERSION", CORE_VERSION) == 0
        && PyModule_AddIntConstant(module, "MESSAGE_KINDS", MESSAGE_KINDS) == 0
        && PyModule_AddIntConstant(module, "MOST_LOST", MOST_LOST) == 0
        && PyModule_AddIntConstant(module, "HIERARCHY_ABOVE", HIERARCHY_ABOVE) == 0)
        return module;
    Py_XDECREF(module);
    return NULL;
}
