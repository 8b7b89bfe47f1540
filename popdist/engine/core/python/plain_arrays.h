/* What the fast ways in share: what a buffer holds. */
#ifndef POPDIST_PLAIN_ARRAYS_H
#define POPDIST_PLAIN_ARRAYS_H

#include "python/binding.h"

/* The rows of a member whose addresses fit the stack, which is small in some threads. */
enum { FEW_ROWS = 16 };

/* The dtype of a buffer's elements, or -1 where the core has none of that kind. */
int dtype_of(const Py_buffer *view);

/* All-reduce `count` elements at an address in place. NotImplemented where this member has
 * several rows, or other calls have to be made before; with `in_turn` those have been. */
PyObject *reduce_memory(PyObject *comm, PyObject *split, uint64_t address, uint64_t count,
                        int type, int reduction, int wanted, bool in_turn);

/* Reduce-scatter what lies in a plain buffer into another one. NotImplemented where
 * they are not plain, or other calls have to be made before. */
PyObject *scatter_array(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, bool leading);

/* All-gather plain buffers, one a member, into a buffer of them all. NotImplemented as
 * above; where members' arrays differ, the headers of all of them, and no more. */
PyObject *gather_array(PyObject *comm, PyObject *from, PyObject *to);

#endif
