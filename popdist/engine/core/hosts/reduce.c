/* A reduction over several hosts. The members of each host reduce their rows to nodes of
 * the tree. Its carriers exchange these with the other hosts' carriers, complete them, and
 * hand out the results.
 *
 * Blocks overlap: while one block is reduced on the hosts, the previous block's nodes
 * travel between them, and the result of the block before it.
 */
#include "hosts/reduce.h"

#include "hosts/hand_out.h"
#include "hosts/shares.h"

typedef struct {
    division d;
    shares x; /* of a carrier */
    window reduced, handed_out;
    char *out; /* the destination of this member's share in a reduce_scatter */
} work;

/* Reduce a block's rows to nodes, and give each carrier its range of them. */
static status reduce_here(work *w, uint64_t number)
{
    const division *d = &w->d;
    uint64_t lengths[MAX_MEMBERS] = {0};
    for (uint32_t q = 0; q < d->carriers; q++)
        lengths[q] = division_carried_length(d, number, (int)q);
    division_set_window(d, &w->reduced, number);
    unsigned char *nodes = shares_transit(&w->x, number)->nodes;
    for (uint32_t i = 0; d->carries && i < w->x.k->split->host_nodes; i++)
        w->x.own[i] = (char *)nodes + i * d->carried * w->x.node_element;
    return reduce_to_nodes(&w->reduced.view, lengths, w->x.own);
}

/* Hand out a block's result, if the members of this host get it. */
static status hand_out_here(work *w, uint64_t number)
{
    const division *d = &w->d;
    const shares *x = &w->x;
    const uint32_t here = d->hosts->here;
    if (x->root_host >= 0 && x->root_host != (int)here)
        /* The host's leader knows by now that all hosts make this call. */
        return number + 1 == d->count ? barrier_run(x->k->c, 0) : DONE;
    const transit *b = shares_transit(&w->x, number);
    const unsigned char *result = b->result;
    if (!d->scatters)
        division_set_window(d, &w->handed_out, number);
    else if (d->carries)
        result += b->begins[here] * x->a.element;
    return hand_out(d, x->k, &w->handed_out.view, w->out, number, result);
}

static status reduce_with_records(work *w)
{
    shares *x = &w->x;
    comm *c = x->k->c;
    transit *b = w->d.carries ? shares_divide_block(x, 0) : NULL;
    status s = reduce_here(w, 0);
    if (s == DONE && x->l->leads) {
        const uint64_t bytes = x->k->split->host_nodes * w->d.carried * x->node_element;
        s = links_begin_records(c, b->nodes, bytes);
        if (s == DONE)
            s = links_finish_records(c);
        if (s == DONE)
            shares_complete(x, b, (range){0, w->d.total});
    }
    return s == DONE ? hand_out_here(w, 0) : s;
}

/* Let the leaders check that all hosts make this call, before any carrier reads received
 * nodes: those might be too long if they belong to another call. */
static status agree(work *w)
{
    shares *x = &w->x;
    comm *c = x->k->c;
    const status s = x->l->leads ? links_finish_records(c) : DONE;
    return s == DONE && w->d.carriers > 1 ? barrier_run(c, 0) : s;
}

/* Begin to receive a block's nodes before this host has reduced its own: data that comes
 * early then goes to its destination. */
static status begin_block(work *w, uint64_t number)
{
    shares *x = &w->x;
    if (!w->d.carries)
        return DONE;
    return shares_begin(x, shares_divide_block(x, number), NODES, FROM_OTHERS);
}

/* Reduce a block on this host, and begin to send its nodes to the others. During the
 * first block, the leaders agree on the call. */
static status begin_exchange(work *w, uint64_t number)
{
    shares *x = &w->x;
    transit *b = shares_transit(x, number);
    status s = number == 0 && x->l->leads ? links_begin_records(x->k->c, NULL, 0) : DONE;
    if (s == DONE)
        s = reduce_here(w, number);
    if (s == DONE && w->d.carries)
        s = shares_begin(x, b, NODES, TO_OTHERS);
    if (s == DONE && number == 0)
        s = agree(w);
    return s == DONE && w->d.carries ? shares_begin(x, b, RESULTS, FROM_OTHERS) : s;
}

static status step_of(work *w, uint64_t step)
{
    const uint64_t count = w->d.count;
    const bool carries = w->d.carries;
    shares *x = &w->x;
    status s = step < count ? begin_exchange(w, step) : DONE;
    if (s == DONE && carries && step >= 1 && step <= count)
        s = shares_complete_block(x, shares_transit(x, step - 1));
    if (s == DONE && carries && step >= 2)
        s = shares_await_results(x, shares_transit(x, step - 2));
    if (s == DONE && step >= 2)
        s = hand_out_here(w, step - 2);
    /* It reuses the memory of the block just handed out. */
    return s == DONE && step + 1 < count ? begin_block(w, step + 1) : s;
}

static status reduce_in_blocks(work *w)
{
    status s = begin_block(w, 0);
    for (uint64_t step = 0; s == DONE && step < w->d.count + 2; step++)
        s = step_of(w, step);
    return s;
}

static bool work_open(work *w)
{
    const call *k = w->x.k;
    if (!window_open(&w->reduced, k, division_most_ranges(&w->d))
        || !window_open(&w->handed_out, k, 1))
        return false;
    w->reduced.view.op = REDUCE_TO_NODES;
    return !w->d.carries || shares_open(&w->x, w->d.in_records ? 1 : DEPTH);
}

static void work_close(work *w)
{
    window_close(&w->reduced);
    window_close(&w->handed_out);
    shares_close(&w->x);
    division_close(&w->d);
}

status reduce_over_hosts(const call *given, char *out)
{
    call k = *given;
    comm *c = k.c;
    const host_split *h = k.split->over_hosts;
    work w = {.out = out};
    shares *x = &w.x;
    /* A row of bools may contain any bytes, so it does not travel as it is. */
    k.nodes_as_given = h->single && k.type != BOOL;
    *x = (shares){.d = &w.d, .k = &k, .l = c->links, .root_host = -1};
    x->a = arithmetic_of(c, k.type, k.reduction, h->replicas);
    x->node_element = k.nodes_as_given ? x->a.element : x->a.accumulated;
    const bool is_divided = division_open(&w.d, &k, x->node_element);
    const algorithm how = w.d.in_records ? ONESHOT : DIRECT;
    k.how = k.how == DIRECT ? how : k.how;
    descriptor d = call_descriptor(&k);
    d.details_hash = h->hash ^ k.shapes_hash;
    links_begin_call(c, &d);
    if (k.root >= 0) {
        x->root_host = (int)h->host_of[k.root];
        k.root = c->links->members[k.root].place;
    }
    status s;
    if (!is_divided || !work_open(&w))
        s = links_out_of_memory(c);
    else
        s = w.d.in_records ? reduce_with_records(&w) : reduce_in_blocks(&w);
    work_close(&w);
    if (s != DONE)
        links_note_failure(c->links);
    else if (k.op != REDUCE_SCATTER)
        c->ran = how;
    return s;
}
