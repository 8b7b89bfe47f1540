/* The base of a group, for the core's Python side. */
#ifndef POPDIST_REDUCER_OBJECT_H
#define POPDIST_REDUCER_OBJECT_H

#include "python/comm_object.h"

typedef struct {
    PyObject_HEAD
    CommObject *comm; /* NULL if every call goes to _all_reduce */
    PyObject *split;
    int usual; /* the algorithm, or -1 to choose by size */
    bool leading;
    PyObject *only; /* the only type of arrays for this path, or NULL for all types */
} ReducerObject;

/* Make the words that name reductions and algorithms. */
bool reducer_intern_words(void);

#endif
