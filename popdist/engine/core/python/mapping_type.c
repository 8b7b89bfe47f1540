/* A part of a file, mapped into memory without keeping a file descriptor: mmap.mmap
 * keeps a duplicate. */
#include "python/binding.h"

#include "shm/pages.h"

#include <sys/mman.h>

typedef struct {
    PyObject_HEAD
    void *begin; /* NULL if nothing is mapped */
    Py_ssize_t length;
} MappingObject;

static PyObject *mapping_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", "offset", "nbytes", "accessible", NULL};
    int fd, accessible;
    long long offset;
    Py_ssize_t length;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iLnp", names, &fd, &offset, &length,
                                     &accessible))
        return NULL;
    MappingObject *self = new_object(type);
    if (!self)
        return NULL;
    self->begin = map_shared(fd, offset, (size_t)length, accessible);
    self->length = length;
    if (self->begin)
        return (PyObject *)self;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static void mapping_end(PyObject *object)
{
    MappingObject *self = (MappingObject *)object;
    if (self->begin)
        munmap(self->begin, (size_t)self->length);
    free_object(object);
}

/* The buffer keeps the object alive, and so the mapping. */
static int mapping_buffer(PyObject *object, Py_buffer *view, int flags)
{
    MappingObject *self = (MappingObject *)object;
    return PyBuffer_FillInfo(view, object, self->begin, self->length, 0, flags);
}

static PyType_Slot mapping_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)mapping_make},
    {Py_tp_dealloc, (void *)(uintptr_t)mapping_end},
    {Py_bf_getbuffer, (void *)(uintptr_t)mapping_buffer},
    {0, NULL},
};

PyType_Spec mapping_spec = TYPE("Mapping", MappingObject, 0, mapping_slots);
