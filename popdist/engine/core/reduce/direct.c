/* The direct algorithm: each member adds up its share of all the others' slots.
 *
 * The array goes through the slots in blocks. In each block a member publishes all but its
 * own share (step 1), adds up its share and publishes the total (step 2), and copies the
 * other totals. Steps are counted over the whole call, so one counter a member is enough:
 * the inputs of block b are published from step 2b + 1 on, its totals from step 2b + 2.
 *
 * The two phases of a slot take turns, so block b overwrites block b - 2. A member that has
 * published the totals of a block has read all its inputs, and a member that has published
 * the inputs of block b has read the totals of block b - 2.
 */
#include "move/blocks.h"
#include "move/slots.h"
#include "reduce/block_size.h"
#include "reduce/call.h"

typedef struct {
    const call *k;
    terms t;
    cursor at;
    uint64_t length; /* elements of a whole block */
    blocks b;
    block_trial trial;
} work;

static range direct_share(range block, int size, int member)
{
    range c = range_of_share(block.end - block.begin, size, member, SHARE_UNIT);
    return (range){block.begin + c.begin, block.begin + c.end};
}

/* Write this member's nodes of a block to its slot, except for its own share. */
static void publish_inputs(void *what, uint64_t block, uint64_t number, bool streaming)
{
    work *w = what;
    const call *k = w->k;
    const size_t width = w->t.slot_element;
    range all = range_of_block(k->total, w->length, block);
    range own = direct_share(all, k->c->size, k->c->rank);
    unsigned char *slot = slot_input_at(k->c, k->c->rank, number);
    for (uint32_t i = 0; i < k->split->nodes[k->c->rank]; i++) {
        unsigned char *to = slot + i * w->length * width;
        call_write_node(k, &w->t, &w->at, &k->split->mine[i], all.begin, own.begin, to,
                        streaming);
        call_write_node(k, &w->t, &w->at, &k->split->mine[i], own.end, all.end,
                        to + (own.end - all.begin) * width, streaming);
    }
}

static void publish_totals(void *what, uint64_t block, uint64_t number, bool streaming)
{
    work *w = what;
    comm *c = w->k->c;
    range all = range_of_block(w->k->total, w->length, block);
    range own = direct_share(all, c->size, c->rank);
    published p;
    p.pitch = w->length;
    for (int q = 0; q < c->size; q++)
        p.from[q] =
            slot_input_at(c, q, number) + (own.begin - all.begin) * w->t.slot_element;
    call_reduce_range(w->k, &w->t, &w->at, &p, own.begin, own.end,
                      c->size > 1 ? slot_result_at(c, c->rank, number) : NULL, streaming);
}

static status take_totals(blocks *b, uint64_t block)
{
    work *w = b->what;
    comm *c = w->k->c;
    range all = range_of_block(w->k->total, w->length, block);
    for (int i = 1; i < c->size; i++) {
        int q = (c->rank + i) % c->size;
        range theirs = direct_share(all, c->size, q);
        if (!range_length(theirs))
            continue;
        status s = wait_posted(c, q, b->before + 2 * block + 2);
        if (s != DONE)
            return s;
        traffic_begin(&b->traffic, b->number + block);
        call_copy_out(w->k, &w->t, &w->at, theirs.begin, theirs.end,
                      slot_result_at(c, q, b->number + block));
        traffic_end(&b->traffic, b->number + block);
    }
    return DONE;
}

static void publish_first_inputs(work *w)
{
    block_trial_begin(&w->trial);
    blocks_write(&w->b, 0);
    block_trial_pause(&w->trial);
}

/* Begin the call, and find out whether the arrays can stay in place. */
static status begin_direct(work *w, bool *in_place)
{
    comm *c = w->k->c;
    const descriptor d = call_descriptor(w->k);
    const bool in_slots = d.in == NOT_IN_HEAP;
    announce_begin(c, &d);
    if (in_slots)
        publish_first_inputs(w);
    announce_call(c);
    status s = announce_await_all(c);
    /* Without elements, no member waits a second time for us to have read its array's
     * place. */
    if (s != DONE || !w->b.count)
        return s;
    *in_place = c->array_places == SOME_IN_HEAP;
    if (*in_place || c->array_places == SOME_ELSEWHERE)
        return DONE;
    /* Some arrays lie in the heap and some do not: the former go through slots, too. */
    if (!in_slots)
        publish_first_inputs(w);
    comm_post(c);
    w->b.before++;
    return wait_all(c, w->b.before + 1);
}

status all_reduce_direct(const call *k)
{
    comm *c = k->c;
    work w = {.k = k, .t = call_terms(k)};
    bool in_place = false;
    const uint64_t width = k->split->most_nodes * w.t.slot_element;

    c->ran = DIRECT;
    const uint64_t block_bytes = block_size_begin(&w.trial, c, k->total * width);
    w.b = (blocks){
        .c = c,
        .what = &w,
        .write = publish_inputs,
        .read = publish_totals,
        .take = take_totals,
    };
    w.length = call_divide(&w.b, k, &w.t, block_bytes);
    blocks_begin(&w.b);
    w.t.stream_in_place |= w.t.stream_out && streaming_usual(c, w.b.bytes);
    status s = begin_direct(&w, &in_place);
    if (s != DONE)
        return s;
    if (in_place)
        return all_reduce_in_heap(k);
    block_trial_begin(&w.trial);
    s = blocks_go_through(&w.b);
    if (w.t.stream_out)
        stores_done();
    if (s == DONE)
        block_trial_end(&w.trial, k->total * width);
    return s;
}
