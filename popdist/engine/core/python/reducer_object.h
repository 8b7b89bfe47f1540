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
    PyObject *types;      /* a set: a result like an array of these types can be made */
    PyObject *empty_like; /* makes one */
    bool only_types;      /* whether calls with other arrays go to _all_reduce */
} ReducerObject;

/* Make the words that name reductions and algorithms. */
bool reducer_intern_words(void);

#endif
