/* The ring: shares of the row travel from neighbour to neighbour, as they do among IPUs.
 *
 * Share k starts at member k and gathers one member's rows at each stop (reduce-scatter),
 * then travels round once more to hand out the total (all-gather). At its step s a member
 * reads the output of its left neighbour's step s - 1, and one rule serves both journeys:
 * move only when the left neighbour has taken as many steps as you have.
 *
 * The array goes round in rounds, as much at a time as fits a slot. Two phases of the slot
 * take turns, so a member may be one round ahead of its right neighbour.
 */
#include "reduce/call.h"
#include "move/slots.h"

#include <string.h>

enum { RING_UNIT = 16 };

typedef struct {
    const call *k;
    terms t;
    cursor at;
    uint64_t share;   /* elements of the longest share */
    uint64_t number;  /* of the first round, counted over the arena's life */
    uint64_t before;  /* steps taken before this round */
    uint64_t begin, end; /* of this round */
    uint64_t round;
    int left, right;
} ring;

/* The elements of the long row in share k (any integer) of this round. */
static range share_at(const ring *r, int k)
{
    const int size = r->k->c->size;
    range c =
        range_of_share(r->end - r->begin, size, (k % size + size) % size, RING_UNIT);
    return (range){r->begin + c.begin, r->begin + c.end};
}

static unsigned char *slot_at(const ring *r, int member, int k)
{
    const int size = r->k->c->size;
    uint64_t which = (uint64_t)((k % size + size) % size);
    return slot_input_at(r->k->c, member, r->number + r->round)
           + which * r->share * r->t.a.accumulated;
}

/* This member's rows of a piece, added up. */
static const void *own_sum(const ring *r, piece p, uint64_t n)
{
    const void **leaf = r->k->c->rows->leaf;
    const replica_split *split = r->k->split;
    for (uint32_t row = 0; row < split->rows[split->rank]; row++)
        leaf[row] = p.s->in[row] + p.offset * r->t.a.element;
    return tree_fold(&r->t.a, &split->of_local, leaf, NULL, n);
}

/* Finish elements [begin, begin + n) of a total to `to`, and copy them to our rows. */
static void finish_total(ring *r, const void *sum, uint64_t begin, uint64_t n,
                         unsigned char *to)
{
    const arithmetic *a = &r->t.a;
    a->simd->finish[a->type](to, sum, n, a->divisor);
    call_copy_out(r->k, &r->t, &r->at, begin, begin + n, to);
}

/* Write this member's rows of share k into its slot, combined with `partial` unless that
 * is NULL. At the last stop of a share the result is the total. */
static void add_own(ring *r, int k, const unsigned char *partial, bool last)
{
    const arithmetic *a = &r->t.a;
    const size_t width = last ? a->element : a->accumulated;
    range c = share_at(r, k);
    unsigned char *to = slot_at(r, r->k->c->rank, k);
    while (c.begin < c.end) {
        piece p = call_piece_at(r->k, &r->at, c.begin, c.end);
        uint64_t n = p.count < a->piece ? p.count : a->piece;
        const void *own = own_sum(r, p, n);
        unsigned char *sum = last ? scratch_block(a, SPARE_BLOCK) : to;
        if (partial) {
            a->simd->combine[a->type][a->op](sum, own, partial, n);
            partial += n * a->accumulated;
        } else {
            memcpy(sum, own, n * a->accumulated);
        }
        if (last)
            finish_total(r, sum, c.begin, n, to);
        to += n * width;
        c.begin += n;
    }
}

static void copy_total(ring *r, int k, bool further)
{
    range c = share_at(r, k);
    const unsigned char *total = slot_at(r, r->left, k);
    call_copy_out(r->k, &r->t, &r->at, c.begin, c.end, total);
    if (further)
        memcpy(slot_at(r, r->k->c->rank, k), total,
               (c.end - c.begin) * r->t.a.element);
}

/* Steps 2 to 2N - 1 of a round; in step 1 we have published our own share. */
static status go_round(ring *r)
{
    comm *c = r->k->c;
    const int size = c->size;
    for (int step = 2; step < 2 * size; step++) {
        status s = wait_posted(c, r->left, r->before + (uint64_t)step - 1);
        if (s != DONE)
            return s;
        const int k = c->rank + 1 - step; /* also right for the second journey */
        if (step <= size)
            add_own(r, k, slot_at(r, r->left, k), step == size);
        else
            copy_total(r, k + size, step < 2 * size - 1);
        comm_post(c);
    }
    return DONE;
}

static status first_step(ring *r)
{
    comm *c = r->k->c;
    const uint64_t steps = 2 * (uint64_t)c->size - 1;
    if (r->round > 1) {
        /* The right neighbour has read the data that this round will overwrite. */
        status s = wait_posted(c, r->right, r->before - steps);
        if (s != DONE)
            return s;
    }
    if (r->round > 0) {
        add_own(r, c->rank, NULL, false);
        comm_post(c);
        return DONE;
    }
    const descriptor d = call_descriptor(r->k);
    announce_begin(c, &d);
    add_own(r, c->rank, NULL, false);
    announce_call(c);
    return announce_await_all(c);
}

status all_reduce_ring(const call *k)
{
    comm *c = k->c;
    const int size = c->size;
    if (size == 1)
        return all_reduce_direct(k);
    ring r = {
        .k = k,
        .t = call_terms(k),
        .number = c->blocks,
        .before = c->posted,
        .left = (c->rank + size - 1) % size,
        .right = (c->rank + 1) % size,
    };
    c->ran = RING;
    r.share = ring_share(c, k->type);
    slots_choose_lane(c, c->agreed.block_bytes, 2);
    status s = DONE;
    do {
        uint64_t rest = k->total - r.begin, most = r.share * (uint64_t)size;
        r.end = r.begin + (rest < most ? rest : most);
        s = first_step(&r);
        if (s == DONE)
            s = go_round(&r);
        if (s != DONE)
            return s;
        r.before += 2 * (uint64_t)size - 1;
        r.begin = r.end;
        r.round++;
    } while (r.begin < k->total);
    c->blocks += r.round;
    if (r.t.stream_out)
        stores_done();
    if (r.round > 1)
        s = wait_posted(c, r.right, r.before - (2 * (uint64_t)size - 1));
    return s;
}

uint64_t ring_share(const comm *c, dtype type)
{
    uint64_t fit = c->agreed.block_bytes / ((uint64_t)c->size * accumulated_bytes(type));
    return fit / RING_UNIT * RING_UNIT;
}
