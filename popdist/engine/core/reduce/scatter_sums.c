/* Reduce-scatter: like the direct algorithm, but each member keeps its total. To nodes:
 * the same, but members add up only the nodes of their group's part of a job. */
#include "move/blocks.h"
#include "move/slots.h"
#include "reduce/nodes.h"

typedef struct {
    const call *k;
    terms t;
    cursor *at;
    uint64_t ends[MAX_MEMBERS]; /* of each member's share of the long row */
    uint32_t receivers;         /* members with a share that is not empty */
    uint64_t longest;           /* share */
    uint64_t pitch;             /* elements of a share in one block */
    char *const *out;           /* of the sum, or of each node */
} plan;

static uint64_t first_of(const plan *p, int member)
{
    return member > 0 ? p->ends[member - 1] : 0;
}

/* Return a block's elements of a member's share, as elements of the long row. */
static range scatter_share(const plan *p, int member, uint64_t block)
{
    const uint64_t first = first_of(p, member);
    const range c = range_of_block(p->ends[member] - first, p->pitch, block);
    return (range){first + c.begin, first + c.end};
}

/* Return the place in a slot for the share of receiver `number`. */
static uint64_t place_of(const plan *p, uint32_t number)
{
    return (uint64_t)number * p->k->split->most_nodes * p->pitch * p->t.slot_element;
}

static bool receives(const plan *p, int member)
{
    return p->ends[member] > first_of(p, member);
}

static void scatter_write(void *what, uint64_t block, uint64_t number, bool streaming)
{
    const plan *p = what;
    const replica_split *split = p->k->split;
    unsigned char *slot = slot_input_at(p->k->c, split->rank, number);
    uint32_t receiver = 0;
    for (int q = 0; q < split->size; q++) {
        range s = scatter_share(p, q, block);
        for (uint32_t i = 0; q != split->rank && i < split->nodes[split->rank]; i++)
            call_write_node(p->k, &p->t, p->at, &split->mine[i], s.begin, s.end,
                            slot + place_of(p, receiver) + i * p->pitch * p->t.slot_element,
                            streaming);
        receiver += receives(p, q);
    }
}

static void scatter_read(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* for stores to slots; these go to the program's memory */
    const plan *p = what;
    const replica_split *split = p->k->split;
    range own = scatter_share(p, split->rank, block);
    published others;
    others.pitch = p->pitch;
    uint32_t receiver = 0;
    for (int q = 0; q < split->rank; q++)
        receiver += receives(p, q);
    for (int q = 0; q < split->size; q++)
        others.from[q] = slot_input_at(p->k->c, q, number) + place_of(p, receiver);
    const uint64_t done = own.begin - first_of(p, split->rank);
    if (p->k->op == REDUCE_TO_NODES)
        reduce_range_to_nodes(p->k, &p->t, p->at, &others, own.begin, own.end, p->out,
                              done);
    else
        call_reduce_range(p->k, &p->t, p->at, &others, own.begin, own.end,
                          (unsigned char *)p->out[0] + done * p->t.a.element, false);
}

/* Choose the elements of a share in one block; the shares are set. */
static void choose_pitch(plan *p)
{
    const comm *c = p->k->c;
    for (int q = 0; q < c->size; q++) {
        const uint64_t length = p->ends[q] - first_of(p, q);
        p->longest = length > p->longest ? length : p->longest;
        p->receivers += receives(p, q);
    }
    const uint64_t receivers = p->receivers ? p->receivers : 1;
    p->pitch = c->agreed.block_bytes
               / (receivers * p->k->split->most_nodes * p->t.slot_element);
    if (p->pitch > SHARE_UNIT)
        p->pitch = p->pitch / SHARE_UNIT * SHARE_UNIT;
    const uint64_t whole = round_up(p->longest, SHARE_UNIT);
    p->pitch = whole < p->pitch ? whole : p->pitch;
}

static status scatter_run(plan *p, const descriptor *d)
{
    choose_pitch(p);
    blocks b = {
        .c = p->k->c,
        .count = p->longest ? (p->longest + p->pitch - 1) / p->pitch : 0,
        .bytes = p->pitch * p->t.slot_element * p->receivers,
        .extent = place_of(p, p->receivers),
        .what = p,
        .write = scatter_write,
        .read = scatter_read,
    };
    return blocks_run(&b, d);
}

status reduce_scatter(const call *k, char *out)
{
    cursor at = {0, 0};
    plan p = {.k = k, .t = call_terms(k), .at = &at, .out = &out};
    const uint64_t each = k->total / k->split->replicas;
    for (int q = 0; q < k->c->size; q++)
        p.ends[q] = (k->split->first[q] + k->split->rows[q]) * each;
    p.t.wanted = false; /* in the rows: it goes to `out` alone */
    const descriptor d = call_descriptor(k);
    return scatter_run(&p, &d);
}

status reduce_to_nodes(const call *k, const uint64_t *lengths, char *const *out)
{
    cursor at = {0, 0};
    plan p = {.k = k, .t = call_terms(k), .at = &at, .out = out};
    descriptor d = call_descriptor(k);
    uint64_t end = 0;
    for (int q = 0; q < k->c->size; q++)
        p.ends[q] = end += lengths[q];
    d.details_hash = hash_with_all(d.details_hash, lengths, (size_t)k->c->size);
    return scatter_run(&p, &d);
}
