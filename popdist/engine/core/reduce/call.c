#include "reduce/call.h"

terms call_terms(const call *k)
{
    terms t = {
        .a = arithmetic_of(k->c, k->type, k->reduction, k->split->replicas),
        .wanted = k->root < 0 || k->root == k->c->rank,
    };
    t.widened = !k->split->single && t.a.accumulated != t.a.element;
    t.slot_element = t.widened ? t.a.accumulated : t.a.element;
    t.stream_out = k->total * t.a.element >= STREAM_OUT_BYTES;
    t.stream_in_place = t.stream_out && comm_shares_core(k->c);
    return t;
}

descriptor call_descriptor(const call *k)
{
    return (descriptor){
        .count = k->total,
        .name = k->name,
        .details_hash = k->split->hash ^ k->shapes_hash,
        .operation = (uint8_t)k->op,
        .dtype = (uint8_t)k->type,
        .reduction = (uint8_t)k->reduction,
        .algorithm = (uint8_t)k->how,
        .root = (int16_t)k->root,
        .in = k->heap_in,
        .out = k->heap_out,
        .stride = k->heap_stride,
    };
}

piece call_piece_at(const call *k, cursor *at, uint64_t begin, uint64_t end)
{
    while (begin < at->before)
        at->before -= k->arrays[--at->array].count;
    while (begin >= at->before + k->arrays[at->array].count)
        at->before += k->arrays[at->array++].count;
    const array_rows *s = &k->arrays[at->array];
    uint64_t offset = begin - at->before, left = s->count - offset;
    return (piece){s, offset, end - begin < left ? end - begin : left};
}

void call_write_node(const call *k, const terms *t, cursor *at, const node *which,
                     uint64_t begin, uint64_t end, unsigned char *to, bool streaming)
{
    const bool as_given = which->rows == 1 && !t->widened;
    const program part = {which->rows, k->split->of_node.merges};
    const void **leaf = k->c->rows->leaf;
    while (begin < end) {
        piece p = call_piece_at(k, at, begin, end);
        uint64_t n = as_given ? p.count : least(p.count, t->a.piece);
        for (uint32_t i = 0; i < which->rows; i++)
            leaf[i] = p.s->in[which->first + i] + p.offset * t->a.element;
        const void *sum = as_given ? leaf[0] : tree_fold(&t->a, &part, leaf, NULL, n);
        streaming_copy(t->a.simd, to, sum, n * t->slot_element, streaming);
        to += n * t->slot_element;
        begin += n;
    }
}

void call_find_leaves(const call *k, const terms *t, const published *p, piece own,
                      uint64_t skip, const void **leaf, bool *accumulated)
{
    uint32_t i = 0;
    for (int q = 0; q < k->split->size; q++) {
        if (q == k->split->rank) {
            for (uint32_t row = 0; row < k->split->rows[q]; row++, i++) {
                leaf[i] = own.s->in[row] + own.offset * t->a.element;
                accumulated[i] = false;
            }
            continue;
        }
        const unsigned char *first = p->from[q] + skip * t->slot_element;
        for (uint32_t node = 0; node < k->split->nodes[q]; node++, i++) {
            leaf[i] = first + node * p->pitch * t->slot_element;
            accumulated[i] = t->widened;
        }
    }
}

static void to_rows(const call *k, const terms *t, piece p, const void *from, uint64_t n)
{
    for (uint32_t row = 0; t->wanted && row < k->split->rows[k->split->rank]; row++) {
        /* Rows may share their result. */
        if (row && p.s->out[row] == p.s->out[row - 1])
            continue;
        char *to = p.s->out[row] + p.offset * t->a.element;
        bool in_place = p.s->out[row] == p.s->in[row];
        if (to != from)
            streaming_copy(t->a.simd, to, from, n * t->a.element,
                           in_place ? t->stream_in_place : t->stream_out);
    }
}

void call_reduce_range(const call *k, const terms *t, cursor *at, const published *p,
                       uint64_t begin, uint64_t end, unsigned char *also, bool streaming)
{
    const void **leaf = k->c->rows->leaf;
    bool *accumulated = k->c->rows->accumulated;
    const uint64_t first = begin;
    while (begin < end) {
        piece own = call_piece_at(k, at, begin, end);
        uint64_t n = least(own.count, t->a.piece), skip = begin - first;
        call_find_leaves(k, t, p, own, skip, leaf, accumulated);
        unsigned char *result = also ? also + skip * t->a.element : NULL;
        unsigned char *to = also && !streaming ? result
                                               : scratch_block(&t->a, SPARE_BLOCK);
        tree_fold_finished(&t->a, &k->split->of_all, leaf, accumulated, n, to);
        if (result && result != to)
            streaming_copy(t->a.simd, result, to, n * t->a.element, streaming);
        to_rows(k, t, own, to, n);
        begin += n;
    }
}

void call_copy_out(const call *k, const terms *t, cursor *at, uint64_t begin,
                   uint64_t end, const unsigned char *from)
{
    while (t->wanted && begin < end) {
        piece p = call_piece_at(k, at, begin, end);
        to_rows(k, t, p, from, p.count);
        from += p.count * t->a.element;
        begin += p.count;
    }
}

uint64_t call_divide(blocks *b, const call *k, const terms *t, uint64_t block_bytes)
{
    const uint64_t width = k->split->most_nodes * t->slot_element;
    uint64_t length = block_bytes / width / SHARE_UNIT * SHARE_UNIT;
    b->count = (k->total + length - 1) / length;
    b->bytes = least(k->total, length) * t->slot_element;
    if (b->count == 1)
        length = round_up(k->total, SHARE_UNIT);
    b->extent = length * width;
    return length;
}
