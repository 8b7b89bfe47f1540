/* Calls that wait until a thread makes them.
 *
 * A thread that waits for one makes it, and so does one that begins another call: all calls
 * are made in the order in which they are begun. If no thread does, the one of the group's
 * worker makes them.
 */
#ifndef POPDIST_DEFERRED_H
#define POPDIST_DEFERRED_H

#include "python/comm_object.h"

/* The beginning of the objects of such calls. */
struct DeferredObject {
    PyObject_HEAD
    CommObject *comm; /* owned */
    DeferredObject *next;
    uint64_t since_ns;
    bool is_over, has_failed;
    bool (*make)(DeferredObject *self); /* false with an exception set if it failed */
    void (*release)(DeferredObject *self); /* its data */
};

/* Add a call, which has its `comm`, `make` and `release`, to the deferred ones. */
void defer(DeferredObject *call);

/* A method of such calls: returns True once the call is over, and has not failed. */
PyObject *deferred_wait(DeferredObject *self, PyObject *unused);

#endif
