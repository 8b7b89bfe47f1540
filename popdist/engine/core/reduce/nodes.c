#include "reduce/nodes.h"

static void store_node(const arithmetic *a, const program *p, const void *const *leaf,
                       const bool *accumulated, bool as_given, uint64_t n, char *to)
{
    if (as_given) {
        streaming_copy(a->simd, to, leaf[0], n * a->element, false);
        return;
    }
    const void *sum = tree_fold(a, p, leaf, accumulated, n);
    /* A node of one row of bools may still contain any bytes that the program put there. */
    if (a->type == BOOL)
        a->simd->finish[BOOL](to, sum, n, 1);
    else
        streaming_copy(a->simd, to, sum, n * a->accumulated, false);
}

void reduce_range_to_nodes(const call *k, const terms *t, cursor *at, const published *p,
                           uint64_t begin, uint64_t end, char *const *to, uint64_t skip)
{
    const void **leaf = k->c->rows->leaf;
    bool *accumulated = k->c->rows->accumulated;
    const uint64_t first = begin;
    const size_t element = k->nodes_as_given ? t->a.element : t->a.accumulated;
    while (begin < end) {
        const piece own = call_piece_at(k, at, begin, end);
        const uint64_t n = own.count < t->a.piece ? own.count : t->a.piece;
        call_find_leaves(k, t, p, own, begin - first, leaf, accumulated);
        uint32_t leaves = 0;
        for (uint32_t i = 0; i < k->split->host_nodes; i++) {
            const program *of_node = &k->split->of_host_node[i];
            store_node(&t->a, of_node, leaf + leaves, accumulated + leaves,
                       k->nodes_as_given, n, to[i] + (skip + begin - first) * element);
            leaves += of_node->leaves;
        }
        begin += n;
    }
}

void complete_nodes(comm *c, const arithmetic *a, const program *p,
                    const char *const *nodes, bool as_given, uint64_t count,
                    char *const *out, uint32_t rows)
{
    const size_t element = as_given ? a->element : a->accumulated;
    const void **leaf = c->rows->leaf;
    bool *accumulated = c->rows->accumulated;
    for (uint64_t done = 0, n; done < count; done += n) {
        n = count - done < a->piece ? count - done : a->piece;
        for (uint32_t i = 0; i < p->leaves; i++) {
            leaf[i] = nodes[i] + done * element;
            accumulated[i] = !as_given;
        }
        char *first = out[0] + done * a->element;
        tree_fold_finished(a, p, leaf, accumulated, n, first);
        for (uint32_t row = 1; row < rows; row++)
            if (out[row] != out[0])
                streaming_copy(a->simd, out[row] + done * a->element, first,
                               n * a->element, false);
    }
}
