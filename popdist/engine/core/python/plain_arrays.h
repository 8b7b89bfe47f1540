/* The entry points without a Python frame: calls on plain arrays as they lie in their
 * buffers. Plain arrays need no decision and no copy. For all other arrays,
 * engine/rows.py makes rows, and an EngineCall describes the call: see comm_calls.c. */
#ifndef POPDIST_PLAIN_ARRAYS_H
#define POPDIST_PLAIN_ARRAYS_H

#include "python/binding.h"

#include "move/exchange.h"

/* The most rows with addresses on the stack, which is small in some threads. */
enum { FEW_ROWS = 16 };

/* The buffers of a source and a result, of one dtype. */
typedef struct {
    Py_buffer x, out; /* `out` is empty if both are the same array */
    bool same;
    int type;
} pair;

/* Get two arrays' buffers. False, with no buffer taken, unless both have contiguous,
 * aligned elements of one dtype of the core. */
bool get_pair(pair *p, PyObject *from, PyObject *to);
void release_pair(pair *p);

/* Whether two arrays share no memory. */
bool are_apart(const pair *p);

/* Whether two arrays' axes, of each from one on, have the same lengths. */
bool same_lengths(const Py_buffer *x, int from, const Py_buffer *out, int to);

/* Clear the exception and return NotImplemented. */
PyObject *not_plain(void);

/* All these functions return NotImplemented if arrays are not plain, or if other calls
 * have to be made before. */

PyObject *reduce_arrays(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading);
/* The arrays of two lists, in one pass. */
PyObject *reduce_lists(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading);

/* `count` elements at an address in place, if this member has one row; with `in_turn`
 * the other calls have been made. */
PyObject *reduce_memory(PyObject *comm, PyObject *split, uint64_t address, uint64_t count,
                        int type, int reduction, int wanted, bool in_turn);

PyObject *scatter_array(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, bool leading);

/* Gather one array from each member into one array. If members' arrays differ, return
 * the headers of all of them, and do no more. */
PyObject *gather_array(PyObject *comm, PyObject *from, PyObject *to);

#endif
