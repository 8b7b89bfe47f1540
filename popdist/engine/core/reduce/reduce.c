#include "reduce/call.h"
#include "reduce/trial.h"

enum {
    /* The agreed size alone decides for shorter arrays, which go in the announcement. */
    LEAST_CHOSEN_BYTES = 2048,
    /* For arrays larger than the agreed size times this, trials of oneshot would cost
     * too much. */
    MOST_TIMES_AGREED = 4,
};

static algorithm algorithm_by_size(const comm *c, uint64_t bytes)
{
    return bytes <= c->agreed.oneshot_bytes ? ONESHOT : DIRECT;
}

/* Return the class of arrays of that many bytes, -1 if only the size decides. */
static int algorithm_class_of(const call *k, uint64_t bytes)
{
    const bool is_result_of_all = k->op == ALL_REDUCE || k->op == REDUCE;
    if (!is_result_of_all || k->c->size == 1 || bytes <= LEAST_CHOSEN_BYTES
        || bytes > MOST_TIMES_AGREED * k->c->agreed.oneshot_bytes
        || bytes > MOST_ONESHOT_BYTES)
        return -1;
    int size_class = 0;
    for (uint64_t most = 2 * LEAST_CHOSEN_BYTES; bytes > most; most *= 2)
        size_class++;
    return size_class;
}

/* Oneshot and direct. A class begins with the algorithm for its smallest arrays' size. */
static trial_kind algorithms_of(const call *k)
{
    const uint64_t least = ((uint64_t)LEAST_CHOSEN_BYTES << k->size_class) + 1;
    return (trial_kind){.choices = DIRECT + 1,
                        .first = algorithm_by_size(k->c, least),
                        .compared = MOST_COMPARED,
                        .by_median = true};
}

static trial_plan plan_of(const call *k, const trial_kind *algorithms)
{
    return trial_plan_of(algorithms,
                         atomic_load_explicit(&k->c->head->algorithm_plans[k->size_class],
                                              memory_order_relaxed));
}

/* Choose by size, or between oneshot and direct by the measured time of calls of such a
 * size: the number of members that share a core and its caches decides more than the
 * size. */
static algorithm choose(call *k, int wanted)
{
    if (wanted >= 0)
        return (algorithm)wanted;
    if (k->split->over_hosts)
        return DIRECT;
    uint64_t width = k->split->single ? element_bytes(k->type) : accumulated_bytes(k->type);
    k->bytes = k->total * k->split->most_nodes * width;
    k->size_class = algorithm_class_of(k, k->bytes);
    if (k->size_class < 0)
        return algorithm_by_size(k->c, k->bytes);
    k->number = k->c->algorithm_costs[k->size_class].calls++;
    const trial_kind algorithms = algorithms_of(k);
    const trial_plan p = plan_of(k, &algorithms);
    k->timed = k->c->rank == 0 && is_compared(&algorithms, &p, k->number);
    return (algorithm)planned_choice(&p, k->number);
}

/* Waiting counts: the algorithms differ in their steps. */
static void note_algorithm_cost(const call *k, uint64_t ns)
{
    const trial_kind algorithms = algorithms_of(k);
    trial_plan p = plan_of(k, &algorithms);
    const double cost = (double)ns / (double)k->bytes;
    /* Relaxed, as in block_size.c. */
    if (note_cost(&algorithms, &k->c->algorithm_costs[k->size_class], &p, k->number, cost))
        atomic_store_explicit(&k->c->head->algorithm_plans[k->size_class],
                              trial_plan_encoded(p), memory_order_relaxed);
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

void reduce_prepare(call *k, int wanted)
{
    find_in_heap(k);
    k->how = choose(k, wanted);
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
        note_algorithm_cost(k, now_ns() - began);
    return s;
}
