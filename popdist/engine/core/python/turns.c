/* One call at a time, and Python's needs while it waits: the GIL, signals, stalls. */
#include "python/binding.h"

#include "python/comm_object.h"

enum {
    /* Larger calls let other threads run from their beginning. */
    LONG_CALL_BYTES = 64 << 10,
    /* The interval between checks for signals during a wait for another thread's call. */
    LOOK_US = 50000,
};

void release_gil(comm *c)
{
    CommObject *self = c->owner;
    if (self->saved)
        return;
    self->call_thread = PyThread_get_thread_ident();
    self->saved = PyEval_SaveThread();
}

bool run_python_hooks(comm *c, int peer, uint64_t waited_ns)
{
    CommObject *self = c->owner;
    PyEval_RestoreThread(self->saved);
    bool stop = PyErr_CheckSignals() < 0;
    if (!stop && waited_ns > self->stall_ns && !c->stall_reported) {
        c->stall_reported = true;
        PyObject *result = PyObject_CallFunction(self->on_stall, "id", peer,
                                                 (double)waited_ns / 1e9);
        stop = !result;
        Py_XDECREF(result);
    }
    self->saved = PyEval_SaveThread();
    return stop;
}

bool in_own_call(const CommObject *self)
{
    return self->busy && self->call_thread == PyThread_get_thread_ident();
}

/* Whether Python is ending: then it has stopped all threads but this one. */
static bool is_finalizing(void)
{
    PyObject *function = PySys_GetObject("is_finalizing");
    PyObject *answer = function ? PyObject_CallNoArgs(function) : NULL;
    const bool finalizing = !answer || PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return finalizing;
}

bool is_maker(const CommObject *self)
{
    return self->maker && self->maker == PyThread_get_thread_ident();
}

bool refuse_nested_call(void)
{
    PyErr_SetString(PyExc_RuntimeError,
                    "This thread is in the middle of a call to this group, and what "
                    "interrupted it, a signal's handler perhaps, made another one, "
                    "which would wait for the first for ever. Let the handler only "
                    "note the signal, and make the call once the first one is over.");
    return false;
}

bool await_gate(CommObject *self)
{
    if (is_finalizing()) {
        PyErr_SetObject(failure, NULL);
        return false;
    }
    if (in_own_call(self))
        return refuse_nested_call();
    PyLockStatus opened;
    self->waiting++;
    Py_BEGIN_ALLOW_THREADS
    opened = PyThread_acquire_lock_timed(self->gate, LOOK_US, 1);
    Py_END_ALLOW_THREADS
    self->waiting--;
    if (opened == PY_LOCK_ACQUIRED)
        self->gate_is_open = false;
    return PyErr_CheckSignals() == 0;
}

bool take_turn(CommObject *self)
{
    while (self->busy)
        if (!await_gate(self))
            return false;
    self->busy = true;
    return true;
}

void open_gate(CommObject *self)
{
    if (self->waiting && !self->gate_is_open) {
        self->gate_is_open = true;
        PyThread_release_lock(self->gate);
    }
}

void give_turn(CommObject *self)
{
    self->busy = false;
    self->call_thread = 0;
    open_gate(self);
}

/* Take the turn while the group can be used. */
static bool take_open_turn(CommObject *self)
{
    const bool is_next = !self->deferred || is_maker(self) || make_deferred(self, NULL);
    if (!is_next || !take_turn(self)) {
        /* The others would wait for a call that this member does not finish. */
        if (self->open && !in_own_call(self))
            end_group(&self->c, STOPPED, self->c.rank);
        return false;
    }
    if (self->open && !atomic_load(&self->c.head->ended))
        return true;
    give_turn(self);
    PyErr_SetObject(failure, NULL);
    return false;
}

bool enter(CommObject *self, uint64_t bytes)
{
    if (!take_open_turn(self))
        return false;
    self->entered_ns = self->trace ? now_ns() : 0;
    begin_call(self, bytes);
    self->float_mode = float_mode_enter();
    if (bytes >= LONG_CALL_BYTES)
        release_gil(&self->c);
    return true;
}

/* Tell the trace about a finished call. Errors in the trace are reported on stderr. */
static void tell_trace(PyObject *trace, const descriptor *d, uint64_t began_ns, status s)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *result = PyObject_CallFunction(trace, "NKKN", described(d),
                                             (unsigned long long)began_ns,
                                             (unsigned long long)now_ns(),
                                             PyBool_FromLong(s == DONE));
    if (!result)
        PyErr_WriteUnraisable(trace);
    Py_XDECREF(result);
    PyErr_Restore(type, value, traceback);
}

/* End the turn of a traced call, and tell the trace. */
static void give_traced_turn(CommObject *self, status s)
{
    const uint64_t began_ns = self->entered_ns;
    PyObject *trace = self->trace;
    descriptor d = self->c.larger_call;
    if (!self->c.in_larger_call)
        copy_descriptor(&d, description_at(&self->c, self->c.rank, calls_of(&self->c)));
    Py_XINCREF(trace);
    give_turn(self);
    if (trace)
        tell_trace(trace, &d, began_ns, s);
    Py_XDECREF(trace);
}

PyObject *leave(CommObject *self, status s)
{
    if (self->saved) {
        PyEval_RestoreThread(self->saved);
        self->saved = NULL;
    }
    float_mode_leave(self->float_mode);
    end_call(self, s);
    if (self->entered_ns)
        give_traced_turn(self, s);
    else
        give_turn(self);
    if (s == STOPPED && PyErr_Occurred())
        return NULL;
    if (s != DONE) {
        PyObject *number = PyLong_FromLong(s);
        PyErr_SetObject(failure, number);
        Py_XDECREF(number);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *explained(CommObject *self, PyObject *result)
{
    if (result || !self->explain || !PyErr_ExceptionMatches(failure))
        return result;
    /* Ctrl-C while the function runs must not show this exception. */
    PyErr_Clear();
    PyObject *explain = Py_NewRef(self->explain), *error = PyObject_CallNoArgs(explain);
    if (error)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
    Py_DECREF(explain);
    return NULL;
}
