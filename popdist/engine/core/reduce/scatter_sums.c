/* Reduce-scatter: as the direct algorithm, but each keeps what it has added up. */
#include "move/blocks.h"
#include "move/exchange.h"
#include "shm/slots.h"

typedef struct {
    const call *k;
    terms t;
    cursor *at;
    uint64_t each;  /* elements of a replica's share */
    uint64_t pitch; /* elements of a member's share that go at once */
    char *out;
} plan;

/* Return what of a member's share goes in a block, as elements of the long row. */
static chunk share_of(const plan *p, int member, uint64_t block)
{
    const layout *l = p->k->l;
    const uint64_t first = l->first[member] * p->each;
    const chunk c = block_of(l->rows[member] * p->each, p->pitch, block);
    return (chunk){first + c.begin, first + c.end};
}

static uint64_t place_of(const plan *p, int member)
{
    return (uint64_t)member * p->k->l->most_nodes * p->pitch * p->t.slot_element;
}

static void write_block(const void *what, uint64_t block, uint64_t number, bool streaming)
{
    const plan *p = what;
    const layout *l = p->k->l;
    unsigned char *slot = input_at(p->k->c, l->rank, number);
    for (int q = 0; q < l->size; q++) {
        chunk s = share_of(p, q, block);
        for (uint32_t i = 0; q != l->rank && i < l->nodes[l->rank]; i++)
            write_node(p->k, &p->t, p->at, &l->mine[i], s.begin, s.end,
                       slot + place_of(p, q) + i * p->pitch * p->t.slot_element,
                       streaming);
    }
}

static void read_block(const void *what, uint64_t block, uint64_t number)
{
    const plan *p = what;
    const layout *l = p->k->l;
    chunk own = share_of(p, l->rank, block);
    published others = {.pitch = p->pitch};
    for (int q = 0; q < l->size; q++)
        others.from[q] = input_at(p->k->c, q, number) + place_of(p, l->rank);
    uint64_t done = own.begin - l->first[l->rank] * p->each;
    reduce_range(p->k, &p->t, p->at, &others, own.begin, own.end,
                 (unsigned char *)p->out + done * p->t.a.element, false);
}

status reduce_scatter(const call *k, char *out)
{
    comm *c = k->c;
    cursor at = {0, 0};
    plan p = {
        .k = k,
        .t = terms_of(k),
        .at = &at,
        .each = k->total / k->l->replicas,
        .out = out,
    };
    p.t.wanted = false; /* in the rows: it goes to `out` alone */
    p.pitch = c->agreed.block_bytes
              / ((uint64_t)c->size * k->l->most_nodes * p.t.slot_element);
    if (p.pitch > CHUNK_UNIT)
        p.pitch = p.pitch / CHUNK_UNIT * CHUNK_UNIT;
    uint64_t longest = 0;
    for (int q = 0; q < c->size; q++)
        longest = k->l->rows[q] > longest ? k->l->rows[q] : longest;
    longest *= p.each;
    const uint64_t whole = round_up(longest, CHUNK_UNIT);
    p.pitch = whole < p.pitch ? whole : p.pitch;
    blocks b = {
        .c = c,
        .count = longest ? (longest + p.pitch - 1) / p.pitch : 0,
        .bytes = p.pitch * p.t.slot_element * (uint64_t)c->size,
        .extent = place_of(&p, c->size),
        .what = &p,
        .write = write_block,
        .read = read_block,
    };
    const descriptor d = descriptor_of(k);
    return blocks_run(&b, &d);
}
