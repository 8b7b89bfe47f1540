#include "move/exchange.h"

#include "move/blocks.h"
#include "move/slots.h"
#include "shm/ranges.h"
#include "shm/hash.h"

#include <string.h>

typedef struct {
    const exchange *x;
    const uint64_t *begins; /* of the members' shares in an array of all */
    uint64_t block_bytes; /* the most bytes of a share in one block */
    bool parted;     /* a slot holds a piece for each receiver */
    bool stream_out; /* results are larger than the caches */
} plan;

static bool exchange_writes(const exchange *x, int member)
{
    bool one_only = x->op == BROADCAST || x->op == SCATTER;
    return !one_only || member == x->root;
}

static void exchange_write(void *what, uint64_t block, uint64_t number, bool streaming)
{
    const plan *p = what;
    const exchange *x = p->x;
    const int rank = x->c->rank;
    unsigned char *slot = slot_input_at(x->c, rank, number);
    if (!exchange_writes(x, rank) || x->c->size == 1)
        return;
    if (!p->parted) {
        range s = range_of_block(x->lengths[rank], p->block_bytes, block);
        streaming_copy(x->c->simd, slot, x->in + s.begin, s.end - s.begin, streaming);
        return;
    }
    for (int q = 0; q < x->c->size; q++) {
        range s = range_of_block(x->lengths[q], p->block_bytes, block);
        if (q != rank)
            streaming_copy(x->c->simd, slot + (uint64_t)q * p->block_bytes,
                           x->in + p->begins[q] + s.begin, s.end - s.begin, streaming);
    }
}

/* Read a member's data for us: its share, or the piece of it that is ours. */
static void exchange_read_from(const plan *p, int q, uint64_t block, uint64_t number)
{
    const exchange *x = p->x;
    const int rank = x->c->rank;
    const uint64_t begin = p->begins[q];
    range s = range_of_block(x->lengths[p->parted ? rank : q], p->block_bytes, block);
    const bool alone = x->op == BROADCAST || x->op == SCATTER;
    char *to = x->out + (alone ? 0 : begin) + s.begin;
    if (q == rank) {
        const char *own = x->in + (p->parted ? begin : 0) + s.begin;
        if (own != to)
            memcpy(to, own, s.end - s.begin);
        return;
    }
    streaming_copy(x->c->simd, to,
                   slot_input_at(x->c, q, number)
                       + (p->parted ? (uint64_t)rank * p->block_bytes : 0),
                   s.end - s.begin, p->stream_out);
}

static void exchange_read(void *what, uint64_t block, uint64_t number, bool streaming)
{
    (void)streaming; /* for stores to slots; these go to the program's memory */
    const plan *p = what;
    const exchange *x = p->x;
    if (x->op == GATHER && x->c->rank != x->root)
        return;
    for (int i = 0; i < x->c->size; i++) {
        int q = (x->c->rank + i) % x->c->size;
        if (exchange_writes(x, q))
            exchange_read_from(p, q, block, number);
    }
}

descriptor exchange_described(const exchange *x, size_t members)
{
    uint64_t bytes = 0;
    /* In a broadcast, all have the same array. */
    for (size_t q = 0; q < (x->op == BROADCAST ? 1 : members); q++)
        bytes += x->lengths[q];
    return (descriptor){
        .count = bytes / element_bytes(x->type),
        .name = x->name,
        .details_hash = hash_with_all(x->shapes_hash, x->lengths, members),
        .operation = (uint8_t)x->op,
        .dtype = (uint8_t)x->type,
        .prelude_to = (uint8_t)x->prelude_to,
        .root = (int16_t)x->root,
        .in = NOT_IN_HEAP,
        .out = NOT_IN_HEAP,
    };
}

status exchange_run(const exchange *x)
{
    comm *c = x->c;
    uint64_t longest = 0, all = 0, begins[MAX_MEMBERS];
    plan p = {
        .x = x,
        .begins = x->begins ? x->begins : begins,
        .parted = x->op == SCATTER || x->op == ALL_TO_ALL,
    };
    for (int q = 0; q < c->size; q++) {
        longest = x->lengths[q] > longest ? x->lengths[q] : longest;
        begins[q] = all;
        all += x->lengths[q];
    }
    p.stream_out = x->op == ALL_GATHER && all >= STREAM_OUT_BYTES;
    p.block_bytes = p.parted
                        ? c->agreed.block_bytes / (uint64_t)c->size / CACHE_LINE * CACHE_LINE
                        : c->agreed.block_bytes;
    if (longest && longest < p.block_bytes)
        p.block_bytes = round_up(longest, CACHE_LINE);
    blocks b = {
        .c = c,
        .count = (longest + p.block_bytes - 1) / p.block_bytes,
        .bytes = p.block_bytes,
        .extent = p.block_bytes * (p.parted ? (uint64_t)c->size : 1),
        .what = &p,
        .write = exchange_write,
        .read = exchange_read,
    };
    const descriptor d = exchange_described(x, (size_t)c->size);
    const status s = blocks_run(&b, &d);
    if (p.stream_out)
        stores_done();
    return s;
}

status exchange_equal(exchange x, uint64_t bytes)
{
    uint64_t lengths[MAX_MEMBERS];
    for (int q = 0; q < x.c->size; q++)
        lengths[q] = bytes;
    x.lengths = lengths;
    return exchange_run(&x);
}
