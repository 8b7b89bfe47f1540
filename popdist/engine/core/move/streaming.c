#include "move/streaming.h"

#include <string.h>

/* The C library is fast at shorter copies. */
enum { MANY_LINES = 32 << 10 };

enum {
    /* For smaller blocks, reading the clock costs too much. */
    LEAST_BYTES = 2 << 10,
    /* A block of this size may be interrupted while another process has the core. Its
     * time on the thread's CPU clock leaves that out, and is cheap enough to read. */
    LEAST_COMPUTED_BYTES = 64 << 10,
    TRIAL = STORES_TRIAL,
    /* A slot shows the cost of one kind of stores once both its phases were written with
     * it. */
    UNSETTLED = 2,
    LEAST_SEEN = 4,
    /* Blocks from one trial to the next. */
    SHORTEST_PAUSE = 128,
    LONGEST_PAUSE = 4096,
};

enum {
    /* In the heap a block is a whole call, and many milliseconds long. */
    HEAP_FIRST = 3,
    HEAP_COMPARED = 3,
    HEAP_TRIAL = 3,
    HEAP_SHORTEST_PAUSE = 16,
    HEAP_LONGEST_PAUSE = 512,
};

/* A kind of stores becomes the usual one if it takes less than that share of the time. */
static const double CLEARLY_LESS = 0.9;

/* Trials of the slower kind may cost that share of the time. */
static const double BEARABLE = 0.015;

void streaming_copy(const kernels *simd, void *to, const void *from, size_t bytes,
                    bool streaming)
{
    if (streaming)
        simd->stream(to, from, bytes, NULL);
    else if (bytes >= MANY_LINES)
        simd->copy(to, from, bytes);
    else
        memcpy(to, from, bytes);
}

/* Return the class of blocks of that many bytes, -1 if there is nothing to choose. */
static int store_class_of(const comm *c, uint64_t block_bytes)
{
    int size_class = -1;
    for (uint64_t least = LEAST_BYTES; block_bytes >= least; least *= 2)
        if (++size_class == STORE_CLASSES - 1)
            break;
    return c->size == 1 ? -1 : size_class;
}

traffic traffic_of(comm *c, uint64_t block_bytes, uint64_t count)
{
    traffic t = {
        .c = c, .bytes = block_bytes, .size_class = store_class_of(c, block_bytes)};
    if (t.size_class < 0)
        return t;
    t.offset = c->stores[t.size_class].blocks - c->blocks;
    c->stores[t.size_class].blocks += count;
    return t;
}

static uint64_t pause_after(double ratio)
{
    double blocks = TRIAL * (ratio - 1) / BEARABLE;
    if (blocks < SHORTEST_PAUSE)
        return SHORTEST_PAUSE;
    return blocks < LONGEST_PAUSE ? (uint64_t)blocks : LONGEST_PAUSE;
}

/* Return the median of the measured costs, 0 if there are too few. */
static float median_cost(const float costs[TRIAL])
{
    float sorted[TRIAL];
    int seen = 0;
    for (int i = 0; i < TRIAL; i++) {
        if (costs[i] <= 0)
            continue;
        int at = seen++;
        for (; at > 0 && sorted[at - 1] > costs[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = costs[i];
    }
    return seen >= LEAST_SEEN ? sorted[(seen - 1) / 2] : 0;
}

double trial_ratio(const observed *o)
{
    const float usual = median_cost(o->costs[0]), tried = median_cost(o->costs[1]);
    return usual > 0 ? (double)tried / (double)usual : 0;
}

static void conclude(choice *shared, observed *o, uint64_t block)
{
    const double ratio = trial_ratio(o);
    const bool changes = ratio > 0 && ratio < CLEARLY_LESS;
    /* After a change the next trial comes soon, in case noise led to it. */
    const uint64_t pause = changes ? SHORTEST_PAUSE : pause_after(ratio);
    if (changes) {
        bool usual = atomic_load_explicit(&shared->streaming, memory_order_relaxed);
        atomic_store_explicit(&shared->streaming, !usual, memory_order_relaxed);
    }
    *o = (observed){.blocks = o->blocks};
    atomic_store_explicit(&shared->trial, block + pause, memory_order_relaxed);
}

bool stores_usual(const comm *c, uint64_t block_bytes)
{
    const int size_class = store_class_of(c, block_bytes);
    return size_class >= 0
           && atomic_load_explicit(&c->head->stores[size_class].streaming,
                                   memory_order_relaxed);
}

static uint64_t clock_of(const traffic *t)
{
    return t->bytes < LEAST_COMPUTED_BYTES ? now_ns() : computed_ns();
}

void traffic_begin(traffic *t, uint64_t block)
{
    if (t->size_class < 0)
        return;
    choice *shared = &t->c->head->stores[t->size_class];
    observed *o = &t->c->stores[t->size_class];
    block += t->offset;
    int64_t since =
        (int64_t)(block - atomic_load_explicit(&shared->trial, memory_order_relaxed));
    if (t->c->rank == 0 && since >= TRIAL) {
        conclude(shared, o, block);
        since = -SHORTEST_PAUSE;
    }
    const bool tried = since >= 0 && since < TRIAL;
    t->streaming =
        atomic_load_explicit(&shared->streaming, memory_order_relaxed) != tried;
    t->cost = NULL;
    if (t->c->rank != 0 || since < -TRIAL || (since >= 0 && since < UNSETTLED))
        return;
    t->cost = tried ? &o->costs[1][since] : &o->costs[0][since + TRIAL];
    t->began = clock_of(t);
}

void traffic_end(traffic *t)
{
    if (t->cost)
        *t->cost += (float)(clock_of(t) - t->began) / (float)t->bytes;
}

static uint32_t heap_pause(const heap_stores *h)
{
    return h->pause ? h->pause : HEAP_FIRST;
}

static void heap_conclude(heap_stores *h)
{
    double ratio = h->tried_ns / h->usual_ns;
    const bool streaming = h->streaming != (ratio < CLEARLY_LESS);
    ratio = ratio < 1 ? 1 / ratio : ratio;
    const double pause = HEAP_TRIAL * (ratio - 1) / BEARABLE;
    *h = (heap_stores){.streaming = streaming, .pause = HEAP_LONGEST_PAUSE};
    if (pause < HEAP_LONGEST_PAUSE)
        h->pause = pause > HEAP_SHORTEST_PAUSE ? (uint32_t)pause : HEAP_SHORTEST_PAUSE;
}

bool heap_stores_begin(const heap_stores *h)
{
    return h->streaming != (h->call >= heap_pause(h));
}

void heap_stores_end(heap_stores *h, double ns_a_byte)
{
    const uint32_t pause = heap_pause(h), call = h->call++;
    /* In the first call of a trial, the caches are still as the usual kind leaves them. */
    if (call == pause)
        return;
    double *least = call > pause ? &h->tried_ns : &h->usual_ns;
    if (call + HEAP_COMPARED >= pause && (*least == 0 || ns_a_byte < *least))
        *least = ns_a_byte;
    if (h->call == pause + HEAP_TRIAL)
        heap_conclude(h);
}
