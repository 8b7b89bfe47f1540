#include "reduce/call.h"

static algorithm choose(const call *k, int wanted)
{
    if (wanted >= 0)
        return (algorithm)wanted;
    if (k->split->over_hosts)
        return DIRECT;
    uint64_t width = k->split->single ? element_bytes(k->type) : accumulated_bytes(k->type);
    uint64_t bytes = k->total * k->split->most_nodes * width;
    return bytes <= k->c->agreed.oneshot_bytes ? ONESHOT : DIRECT;
}

/* Where bytes lie in our part of the heap, or NOT_IN_HEAP where not all of them do. */
static uint64_t heap_offset(const comm *c, const char *at, uint64_t bytes)
{
    uintptr_t begin = (uintptr_t)c->heap + (uint64_t)c->rank * c->heap_span;
    uintptr_t here = (uintptr_t)at;
    bool inside = here >= begin && bytes <= c->heap_span
                  && here - begin <= c->heap_span - bytes;
    return inside ? here - begin : NOT_IN_HEAP;
}

/* Whether rows lie one after the other, apart from each other, at equal distances. */
static bool in_steps(char *const *rows, uint32_t count, uint64_t bytes, uint64_t stride)
{
    for (uint32_t i = 1; i < count; i++) {
        uintptr_t last = (uintptr_t)rows[i - 1], next = (uintptr_t)rows[i];
        if (next < last || next - last != stride || stride < bytes)
            return false;
    }
    return true;
}

/* Rows that descend, or lie partly elsewhere, go through slots. */
static void find_in_heap(call *k)
{
    const uint32_t rows = k->split->rows[k->split->rank];
    const uint64_t bytes = k->total * element_bytes(k->type);
    const segment *s = k->segments;
    if (k->count_of_segments != 1 || k->op != ALL_REDUCE || !k->c->heap)
        return;
    const uint64_t stride = rows > 1 ? (uintptr_t)s->in[1] - (uintptr_t)s->in[0] : bytes;
    if (!in_steps(s->in, rows, bytes, stride) || !in_steps(s->out, rows, bytes, stride))
        return;
    const uint64_t reach = (rows - 1) * stride + bytes;
    uint64_t in = heap_offset(k->c, s->in[0], reach);
    uint64_t out = heap_offset(k->c, s->out[0], reach);
    if (in == NOT_IN_HEAP || out == NOT_IN_HEAP)
        return;
    k->heap_in = in;
    k->heap_out = out;
    k->heap_stride = stride;
}

void prepare(call *k, int wanted)
{
    find_in_heap(k);
    k->how = choose(k, wanted);
}

status reduce(const call *k)
{
    switch (k->how) {
    case ONESHOT:
        return all_reduce_oneshot(k);
    case RING:
        return all_reduce_ring(k);
    default:
        return all_reduce_direct(k);
    }
}
