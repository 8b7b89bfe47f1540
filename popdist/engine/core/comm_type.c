/* A member's seat in a group, as Python holds it. */
#include "binding.h"

#include <string.h>
#include <unistd.h>

enum {
    /* Calls that move more let other threads run from their beginning. */
    LONG_CALL_BYTES = 64 << 10,
};

typedef struct {
    PyObject_HEAD
    comm c;
    bool open;
    Py_buffer memory;
    /* One call at a time. Who holds the GIL may look at `busy`, which is quicker than
     * a lock; the gate is locked, and opened once for each that waits. */
    bool busy;
    int waiting;
    PyThread_type_lock gate;
    int queued; /* calls that a thread of our own will make before any other */
    PyThreadState *saved;    /* while a call lets other threads run */
    uint64_t float_mode;
    uint64_t stall_ns;
    uint64_t told_stall; /* the call of which a stall was told */
    PyObject *on_stall;
} CommObject;

/* --- Waiting, with Python around it */

static void let_others_run(comm *c)
{
    CommObject *self = c->owner;
    if (!self->saved)
        self->saved = PyEval_SaveThread();
}

static bool look_after_python(comm *c, int peer, uint64_t waited_ns)
{
    CommObject *self = c->owner;
    PyEval_RestoreThread(self->saved);
    bool stop = PyErr_CheckSignals() < 0;
    if (!stop && waited_ns > self->stall_ns && self->told_stall != c->calls) {
        self->told_stall = c->calls;
        PyObject *said = PyObject_CallFunction(self->on_stall, "id", peer,
                                               (double)waited_ns / 1e9);
        stop = !said;
        Py_XDECREF(said);
    }
    self->saved = PyEval_SaveThread();
    return stop;
}

/* --- Around every call */

static void take_turn(CommObject *self)
{
    while (self->busy) {
        self->waiting++;
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->gate, WAIT_LOCK);
        Py_END_ALLOW_THREADS
        self->waiting--;
    }
    self->busy = true;
}

static void give_turn(CommObject *self)
{
    self->busy = false;
    if (self->waiting)
        PyThread_release_lock(self->gate);
}

static bool enter(CommObject *self, uint64_t bytes)
{
    take_turn(self);
    uint32_t ended = self->open ? atomic_load(&self->c.head->ended) : 0;
    if (!self->open || self->c.broken != DONE || ended) {
        if (self->open && ended && self->c.broken == DONE)
            self->c.broken = ENDED;
        give_turn(self);
        PyErr_SetObject(failure, NULL);
        return false;
    }
    self->float_mode = float_mode_enter();
    if (bytes >= LONG_CALL_BYTES)
        let_others_run(&self->c);
    return true;
}

static PyObject *leave(CommObject *self, status s)
{
    if (self->saved) {
        PyEval_RestoreThread(self->saved);
        self->saved = NULL;
    }
    float_mode_leave(self->float_mode);
    if (s != DONE)
        self->c.broken = s;
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

/* --- The fast way in: one array, as it lies in its buffer */

static int dtype_of(const Py_buffer *view)
{
    const char *f = view->format ? view->format : "B";
    if (f[0] == '\0' || f[1] != '\0')
        return -1;
    switch (f[0]) {
    case 'f': return FLOAT32;
    case 'd': return FLOAT64;
    case 'e': return FLOAT16;
    case 'b': return INT8;
    case 'h': return INT16;
    case 'i': return INT32;
    case 'l': return sizeof(long) == 8 ? INT64 : INT32;
    case 'q': return INT64;
    case 'B': return UINT8;
    case 'H': return UINT16;
    case 'I': return UINT32;
    case 'L': return sizeof(long) == 8 ? UINT64 : UINT32;
    case 'Q': return UINT64;
    case '?': return BOOL;
    default: return -1;
    }
}

/* Where an array lies in our part of the heap, or NOT_IN_HEAP. */
static uint64_t heap_offset(const comm *c, const char *at, uint64_t bytes)
{
    if (!c->heap)
        return NOT_IN_HEAP;
    uintptr_t begin = (uintptr_t)c->heap + (uint64_t)c->rank * c->heap_span;
    uintptr_t here = (uintptr_t)at;
    bool inside = here >= begin && here + bytes <= begin + c->heap_span;
    return inside ? here - begin : NOT_IN_HEAP;
}

static algorithm choose(const call *k, int wanted)
{
    if (wanted >= 0)
        return (algorithm)wanted;
    uint64_t width = k->l->single ? element_bytes(k->type) : accumulated_bytes(k->type);
    uint64_t said = k->total * k->l->most_nodes * width;
    return said <= k->c->agreed.oneshot_bytes ? ONESHOT : DIRECT;
}

static void find_in_heap(call *k)
{
    const uint32_t rows = k->l->rows[k->l->rank];
    const uint64_t bytes = k->total * element_bytes(k->type);
    k->heap_in = k->heap_out = NOT_IN_HEAP;
    if (k->count_of_segments != 1 || rows == 0 || k->root >= 0 || !k->c->heap)
        return;
    const segment *s = k->segments;
    const uint64_t stride = rows > 1 ? (uint64_t)(s->in[1] - s->in[0]) : bytes;
    for (uint32_t row = 1; row < rows; row++)
        if (s->in[row] != s->in[0] + row * stride || s->out[row] != s->out[0] + row * stride)
            return;
    const uint64_t reach = (rows - 1) * stride + bytes;
    uint64_t in = heap_offset(k->c, s->in[0], reach);
    uint64_t out = heap_offset(k->c, s->out[0], reach);
    if (stride < bytes || in == NOT_IN_HEAP || out == NOT_IN_HEAP)
        return;
    k->heap_in = in;
    k->heap_out = out;
    k->heap_stride = stride;
}

/* Whether two buffers are the same place, or apart. */
static bool simple_pair(const Py_buffer *x, const Py_buffer *out)
{
    const char *a = x->buf, *b = out->buf;
    return x->len == out->len && dtype_of(x) == dtype_of(out)
           && (a == b || a + x->len <= b || b + out->len <= a);
}

static void release(Py_buffer *x, Py_buffer *out, bool same)
{
    PyBuffer_Release(x);
    if (!same)
        PyBuffer_Release(out);
}

/* Whether the core can take them as they are. */
static bool fits(const Py_buffer *x, const Py_buffer *out, bool same, int type,
                 long reduction, uint32_t rows, bool leading)
{
    if (type < 0 || (type == BOOL && reduction == MEAN)
        || (size_t)x->itemsize != element_bytes((dtype)type)
        || (uintptr_t)x->buf % (size_t)x->itemsize != 0)
        return false;
    if (leading && (x->ndim < 1 || (uint32_t)x->shape[0] != rows))
        return false;
    return same
           || ((uintptr_t)out->buf % (size_t)x->itemsize == 0 && simple_pair(x, out));
}

/* Arrays as their buffers, and the segments that the core makes of them. */
typedef struct {
    Py_ssize_t count;
    Py_buffer *x, *out;
    bool *same;
    char **addresses;
    segment *segments;
    uint64_t bytes;
} plain_arrays;

static void let_go(plain_arrays *p)
{
    for (Py_ssize_t i = 0; i < p->count; i++)
        release(&p->x[i], &p->out[i], p->same[i]);
}

/* Take one more array, if it is plain and of the same dtype as those before. */
static bool take(plain_arrays *p, PyObject *from, PyObject *to, const layout *l,
                 long reduction, bool leading)
{
    const int how = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT;
    const uint32_t rows = l->rows[l->rank];
    const Py_ssize_t i = p->count;
    Py_buffer *x = &p->x[i], *out = &p->out[i];
    const bool same = p->same[i] = from == to;
    if (PyObject_GetBuffer(from, x, same ? how | PyBUF_WRITABLE : how) < 0)
        return false;
    if (!same && PyObject_GetBuffer(to, out, how | PyBUF_WRITABLE) < 0) {
        PyBuffer_Release(x);
        return false;
    }
    const int type = dtype_of(x);
    if (!fits(x, out, same, type, reduction, rows, leading)
        || (i > 0 && type != dtype_of(&p->x[0]))) {
        release(x, out, same);
        return false;
    }
    const uint64_t row = (uint64_t)x->len / rows;
    char **in_rows = p->addresses + 2 * (uint64_t)i * rows, **out_rows = in_rows + rows;
    for (uint32_t r = 0; r < rows; r++) {
        in_rows[r] = (char *)x->buf + r * row;
        out_rows[r] = (char *)(same ? x->buf : out->buf) + r * row;
    }
    p->segments[i] = (segment){row / (uint64_t)x->itemsize, in_rows, out_rows};
    p->bytes += (uint64_t)x->len;
    p->count++;
    return true;
}

static PyObject *reduce_plain(CommObject *self, const layout *l, plain_arrays *p,
                              long reduction, int wanted)
{
    call k = {
        .c = &self->c,
        .l = l,
        .type = (dtype)dtype_of(&p->x[0]),
        .reduction = (unsigned)reduction,
        .op = ALL_REDUCE,
        .root = -1,
        .segments = p->segments,
        .count_of_segments = (uint32_t)p->count,
    };
    for (Py_ssize_t i = 0; i < p->count; i++)
        k.total += p->segments[i].count;
    if (!enter(self, p->bytes))
        return NULL;
    find_in_heap(&k);
    k.how = choose(&k, wanted);
    return leave(self, reduce(&k));
}

PyObject *reduce_arrays(PyObject *object, PyObject *given, PyObject *from, PyObject *to,
                        long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const layout *l = ((LayoutObject *)given)->l;
    Py_buffer x, out;
    bool same;
    char *addresses[2 * MAX_LEAVES];
    segment whole;
    plain_arrays p = {.x = &x, .out = &out, .same = &same, .addresses = addresses,
                      .segments = &whole};
    if (!self->queued && take(&p, from, to, l, reduction, leading)) {
        PyObject *result = reduce_plain(self, l, &p, reduction, wanted);
        let_go(&p);
        return result;
    }
    /* Whoever is asked next finds out what they are, and says what is wrong. */
    PyErr_Clear();
    Py_RETURN_NOTIMPLEMENTED;
}

/* Take all arrays of two lists. False where one is not plain, or memory is short. */
static bool take_all(plain_arrays *p, PyObject *from, PyObject *to, Py_ssize_t count,
                     const layout *l, long reduction, bool leading)
{
    const size_t many = (size_t)count;
    p->x = PyMem_Calloc(many, sizeof *p->x);
    p->out = PyMem_Calloc(many, sizeof *p->out);
    p->same = PyMem_Calloc(many, sizeof *p->same);
    p->segments = PyMem_Calloc(many, sizeof *p->segments);
    p->addresses = PyMem_Calloc(2 * many * (l->rows[l->rank] + 1), sizeof(char *));
    bool taken = p->x && p->out && p->same && p->segments && p->addresses;
    for (Py_ssize_t i = 0; taken && i < count; i++) {
        PyObject *one = PySequence_GetItem(from, i), *other = PySequence_GetItem(to, i);
        /* The buffers keep the arrays. */
        taken = one && other && take(p, one, other, l, reduction, leading);
        Py_XDECREF(one);
        Py_XDECREF(other);
    }
    return taken;
}

PyObject *reduce_lists(PyObject *object, PyObject *given, PyObject *from, PyObject *to,
                       long reduction, int wanted, bool leading)
{
    CommObject *self = (CommObject *)object;
    const layout *l = ((LayoutObject *)given)->l;
    const Py_ssize_t count = PySequence_Size(from);
    plain_arrays p = {.count = 0};
    PyObject *result = NULL;
    if (count > 0 && count == PySequence_Size(to) && !self->queued
        && take_all(&p, from, to, count, l, reduction, leading))
        result = reduce_plain(self, l, &p, reduction, wanted);
    else {
        PyErr_Clear();
        Py_INCREF(Py_NotImplemented);
        result = Py_NotImplemented;
    }
    let_go(&p);
    PyMem_Free(p.x);
    PyMem_Free(p.out);
    PyMem_Free(p.same);
    PyMem_Free(p.segments);
    PyMem_Free(p.addresses);
    return result;
}

/* --- The general way in: addresses */

static void free_segments(segment *segments, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; segments && i < count; i++) {
        PyMem_Free((void *)(uintptr_t)segments[i].in);
        PyMem_Free((void *)(uintptr_t)segments[i].out);
    }
    PyMem_Free(segments);
}

static char **addresses_from(PyObject *sequence, uint32_t rows)
{
    uint64_t *found = PyMem_Calloc(rows + 1, sizeof *found);
    if (!found)
        return (char **)PyErr_NoMemory();
    Py_ssize_t count = numbers_from(sequence, found, rows);
    if (count == (Py_ssize_t)rows)
        return (char **)found;
    if (count >= 0)
        PyErr_Format(PyExc_ValueError, "%zd addresses are given, but there are %u rows.",
                     count, rows);
    PyMem_Free(found);
    return NULL;
}

static bool segment_from(PyObject *item, uint32_t rows, segment *to)
{
    unsigned long long count;
    PyObject *in, *out;
    if (!PyArg_ParseTuple(item, "KOO", &count, &in, &out))
        return false;
    to->count = count;
    to->in = addresses_from(in, rows);
    to->out = to->in && out != Py_None ? addresses_from(out, rows) : NULL;
    return to->in && (to->out || out == Py_None);
}

static segment *segments_from(PyObject *list, const layout *l, Py_ssize_t *count,
                              uint64_t *total)
{
    *count = PySequence_Size(list);
    if (*count < 0)
        return NULL;
    segment *segments = PyMem_Calloc((size_t)*count + 1, sizeof *segments);
    if (!segments)
        return (segment *)PyErr_NoMemory();
    *total = 0;
    for (Py_ssize_t i = 0; i < *count; i++) {
        PyObject *item = PySequence_GetItem(list, i);
        bool read = item && segment_from(item, l->rows[l->rank], &segments[i]);
        Py_XDECREF(item);
        if (!read) {
            free_segments(segments, *count);
            return NULL;
        }
        *total += segments[i].count;
    }
    return segments;
}

static PyObject *comm_reduce_rows(CommObject *self, PyObject *args)
{
    PyObject *given, *list;
    int op, type, reduction, wanted, root;
    unsigned long long name, out;
    if (!PyArg_ParseTuple(args, "O!OiiiiiKK", layout_type, &given, &list, &op, &type,
                          &reduction, &wanted, &root, &name, &out))
        return NULL;
    const layout *l = ((LayoutObject *)given)->l;
    Py_ssize_t count;
    uint64_t total = 0;
    segment *segments = segments_from(list, l, &count, &total);
    if (!segments)
        return NULL;
    call k = {
        .c = &self->c,
        .l = l,
        .type = (dtype)type,
        .reduction = (unsigned)reduction,
        .op = (operation)op,
        .root = root,
        .name = name,
        .segments = segments,
        .count_of_segments = (uint32_t)count,
        .total = total,
    };
    PyObject *result = NULL;
    if (enter(self, total * element_bytes(k.type) * l->rows[l->rank])) {
        k.heap_in = k.heap_out = NOT_IN_HEAP;
        if (k.op == REDUCE_SCATTER) {
            result = leave(self, reduce_scatter(&k, (char *)(uintptr_t)out));
        } else {
            if (k.op == ALL_REDUCE)
                find_in_heap(&k);
            k.how = choose(&k, wanted);
            result = leave(self, reduce(&k));
        }
    }
    free_segments(segments, count);
    return result;
}

static PyObject *comm_exchange(CommObject *self, PyObject *args)
{
    int op, type, root;
    unsigned long long name, in, out;
    PyObject *list;
    uint64_t lengths[MAX_MEMBERS], all = 0;
    if (!PyArg_ParseTuple(args, "iiiKOKK", &op, &type, &root, &name, &list, &in, &out))
        return NULL;
    Py_ssize_t count = numbers_from(list, lengths, MAX_MEMBERS);
    if (count < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        all += lengths[i];
    const exchange x = {
        .c = &self->c,
        .op = (operation)op,
        .type = (dtype)type,
        .name = name,
        .root = root,
        .lengths = lengths,
        .in = (const char *)(uintptr_t)in,
        .out = (char *)(uintptr_t)out,
    };
    if (!enter(self, all))
        return NULL;
    if (count != self->c.size) {
        leave(self, DONE);
        return PyErr_Format(PyExc_ValueError, "%zd lengths are given for %d members.",
                            count, self->c.size);
    }
    return leave(self, exchange_run(&x));
}

static PyObject *comm_barrier(CommObject *self, PyObject *args)
{
    unsigned long long name;
    if (!PyArg_ParseTuple(args, "K", &name) || !enter(self, 0))
        return NULL;
    return leave(self, barrier(&self->c, name));
}

static PyObject *comm_send(CommObject *self, PyObject *args)
{
    int to, type;
    unsigned long long from, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &to, &type, &from, &bytes) || !enter(self, bytes))
        return NULL;
    return leave(self, send_letters(&self->c, to, (dtype)type,
                                    (const char *)(uintptr_t)from, bytes));
}

static PyObject *comm_receive(CommObject *self, PyObject *args)
{
    int from, type;
    unsigned long long to, bytes;
    if (!PyArg_ParseTuple(args, "iiKK", &from, &type, &to, &bytes) || !enter(self, bytes))
        return NULL;
    return leave(self, receive_letters(&self->c, from, (dtype)type,
                                       (char *)(uintptr_t)to, bytes));
}

/* --- About the group */

static PyObject *comm_peek(CommObject *self, PyObject *unused)
{
    (void)unused;
    if (!enter(self, 0))
        return NULL;
    comm *c = &self->c;
    const uint64_t next = c->calls + 1;
    member *first = member_at(c, 0);
    status s = DONE;
    uint64_t name = 0;
    /* For messages: what this member does between two calls. */
    member_at(c, c->rank)->calls[c->calls & 1] = (descriptor){.operation = PEEK};
    if (c->rank != 0)
        s = wait_word(c, 0, &first->boxes[next & 1].stamp, next, &first->posted);
    if (s == DONE)
        name = first->calls[next & 1].name;
    PyObject *result = leave(self, s);
    if (!result)
        return NULL;
    Py_DECREF(result);
    return PyLong_FromUnsignedLongLong(name);
}

static PyObject *comm_end(CommObject *self, PyObject *args)
{
    const char *words;
    if (!PyArg_ParseTuple(args, "s", &words))
        return NULL;
    if (self->open)
        end_group(&self->c, ASKED, self->c.rank, words);
    Py_RETURN_NONE;
}

static PyObject *described(const descriptor *d)
{
    return Py_BuildValue("(iiiiiKK)", d->operation, d->dtype, d->reduction, d->algorithm,
                         d->root, (unsigned long long)d->count,
                         (unsigned long long)d->name);
}

static PyObject *comm_ending(CommObject *self, PyObject *unused)
{
    (void)unused;
    if (!self->open)
        Py_RETURN_NONE;
    const header *head = self->c.head;
    while (atomic_load(&self->c.head->ended) == 1)
        relax();
    if (atomic_load(&self->c.head->ended) == 0)
        Py_RETURN_NONE;
    const ending *e = &head->end;
    return Py_BuildValue("(iiiKNNs)", (int)e->reason, e->by, e->about,
                         (unsigned long long)e->call, described(&e->mine),
                         described(&e->theirs), e->words);
}

static PyObject *comm_set_heap(CommObject *self, PyObject *args)
{
    unsigned long long address, span;
    if (!PyArg_ParseTuple(args, "KK", &address, &span))
        return NULL;
    self->c.heap = (unsigned char *)(uintptr_t)address;
    self->c.heap_span = span;
    Py_RETURN_NONE;
}

static PyObject *comm_queue(CommObject *self, PyObject *args)
{
    int more;
    if (!PyArg_ParseTuple(args, "i", &more))
        return NULL;
    self->queued += more;
    return PyLong_FromLong(self->queued);
}

static PyObject *comm_last(CommObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(iK)", (int)self->c.ran, (unsigned long long)self->c.calls);
}

static PyObject *comm_doing(CommObject *self, PyObject *unused)
{
    (void)unused;
    if (!self->open)
        Py_RETURN_NONE;
    member *mine = member_at(&self->c, self->c.rank);
    return described(&mine->calls[self->c.calls & 1]);
}

static PyObject *comm_ring_segment(CommObject *self, PyObject *args)
{
    int type;
    if (!PyArg_ParseTuple(args, "i", &type))
        return NULL;
    return PyLong_FromUnsignedLongLong(ring_segment(&self->c, (dtype)type));
}

static PyObject *comm_shut(CommObject *self, PyObject *unused)
{
    (void)unused;
    if (!self->open)
        Py_RETURN_NONE;
    /* In a forked child, whoever had the turn is in the parent. */
    if (self->c.pid == getpid())
        take_turn(self);
    self->open = false;
    comm_close(&self->c);
    PyBuffer_Release(&self->memory);
    give_turn(self);
    Py_RETURN_NONE;
}

/* --- Its life */

static bool take_seat(CommObject *self, PyObject *memory, int rank, const char *simd,
                      PyObject *pidfds, double timeout, double stall)
{
    uint64_t fds[MAX_MEMBERS];
    if (PyObject_GetBuffer(memory, &self->memory, PyBUF_WRITABLE) < 0)
        return false;
    const header *head = self->memory.buf;
    const kernels *level = kernels_named(simd);
    bool known = (size_t)self->memory.len >= sizeof *head && head->magic == ARENA_MAGIC
                 && head->version == ARENA_VERSION && rank >= 0
                 && (uint64_t)rank < head->agreed.size;
    if (!known)
        PyErr_Format(PyExc_ValueError, "This memory is no arena with a member %d.", rank);
    else if (!level)
        PyErr_Format(PyExc_ValueError, "This processor has no SIMD level %s.", simd);
    else if (!comm_open(&self->c, self->memory.buf, rank))
        PyErr_NoMemory();
    if (PyErr_Occurred()) {
        PyBuffer_Release(&self->memory);
        return false;
    }
    self->open = true;
    Py_ssize_t count = numbers_from(pidfds, fds, MAX_MEMBERS);
    for (Py_ssize_t i = 0; i < count; i++)
        self->c.pidfds[i] = (int)(int64_t)fds[i] - 1; /* they come one higher */
    self->c.simd = level;
    self->c.timeout_ns = (uint64_t)(timeout * 1e9);
    self->stall_ns = (uint64_t)(stall * 1e9);
    self->c.owner = self;
    self->c.before_long_wait = let_others_run;
    self->c.during_long_wait = look_after_python;
    return count >= 0;
}

static PyObject *comm_make(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    static char *names[] = {"memory", "rank", "simd", "pidfds", "timeout",
                            "stall",  "on_stall", NULL};
    PyObject *memory, *pidfds, *on_stall;
    const char *simd;
    int rank;
    double timeout, stall;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OizOddO", names, &memory, &rank,
                                     &simd, &pidfds, &timeout, &stall, &on_stall))
        return NULL;
    allocfunc allocate = (allocfunc)(uintptr_t)PyType_GetSlot(type, Py_tp_alloc);
    CommObject *self = (CommObject *)allocate(type, 0);
    if (!self)
        return NULL;
    self->gate = PyThread_allocate_lock();
    Py_INCREF(on_stall);
    self->on_stall = on_stall;
    if (self->gate)
        PyThread_acquire_lock(self->gate, NOWAIT_LOCK);
    if (!self->gate)
        PyErr_NoMemory();
    else if (take_seat(self, memory, rank, simd, pidfds, timeout, stall))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static void comm_end_of_life(PyObject *object)
{
    CommObject *self = (CommObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->open) {
        comm_close(&self->c);
        PyBuffer_Release(&self->memory);
    }
    if (self->gate)
        PyThread_free_lock(self->gate);
    Py_XDECREF(self->on_stall);
    ((freefunc)(uintptr_t)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

#define METHOD(name, function, flags)                                              \
    {                                                                              \
        name, (PyCFunction)(void (*)(void))(function), flags, NULL                 \
    }

PyObject *make_comm_type(PyObject *module)
{
    static PyMethodDef methods[] = {
        METHOD("reduce_rows", comm_reduce_rows, METH_VARARGS),
        METHOD("exchange", comm_exchange, METH_VARARGS),
        METHOD("barrier", comm_barrier, METH_VARARGS),
        METHOD("send", comm_send, METH_VARARGS),
        METHOD("receive", comm_receive, METH_VARARGS),
        METHOD("peek", comm_peek, METH_NOARGS),
        METHOD("end", comm_end, METH_VARARGS),
        METHOD("ending", comm_ending, METH_NOARGS),
        METHOD("set_heap", comm_set_heap, METH_VARARGS),
        METHOD("queue", comm_queue, METH_VARARGS),
        METHOD("last", comm_last, METH_NOARGS),
        METHOD("doing", comm_doing, METH_NOARGS),
        METHOD("ring_segment", comm_ring_segment, METH_VARARGS),
        METHOD("close", comm_shut, METH_NOARGS),
        {NULL, NULL, 0, NULL},
    };
    static PyType_Slot slots[] = {
        {Py_tp_new, (void *)(uintptr_t)comm_make},
        {Py_tp_dealloc, (void *)(uintptr_t)comm_end_of_life},
        {Py_tp_methods, methods},
        {0, NULL},
    };
    static PyType_Spec spec = {"popdist.engine._core.Comm", sizeof(CommObject), 0,
                               Py_TPFLAGS_DEFAULT, slots};
    return PyType_FromModuleAndSpec(module, &spec, NULL);
}
