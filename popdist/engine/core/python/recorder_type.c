/* A process's recorder, as a Python object. */
#include "python/binding.h"

#include <errno.h>

typedef struct {
    PyObject_HEAD
    recorder r;
} RecorderObject;

recorder *recorder_of(PyObject *object)
{
    return &((RecorderObject *)object)->r;
}

/* Takes the descriptor of an empty file, and owns it from then on. */
static PyObject *recorder_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"fd", "most", NULL};
    int fd;
    unsigned long long most;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "iK", names, &fd, &most))
        return NULL;
    RecorderObject *self = new_object(type);
    if (!self)
        return NULL;
    if (recorder_open(&self->r, fd, most))
        return (PyObject *)self;
    PyErr_SetFromErrno(PyExc_OSError);
    Py_DECREF(self);
    return NULL;
}

static PyObject *recorder_shut(PyObject *object, PyObject *unused)
{
    recorder_close(recorder_of(object));
    Py_RETURN_NONE;
}

static void recorder_end(PyObject *object)
{
    recorder_close(recorder_of(object));
    free_object(object);
}

static PyMethodDef recorder_methods[] = {
    {"close", recorder_shut, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot recorder_slots[] = {
    {Py_tp_new, (void *)(uintptr_t)recorder_make},
    {Py_tp_dealloc, (void *)(uintptr_t)recorder_end},
    {Py_tp_methods, recorder_methods},
    {0, NULL},
};

PyType_Spec recorder_spec = TYPE("Recorder", RecorderObject, 0, recorder_slots);
