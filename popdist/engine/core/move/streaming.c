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
    /* From this class on, blocks of 256 KiB, members that take turns on a core begin with
     * stores past its caches: else the slots push all their arrays out of these. */
    FIRST_STREAMED = 7,
};

/* The choices are false and true: whether stores pass the caches by. A slot shows the cost of
 * one kind once both its phases were written with it, and its memory must have been touched
 * before. */
const trial_kind stores = {
    .choices = 2,
    .warm_up = 10,
    .unsettled = 2,
    .compared = 6,
    .by_median = true,
    .clearly_less = 0.9,
    .shortest_pause = 128,
    .longest_pause = 128,
    .most_pause = 4096,
};

/* In the heap a block is a whole call, and many milliseconds long. */
const trial_kind heap_stores = {
    .choices = 2,
    .unsettled = 1,
    .compared = 2,
    .clearly_less = 0.9,
    .shortest_pause = 16,
    .longest_pause = 16,
    .most_pause = 512,
};

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

/* The choice for block `number` of the class. */
static trial store_trial(comm *c, int size_class, uint64_t number)
{
    return (trial){&stores, comm_shares_core(c) && size_class >= FIRST_STREAMED,
                   &c->head->store_plans[size_class], &c->store_costs[size_class], number};
}

traffic traffic_of(comm *c, uint64_t block_bytes, uint64_t count)
{
    traffic t = {
        .c = c, .bytes = block_bytes, .size_class = store_class_of(c, block_bytes)};
    if (t.size_class < 0)
        return t;
    t.offset = c->store_costs[t.size_class].calls - c->blocks;
    c->store_costs[t.size_class].calls += count;
    return t;
}

bool streaming_usual(comm *c, uint64_t block_bytes)
{
    const int size_class = store_class_of(c, block_bytes);
    if (size_class < 0)
        return false;
    const trial choice = store_trial(c, size_class, 0);
    return trial_usual(&choice);
}

static uint64_t clock_of(const traffic *t)
{
    return t->bytes < LEAST_COMPUTED_BYTES ? now_ns() : computed_ns();
}

void traffic_begin(traffic *t, uint64_t block)
{
    if (t->size_class < 0)
        return;
    const trial choice = store_trial(t->c, t->size_class, block + t->offset);
    t->streaming = trial_choice(&choice);
    t->timed = t->c->rank == 0 && trial_compares(&choice);
    if (t->timed)
        t->began = clock_of(t);
}

void traffic_end(traffic *t, uint64_t block)
{
    if (t->timed)
        t->spent_ns[block & 1] += clock_of(t) - t->began;
}

void traffic_done(traffic *t, uint64_t block)
{
    uint64_t *spent_ns = &t->spent_ns[block & 1];
    if (!*spent_ns)
        return;
    const trial choice = store_trial(t->c, t->size_class, block + t->offset);
    trial_note(&choice, (double)*spent_ns / (double)t->bytes);
    *spent_ns = 0;
}

trial streaming_to_heap(comm *c)
{
    return (trial){&heap_stores, false, &c->heap_plan, &c->heap_costs,
                   c->heap_costs.calls++};
}
