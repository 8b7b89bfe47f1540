#include "move/exchange.h"

#include "move/blocks.h"
#include "move/slots.h"
#include "shm/ranges.h"
#include "shm/hash.h"

#include <string.h>

typedef struct {
    const exchange *x;
    uint64_t block_bytes; /* the most bytes of a share in one block */
    bool parted;     /* a slot holds a piece for each receiver */
    bool stream_out; /* results are larger than the caches */
} plan;

/* The begin of a member's share in an array of all shares. */
static uint64_t exchange_share_begin(const exchange *x, int member)
{
    uint64_t begin = 0;
    for (int q = 0; q < member; q++)
        begin += x->lengths[q];
    return begin;
}

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
    if (!exchange_writes(x, rank))
        return;
    if (!p->parted) {
        range s = range_of_block(x->lengths[rank], p->block_bytes, block);
        streaming_copy(x->c->simd, slot, x->in + s.begin, s.end - s.begin, streaming);
        return;
    }
    const char *part = x->in;
    for (int q = 0; q < x->c->size; q++) {
        range s = range_of_block(x->lengths[q], p->block_bytes, block);
        if (q != rank)
            streaming_copy(x->c->simd, slot + (uint64_t)q * p->block_bytes,
                           part + s.begin, s.end - s.begin, streaming);
        part += x->lengths[q];
    }
}

/* Read a member's data for us: its share, or the piece of it that is ours. Its share
 * begins at `begin` in an array of all shares. */
static void exchange_read_from(const plan *p, int q, uint64_t begin, uint64_t block,
                               uint64_t number)
{
    const exchange *x = p->x;
    const int rank = x->c->rank;
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
    uint64_t begin = exchange_share_begin(x, x->c->rank);
    for (int i = 0; i < x->c->size; i++) {
        int q = (x->c->rank + i) % x->c->size;
        begin = q ? begin : 0;
        if (exchange_writes(x, q))
            exchange_read_from(p, q, begin, block, number);
        begin += x->lengths[q];
    }
}

status exchange_run(const exchange *x)
{
    comm *c = x->c;
    uint64_t longest = 0, all = 0;
    plan p = {.x = x, .parted = x->op == SCATTER || x->op == ALL_TO_ALL};
    for (int q = 0; q < c->size; q++) {
        longest = x->lengths[q] > longest ? x->lengths[q] : longest;
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
    const descriptor d = {
        .count = (x->op == BROADCAST ? longest : all) / element_bytes(x->type),
        .name = x->name,
        .details_hash = hash_with_all(x->shapes_hash, x->lengths, (size_t)c->size),
        .operation = (uint8_t)x->op,
        .dtype = (uint8_t)x->type,
        .prelude_to = (uint8_t)x->prelude_to,
        .root = (int16_t)x->root,
        .in = NOT_IN_HEAP,
        .out = NOT_IN_HEAP,
    };
    const status s = blocks_run(&b, &d);
    if (p.stream_out)
        stores_done();
    return s;
}
