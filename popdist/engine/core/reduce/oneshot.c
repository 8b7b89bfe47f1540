/* The one-shot algorithm: each member publishes its whole array and adds up all arrays.
 *
 * One wait a block, N times the additions: for tiny arrays, and for two members, where it
 * moves as much as the direct algorithm does in half the steps. Short arrays go with the
 * announcement itself, larger ones in blocks through slots.
 *
 * In a large group, very short arrays go along the hierarchy of members: member 0 adds up
 * the nodes of all, and the others read its sum. Where the nodes lie does not change the
 * order of additions.
 */
#include "move/blocks.h"
#include "reduce/call.h"
#include "move/slots.h"

#include <string.h>

typedef struct {
    const call *k;
    terms t;
    cursor *at;
    uint64_t length; /* elements of a whole block */
} work;

/* Publish this member's nodes in its announcement, and return their place there. */
static unsigned char *announce_nodes(const work *w, traffic *t)
{
    const call *k = w->k;
    const replica_split *split = k->split;
    const descriptor d = call_descriptor(k);
    announcement *announced = announce_begin(k->c, &d);
    traffic_begin(t, k->c->blocks);
    for (uint32_t i = 0; i < split->nodes[split->rank]; i++)
        call_write_node(k, &w->t, w->at, &split->mine[i], 0, k->total,
                        announced->data + i * k->total * w->t.slot_element, t->streaming);
    if (t->streaming)
        stores_done();
    traffic_end(t, k->c->blocks);
    announce_call(k->c);
    return announced->data;
}

static status reduce_in_announcements(const work *w)
{
    const call *k = w->k;
    comm *c = k->c;
    published p;
    p.pitch = k->total;
    traffic t = traffic_of(c, k->total * w->t.slot_element, 1);
    announce_nodes(w, &t);
    for (int i = 1; i < c->size; i++) {
        int q = c->rank + i < c->size ? c->rank + i : c->rank + i - c->size;
        status s = announce_await_one(c, q);
        if (s != DONE)
            return s;
        p.from[q] = announced_by(c, q)->data;
    }
    traffic_begin(&t, c->blocks);
    if (w->t.wanted)
        call_reduce_range(k, &w->t, w->at, &p, 0, k->total, NULL, false);
    traffic_end(&t, c->blocks);
    traffic_done(&t, c->blocks);
    return DONE;
}

/* Collect the nodes of the members below. Each member has `room` bytes for its own, and
 * those of a subtree follow each other. */
static void collect_nodes(const comm *c, unsigned char *mine, uint64_t room)
{
    const hierarchy *h = &c->hierarchy;
    for (int i = 0; i < h->below_count; i++) {
        const int q = h->below[i];
        memcpy(mine + (uint64_t)(h->place[q] - h->place[c->rank]) * room,
               announced_by(c, q)->data, (uint64_t)h->members[q] * room);
    }
}

static void reduce_collected(const work *w, unsigned char *result, uint64_t room)
{
    const comm *c = w->k->c;
    published p;
    p.pitch = w->k->total;
    for (int q = 1; q < c->size; q++)
        p.from[q] = announced_by(c, c->hierarchy.top[q])->data
                    + (uint64_t)c->hierarchy.place[q] * room;
    call_reduce_range(w->k, &w->t, w->at, &p, 0, w->k->total, result, false);
}

/* The nodes go up the hierarchy, member 0 adds up all, and the result goes down. */
static status reduce_along_hierarchy(const work *w)
{
    const call *k = w->k;
    comm *c = k->c;
    const uint64_t room = k->total * k->split->most_nodes * w->t.slot_element;
    traffic t = {.size_class = -1};
    unsigned char *mine = announce_nodes(w, &t);
    status s = announce_gather(c, true);
    if (s != DONE)
        return s;
    if (c->rank)
        collect_nodes(c, mine, room);
    else
        reduce_collected(w, mine, room);
    if ((s = announce_await_above(c, true)) != DONE)
        return s;
    if (c->rank)
        memcpy(mine, announced_by(c, c->hierarchy.above)->data, k->total * w->t.a.element);
    announce_release(c);
    if (c->rank)
        call_copy_out(k, &w->t, w->at, 0, k->total, mine);
    return DONE;
}

static void oneshot_write(void *what, uint64_t block, uint64_t number, bool streaming)
{
    const work *w = what;
    const replica_split *split = w->k->split;
    range all = range_of_block(w->k->total, w->length, block);
    unsigned char *slot = slot_input_at(w->k->c, split->rank, number);
    for (uint32_t i = 0; i < split->nodes[split->rank]; i++)
        call_write_node(w->k, &w->t, w->at, &split->mine[i], all.begin, all.end,
                        slot + i * w->length * w->t.slot_element, streaming);
}

static void oneshot_read(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* for stores to slots; these go to the program's memory */
    const work *w = what;
    comm *c = w->k->c;
    range all = range_of_block(w->k->total, w->length, block);
    published p;
    p.pitch = w->length;
    for (int q = 0; q < c->size; q++)
        p.from[q] = slot_input_at(c, q, number);
    if (w->t.wanted)
        call_reduce_range(w->k, &w->t, w->at, &p, all.begin, all.end, NULL, false);
}

bool oneshot_fits_hierarchy(const comm *c, uint64_t bytes)
{
    return c->size > HIERARCHY_ABOVE
           && bytes * (uint64_t)c->hierarchy.largest <= ANNOUNCEMENT_BYTES;
}

status all_reduce_oneshot(const call *k)
{
    comm *c = k->c;
    cursor at = {0, 0};
    work w = {.k = k, .t = call_terms(k), .at = &at};
    const uint64_t width = k->split->most_nodes * w.t.slot_element;
    c->ran = ONESHOT;
    if (oneshot_fits_hierarchy(c, k->total * width))
        return reduce_along_hierarchy(&w);
    if (k->total * width <= ANNOUNCEMENT_BYTES)
        return reduce_in_announcements(&w);
    blocks b = {.c = c, .what = &w, .write = oneshot_write, .read = oneshot_read};
    w.length = call_divide(&b, k, &w.t, c->agreed.block_bytes);
    const descriptor d = call_descriptor(k);
    status s = blocks_run(&b, &d);
    if (w.t.stream_out)
        stores_done();
    return s;
}
