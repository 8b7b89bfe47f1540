#include "streaming.h"

enum {
    /* Below this, a block is not worth looking at the clock. */
    LEAST_BYTES = 8 << 10,
    LARGE_BYTES = 128 << 10,
    /* Every so many blocks, one goes the other way. */
    TRIAL = 32,
};

traffic traffic_of(comm *c, uint64_t block_bytes)
{
    traffic t = {.c = c, .size_class = block_bytes >= LARGE_BYTES, .bytes = block_bytes};
    if (block_bytes < LEAST_BYTES || c->size == 1)
        t.size_class = -1;
    t.measuring = t.size_class >= 0 && c->rank == 0;
    t.last[0] = t.last[1] = UINT64_MAX;
    if (t.size_class >= 0)
        t.usual = atomic_load_explicit(&c->head->streaming[t.size_class],
                                       memory_order_relaxed);
    return t;
}

void traffic_begin(traffic *t, uint64_t block)
{
    if (t->size_class < 0)
        return;
    /* All members count the blocks alike, so they try the other way together. */
    t->streaming = block % TRIAL == TRIAL - 1 ? !t->usual : t->usual;
    if (!t->measuring)
        return;
    if (t->last[t->streaming] != block)
        t->blocks[t->streaming]++;
    t->last[t->streaming] = block;
    t->began = now_ns();
}

void traffic_end(traffic *t)
{
    if (t->measuring)
        t->spent[t->streaming] += now_ns() - t->began;
}

void traffic_learn(traffic *t)
{
    if (!t->measuring)
        return;
    double *cost = t->c->traffic.cost[t->size_class];
    for (int kind = 0; kind < 2; kind++) {
        if (!t->blocks[kind])
            continue;
        double found = (double)t->spent[kind] / (double)(t->blocks[kind] * t->bytes);
        /* The newest counts most: what it was a second ago says little. */
        cost[kind] = cost[kind] > 0 ? (cost[kind] + found) / 2 : found;
    }
    if (cost[0] <= 0 || cost[1] <= 0)
        return;
    bool other = !t->usual;
    if (cost[other] < 0.9 * cost[t->usual])
        atomic_store_explicit(&t->c->head->streaming[t->size_class], other,
                              memory_order_relaxed);
}
