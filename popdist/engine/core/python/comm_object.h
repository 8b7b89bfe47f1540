/* A member's endpoint of a group, and how its calls take turns, for the core's Python side. */
#ifndef POPDIST_COMM_OBJECT_H
#define POPDIST_COMM_OBJECT_H

#include "python/binding.h"

#include "hosts/links.h"

enum {
    ALGORITHMS = IN_ARENA + 1,
    /* The most rows with addresses on the stack, which is small in some threads. */
    FEW_ROWS = 16,
};

typedef struct DeferredObject DeferredObject; /* see deferred.h */

typedef struct {
    PyObject_HEAD
    comm c;
    bool open;
    Py_buffer memory;
    /* One call at a time. A thread with the GIL may read `busy`, which is quicker than a
     * lock. The gate is a lock, closed while it is held: the end of a call opens it
     * for one waiting thread. Many calls may end before that thread runs, and none of
     * them may open the gate again: a semaphore would count them. */
    bool busy;
    unsigned long call_thread; /* the call's thread, once it lets others run, else 0 */
    int waiting;
    PyThread_type_lock gate;
    bool gate_is_open;
    int queued; /* calls that a thread of our own will make before any other */
    DeferredObject *deferred, *last_deferred; /* calls to make before those, too */
    unsigned long maker; /* the thread that makes the first of them, else 0 */
    bool is_watched;     /* whether the worker's thread looks at them every so often */
    links links;   /* to its other hosts; `hooks` handles their events, or is NULL */
    PyObject *hooks;
    PyObject *link_capsule; /* owns their implementation, or NULL */
    PyThreadState *saved;    /* while a call lets other threads run */
    uint64_t float_mode;
    uint64_t stall_ns;
    PyObject *on_stall;
    PyObject *explain; /* returns the error for a call that has failed, or NULL */
    PyObject *trace; /* called after each call, or NULL */
    uint64_t entered_ns; /* when the call began, if it is traced, else 0 */
    PyObject *recorder; /* records its calls, or NULL */
    uint32_t group;     /* as that numbers it */
    uint64_t runs[ALGORITHMS]; /* reductions carried out by each algorithm */
} CommObject;

/* A description of a call, as Python gets it. */
PyObject *described(const descriptor *d);

/* Hooks of comm: Python's needs around a long wait. */
void release_gil(comm *c);
bool run_python_hooks(comm *c, int peer, uint64_t waited_ns);

/* Whether this very thread is in the middle of a call: then its current code has
 * interrupted the call, and must not wait for its end. */
bool in_own_call(const CommObject *self);

/* Raise an error for a call in the middle of another one of this thread. */
bool refuse_nested_call(void);

/* Wait until no other thread makes a call. False with an exception set, and no turn, if
 * this thread cannot wait, or a signal's handler has raised. */
bool take_turn(CommObject *self);
void give_turn(CommObject *self);

/* Wait a little for another thread's call to end: whenever one does, open_gate() lets one
 * waiting thread go on. False with an exception set as for take_turn(). */
bool await_gate(CommObject *self);
void open_gate(CommObject *self);

/* Whether this very thread makes a deferred call. */
bool is_maker(const CommObject *self);

/* Make deferred calls up to one, NULL for all of them. False with an exception set if this
 * thread cannot, or was interrupted. */
bool make_deferred(CommObject *self, const DeferredObject *last);

/* Around every call, which begins when the deferred ones are over. False with an exception
 * set if no call is possible; leave returns None, or NULL with an exception for all but
 * DONE. */
bool enter(CommObject *self, uint64_t bytes);
PyObject *leave(CommObject *self, status s);

/* Return the result of a call. If it has failed, raise the error of `explain`. */
PyObject *explained(CommObject *self, PyObject *result);

/* Around every call of the program: show and record it. */
void end_record(CommObject *self, status s);

static inline void begin_call(CommObject *self, uint64_t bytes)
{
    show_begin(&self->c, bytes);
    if (self->recorder)
        self->c.record = record_begin(recorder_of(self->recorder), self->group, bytes);
}

static inline void end_call(CommObject *self, status s)
{
    show_end(&self->c);
    if (self->c.record)
        end_record(self, s);
}

/* Methods of an endpoint for its deferred calls: see deferred.c. */
PyObject *comm_deferred_seconds(CommObject *self, PyObject *unused);
PyObject *comm_make_deferred(CommObject *self, PyObject *unused);
PyObject *comm_watch(CommObject *self, PyObject *watched);

/* A member's calls, for others: methods of its endpoint, see activities.c. */
PyObject *comm_missing(CommObject *self, PyObject *unused);
PyObject *comm_recent(CommObject *self, PyObject *args);
PyObject *comm_record_to(CommObject *self, PyObject *args);

/* Calls of a group on several hosts: see host_calls.c. */
PyObject *comm_connect_hosts(CommObject *self, PyObject *args);
PyObject *comm_note_death(CommObject *self, PyObject *args);
PyObject *comm_larger_call(CommObject *self, PyObject *unused);

/* Make a call from the fields of an EngineCall: see comm_calls.c. */
PyObject *comm_run(CommObject *self, PyObject *const *args, Py_ssize_t count);

/* A reduction to which arrays are added. */
typedef struct {
    call k;
    /* Where the addresses of the next array's rows belong: the rows to read, then as many
     * rows to write. */
    char **next;
    uint32_t rows;
    array_rows *arrays, one;
    void *memory; /* NULL for one array of few rows */
    char *few[2 * FEW_ROWS];
} reduction_call;

/* Make room for the arrays of a call, whose fields are those of call_of(). Returns false
 * if there is no memory. */
bool reduction_begin(reduction_call *r, comm *c, const replica_split *split, operation op,
                     int type, long reduction, size_t arrays);

/* Add the next array: its addresses are set, and its rows have so many elements. */
static inline void reduction_add(reduction_call *r, uint64_t count)
{
    r->arrays[r->k.count_of_arrays++] = (array_rows){count, r->next, r->next + r->rows};
    r->k.total += count;
    r->next += 2 * r->rows;
}

static inline void reduction_free(reduction_call *r)
{
    if (r->memory)
        PyMem_Free(r->memory);
}

/* Make a reduction on arrays that have been checked, and count its algorithm. In a
 * reduce_scatter, the only array's first result has room for all of this member's
 * shares. */
PyObject *comm_reduce(CommObject *self, call *k, int wanted);
/* The same of a row of so many elements, if this member has one row. */
PyObject *comm_reduce_row(CommObject *self, call *k, int wanted, char *in, char *out,
                          uint64_t count);

#endif
