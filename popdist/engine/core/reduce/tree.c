#include "reduce/tree.h"

#include "shm/hash.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint64_t begin, size;
} span;

static bool siblings(span below, span above)
{
    return below.size == above.size && below.begin % (2 * below.size) == 0;
}

/* Merge what can be merged on top of the stack; return how often. */
static uint8_t merge_top(span *stack, uint32_t *depth, bool all)
{
    uint8_t merges = 0;
    while (*depth >= 2 && (all || siblings(stack[*depth - 2], stack[*depth - 1]))) {
        stack[*depth - 2].size += stack[*depth - 1].size;
        (*depth)--;
        merges++;
    }
    return merges;
}

static bool program_of(program *p, const span *leaves, uint32_t count)
{
    span stack[MAX_DEPTH];
    uint32_t depth = 0;
    p->leaves = count;
    p->merges = calloc(count + 1, 1);
    if (!p->merges)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        stack[depth++] = leaves[i];
        p->merges[i] = merge_top(stack, &depth, false);
    }
    /* What is left when the count is no power of two: fold it from the right. */
    if (count)
        p->merges[count - 1] = (uint8_t)(p->merges[count - 1]
                                         + merge_top(stack, &depth, true));
    return true;
}

/* The largest node that begins at `at` and ends by `end`. */
static uint64_t node_size(uint64_t at, uint64_t end)
{
    uint64_t size = 1;
    while (at % (2 * size) == 0 && at + 2 * size <= end)
        size *= 2;
    return size;
}

static uint32_t nodes_of(uint64_t begin, uint64_t end, span *out)
{
    uint32_t count = 0;
    while (begin < end) {
        uint64_t size = node_size(begin, end);
        if (out)
            out[count] = (span){begin, size};
        count++;
        begin += size;
    }
    return count;
}

static uint32_t rows_of(uint64_t begin, uint64_t end, span *out)
{
    uint32_t count = 0;
    while (begin < end)
        out[count++] = (span){begin++, 1};
    return count;
}

static uint32_t leaves_of(const replica_split *split, uint64_t base, span *leaves)
{
    uint32_t count = 0;
    for (int q = 0; q < split->size; q++) {
        uint64_t begin = base + split->first[q], end = begin + split->rows[q];
        count += q == split->rank ? rows_of(begin, end, leaves + count)
                              : nodes_of(begin, end, leaves + count);
    }
    return count;
}

/* Find the nodes that this member publishes. */
static bool make_own_nodes(replica_split *split, uint64_t base, span *leaves)
{
    const uint64_t first = base + split->first[split->rank], rows = split->rows[split->rank];
    uint32_t count = nodes_of(first, first + rows, leaves), largest = 1;
    split->mine = calloc(count + 1, sizeof *split->mine);
    if (!split->mine)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        split->mine[i] = (node){(uint32_t)(leaves[i].begin - first),
                            (uint32_t)leaves[i].size};
        largest = split->mine[i].rows > largest ? split->mine[i].rows : largest;
    }
    count = rows_of(0, largest, leaves);
    return program_of(&split->of_node, leaves, count);
}

static bool make_programs(replica_split *split, span *leaves)
{
    uint32_t count = leaves_of(split, 0, leaves);
    if (!program_of(&split->of_all, leaves, count))
        return false;
    count = rows_of(0, split->rows[split->rank], leaves);
    if (!program_of(&split->of_local, leaves, count))
        return false;
    count = rows_of(0, split->replicas, leaves);
    return program_of(&split->of_rows, leaves, count);
}

static bool make_part_programs(replica_split *split, uint64_t base, span *leaves)
{
    const uint32_t count = leaves_of(split, base, leaves);
    const uint64_t end = base + split->replicas;
    split->of_part = calloc(nodes_of(base, end, NULL) + 1, sizeof *split->of_part);
    if (!split->of_part)
        return false;
    for (uint32_t i = 0, next; i < count; i = next) {
        const uint64_t node_end = leaves[i].begin + node_size(leaves[i].begin, end);
        for (next = i; next < count && leaves[next].begin < node_end;)
            next++;
        if (!program_of(&split->of_part[split->part_nodes], leaves + i, next - i))
            return false;
        split->part_nodes++;
    }
    return true;
}

/* Share out the replicas from number `base` on. */
static replica_split *share_out(int rank, int size, const uint32_t *rows, uint64_t base)
{
    replica_split *split = calloc(1, sizeof *split);
    if (!split)
        return NULL;
    split->rank = rank;
    split->size = size;
    split->single = true;
    split->hash = hash_with(1, base);
    for (int q = 0; q < size; q++) {
        split->rows[q] = rows[q];
        split->first[q] = (uint32_t)split->replicas;
        split->replicas += rows[q];
        split->single &= rows[q] == 1;
        split->hash = hash_with(split->hash, rows[q]);
        split->nodes[q] = nodes_of(base + split->first[q], base + split->replicas, NULL);
        if (split->nodes[q] > split->most_nodes)
            split->most_nodes = split->nodes[q];
    }
    return split;
}

static replica_split *make_split(int rank, int size, const uint32_t *rows, uint64_t base,
                           bool part)
{
    replica_split *split = share_out(rank, size, rows, base);
    if (!split)
        return NULL;
    span *leaves = split->replicas && base + split->replicas <= MAX_LEAVES
                       ? calloc(split->replicas, sizeof *leaves)
                       : NULL;
    const bool complete = leaves && make_own_nodes(split, base, leaves)
                      && (part ? make_part_programs(split, base, leaves)
                               : make_programs(split, leaves));
    free(leaves);
    if (complete)
        return split;
    split_free(split);
    return NULL;
}

replica_split *split_new(int rank, int size, const uint32_t *rows)
{
    return make_split(rank, size, rows, 0, false);
}

replica_split *split_new_of_part(int rank, int size, const uint32_t *rows, uint32_t base)
{
    return make_split(rank, size, rows, base, true);
}

void split_free(replica_split *split)
{
    if (!split)
        return;
    for (uint32_t i = 0; split->of_part && i <= split->part_nodes; i++)
        free(split->of_part[i].merges);
    free(split->of_part);
    free(split->mine);
    free(split->of_node.merges);
    free(split->of_all.merges);
    free(split->of_rows.merges);
    free(split->of_local.merges);
    free(split);
}

bool program_of_parts(program *p, const uint64_t *replicas, uint32_t parts)
{
    uint64_t all = 0;
    for (uint32_t i = 0; i < parts; i++)
        all += replicas[i] <= MAX_LEAVES ? replicas[i] : MAX_LEAVES + 1;
    span *leaves = all && all <= MAX_LEAVES ? calloc(all, sizeof *leaves) : NULL;
    if (!leaves)
        return false;
    uint64_t begin = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < parts; begin += replicas[i++])
        count += nodes_of(begin, begin + replicas[i], leaves + count);
    const bool complete = program_of(p, leaves, count);
    free(leaves);
    return complete;
}

arithmetic arithmetic_of(const comm *c, dtype type, unsigned op, uint64_t replicas)
{
    arithmetic a = {
        .simd = c->simd,
        .type = type,
        .op = op == MEAN ? SUM : (reduction)op,
        .divisor = op == MEAN ? replicas : 1,
        .element = element_bytes(type),
        .accumulated = accumulated_bytes(type),
        .piece = SCRATCH_BYTES / accumulated_bytes(type),
        .scratch = c->scratch,
    };
    return a;
}

/* A stack of sums: the one at depth d lies in scratch block d, or is a leaf. */
typedef struct {
    const void *stack[MAX_DEPTH];
    bool is_element[MAX_DEPTH]; /* a leaf that is to be widened before it is summed */
    uint32_t depth;
} folding;

unsigned char *scratch_block(const arithmetic *a, uint32_t number)
{
    return a->scratch + (size_t)number * SCRATCH_BYTES;
}

static void push(const arithmetic *a, folding *f, const void *leaf, bool accumulated)
{
    f->is_element[f->depth] = !accumulated && a->simd->widen[a->type];
    f->stack[f->depth++] = leaf;
}

static void widen_at(const arithmetic *a, folding *f, uint32_t depth, size_t n)
{
    if (!f->is_element[depth])
        return;
    unsigned char *wide = scratch_block(a, depth);
    a->simd->widen[a->type](wide, f->stack[depth], n);
    f->stack[depth] = wide;
    f->is_element[depth] = false;
}

/* Combine the two topmost by the function of one of these tables: for two elements, if
 * there is one, or for sums. */
static void combine_top(const arithmetic *a, folding *f, size_t n, void *to,
                        combine_fn *const of_elements[][REDUCTIONS],
                        combine_fn *const of_sums[][REDUCTIONS])
{
    const uint32_t one = f->depth - 2, other = f->depth - 1;
    combine_fn *combine = of_elements[a->type][a->op];
    if (!combine || !f->is_element[one] || !f->is_element[other]) {
        widen_at(a, f, one, n);
        widen_at(a, f, other, n);
        combine = of_sums[a->type][a->op];
    }
    combine(to, f->stack[one], f->stack[other], n);
}

static void merge(const arithmetic *a, folding *f, size_t n)
{
    unsigned char *to = scratch_block(a, f->depth - 2);
    combine_top(a, f, n, to, a->simd->combine_elements, a->simd->combine);
    f->depth--;
    f->stack[f->depth - 1] = to;
    f->is_element[f->depth - 1] = false;
}

/* Push and merge, all but the last `kept` merges. */
static void run(const arithmetic *a, const program *p, const void *const *leaf,
                const bool *accumulated, size_t n, unsigned kept, folding *f)
{
    f->depth = 0;
    for (uint32_t i = 0; i < p->leaves; i++) {
        push(a, f, leaf[i], accumulated && accumulated[i]);
        unsigned merges = p->merges[i] - (i + 1 == p->leaves ? kept : 0);
        for (unsigned m = 0; m < merges; m++)
            merge(a, f, n);
    }
}

const void *fold(const arithmetic *a, const program *p, const void *const *leaf,
                 const bool *accumulated, size_t n)
{
    folding f;
    run(a, p, leaf, accumulated, n, 0, &f);
    widen_at(a, &f, 0, n);
    return f.stack[0];
}

void fold_finished(const arithmetic *a, const program *p, const void *const *leaf,
                   const bool *accumulated, size_t n, void *to)
{
    folding f;
    if (p->leaves == 1 || a->divisor != 1) {
        const void *sum = fold(a, p, leaf, accumulated, n);
        a->simd->finish[a->type](to, sum, n, a->divisor);
        return;
    }
    run(a, p, leaf, accumulated, n, 1, &f);
    combine_top(a, &f, n, to, a->simd->combine_elements_last, a->simd->combine_last);
}
