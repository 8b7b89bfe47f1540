/* Declarations for all files of the core's Python side: see _core.pyi for each function. */
#ifndef POPDIST_BINDING_H
#define POPDIST_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Python's calling conventions have parameters that most functions here do not need. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#include "reduce/call.h"

typedef struct {
    PyObject_HEAD
    replica_split *split;
} SplitObject;

static inline const replica_split *split_of(PyObject *split_object)
{
    return ((SplitObject *)split_object)->split;
}

/* The module's types: each file defines its own ones. */
#define TYPE(name, object, flags, slots)                                           \
    {                                                                              \
        "popdist.engine._core." name, sizeof(object), 0,                           \
            Py_TPFLAGS_DEFAULT | (flags), slots                                    \
    }
extern PyType_Spec comm_spec, mapping_spec, recorder_spec, reducer_spec, split_spec,
    tcp_spec, tensor_call_spec, tensor_calls_spec;
extern PyTypeObject *recorder_type, *split_type, *tensor_call_type;

/* Interned names of attributes, arguments and methods: name_shape is "shape". */
#define FOR_EACH_NAME(DO)                                                          \
    DO(__array_struct__) DO(_all_reduce) DO(addresses) DO(algorithm) DO(asyncOp)   \
    DO(async_op) DO(name) DO(op) DO(out) DO(reduceOp) DO(reproducible)             \
    DO(rootRank) DO(rootTensor) DO(shape) DO(timeout) DO(watch_deferred)
#define DECLARE_NAME(name) extern PyObject *name_##name;
FOR_EACH_NAME(DECLARE_NAME)

extern PyObject *failure; /* the exception for a call that has failed: see explained() */

/* A method in a type's table. */
#define METHOD(name, function, flags)                                              \
    {                                                                              \
        name, (PyCFunction)(void (*)(void))(function), flags, NULL                 \
    }

/* Return a new object of a type, all of it zeros, or NULL with an exception. */
void *new_object(PyTypeObject *type);
/* Give back the memory of an object of one of these types. */
void free_object(PyObject *object);

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
