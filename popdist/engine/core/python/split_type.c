/* How the replicas of a group are shared out among its members, as a Python object. */
#include "python/binding.h"

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
                         "Member %zd has %lld replicas in the group, but must have 1 to %d. "
                         "Leave members without any out of the group.",
                         i, (long long)n->given[i], MAX_LEAVES);
            return -1;
        }
        n->rows[i] = (uint32_t)n->given[i];
        all += n->given[i];
    }
    if (size < 0 || (rank >= 0 && rank < size && all <= MAX_LEAVES))
        return size;
    PyErr_Format(PyExc_ValueError,
                 "A group has %lld replicas and this is member %d of %zd, but it can have 1 "
                 "to %d replicas, and members count from 0.",
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
        PyErr_Format(PyExc_ValueError,
                     "There must be the number of a host for each of %zd members.", size);
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
    SplitObject *self = new_object(type);
    /* Not static: to read a sequence may run Python, and with it another thread. */
    split_numbers *numbers = self ? PyMem_Malloc(sizeof *numbers) : NULL;
    if (numbers)
        self->split = split_from(rank, given, given_hosts, numbers);
    else
        PyErr_NoMemory();
    PyMem_Free(numbers);
    if (self && !self->split)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void split_end(PyObject *object)
{
    split_free(((SplitObject *)object)->split);
    free_object(object);
}

static PyType_Slot split_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)split_make},
    {Py_tp_dealloc, (void *)(uintptr_t)split_end},
    {0, NULL},
};

PyType_Spec split_spec = TYPE("Split", SplitObject, 0, split_slots);
