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

/* Merge siblings on top of the stack, or all; return the number of merges. */
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
    /* If the count is no power of two, fold the rest from the right. */
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

/* The number within the job of each member's first replica. */
typedef struct {
    uint64_t of[MAX_MEMBERS];
} firsts;

static uint32_t leaves_of(const replica_split *split, const firsts *at, span *leaves)
{
    uint32_t count = 0;
    for (int q = 0; q < split->size; q++) {
        uint64_t begin = at->of[q], end = begin + split->rows[q];
        count += q == split->rank ? rows_of(begin, end, leaves + count)
                              : nodes_of(begin, end, leaves + count);
    }
    return count;
}

/* Find the nodes that this member publishes. */
static bool make_own_nodes(replica_split *split, const firsts *at, span *leaves)
{
    const uint64_t first = at->of[split->rank], rows = split->rows[split->rank];
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

static bool make_programs(replica_split *split, const firsts *at, span *leaves)
{
    uint32_t count = leaves_of(split, at, leaves);
    if (!program_of(&split->of_all, leaves, count))
        return false;
    count = rows_of(0, split->rows[split->rank], leaves);
    if (!program_of(&split->of_local, leaves, count))
        return false;
    count = rows_of(0, split->replicas, leaves);
    return program_of(&split->of_rows, leaves, count);
}

/* The end of the consecutive replicas that begin with a member's own. */
static uint64_t run_end(const replica_split *split, const firsts *at, int member)
{
    while (member + 1 < split->size
           && at->of[member] + split->rows[member] == at->of[member + 1])
        member++;
    return at->of[member] + split->rows[member];
}

static uint64_t run_end_from(const replica_split *split, const firsts *at, uint64_t begin)
{
    int member = 0;
    while (begin >= at->of[member] + split->rows[member])
        member++;
    return run_end(split, at, member);
}

static bool make_host_programs(replica_split *split, const firsts *at, span *leaves)
{
    const uint32_t count = leaves_of(split, at, leaves);
    split->of_host_node = calloc(count + 1, sizeof *split->of_host_node);
    if (!split->of_host_node)
        return false;
    for (uint32_t i = 0, next; i < count; i = next) {
        const uint64_t begin = leaves[i].begin;
        const uint64_t end = begin + node_size(begin, run_end_from(split, at, begin));
        for (next = i; next < count && leaves[next].begin < end;)
            next++;
        if (!program_of(&split->of_host_node[split->host_nodes], leaves + i, next - i))
            return false;
        split->host_nodes++;
    }
    return true;
}

/* Share out the replicas among members; `at` has the first one of each. */
static replica_split *share_out(int rank, int size, const uint32_t *rows, const firsts *at)
{
    replica_split *split = calloc(1, sizeof *split);
    if (!split)
        return NULL;
    split->rank = rank;
    split->size = size;
    split->single = true;
    split->hash = 1;
    for (int q = 0; q < size; q++) {
        split->rows[q] = rows[q];
        split->first[q] = (uint32_t)split->replicas;
        split->replicas += rows[q];
        split->single &= rows[q] == 1;
        split->hash = hash_with(hash_with(split->hash, at->of[q]), rows[q]);
        split->nodes[q] = nodes_of(at->of[q], at->of[q] + rows[q], NULL);
        if (split->nodes[q] > split->most_nodes)
            split->most_nodes = split->nodes[q];
    }
    return split;
}

static replica_split *make_split(int rank, int size, const uint32_t *rows,
                                 const firsts *at, bool over_hosts)
{
    replica_split *split = share_out(rank, size, rows, at);
    if (!split)
        return NULL;
    span *leaves = split->replicas
                           && at->of[size - 1] + split->rows[size - 1] <= MAX_LEAVES
                       ? calloc(split->replicas, sizeof *leaves)
                       : NULL;
    const bool complete = leaves && make_own_nodes(split, at, leaves)
                          && (over_hosts ? make_host_programs(split, at, leaves)
                                   : make_programs(split, at, leaves));
    free(leaves);
    if (complete)
        return split;
    split_free(split);
    return NULL;
}

replica_split *split_new(int rank, int size, const uint32_t *rows)
{
    firsts at;
    uint64_t first = 0;
    for (int q = 0; q < size; first += rows[q++])
        at.of[q] = first;
    return make_split(rank, size, rows, &at, false);
}

/* Find the nodes of all hosts; consecutive members of one host are taken together. */
static bool make_host_nodes(host_split *split, int size, const uint32_t *rows,
                            const uint32_t *host_of)
{
    span *leaves = calloc(split->replicas, sizeof *leaves);
    uint32_t count = 0;
    split->leaf = calloc(split->replicas, sizeof *split->leaf);
    split->nodes = calloc(split->hosts, sizeof *split->nodes);
    uint64_t begin = 0, end = 0;
    for (int q = 0; leaves && split->leaf && split->nodes && q < size; q++) {
        end += rows[q];
        if (q + 1 < size && host_of[q + 1] == host_of[q])
            continue;
        const uint32_t nodes = nodes_of(begin, end, leaves + count);
        for (uint32_t i = 0; i < nodes; i++) {
            split->single &= leaves[count].size == 1;
            split->leaf[count++] = (host_node){host_of[q], split->nodes[host_of[q]]++};
        }
        begin = end;
    }
    for (uint32_t host = 0; split->nodes && host < split->hosts; host++)
        if (split->nodes[host] > split->most_nodes)
            split->most_nodes = split->nodes[host];
    const bool complete = count && program_of(&split->of_hosts, leaves, count);
    free(leaves);
    return complete;
}

static void host_split_free(host_split *split)
{
    if (!split)
        return;
    free(split->leaf);
    free(split->nodes);
    free(split->host_of);
    free(split->rows);
    free(split->of_hosts.merges);
    free(split);
}

/* Return the number of members of the smallest host; 0 if there is no memory. */
static uint32_t fewest_members(const host_split *split)
{
    uint32_t *members = calloc(split->hosts, sizeof *members);
    uint32_t fewest = members ? (uint32_t)split->size : 0;
    for (int q = 0; members && q < split->size; q++)
        members[split->host_of[q]]++;
    for (uint32_t host = 0; members && host < split->hosts; host++)
        fewest = members[host] < fewest ? members[host] : fewest;
    free(members);
    return fewest;
}

static host_split *host_split_new(int rank, int size, const uint32_t *rows,
                                  const uint32_t *host_of)
{
    host_split *split = calloc(1, sizeof *split);
    if (!split)
        return NULL;
    split->here = host_of[rank];
    split->hash = 1;
    split->size = size;
    split->single = true;
    split->host_of = calloc((size_t)size, sizeof *split->host_of);
    split->rows = calloc((size_t)size, sizeof *split->rows);
    const bool complete = split->host_of && split->rows;
    for (int q = 0; complete && q < size; q++) {
        split->host_of[q] = host_of[q];
        split->rows[q] = rows[q];
        split->replicas += rows[q];
        split->single &= rows[q] == 1;
        split->hosts = host_of[q] >= split->hosts ? host_of[q] + 1 : split->hosts;
        split->hash = hash_with(hash_with(split->hash, host_of[q]), rows[q]);
    }
    if (complete)
        split->fewest_members = fewest_members(split);
    if (split->fewest_members && make_host_nodes(split, size, rows, host_of))
        return split;
    host_split_free(split);
    return NULL;
}

replica_split *split_new_over_hosts(int rank, int size, const uint32_t *rows,
                                    const uint32_t *host_of)
{
    uint32_t local_rows[MAX_MEMBERS];
    firsts at;
    int local = 0, local_rank = 0;
    uint64_t first = 0;
    for (int q = 0; q < size; first += rows[q++]) {
        if (host_of[q] != host_of[rank])
            continue;
        if (local == MAX_MEMBERS)
            return NULL;
        local_rank = q == rank ? local : local_rank;
        at.of[local] = first;
        local_rows[local++] = rows[q];
    }
    replica_split *split = make_split(local_rank, local, local_rows, &at, true);
    if (!split)
        return NULL;
    split->over_hosts = host_split_new(rank, size, rows, host_of);
    if (split->over_hosts)
        return split;
    split_free(split);
    return NULL;
}

void split_free(replica_split *split)
{
    if (!split)
        return;
    for (uint32_t i = 0; split->of_host_node && i <= split->host_nodes; i++)
        free(split->of_host_node[i].merges);
    free(split->of_host_node);
    host_split_free(split->over_hosts);
    free(split->mine);
    free(split->of_node.merges);
    free(split->of_all.merges);
    free(split->of_rows.merges);
    free(split->of_local.merges);
    free(split);
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
    bool is_element[MAX_DEPTH]; /* a leaf to be widened before it is summed */
    uint32_t depth;
} folding;

unsigned char *scratch_block(const arithmetic *a, uint32_t number)
{
    return a->scratch + (size_t)number * SCRATCH_BYTES;
}

static void push_leaf(const arithmetic *a, folding *f, const void *leaf, bool accumulated)
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

/* Combine the two topmost values, by the function of one of these tables: the one for
 * two elements, if there is one, or the one for sums. */
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

static void merge_top_sums(const arithmetic *a, folding *f, size_t n)
{
    unsigned char *to = scratch_block(a, f->depth - 2);
    combine_top(a, f, n, to, a->simd->combine_elements, a->simd->combine);
    f->depth--;
    f->stack[f->depth - 1] = to;
    f->is_element[f->depth - 1] = false;
}

/* Push and merge, all but the last `kept` merges. */
static void run_program(const arithmetic *a, const program *p, const void *const *leaf,
                        const bool *accumulated, size_t n, unsigned kept, folding *f)
{
    f->depth = 0;
    for (uint32_t i = 0; i < p->leaves; i++) {
        push_leaf(a, f, leaf[i], accumulated && accumulated[i]);
        unsigned merges = p->merges[i] - (i + 1 == p->leaves ? kept : 0);
        for (unsigned m = 0; m < merges; m++)
            merge_top_sums(a, f, n);
    }
}

const void *tree_fold(const arithmetic *a, const program *p, const void *const *leaf,
                      const bool *accumulated, size_t n)
{
    folding f;
    run_program(a, p, leaf, accumulated, n, 0, &f);
    widen_at(a, &f, 0, n);
    return f.stack[0];
}

void tree_fold_finished(const arithmetic *a, const program *p, const void *const *leaf,
                        const bool *accumulated, size_t n, void *to)
{
    folding f;
    if (p->leaves == 1 || a->divisor != 1) {
        const void *sum = tree_fold(a, p, leaf, accumulated, n);
        a->simd->finish[a->type](to, sum, n, a->divisor);
        return;
    }
    run_program(a, p, leaf, accumulated, n, 1, &f);
    combine_top(a, &f, n, to, a->simd->combine_elements_last, a->simd->combine_last);
}
