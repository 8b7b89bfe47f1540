/* Calls on tensors, which are made at once, or wait until a thread makes them.
 *
 * A thread that waits for a deferred call makes it, and so does one that begins another
 * call: all calls are made in the order in which they are begun. If no thread does, the one
 * of the group's worker makes them.
 */
#ifndef POPDIST_DEFERRED_H
#define POPDIST_DEFERRED_H

#include "python/comm_object.h"

/* A tensor as one row. */
typedef struct {
    char *data;
    uint64_t count, bytes;
    int type;
} tensor_row;

/* A call with one source and one result, which may be the same tensor. */
typedef struct {
    CommObject *comm;
    PyObject *split;
    int usual; /* algorithm */
    operation op;
    int reduction, root;
    PyObject *source, *target;
    tensor_row in, out;
} tensor_call;

/* The object of a deferred call, which torch's work stands for. */
struct DeferredObject {
    PyObject_HEAD
    CommObject *comm; /* owned */
    PyObject *group;  /* is not closed for lack of references while this is deferred */
    DeferredObject *next;
    uint64_t since_ns;
    bool is_over, has_failed;
    bool is_number;   /* whether its result is one element */
    tensor_call call; /* without tensors once it is over */
};

/* Own a call's references, and give them back: it has none then. */
void tensor_call_keep(const tensor_call *k);
void tensor_call_release(tensor_call *k);

/* Make a call. Returns None, or NULL with an exception. */
PyObject *tensor_call_make(tensor_call *k);

/* Defer a call of a group. Returns its object, or NULL with an exception. */
PyObject *defer(const tensor_call *k, PyObject *group);

#endif
