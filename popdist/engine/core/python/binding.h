/* Declarations for all files of the core's Python side: see _core.pyi for each function. */
#ifndef POPDIST_BINDING_H
#define POPDIST_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "reduce/call.h"

typedef struct {
    PyObject_HEAD
    replica_split *split;
} SplitObject;

static inline const replica_split *split_of(PyObject *split_object)
{
    return ((SplitObject *)split_object)->split;
}

extern PyTypeObject *split_type;
extern PyTypeObject *recorder_type;
extern PyObject *failure; /* the exception: a status, which ending() explains */

/* A method in a type's table. */
#define METHOD(name, function, flags)                                              \
    {                                                                              \
        name, (PyCFunction)(void (*)(void))(function), flags, NULL                 \
    }

/* Make a type of the module with these slots. */
PyObject *make_type(PyObject *module, const char *name, size_t bytes, unsigned flags,
                    PyType_Slot *slots);

/* Return a new object of a type, all of it zeros, or NULL with an exception. */
void *new_object(PyTypeObject *type);
/* Give back the memory of an object of one of these types. */
void free_object(PyObject *object);

PyObject *make_comm_type(PyObject *module);
PyObject *make_reducer_type(PyObject *module);
PyObject *make_mapping_type(PyObject *module);
PyObject *make_recorder_type(PyObject *module);
PyObject *make_tensor_call_type(PyObject *module);
PyObject *make_tcp_type(PyObject *module);
PyObject *make_tensor_calls_type(PyObject *module);

/* The name of capsules with a link_table, and the function that makes one for MPI. */
#define LINK_TABLE "popdist.engine._core.link_table"
PyObject *make_mpi_links(PyObject *module, PyObject *args);

/* The recorder in a Recorder. */
recorder *recorder_of(PyObject *object);

/* Read numbers from a sequence. Returns how many there are, or -1 with an exception. */
Py_ssize_t numbers_from(PyObject *sequence, int64_t *to, Py_ssize_t most);
Py_ssize_t integers_from(PyObject *sequence, int *to, Py_ssize_t most);

/* Append an object that the caller owns, and owns no more. If the list or the object is
 * NULL or memory is short, the list becomes NULL. */
void append_to(PyObject **list, PyObject *object);

/* Hold an object in place of another, or NULL in place of None. */
void hold(PyObject **held, PyObject *object);

#endif
