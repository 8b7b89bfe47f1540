/* Calls on tensors, made at once or deferred. */
#include "python/deferred.h"

#include "move/exchange.h"

#include <stddef.h>
#include <structmember.h>

/* Exchange rows as equal shares of all members. */
static PyObject *exchange_rows(const tensor_call *k)
{
    exchange x = {
        .c = &k->comm->c,
        .op = k->op,
        .prelude_to = NO_PRELUDE,
        .type = UINT8,
        .root = k->root,
        .in = k->in.data,
        .out = k->out.data,
    };
    if (k->op == BROADCAST) {
        const ssize_t length = (ssize_t)k->in.count;
        x.type = (dtype)k->in.type;
        x.shapes_hash = hash_with_shape(0, &length, 1);
    }
    if (!enter(k->comm, k->out.bytes))
        return NULL;
    return leave(k->comm, exchange_equal(x, k->in.bytes));
}

PyObject *tensor_call_make(tensor_call *k)
{
    if (k->op != ALL_REDUCE && k->op != REDUCE_SCATTER)
        return exchange_rows(k);
    call c = call_of(&k->comm->c, split_of(k->split), k->op, k->in.type, k->reduction);
    return comm_reduce_row(k->comm, &c, k->usual, k->in.data, k->out.data, k->in.count);
}

void tensor_call_keep(const tensor_call *k)
{
    Py_INCREF((PyObject *)k->comm);
    Py_INCREF(k->split);
    Py_INCREF(k->source);
    Py_INCREF(k->target);
}

void tensor_call_release(tensor_call *k)
{
    if (!k->source)
        return;
    Py_CLEAR(k->source);
    Py_DECREF(k->target);
    Py_DECREF(k->split);
    Py_DECREF((PyObject *)k->comm);
}

PyObject *defer(const tensor_call *k, PyObject *group)
{
    DeferredObject *call = new_object(tensor_call_type);
    if (!call)
        return NULL;
    CommObject *comm = k->comm;
    Py_INCREF((PyObject *)comm);
    Py_INCREF(group);
    tensor_call_keep(k);
    call->comm = comm;
    call->group = group;
    call->call = *k;
    call->is_number = k->out.count == 1;
    call->since_ns = now_ns();
    if (comm->deferred)
        comm->last_deferred->next = call;
    else
        comm->deferred = call;
    comm->last_deferred = call;
    Py_INCREF((PyObject *)call);
    return (PyObject *)call;
}

/* Make the first deferred call. False with an exception set if it was interrupted: the
 * reason of a failure is known to the group. */
static bool make_first(CommObject *comm)
{
    DeferredObject *call = comm->deferred;
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    comm->maker = PyThread_get_thread_ident();
    PyObject *result = tensor_call_make(&call->call);
    call->has_failed = !result;
    Py_XDECREF(result);
    if (call->has_failed && PyErr_ExceptionMatches(failure))
        PyErr_Clear();
    if (call->has_failed)
        PyErr_Fetch(&type, &value, &traceback);
    /* Before other threads may go on: see Handle.carry_out(). */
    tensor_call_release(&call->call);
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

static PyObject *deferred_wait(DeferredObject *self, PyObject *unused)
{
    if (!make_deferred(self->comm, self))
        return explained(self->comm, NULL);
    if (!self->has_failed)
        Py_RETURN_TRUE;
    PyErr_SetObject(failure, NULL);
    return explained(self->comm, NULL);
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

static void deferred_end(PyObject *object)
{
    DeferredObject *self = (DeferredObject *)object;
    tensor_call_release(&self->call);
    Py_DECREF((PyObject *)self->comm);
    Py_DECREF(self->group);
    free_object(object);
}

static PyMethodDef deferred_methods[] = {
    METHOD("wait", deferred_wait, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef deferred_members[] = {
    {"is_over", T_BOOL, offsetof(DeferredObject, is_over), READONLY, NULL},
    {"is_number", T_BOOL, offsetof(DeferredObject, is_number), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot deferred_slots[] = {
    {Py_tp_dealloc, (void *)(uintptr_t)deferred_end},
    {Py_tp_methods, deferred_methods},
    {Py_tp_members, deferred_members},
    {0, NULL},
};

PyType_Spec tensor_call_spec = TYPE("TensorCall", DeferredObject,
                                    Py_TPFLAGS_DISALLOW_INSTANTIATION, deferred_slots);
