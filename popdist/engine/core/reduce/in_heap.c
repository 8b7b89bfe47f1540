/* Reduces arrays in the heap in place: each member adds up its share of all members'
 * rows, and writes the total into all members' rows. */
#include "reduce/call.h"
#include "shm/pages.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const descriptor *descriptor_by(const call *k, int q)
{
    return description_at(k->c, q, calls_of(k->c));
}

static unsigned char *region_of(const call *k, int q)
{
    return k->c->heap + (uint64_t)q * k->c->heap_span;
}

/* The end of a member's rows in its region, UINT64_MAX if they do not fit it. */
static uint64_t reach_of(const call *k, const terms *t, int q)
{
    const descriptor *d = descriptor_by(k, q);
    const uint64_t span = k->c->heap_span, bytes = k->total * t->a.element;
    const uint64_t steps = k->split->rows[q] - 1, last = d->in > d->out ? d->in : d->out;
    if (last > span || bytes > span || d->stride > span
        || (steps && d->stride > (span - bytes) / steps)
        || last > span - bytes - steps * d->stride)
        return UINT64_MAX;
    return last + steps * d->stride + bytes;
}

/* Make sure that this process can access all rows of all members. */
static status reach_rows(const call *k, const terms *t)
{
    comm *c = k->c;
    for (int q = 0; q < c->size; q++) {
        uint64_t reach = reach_of(k, t, q);
        if (reach <= c->accessible[q])
            continue;
        uint64_t end = reach < c->heap_span ? round_up(reach, ACCESS_UNIT) : reach;
        end = end < c->heap_span ? end : c->heap_span;
        if (reach == UINT64_MAX || !make_accessible(region_of(k, q), (size_t)end)) {
            char message[200];
            snprintf(message, sizeof message,
                     "Member %d could not access the array of member %d in the arena: %s. "
                     "Use arrays in ordinary memory.",
                     c->rank, q,
                     reach == UINT64_MAX ? "it lies outside of that member's region"
                                         : strerror(errno));
            return end_with_error(c, STOPPED, NULL, 0, message);
        }
        c->accessible[q] = end;
    }
    return DONE;
}

/* Find the addresses of all members' rows, for reading and writing, from that byte on. */
static void find_rows(const call *k, struct rows *at, uint64_t begin)
{
    uint32_t i = 0;
    for (int q = 0; q < k->c->size; q++) {
        const descriptor *d = descriptor_by(k, q);
        for (uint32_t row = 0; row < k->split->rows[q]; row++, i++) {
            at->from[i] = region_of(k, q) + d->in + row * d->stride + begin;
            at->to[i] = region_of(k, q) + d->out + row * d->stride + begin;
        }
    }
}

/* While the total of one piece is written, fetch the inputs of the next one: else the
 * memory would read nothing during our stores. */
static void write_total(const terms *t, unsigned char *to, const unsigned char *total,
                        size_t bytes, const unsigned char *next)
{
    if (t->stream_out)
        t->a.simd->stream(to, total, bytes, next);
    else
        memcpy(to, total, bytes);
}

/* Return whether it is complete: not if the group has ended meanwhile. */
static bool reduce_share(const call *k, const terms *t, range own)
{
    struct rows *at = k->c->rows;
    unsigned char *total = scratch_block(&t->a, SPARE_BLOCK);
    const uint64_t rows = k->split->replicas;
    find_rows(k, at, own.begin * t->a.element);
    for (uint64_t done = own.begin; done < own.end; done += t->a.piece) {
        /* A member that has given up may use its array again. */
        if (atomic_load_explicit(&k->c->head->ended, memory_order_relaxed))
            return false;
        uint64_t n = own.end - done < t->a.piece ? own.end - done : t->a.piece;
        size_t bytes = n * t->a.element;
        tree_fold_finished(&t->a, &k->split->of_rows, at->from, NULL, n, total);
        for (uint64_t i = 0; i < rows; i++) {
            at->from[i] = (const unsigned char *)at->from[i] + bytes;
            write_total(t, at->to[i], total, bytes, at->from[i]);
            at->to[i] += bytes;
        }
    }
    return true;
}

status all_reduce_in_heap(const call *k)
{
    terms t = call_terms(k);
    const uint64_t bytes = k->total * t.a.element;
    const bool large = bytes >= STREAM_TO_ALL_BYTES && !comm_shares_core(k->c);
    const trial stores = large ? streaming_to_heap(k->c) : (trial){0};
    t.stream_out = large && trial_choice(&stores);
    k->c->ran = IN_ARENA;
    status s = reach_rows(k, &t);
    if (s != DONE)
        return s;
    const uint64_t began = large ? now_ns() : 0;
    /* Members that have posted before the end would take it for done. */
    if (!reduce_share(k, &t, range_of_share(k->total, k->c->size, k->c->rank,
                                            APART / t.a.element)))
        return ENDED;
    if (t.stream_out)
        stores_done();
    if (large)
        trial_note(&stores, (double)(now_ns() - began) / (double)bytes);
    comm_post(k->c);
    return wait_together(k->c);
}
