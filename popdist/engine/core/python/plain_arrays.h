/* The entry points without a Python frame: calls on plain arrays as they lie in their
 * buffers. Plain arrays need no decision and no copy. For all other arrays,
 * engine/rows.py makes rows, and an EngineCall describes the call: see comm_calls.c. */
#ifndef POPDIST_PLAIN_ARRAYS_H
#define POPDIST_PLAIN_ARRAYS_H

#include "python/reducer_object.h"

#include "move/exchange.h"

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

/* All-reduce an array, or with `lists` the arrays of two lists in one pass. */
PyObject *plain_reduce(const ReducerObject *group, PyObject *from, PyObject *to, bool lists,
                       long reduction, int wanted);

PyObject *plain_scatter(const ReducerObject *group, PyObject *from, PyObject *to,
                        long reduction);

/* Gather one array from each member into one array. If members' arrays differ, return
 * the headers of all of them, and do no more. */
PyObject *plain_gather(const ReducerObject *group, PyObject *from, PyObject *to);

#endif
