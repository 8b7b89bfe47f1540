#include "reduce/call.h"

enum {
    /* The agreed size alone decides for shorter arrays, which go in the announcement. */
    LEAST_CHOSEN_BYTES = 2048,
    /* For arrays larger than the agreed size times this, trials of oneshot would cost
     * too much. */
    MOST_TIMES_AGREED = 4,
};

/* Oneshot and direct. Waiting counts: they differ in their steps. */
const trial_kind algorithms = {
    .choices = DIRECT + 1,
    .unsettled = 1,
    .compared = MOST_COMPARED,
    .by_median = true,
    .clearly_less = 0.95,
    .shortest_pause = 8,
    .longest_pause = 256,
    .most_pause = 4096,
};

static algorithm algorithm_by_size(const comm *c, uint64_t bytes)
{
    /* Elsewhere than in the hierarchy, oneshot reads the whole arrays of all members. */
    if (c->size > HIERARCHY_ABOVE)
        return oneshot_fits_hierarchy(c, bytes) ? ONESHOT : DIRECT;
    return bytes <= c->agreed.oneshot_bytes ? ONESHOT : DIRECT;
}

/* Return the class of arrays of that many bytes, -1 if only the size decides. */
static int algorithm_class_of(const call *k)
{
    const bool is_result_of_all = k->op == ALL_REDUCE || k->op == REDUCE;
    if (!is_result_of_all || k->c->size == 1 || k->c->size > HIERARCHY_ABOVE
        || k->bytes <= LEAST_CHOSEN_BYTES
        || k->bytes > MOST_TIMES_AGREED * k->c->agreed.oneshot_bytes
        || k->bytes > MOST_ONESHOT_BYTES)
        return -1;
    int size_class = 0;
    for (uint64_t most = 2 * LEAST_CHOSEN_BYTES; k->bytes > most; most *= 2)
        size_class++;
    return size_class;
}

/* Choose by size, or between oneshot and direct by the measured time of calls of such a
 * size: the number of members that share a core and its caches decides more than the
 * size. A class begins with the algorithm for its smallest arrays' size. */
static algorithm choose(call *k)
{
    comm *c = k->c;
    const uint64_t width =
        k->split->single ? element_bytes(k->type) : accumulated_bytes(k->type);
    k->bytes = k->total * k->split->most_nodes * width;
    const int size_class = algorithm_class_of(k);
    if (size_class < 0)
        return algorithm_by_size(c, k->bytes);
    trial_costs *costs = &c->algorithm_costs[size_class];
    const uint64_t least = ((uint64_t)LEAST_CHOSEN_BYTES << size_class) + 1;
    k->choice = (trial){&algorithms, algorithm_by_size(c, least),
                        &c->head->algorithm_plans[size_class], costs, costs->calls++};
    k->timed = c->rank == 0 && trial_compares(&k->choice);
    return (algorithm)trial_choice(&k->choice);
}

/* The offset of bytes in our region of the heap, or NOT_IN_HEAP unless all lie there. */
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
    const array_rows *s = k->arrays;
    if (k->count_of_arrays != 1 || k->op != ALL_REDUCE || !k->c->heap)
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

void reduce_prepare(call *k, int wanted)
{
    find_in_heap(k);
    if (wanted >= 0)
        k->how = (algorithm)wanted;
    else
        k->how = k->split->over_hosts ? DIRECT : choose(k);
}

static status carry_out(const call *k)
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

status reduce_run(const call *k)
{
    const uint64_t began = k->timed ? now_ns() : 0;
    const status s = carry_out(k);
    if (k->timed && s == DONE)
        trial_note(&k->choice, (double)(now_ns() - began) / (double)k->bytes);
    return s;
}
