/* Calls that wait until a thread makes them. */
#include "python/deferred.h"

void defer(DeferredObject *call)
{
    CommObject *comm = call->comm;
    Py_INCREF((PyObject *)call);
    call->since_ns = now_ns();
    if (comm->deferred)
        comm->last_deferred->next = call;
    else
        comm->deferred = call;
    comm->last_deferred = call;
}

/* Make the first deferred call. False with an exception set if it was interrupted: the
 * reason of a failure is known to the group. */
static bool make_first(CommObject *comm)
{
    DeferredObject *call = comm->deferred;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    comm->maker = PyThread_get_thread_ident();
    call->has_failed = !call->make(call);
    if (call->has_failed && PyErr_ExceptionMatches(failure))
        PyErr_Clear();
    if (call->has_failed)
        PyErr_Fetch(&type, &value, &traceback);
    /* Before other threads may go on: see Handle.carry_out(). */
    call->release(call);
    call->is_over = true;
    comm->deferred = call->next;
    comm->maker = 0;
    open_gate(comm);
    Py_DECREF((PyObject *)call);
    if (type)
        PyErr_Restore(type, value, traceback);
    return !type;
}

bool make_deferred(CommObject *comm, const DeferredObject *last)
{
    while (last ? !last->is_over : comm->deferred != NULL) {
        if (is_maker(comm))
            return refuse_nested_call();
        if (comm->maker ? !await_gate(comm) : !make_first(comm))
            return false;
    }
    return true;
}

PyObject *deferred_wait(DeferredObject *self, PyObject *unused)
{
    if (!make_deferred(self->comm, self))
        return NULL;
    if (self->has_failed) {
        PyErr_SetObject(failure, NULL);
        return NULL;
    }
    Py_RETURN_TRUE;
}

PyObject *comm_deferred_seconds(CommObject *self, PyObject *unused)
{
    const DeferredObject *first = self->deferred;
    if (!first)
        return PyFloat_FromDouble(-1);
    return PyFloat_FromDouble(self->maker ? 0 : (double)(now_ns() - first->since_ns) / 1e9);
}

PyObject *comm_make_deferred(CommObject *self, PyObject *unused)
{
    if (!make_deferred(self, NULL))
        return NULL;
    Py_RETURN_NONE;
}

PyObject *comm_watch(CommObject *self, PyObject *watched)
{
    self->is_watched = watched == Py_True;
    Py_RETURN_NONE;
}
