/* What a group inherits from the core, for the core's Python side. */
#ifndef POPDIST_REDUCER_OBJECT_H
#define POPDIST_REDUCER_OBJECT_H

#include "python/binding.h"

typedef struct {
    PyObject_HEAD
    PyObject *comm; /* a CommObject, or NULL where every call goes the general way */
    PyObject *split;
    int usual; /* the algorithm, or -1 to choose by size */
    bool leading;
    PyObject *only; /* the one type of arrays that it takes, or NULL for all */
} ReducerObject;

#endif
