#include "python/binding.h"

#include "hosts/links.h"
#include "shm/pages.h"

/* Equal to CORE_VERSION in popdist/engine/__init__.py: both go up when Python's side
 * needs another core. */
#define CORE_VERSION 10

PyTypeObject *split_type;
PyObject *failure;
static PyObject *name_struct;

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

PyObject *make_type(PyObject *module, const char *name, size_t bytes, unsigned flags,
                    PyType_Slot *slots)
{
    PyType_Spec spec = {name, (int)bytes, 0, Py_TPFLAGS_DEFAULT | flags, slots};
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}

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

/* --- Split */

/* Room for the numbers of all members. */
typedef struct {
    int64_t given[MAX_LEAVES];
    uint32_t rows[MAX_LEAVES];
    int hosts[MAX_LEAVES];
} split_numbers;

/* Read each member's number of replicas. Returns the number of members, or -1 with an
 * exception. */
static Py_ssize_t rows_from(PyObject *given, int rank, Py_ssize_t most, split_numbers *n)
{
    const Py_ssize_t size = numbers_from(given, n->given, most);
    int64_t all = 0;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (n->given[i] < 1 || n->given[i] > MAX_LEAVES) {
            PyErr_Format(PyExc_ValueError,
                         "Member %zd has %lld replicas in the group, but must have "
                         "1 to %d. Leave members without any out of the group.",
                         i, (long long)n->given[i], MAX_LEAVES);
            return -1;
        }
        n->rows[i] = (uint32_t)n->given[i];
        all += n->given[i];
    }
    if (size < 0 || (rank >= 0 && rank < size && all <= MAX_LEAVES))
        return size;
    PyErr_Format(PyExc_ValueError,
                 "A group has %lld replicas and this is member %d of %zd, but "
                 "it can have 1 to %d replicas, and members count from 0.",
                 (long long)all, rank, size, MAX_LEAVES);
    return -1;
}

/* Read each member's host: hosts are numbered from 0. */
static bool hosts_from(PyObject *given, Py_ssize_t size, int *hosts)
{
    bool is_valid = integers_from(given, hosts, size) == size;
    for (Py_ssize_t i = 0; is_valid && i < size; i++)
        is_valid = hosts[i] >= 0 && hosts[i] < size;
    if (!is_valid && !PyErr_Occurred())
        PyErr_Format(PyExc_ValueError, "There must be the number of a host for each of %zd "
                                       "members.", size);
    return is_valid;
}

static replica_split *split_from(int rank, PyObject *given, PyObject *hosts, split_numbers *n)
{
    const bool over_hosts = hosts != Py_None;
    const Py_ssize_t size = rows_from(given, rank, over_hosts ? MAX_LEAVES : MAX_MEMBERS, n);
    if (size < 0 || (over_hosts && !hosts_from(hosts, size, n->hosts)))
        return NULL;
    replica_split *split = over_hosts ? split_new_over_hosts(rank, (int)size, n->rows,
                                                             (const uint32_t *)n->hosts)
                                      : split_new(rank, (int)size, n->rows);
    if (!split)
        PyErr_NoMemory();
    return split;
}

static PyObject *split_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"rank", "rows", "hosts", NULL};
    int rank;
    PyObject *given, *given_hosts = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iO|O", names, &rank, &given,
                                     &given_hosts))
        return NULL;
    /* Not static: to read a sequence may run Python, and with it another thread. */
    split_numbers *numbers = PyMem_Malloc(sizeof *numbers);
    if (!numbers)
        return PyErr_NoMemory();
    replica_split *split = split_from(rank, given, given_hosts, numbers);
    PyMem_Free(numbers);
    SplitObject *self = split ? new_object(type) : NULL;
    if (self)
        self->split = split;
    else if (split)
        split_free(split);
    return (PyObject *)self;
}

static void split_end(PyObject *object)
{
    split_free(((SplitObject *)object)->split);
    free_object(object);
}

static PyObject *make_split_type(PyObject *module)
{
    static PyType_Slot slots[] = {
        {Py_tp_new, (void *)(uintptr_t)split_make},
        {Py_tp_dealloc, (void *)(uintptr_t)split_end},
        {0, NULL},
    };
    return make_type(module, "popdist.engine._core.Split", sizeof(SplitObject), 0, slots);
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

/* The bytes of an arena, and the begin and the end of its part for send and receive
 * only. */
static PyObject *arena_sizes(PyObject *module, PyObject *args)
{
    settings s;
    (void)module;
    if (!settings_from(args, &s))
        return NULL;
    const places at = places_of(&s);
    return Py_BuildValue("(KKK)", (unsigned long long)at.total,
                         (unsigned long long)at.channels, (unsigned long long)at.slots);
}

static PyObject *layout_of_arenas(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    return PyLong_FromUnsignedLongLong(arena_layout());
}

static PyObject *initialise(PyObject *module, PyObject *args)
{
    settings s;
    PyObject *memory, *sizes;
    Py_buffer view;
    const char *cache_of = NULL;
    Py_ssize_t caches = 0;
    (void)module;
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
    (void)module, (void)unused;
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
    (void)module;
    return on_pages(args, make_accessible);
}

static PyObject *remove_these_pages(PyObject *module, PyObject *args)
{
    (void)module;
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
    (void)module;
    PyObject *capsule = PyObject_GetAttr(array, name_struct);
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

static bool add(PyObject *module, const char *name, PyObject *value)
{
    if (!value)
        return false;
    bool added = PyModule_AddObjectRef(module, name, value) == 0;
    Py_DECREF(value);
    return added;
}

PyMODINIT_FUNC PyInit__core(void);

PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    name_struct = PyUnicode_InternFromString("__array_struct__");
    split_type = (PyTypeObject *)make_split_type(module);
    recorder_type = (PyTypeObject *)make_recorder_type(module);
    failure = PyErr_NewException("popdist.engine._core.Failure", NULL, NULL);
    /* Kept for good, like the module. */
    Py_XINCREF((PyObject *)split_type);
    Py_XINCREF(failure);
    Py_XINCREF((PyObject *)recorder_type);
    if (name_struct && add(module, "VERSION", PyLong_FromLong(CORE_VERSION))
        && add(module, "Split", (PyObject *)split_type)
        && add(module, "Failure", failure)
        && add(module, "MESSAGE_KINDS", PyLong_FromLong(MESSAGE_KINDS))
        && add(module, "MOST_LOST", PyLong_FromLong(MOST_LOST))
        && add(module, "HIERARCHY_ABOVE", PyLong_FromLong(HIERARCHY_ABOVE))
        && add(module, "Comm", make_comm_type(module))
        && add(module, "Reducer", make_reducer_type(module))
        && add(module, "Mapping", make_mapping_type(module))
        && add(module, "TcpLinks", make_tcp_type(module))
        && add(module, "Recorder", (PyObject *)recorder_type)
        && add(module, "TensorCall", make_tensor_call_type(module))
        && add(module, "TensorCalls", make_tensor_calls_type(module)))
        return module;
    Py_DECREF(module);
    return NULL;
}
