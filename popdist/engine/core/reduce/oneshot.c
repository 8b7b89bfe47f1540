/* The one-shot algorithm: each member publishes its whole array and adds up all arrays.
 *
 * One wait a block, N times the additions: for tiny arrays, and for two members, where it
 * moves as much as the direct algorithm does in half the steps. Short arrays go with the
 * announcement itself, larger ones in blocks through slots.
 */
#include "move/blocks.h"
#include "reduce/call.h"
#include "move/slots.h"

typedef struct {
    const call *k;
    terms t;
    cursor *at;
    uint64_t length; /* elements of a whole block */
} work;

static status reduce_in_announcements(const work *w)
{
    const call *k = w->k;
    const replica_split *split = k->split;
    comm *c = k->c;
    const descriptor d = call_descriptor(k);
    published p;
    p.pitch = k->total;
    traffic t = traffic_of(c, k->total * w->t.slot_element, 1);
    announcement *announced = announce_begin(c, &d);

    traffic_begin(&t, c->blocks);
    for (uint32_t i = 0; i < split->nodes[c->rank]; i++)
        call_write_node(k, &w->t, w->at, &split->mine[i], 0, k->total,
                        announced->data + i * p.pitch * w->t.slot_element, t.streaming);
    if (t.streaming)
        stores_done();
    traffic_end(&t, c->blocks);
    announce_call(c);
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

status all_reduce_oneshot(const call *k)
{
    comm *c = k->c;
    cursor at = {0, 0};
    work w = {.k = k, .t = call_terms(k), .at = &at};
    const uint64_t width = k->split->most_nodes * w.t.slot_element;
    c->ran = ONESHOT;
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
