/* The implementations of links between hosts, as capsules for connect_hosts(). */
#include "python/binding.h"

#include "hosts/mpi.h"

typedef struct {
    link_table table;
    mpi_links links;
} mpi_table;

static void free_mpi_table(PyObject *capsule)
{
    PyMem_Free(PyCapsule_GetPointer(capsule, LINK_TABLE));
}

static void *pointer(unsigned long long address)
{
    return (void *)(uintptr_t)address;
}

/* Takes the addresses of MPI_Isend, MPI_Irecv and MPI_Test, the handles of a
 * communicator and of MPI_BYTE, and two epolls or -1: one of its connections, one of
 * connections that hang up. */
PyObject *make_mpi_links(PyObject *module, PyObject *args)
{
    unsigned long long isend, irecv, test, group, byte;
    int epoll, hangups;
    if (!PyArg_ParseTuple(args, "KKKKKii", &isend, &irecv, &test, &group, &byte, &epoll,
                          &hangups))
        return NULL;
    mpi_table *t = PyMem_Calloc(1, sizeof *t);
    if (!t)
        return PyErr_NoMemory();
    t->links = (mpi_links){
        .isend = (isend_fn *)(uintptr_t)isend,
        .irecv = (irecv_fn *)(uintptr_t)irecv,
        .test = (test_fn *)(uintptr_t)test,
        .group = pointer(group),
        .byte = pointer(byte),
        .hangups = hangups,
    };
    t->table = (link_table){.calls = &mpi_calls, .own = &t->links, .epoll = epoll};
    PyObject *capsule = PyCapsule_New(&t->table, LINK_TABLE, free_mpi_table);
    if (!capsule)
        PyMem_Free(t);
    return capsule;
}
