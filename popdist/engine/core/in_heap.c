/* Arrays that lie in the heap are reduced where they are: each member adds up its
 * chunk of everybody's rows, and writes the total into everybody's rows. */
#include "call.h"

#include <string.h>

static const descriptor *said_by(const call *k, int q)
{
    return &member_at(k->c, q)->calls[k->c->calls & 1];
}

bool all_in_heap(const call *k)
{
    for (int q = 0; q < k->c->size; q++)
        if (said_by(k, q)->in == NOT_IN_HEAP)
            return false;
    return true;
}

bool some_in_heap(const call *k)
{
    for (int q = 0; q < k->c->size; q++)
        if (said_by(k, q)->in != NOT_IN_HEAP)
            return true;
    return false;
}

static unsigned char *region_of(const call *k, int q)
{
    return k->c->heap + (uint64_t)q * k->c->heap_span;
}

/* Find where all rows of all members begin, for reading and for writing. */
static void find_rows(const call *k, const void **from, unsigned char **to)
{
    uint32_t i = 0;
    for (int q = 0; q < k->c->size; q++) {
        const descriptor *d = said_by(k, q);
        for (uint32_t row = 0; row < k->l->rows[q]; row++, i++) {
            from[i] = region_of(k, q) + d->in + row * d->stride;
            to[i] = region_of(k, q) + d->out + row * d->stride;
        }
    }
}

/* Every total is written to all arrays, by whoever does not have them in its cache:
 * that pays later than for a member's own array. */
enum { STREAM_OUT_BYTES = 32 << 20 };

/* While the total of one piece is written, what the next one needs is fetched: else
 * the memory would rest whenever we only write. */
static void write_total(const terms *t, unsigned char *to, const unsigned char *total,
                        size_t bytes, const unsigned char *next)
{
    if (t->stream_out)
        t->a.simd->stream(to, total, bytes, next);
    else
        memcpy(to, total, bytes);
}

static void reduce_chunk(const call *k, const terms *t, chunk own)
{
    const void *from[MAX_LEAVES], *leaf[MAX_LEAVES];
    unsigned char *to[MAX_LEAVES], *total = scratch_block(&t->a, SPARE_BLOCK);
    const uint64_t rows = k->l->replicas;
    find_rows(k, from, to);
    for (uint64_t at = own.begin; at < own.end; at += t->a.piece) {
        uint64_t n = own.end - at < t->a.piece ? own.end - at : t->a.piece;
        for (uint64_t i = 0; i < rows; i++)
            leaf[i] = (const unsigned char *)from[i] + at * t->a.element;
        fold_finished(&t->a, &k->l->of_rows, leaf, NULL, n, total);
        for (uint64_t i = 0; i < rows; i++)
            write_total(t, to[i] + at * t->a.element, total, n * t->a.element,
                        (const unsigned char *)leaf[i] + n * t->a.element);
    }
}

status all_reduce_in_heap(const call *k, uint64_t steps_before)
{
    terms t = terms_of(k);
    t.stream_out = k->total * t.a.element >= STREAM_OUT_BYTES && !shares_core(k->c);
    k->c->ran = IN_ARENA;
    reduce_chunk(k, &t, chunk_of(k->total, k->c->size, k->c->rank, PAGE));
    if (t.stream_out)
        stores_done();
    post(k->c);
    return wait_all(k->c, steps_before + 2);
}
