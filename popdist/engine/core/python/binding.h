/* What the core's Python side shares: see _core.pyi for what each function does. */
#ifndef POPDIST_BINDING_H
#define POPDIST_BINDING_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "reduce/call.h"

typedef struct {
    PyObject_HEAD
    replica_split *split;
} SplitObject;

extern PyTypeObject *split_type;
extern PyObject *failure; /* the exception: a status, which ending() explains */

PyObject *make_split_type(PyObject *module);
PyObject *make_comm_type(PyObject *module);
PyObject *make_reducer_type(PyObject *module);
PyObject *make_mapping_type(PyObject *module);

/* All-reduce what lies in plain buffers. NotImplemented where they are not plain, or
 * other calls have to be made before. */
PyObject *reduce_arrays(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading);
/* The same for the arrays of two lists, in one pass. */
PyObject *reduce_lists(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading);

/* Numbers from a sequence; -1 with an exception set. */
Py_ssize_t numbers_from(PyObject *sequence, uint64_t *to, Py_ssize_t most);

#endif
