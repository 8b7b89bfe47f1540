/* The entry points without a Python frame: calls on arrays as they lie in their buffers, where these are plain,
 * which is to say that nothing has to be decided about them or copied. All other arrays,
 * of which engine/rows.py decides, are described by a table: see call_table.h. */
#ifndef POPDIST_PLAIN_ARRAYS_H
#define POPDIST_PLAIN_ARRAYS_H

#include "python/binding.h"

#include "move/exchange.h"

/* The rows of a member whose addresses fit the stack, which is small in some threads. */
enum { FEW_ROWS = 16 };

/* What is read and what is written, of one dtype. */
typedef struct {
    Py_buffer x, out; /* `out` is not there if both are the same array */
    bool same;
    int type;
} pair;

/* Get two arrays' buffers. False, with nothing taken, where one has no elements of the
 * core's dtypes, aligned and one after the other, or they are not of one dtype. */
bool get_pair(pair *p, PyObject *from, PyObject *to);
void release_pair(pair *p);

/* Whether two arrays share no memory. */
bool are_apart(const pair *p);

/* Whether two arrays' axes, of each from one on, have the same lengths. */
bool same_lengths(const Py_buffer *x, int from, const Py_buffer *out, int to);

/* Clear the exception and return NotImplemented. */
PyObject *not_plain(void);

/* All that follow return NotImplemented where arrays are not plain, or other calls have
 * to be made before. */

PyObject *reduce_arrays(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading);
/* The arrays of two lists, in one pass. */
PyObject *reduce_lists(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading);

/* `count` elements at an address in place, where this member has one row; with `in_turn`
 * the other calls have been made. */
PyObject *reduce_memory(PyObject *comm, PyObject *split, uint64_t address, uint64_t count,
                        int type, int reduction, int wanted, bool in_turn);

PyObject *scatter_array(PyObject *comm, PyObject *split, PyObject *from, PyObject *to,
                        long reduction, bool leading);

/* One array of each member into one of them all. Where members' arrays differ, returns
 * the headers of all of them, and does no more. */
PyObject *gather_array(PyObject *comm, PyObject *from, PyObject *to);

/* An exchange in which each member's part has so many bytes. */
status exchange_equal(exchange x, uint64_t bytes);

#endif
