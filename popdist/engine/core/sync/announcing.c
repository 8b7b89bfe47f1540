/* How members begin a call together: each announces its call, and checks that all have
 * begun the same one.
 *
 * If every member reads every other one's counter, N members read N (N - 1) cache lines.
 * The members of a large group do so along a hierarchy instead: a member waits until all
 * below it have taken their steps, and tells the one above it. Then it waits until the one
 * above reports that all members have: 2 (N - 1) lines in total.
 */
#include "shm/hash.h"
#include "sync/comm.h"

static uint64_t signature_of(const descriptor *d)
{
    uint64_t small = (uint64_t)d->operation | (uint64_t)d->dtype << 8
                     | (uint64_t)d->reduction << 16 | (uint64_t)d->algorithm << 24
                     | (uint64_t)(uint16_t)d->root << 32 | (uint64_t)d->prelude_to << 48;
    const uint64_t parts[] = {small, d->count, d->name, d->details_hash};
    return hash_with_all(1, parts, 4);
}

void announce_describe(comm *c, const descriptor *d)
{
    descriptor described = *d;
    c->stall_reported = false;
    if (c->in_larger_call) {
        described = c->larger_call;
        described.in = d->in;
        described.out = d->out;
        described.stride = d->stride;
    }
    described.number = c->in_larger_call ? c->larger_calls : calls_of(c);
    copy_descriptor(&c->shown->calls[calls_of(c) % RECENT_CALLS], &described);
    /* A larger call describes its record when it begins. */
    if (c->record && !c->record->is_described)
        record_description(c->record, &described);
}

static uint64_t shown_signature(const announcement *a)
{
    return atomic_load_explicit(&a->signature, memory_order_relaxed);
}

static void show_signature(announcement *a, uint64_t signature, uint64_t array_places)
{
    const uint64_t shown = (signature & ~(uint64_t)ARRAY_PLACES) | array_places;
    atomic_store_explicit(&a->signature, shown, memory_order_relaxed);
}

announcement *announce_begin(comm *c, const descriptor *d)
{
    atomic_store_explicit(&c->calls, calls_of(c) + 1, memory_order_relaxed);
    announcement *announced = announced_by(c, c->rank);
    announce_describe(c, d);
    uint64_t signature = signature_of(d);
    if (c->in_larger_call) {
        const uint64_t larger = signature_of(&c->larger_call);
        signature = hash_with_all(signature, &larger, 1);
    }
    c->array_places = d->in == NOT_IN_HEAP ? SOME_ELSEWHERE : SOME_IN_HEAP;
    show_signature(announced, signature, c->array_places);
    return announced;
}

void announce_call(comm *c)
{
    announcement *announced = announced_by(c, c->rank);
    atomic_store_explicit(&announced->stamp, calls_of(c), memory_order_release);
    comm_post(c);
}

/* Compare a member's call with this one's, and end the group if they differ. */
static status compare(comm *c, int peer)
{
    const announcement *announced = announced_by(c, peer), *mine = announced_by(c, c->rank);
    const uint64_t theirs = shown_signature(announced);
    c->array_places |= theirs & ARRAY_PLACES;
    if ((theirs | ARRAY_PLACES) == (shown_signature(mine) | ARRAY_PLACES))
        return DONE;
    return end_group(c, MISMATCH, peer);
}

status announce_await_one(comm *c, int peer)
{
    status s = wait_word(c, peer, &announced_by(c, peer)->stamp, calls_of(c),
                         &member_at(c, peer)->posted);
    return s == DONE ? compare(c, peer) : s;
}

status announce_gather(comm *c, bool call)
{
    const hierarchy *h = &c->hierarchy;
    c->awaited = c->posted;
    for (int i = 0; i < h->below_count; i++) {
        const int q = h->below[i];
        counter *b = &member_at(c, q)->gathered;
        status s = wait_word(c, q, &b->count, c->posted, b);
        if (s == DONE && call)
            s = compare(c, q);
        if (s != DONE)
            return s;
    }
    return DONE;
}

status announce_await_above(comm *c, bool call)
{
    const int above = c->hierarchy.above;
    announcement *announced = announced_by(c, c->rank);
    /* Before the release only the member above reads it, afterwards only the members
     * below. */
    if (call)
        show_signature(announced, shown_signature(announced), c->array_places);
    counter_advance(&member_at(c, c->rank)->gathered, c->posted);
    if (above < 0)
        return DONE;
    counter *b = &member_at(c, above)->released;
    const status s = wait_word(c, above, &b->count, c->posted, b);
    if (s == DONE && call) {
        c->array_places |= shown_signature(announced_by(c, above)) & ARRAY_PLACES;
        show_signature(announced, shown_signature(announced), c->array_places);
    }
    return s;
}

void announce_release(comm *c)
{
    counter_advance(&member_at(c, c->rank)->released, c->posted);
    c->awaited = 0;
}

static status wait_in_hierarchy(comm *c, bool call)
{
    status s = announce_gather(c, call);
    if (s == DONE && (s = announce_await_above(c, call)) == DONE)
        announce_release(c);
    return s;
}

status wait_together(comm *c)
{
    return c->size > HIERARCHY_ABOVE ? wait_in_hierarchy(c, false) : wait_all(c, c->posted);
}

status announce_await_all(comm *c)
{
    if (c->size > HIERARCHY_ABOVE)
        return wait_in_hierarchy(c, true);
    for (int i = 1; i < c->size; i++) {
        status s = announce_await_one(c, (c->rank + i) % c->size);
        if (s != DONE)
            return s;
    }
    return DONE;
}

status barrier_run(comm *c, uint64_t name)
{
    const descriptor d = {
        .operation = BARRIER, .name = name, .in = NOT_IN_HEAP, .out = NOT_IN_HEAP};
    announce_begin(c, &d);
    announce_call(c);
    return announce_await_all(c);
}
