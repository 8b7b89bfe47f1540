/* The core without Python: each member of a group is a thread of this program.
 *
 * Here the sanitizers see what processes hide from them: who touches whose memory
 * when. All values are small integers, so that every sum is exact in every dtype and
 * what a call must give can be said without the core. The calls follow from numbers
 * that never change; all members draw the same ones. Any failure ends the program.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "core_links.h"
#include "hosts/exchange.h"
#include "hosts/reduce.h"
#include "move/exchange.h"
#include "move/streaming.h"
#include "reduce/block_size.h"
#include "reduce/nodes.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum {
    MOST_MEMBERS = 128,
    FEW_MEMBERS = 8, /* with these, calls of all lengths and kinds are made */
    MOST_ROWS = 3,
    MOST_PARTS = 4,
    /* Values repeat after so many elements: a prime, so that no share, block or
     * array that lands in another one's place looks right there. */
    PERIOD = 251,
    WIDEST = 8,  /* bytes of an element */
    DRILL = 100, /* calls of all kinds after each other on one arena */
};

#if defined __SANITIZE_THREAD__
/* One race is enough: what comes after it need not even end. */
const char *__tsan_default_options(void);
__attribute__((visibility("default"))) const char *__tsan_default_options(void)
{
    return "halt_on_error=1";
}
enum { FINDS_RACES = 1 };
#else
enum { FINDS_RACES = 0 };
#endif

/* How member 0 lets the others down, and in which operation they wait for it. */
typedef struct {
    status why;
    operation waiting;
} ending_case;

/* What two members do, each of whom needs the other one for it. */
typedef struct {
    operation of[2];
} deadlock;

typedef struct {
    const kernels *simd;
    int size;
    uint32_t rows[MOST_MEMBERS];
    uint8_t cache_of[MOST_MEMBERS];
    uint64_t replicas;
    bool drill; /* calls of all kinds; else all lengths in turn with each algorithm */
    int turns;
    uint64_t seed;
    uint64_t block_bytes;
    uint64_t spin_us;
    unsigned char *arena, *heap;
    uint64_t arena_bytes;
    uint64_t span; /* bytes of a member's region of the heap */
    ending_case end;
    deadlock cross;
} group;

typedef struct {
    const group *g;
    replica_split *split;
    /* Where the replicas of its host begin, and its number among all members. */
    uint64_t first_replica;
    int member;
    comm c;
    links to_hosts;
    status found; /* how it learned of the group's end */
    ending told;  /* and what it was told of it */
} endpoint;

typedef enum { NOWHERE, SOME, EVERYWHERE } heap_use;

/* One call, as all members draw it. */
typedef struct {
    uint64_t state; /* of the drawing */
    int number;
    operation op;
    algorithm how;
    dtype type;
    unsigned reduction;
    uint64_t count;
    bool in_place;
    int root;
    heap_use heap;
} turn;

/* --- Failing */

static void fail(const endpoint *s, const turn *t, const char *what, uint64_t where)
{
    fprintf(stderr,
            "%s, member %d of %d with %u rows of %u, call %d: operation %d, algorithm "
            "%d, dtype %d, reduction %u, %u elements, in place %d, root %d, heap %d: "
            "%s (%u)\n",
            s->g->simd->name, s->c.rank, s->g->size, s->split->rows[s->c.rank],
            (unsigned)s->g->replicas, t->number, t->op, t->how, t->type, t->reduction,
            (unsigned)t->count, t->in_place, t->root, t->heap, what, (unsigned)where);
    _Exit(1);
}

static void must(const endpoint *s, const turn *t, status found)
{
    if (found != DONE)
        fail(s, t, "the call did not end well: status", found);
}

static void *allocated(uint64_t bytes)
{
    void *memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        fprintf(stderr, "There is no memory for %u bytes.\n", (unsigned)bytes);
        _Exit(1);
    }
    return memory;
}

/* --- Drawing */

static uint64_t mixed(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ b * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 31) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 29;
}

static uint64_t draw(turn *t, uint64_t below)
{
    t->state = mixed(t->state, 1);
    return (t->state >> 20) % below;
}

/* Of a row; the last one stands for several blocks. */
static const uint64_t lengths[] = {0, 1, 7, 63, 1000, 70000, UINT64_MAX};
static const uint64_t drilled[] = {0, 1, 7, 63, 64, 65, 300, 1000, 1000, 5000, 20000};
enum {
    LENGTHS = sizeof lengths / sizeof *lengths,
    DRILLED = sizeof drilled / sizeof *drilled,
    ALGORITHMS = IN_ARENA + 1,
};

static uint64_t several_blocks(const group *g, dtype type)
{
    return 3 * g->block_bytes / element_bytes(type) + 13;
}

static turn turn_of(const group *g, int number)
{
    static const dtype types[] = {FLOAT32, FLOAT16, INT8, FLOAT64};
    static const unsigned reductions[] = {SUM, MIN, MEAN};
    turn t = {.state = mixed(g->seed, (uint64_t)number), .number = number};
    t.op = (operation)draw(&t, SEND + 2); /* of which RECEIVE is the other end */
    t.op = t.op > SEND ? REDUCE_TO_NODES : t.op;
    t.how = (algorithm)draw(&t, ALGORITHMS);
    t.type = types[draw(&t, 4)];
    t.reduction = reductions[draw(&t, 3)];
    t.count = drilled[draw(&t, DRILLED)];
    t.in_place = draw(&t, 2);
    t.root = (int)draw(&t, (uint64_t)g->size);
    t.heap = (heap_use)draw(&t, EVERYWHERE + 1);
    if (g->size > FEW_MEMBERS) {
        /* All pairs of members would take long, and so would the sum of all parts. */
        t.op = t.op == SEND ? BARRIER : t.op;
        t.count = t.op == ALL_REDUCE || t.op == REDUCE ? t.count : t.count % 130;
        /* The sum of so many int8 may overflow before it is divided. */
        t.reduction = t.type == INT8 && t.reduction == MEAN ? SUM : t.reduction;
        if (number == 0) {
            /* Members learn along the tree where the arrays of all lie. */
            t.op = ALL_REDUCE;
            t.how = DIRECT;
            t.count = 1000;
            t.heap = SOME;
        }
    }
    if (!g->drill) {
        t.op = ALL_REDUCE;
        t.how = (algorithm)(number % ALGORITHMS);
        t.count = lengths[number / ALGORITHMS % LENGTHS];
        if (t.count == UINT64_MAX)
            t.count = several_blocks(g, t.type);
    }
    if (t.how == IN_ARENA)
        t.heap = EVERYWHERE;
    return t;
}

/* --- Values */

/* -3 to 3; of a mean's rows every two go apart from a middle that is the mean. */
static int value_of(const group *g, const turn *t, uint64_t row, uint64_t i)
{
    const uint64_t call = mixed(g->seed, (uint64_t)t->number);
    if (t->reduction != MEAN)
        return (int)(mixed(call, row * PERIOD + i) % 7) - 3;
    const int middle = (int)(mixed(call, i) % 7) - 3;
    const int apart = (int)(mixed(call, (row / 2 + 1) * PERIOD + i) % 7) - 3;
    if (row % 2)
        return middle - apart;
    return row + 1 < g->replicas ? middle + apart : middle;
}

static int total_of(const group *g, const turn *t, uint64_t i)
{
    int total = value_of(g, t, 0, i);
    for (uint64_t row = 1; row < g->replicas; row++) {
        int value = value_of(g, t, row, i);
        if (t->reduction != MIN)
            total += value;
        else if (value < total)
            total = value;
    }
    return t->reduction == MEAN ? total / (int)g->replicas : total;
}

static uint16_t half_of(int value)
{
    const unsigned sign = value < 0 ? 0x8000 : 0, size = (unsigned)abs(value);
    unsigned exponent = 0;
    if (!size)
        return 0;
    while (size >> exponent > 1)
        exponent++;
    return (uint16_t)(sign | (exponent + 15) << 10 | ((size << (10 - exponent)) & 0x3ff));
}

static void encode(dtype type, int value, unsigned char *to)
{
    const float f = (float)value;
    const double d = value;
    const uint16_t h = half_of(value);
    const int8_t i = (int8_t)value;
    const void *from = type == FLOAT32   ? (const void *)&f
                       : type == FLOAT64 ? (const void *)&d
                       : type == FLOAT16 ? (const void *)&h
                                         : (const void *)&i;
    memcpy(to, from, element_bytes(type));
}

/* The first elements of a row; the rest repeats them. */
typedef struct {
    size_t width;
    unsigned char elements[PERIOD * WIDEST];
} pattern;

static pattern pattern_of_row(const group *g, const turn *t, uint64_t row)
{
    pattern p = {.width = element_bytes(t->type)};
    for (uint64_t i = 0; i < PERIOD; i++)
        encode(t->type, value_of(g, t, row, i), p.elements + i * p.width);
    return p;
}

static pattern pattern_of_total(const group *g, const turn *t)
{
    pattern p = {.width = element_bytes(t->type)};
    for (uint64_t i = 0; i < PERIOD; i++)
        encode(t->type, total_of(g, t, i), p.elements + i * p.width);
    return p;
}

/* How many elements from number `at` on follow each other in the pattern. */
static uint64_t run_at(uint64_t at, uint64_t end)
{
    uint64_t left = PERIOD - at % PERIOD;
    return end - at < left ? end - at : left;
}

/* Elements [begin, end) of the pattern's row, written to or expected at `at`. */
static void fill(const pattern *p, uint64_t begin, uint64_t end, char *at)
{
    for (uint64_t i = begin, n; i < end; i += n) {
        n = run_at(i, end);
        memcpy(at + (i - begin) * p->width, p->elements + i % PERIOD * p->width,
               n * p->width);
    }
}

static void expect(const endpoint *s, const turn *t, const pattern *p, uint64_t begin,
                   uint64_t end, const char *at)
{
    for (uint64_t i = begin, n; i < end; i += n) {
        n = run_at(i, end);
        if (memcmp(at + (i - begin) * p->width, p->elements + i % PERIOD * p->width,
                   n * p->width))
            fail(s, t, "a wrong value in the elements from number", i);
    }
}

/* --- Reductions */

/* A member's rows: in the heap, or cut into parts that are as long as they must be. */
typedef struct {
    uint32_t rows;
    uint32_t parts;
    uint64_t total;
    bool in_heap;
    array_rows *arrays;
    char *in[MOST_PARTS][MOST_ROWS], *out[MOST_PARTS][MOST_ROWS];
} table;

static bool lies_in_heap(const turn *t, int rank)
{
    if (t->op != ALL_REDUCE || t->heap == NOWHERE)
        return false;
    return t->heap == EVERYWHERE || rank % 2 == 0;
}

static char *heap_row(const endpoint *s, uint32_t row)
{
    const uint64_t stride = s->g->span / (2 * MOST_ROWS);
    return (char *)s->g->heap + (uint64_t)s->c.rank * s->g->span + row * stride;
}

static void place_part(const endpoint *s, const turn *t, table *x, uint32_t part,
                       uint64_t count)
{
    const uint64_t bytes = count * element_bytes(t->type);
    for (uint32_t row = 0; row < x->rows; row++) {
        char *in = x->in_heap ? heap_row(s, row) : allocated(bytes);
        x->in[part][row] = x->out[part][row] = in;
        if (!t->in_place)
            x->out[part][row] = x->in_heap ? heap_row(s, MOST_ROWS + row)
                                           : allocated(bytes);
    }
    x->arrays[part] = (array_rows){count, x->in[part], x->out[part]};
    if (t->op == REDUCE && t->root != s->member)
        x->arrays[part].out = NULL;
}

static uint64_t first_row(const endpoint *s)
{
    return s->first_replica + s->split->first[s->c.rank];
}

static void table_make(const endpoint *s, const turn *t, table *x)
{
    turn own = {.state = mixed(t->state, (uint64_t)s->c.rank)}; /* may differ */
    x->rows = s->split->rows[s->c.rank];
    x->in_heap = lies_in_heap(t, s->c.rank);
    x->parts = x->in_heap ? 1 : 1 + (uint32_t)draw(&own, MOST_PARTS);
    x->total = t->op == REDUCE_SCATTER ? t->count * s->g->replicas : t->count;
    x->arrays = allocated(x->parts * sizeof *x->arrays);
    uint64_t left = x->total;
    for (uint32_t part = 0; part < x->parts; part++) {
        uint64_t count = part + 1 < x->parts ? draw(&own, left + 1) : left;
        place_part(s, t, x, part, count);
        left -= count;
    }
    for (uint32_t row = 0; row < x->rows; row++) {
        const pattern p = pattern_of_row(s->g, t, first_row(s) + row);
        uint64_t begin = 0;
        for (uint32_t part = 0; part < x->parts; part++) {
            const uint64_t end = begin + x->arrays[part].count;
            fill(&p, begin, end, x->in[part][row]);
            begin = end;
        }
    }
}

static void table_free(const turn *t, table *x)
{
    for (uint32_t part = 0; part < x->parts && !x->in_heap; part++)
        for (uint32_t row = 0; row < x->rows; row++) {
            free(x->in[part][row]);
            if (!t->in_place)
                free(x->out[part][row]);
        }
    free(x->arrays);
}

/* The results are right, and the input is as it was where it is not the result. */
static void table_check(const endpoint *s, const turn *t, const table *x)
{
    const pattern total = pattern_of_total(s->g, t);
    const bool wanted = t->op == ALL_REDUCE || (t->op == REDUCE && t->root == s->member);
    for (uint32_t row = 0; row < x->rows; row++) {
        const pattern given = pattern_of_row(s->g, t, first_row(s) + row);
        uint64_t begin = 0;
        for (uint32_t part = 0; part < x->parts; part++) {
            const uint64_t end = begin + x->arrays[part].count;
            if (wanted)
                expect(s, t, &total, begin, end, x->out[part][row]);
            if (!wanted || !t->in_place)
                expect(s, t, &given, begin, end, x->in[part][row]);
            begin = end;
        }
    }
}

static void check_scattered(const endpoint *s, const turn *t, const char *out)
{
    const pattern total = pattern_of_total(s->g, t);
    const uint64_t begin = first_row(s) * t->count;
    expect(s, t, &total, begin, begin + s->split->rows[s->c.rank] * t->count, out);
}

/* What the call must have been carried out with. */
static algorithm way_of(const group *g, const turn *t)
{
    if (t->how == ONESHOT || (t->how == RING && g->size > 1))
        return t->how;
    for (int q = 0; q < g->size; q++)
        if (!lies_in_heap(t, q))
            return DIRECT;
    /* Without elements it is no matter where they lie. */
    return t->count ? IN_ARENA : DIRECT;
}

static void play_reduction(endpoint *s, const turn *t)
{
    table x = {0};
    table_make(s, t, &x);
    const uint64_t half = s->g->span / 2;
    const bool over_hosts = s->split->over_hosts;
    call k = {
        .c = &s->c,
        .split = s->split,
        .type = t->type,
        .reduction = t->reduction,
        .op = t->op,
        .root = t->op == REDUCE ? t->root : -1,
        .how = t->how,
        .arrays = x.arrays,
        .count_of_arrays = x.parts,
        .total = x.total,
        .heap_in = x.in_heap ? 0 : NOT_IN_HEAP,
        .heap_out = x.in_heap ? (t->in_place ? 0 : half) : NOT_IN_HEAP,
        .heap_stride = s->g->span / (2 * MOST_ROWS),
    };
    if (t->op == REDUCE_SCATTER) {
        char *out = allocated(t->count * x.rows * element_bytes(t->type));
        must(s, t, over_hosts ? reduce_over_hosts(&k, out) : reduce_scatter(&k, out));
        check_scattered(s, t, out);
        free(out);
    } else if (over_hosts) {
        must(s, t, reduce_over_hosts(&k, NULL));
    } else {
        const bool is_chosen = t->how == DIRECT && t->number % 2;
        if (is_chosen)
            reduce_prepare(&k, -1);
        must(s, t, reduce_run(&k));
        if (s->c.ran != way_of(s->g, t) && !(is_chosen && s->c.ran == ONESHOT))
            fail(s, t, "carried out with algorithm", s->c.ran);
    }
    table_check(s, t, &x);
    table_free(t, &x);
}

/* --- Reductions of a part of a job to nodes */

static pattern pattern_of_node(const group *g, const turn *t, uint64_t row, uint64_t rows)
{
    const dtype type = t->type == FLOAT16 ? FLOAT32 : t->type;
    pattern p = {.width = element_bytes(type)};
    for (uint64_t i = 0; i < PERIOD; i++) {
        int sum = value_of(g, t, row, i);
        for (uint64_t r = row + 1; r < row + rows; r++) {
            const int value = value_of(g, t, r, i);
            sum = t->reduction != MIN ? sum + value : value < sum ? value : sum;
        }
        encode(type, sum, p.elements + i * p.width);
    }
    return p;
}

/* All nodes of a host that begins at replica `base`, as this member's share has them. */
static void check_nodes(const endpoint *s, const turn *t, const replica_split *split, uint64_t base,
                        range share, char *const *found)
{
    const uint64_t end = base + s->g->replicas;
    uint32_t nodes = 0;
    for (uint64_t at = base, size; at < end; at += size) {
        for (size = 1; at % (2 * size) == 0 && at + 2 * size <= end;)
            size *= 2;
        if (nodes == split->host_nodes)
            fail(s, t, "too few nodes", nodes);
        const pattern p = pattern_of_node(s->g, t, at - base, size);
        expect(s, t, &p, share.begin, share.end, found[nodes++]);
    }
    if (nodes != split->host_nodes)
        fail(s, t, "too many nodes", split->host_nodes);
}

/* Where there is no other host, this one's nodes make up the result. */
static void complete(endpoint *s, const turn *t, const program *p, range share,
                     char *const *nodes)
{
    const uint64_t count = share.end - share.begin;
    const arithmetic a = arithmetic_of(&s->c, t->type, t->reduction, s->g->replicas);
    const pattern total = pattern_of_total(s->g, t);
    char *rows[2];
    for (int i = 0; i < 2; i++)
        rows[i] = allocated(count * a.element);
    complete_nodes(&s->c, &a, p, (const char *const *)nodes, false, count, rows, 2);
    for (int i = 0; i < 2; i++) {
        expect(s, t, &total, share.begin, share.end, rows[i]);
        free(rows[i]);
    }
}

/* The members are those of one host. Unless `base` is 0, one of another host with so many
 * replicas comes before them. */
static replica_split *split_after(const endpoint *s, uint32_t base)
{
    uint32_t rows[MOST_MEMBERS + 1], hosts[MOST_MEMBERS + 1];
    int size = 0;
    if (base) {
        rows[size] = base;
        hosts[size++] = 0;
    }
    for (int q = 0; q < s->g->size; q++) {
        rows[size] = s->g->rows[q];
        hosts[size++] = base ? 1 : 0;
    }
    return split_new_over_hosts(size - s->g->size + s->c.rank, size, rows, hosts);
}

static void play_nodes(endpoint *s, const turn *t)
{
    const uint32_t base = (uint32_t)(mixed(t->state, 3) % 6);
    const bool one_leader = mixed(t->state, 4) % 3 == 0;
    replica_split *split = split_after(s, base);
    uint64_t lengths[MOST_MEMBERS];
    char *out[MAX_MEMBERS];
    table x = {0};
    table_make(s, t, &x);
    range own = {0, 0};
    for (int q = 0; q < s->g->size; q++) {
        range share = range_of_share(t->count, s->g->size, q, 1);
        if (one_leader)
            share = (range){q ? t->count : 0, t->count};
        lengths[q] = share.end - share.begin;
        own = q == s->c.rank ? share : own;
    }
    if (!split)
        fail(s, t, "no split of a host that begins at replica", base);
    for (uint32_t i = 0; i < split->host_nodes; i++)
        out[i] = allocated((own.end - own.begin) * accumulated_bytes(t->type));
    const call k = {
        .c = &s->c,
        .split = split,
        .type = t->type,
        .reduction = t->reduction,
        .op = REDUCE_TO_NODES,
        .root = -1,
        .how = DIRECT,
        .arrays = x.arrays,
        .count_of_arrays = x.parts,
        .total = x.total,
        .heap_in = NOT_IN_HEAP,
        .heap_out = NOT_IN_HEAP,
    };
    must(s, t, reduce_to_nodes(&k, lengths, out));
    check_nodes(s, t, split, base, own, out);
    if (base == 0)
        complete(s, t, &split->over_hosts->of_hosts, own, out);
    for (uint32_t i = 0; i < split->host_nodes; i++)
        free(out[i]);
    table_check(s, t, &x);
    table_free(t, &x);
    split_free(split);
}

/* --- Exchanges */

/* What member `from` has for member `to`, or for any member (0). */
static pattern pattern_of_part(const endpoint *s, const turn *t, int from, int to)
{
    turn plain = *t;
    plain.reduction = SUM;
    return pattern_of_row(s->g, &plain, (uint64_t)(from * MOST_MEMBERS + to));
}

typedef struct {
    bool parted;                        /* for each receiver something of its own */
    bool alone;                         /* only the root has something */
    uint64_t counts[MOST_MEMBERS], sum; /* elements of each member's part */
} parts;

/* Members of the group, on all hosts. */
static int members_of(const endpoint *s)
{
    return s->c.links ? (int)s->c.links->count_of_members : s->g->size;
}

static parts parts_of(const endpoint *s, const turn *t)
{
    parts p = {
        .parted = t->op == SCATTER || t->op == ALL_TO_ALL,
        .alone = t->op == SCATTER || t->op == BROADCAST,
    };
    for (int q = 0; q < members_of(s); q++) {
        const bool equal = t->op == ALL_TO_ALL || t->op == BROADCAST;
        p.counts[q] = equal ? t->count : t->count * (uint64_t)(q % FEW_MEMBERS) / 2;
        p.sum += p.counts[q];
    }
    return p;
}

static char *exchange_input(const endpoint *s, const turn *t, const parts *p)
{
    const int rank = s->member;
    const size_t width = element_bytes(t->type);
    char *in = allocated((p->parted ? p->sum : p->counts[rank]) * width), *at = in;
    for (int q = 0; q < (p->parted ? members_of(s) : 1); q++) {
        const uint64_t count = p->counts[p->parted ? q : rank];
        const pattern own = pattern_of_part(s, t, rank, q);
        fill(&own, 0, count, at);
        at += count * width;
    }
    return in;
}

static void exchange_check(const endpoint *s, const turn *t, const parts *p, const char *at)
{
    const int rank = s->member;
    if (t->op == GATHER && rank != t->root)
        return;
    for (int q = 0; q < members_of(s); q++) {
        if (p->alone && q != t->root)
            continue;
        const uint64_t count = p->counts[p->parted ? rank : q];
        const pattern part = pattern_of_part(s, t, q, p->parted ? rank : 0);
        expect(s, t, &part, 0, count, at);
        at += count * element_bytes(t->type);
    }
}

static void play_exchange(endpoint *s, const turn *t)
{
    const parts p = parts_of(s, t);
    const size_t width = element_bytes(t->type);
    const bool same = t->in_place
                      && (t->op == ALL_TO_ALL || (t->op == BROADCAST && s->member == t->root));
    uint64_t lengths[MOST_MEMBERS];
    for (int q = 0; q < members_of(s); q++)
        lengths[q] = p.counts[q] * width;
    char *in = exchange_input(s, t, &p);
    char *out = same ? in : allocated((p.alone ? p.counts[s->member] : p.sum) * width);
    const exchange x = {
        .c = &s->c,
        .op = t->op,
        .type = t->type,
        .root = t->op == ALL_GATHER || t->op == ALL_TO_ALL ? 0 : t->root,
        .lengths = lengths,
        .in = in,
        .out = out,
    };
    must(s, t, s->c.links ? exchange_over_hosts(&x) : exchange_run(&x));
    exchange_check(s, t, &p, out);
    free(in);
    if (!same)
        free(out);
}

/* --- Messages */

static void play_message(endpoint *s, const turn *t, int from, int to)
{
    const uint64_t bytes = t->count * element_bytes(t->type);
    const pattern p = pattern_of_part(s, t, from, to);
    const bool sends = s->member == from;
    if (!sends && s->member != to)
        return;
    char *message = allocated(bytes);
    if (sends)
        fill(&p, 0, t->count, message);
    if (s->c.links)
        must(s, t, message_over_hosts(&s->c, sends ? SEND : RECEIVE, sends ? to : from, t->type,
                                      message, bytes));
    else
        must(s, t, sends ? send_message(&s->c, to, t->type, message, bytes)
                         : receive_message(&s->c, from, t->type, message, bytes));
    if (!sends) {
        expect(s, t, &p, 0, t->count, message);
    }
    free(message);
}

/* Between all pairs, one way and the other; all go through the pairs in one order. */
static void play_messages(endpoint *s, const turn *t)
{
    for (int a = 0; a < members_of(s); a++)
        for (int b = a + 1; b < members_of(s); b++) {
            play_message(s, t, a, b);
            play_message(s, t, b, a);
        }
}

/* --- Groups */

static void play(endpoint *s, const turn *t)
{
    switch (t->op) {
    case BARRIER:
        must(s, t, s->c.links ? barrier_over_hosts(&s->c, 0) : barrier_run(&s->c, 0));
        break;
    case ALL_REDUCE:
    case REDUCE:
    case REDUCE_SCATTER:
        play_reduction(s, t);
        break;
    case REDUCE_TO_NODES:
        play_nodes(s, t);
        break;
    case SEND:
        play_messages(s, t);
        break;
    default:
        play_exchange(s, t);
    }
}

static void endpoint_open(endpoint *s, int rank)
{
    const group *g = s->g;
    s->split = split_new(rank, g->size, g->rows);
    if (!s->split || !comm_open(&s->c, g->arena, rank, rank)) {
        fprintf(stderr, "There is no memory for a member.\n");
        _Exit(1);
    }
    s->c.simd = g->simd;
    s->c.timeout_ns = UINT64_C(60000000000);
    s->c.heap = g->heap;
    s->c.heap_span = g->span;
    for (int q = 0; q < g->size; q++)
        s->c.accessible[q] = g->span;
}

static void endpoint_close(endpoint *s)
{
    comm_close(&s->c);
    split_free(s->split);
}

static void *take_part(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    for (int i = 0; i < s->g->turns; i++) {
        const turn t = turn_of(s->g, i);
        play(s, &t);
    }
    endpoint_close(s); /* while others may still be at it */
    return NULL;
}

/* Zeros. The channels of all pairs of many members are more memory than there may be, so
 * that is mapped; of few members, sanitizers see what goes beyond the end. */
static unsigned char *many_pages(const group *g, uint64_t bytes)
{
    if (g->size > FEW_MEMBERS) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return at == MAP_FAILED ? NULL : at;
    }
    unsigned char *at = aligned_alloc(PAGE, bytes);
    return at ? memset(at, 0, bytes) : NULL;
}

static void group_make(group *g)
{
    const uint64_t size = (uint64_t)g->size;
    g->block_bytes = LEAST_BLOCK_BYTES;
    const settings agreed = {
        .size = size,
        .block_bytes = g->block_bytes,
        .oneshot_bytes = 4096,
        .spin_us = g->spin_us, /* 0 where there are more members than cores */
    };
    const uint64_t total = places_of(&agreed).total;
    g->replicas = 0;
    for (int q = 0; q < g->size; q++)
        g->replicas += g->rows[q];
    g->arena = many_pages(g, total);
    const uint64_t longest = g->size > FEW_MEMBERS ? 20000 : several_blocks(g, INT8) + 70000;
    const uint64_t most = longest * WIDEST;
    g->span = 2 * MOST_ROWS * round_up(most, PAGE);
    g->heap = aligned_alloc(PAGE, size * g->span);
    if (!g->arena || !g->heap) {
        fprintf(stderr, "There is no memory for a group of %d.\n", g->size);
        _Exit(1);
    }
    g->arena_bytes = total;
    arena_initialise(g->arena, &agreed, g->cache_of);
    /* Begin with either kind of stores; now and then the other one is tried. */
    for (int i = 0; i < STORE_CLASSES; i++) {
        trial_costs none = {0};
        const trial first = {
            &stores, 0, &((header *)(void *)g->arena)->store_plans[i], &none, 0};
        if (g->seed % 2)
            trial_begin_with(&first, true);
    }
}

static void group_free(group *g)
{
    free(g->heap);
    if (g->size > FEW_MEMBERS)
        munmap(g->arena, g->arena_bytes);
    else
        free(g->arena);
}

/* Rows of each member: one, two, three, or not equally many. */
static void share_rows(group *g, uint32_t each)
{
    for (int q = 0; q < g->size; q++)
        g->rows[q] = each ? each : 1 + (uint32_t)(q * 2 + 1) % MOST_ROWS;
}

/* Let all members of the group do something, each in a thread. */
static void group_run(const group *g, endpoint *endpoints, void *(*what)(void *))
{
    pthread_t threads[MOST_MEMBERS];
    for (int q = 0; q < g->size; q++) {
        endpoints[q] = (endpoint){.g = g, .member = q};
        endpoint_open(&endpoints[q], q);
    }
    for (int q = 0; q < g->size; q++)
        if (pthread_create(&threads[q], NULL, what, &endpoints[q])) {
            fprintf(stderr, "A thread could not be started.\n");
            _Exit(1);
        }
    for (int q = 0; q < g->size; q++)
        pthread_join(threads[q], NULL);
}

/* --- Groups over several hosts, each with an arena of its own */

enum { MOST_HOSTS = 4, TAGS = 10 };

/* Of all hosts, as the values of a call follow from them, and of each. */
typedef struct {
    int hosts;
    int members[MOST_HOSTS];
    group all, of_host[MOST_HOSTS];
    endpoint endpoints[MOST_MEMBERS];
} cluster;

static bool wait_on_for_hosts(comm *c, int peer, uint64_t waited_ns)
{
    (void)c, (void)peer, (void)waited_ns;
    return false;
}

static status hear_of_mismatch(comm *c, int peer, const descriptor *theirs)
{
    return end_over(c, MISMATCH, peer, theirs);
}

static status hear_of_error(comm *c, int error)
{
    (void)error;
    return end_group(c, STOPPED, c->rank);
}

static void connect_hosts(const cluster *w, endpoint *s, const uint32_t *host_of)
{
    links *l = &s->to_hosts;
    *l = (links){
        .calls = &fake_calls,
        .own = (void *)(intptr_t)(s->member + 1),
        .rank = s->member,
        .sockets = arrivals_of(-1),
        .during_wait = wait_on_for_hosts,
        .on_not_ready = hear_of_error,
        .on_mismatch = hear_of_mismatch,
        .on_link_error = hear_of_error,
        .on_death = hear_of_error,
    };
    if (!links_open(l, (uint32_t)w->hosts, (uint32_t)w->all.size))
        fail(s, &(turn){0}, "no memory for links", 0);
    for (int member = 0; member < w->all.size; member++) {
        l->members[member].process = member;
        l->members[member].tag = TAGS * member;
        l->members[member].host = host_of[member];
    }
    links_place(l);
    s->c.links = l;
    s->c.larger_rank = s->member;
}

static void cluster_make(cluster *w, uint32_t each)
{
    uint32_t host_of[MOST_MEMBERS];
    int member = 0;
    w->all.size = 0;
    for (int host = 0; host < w->hosts; host++)
        for (int q = 0; q < w->members[host]; q++)
            host_of[w->all.size++] = (uint32_t)host;
    share_rows(&w->all, each);
    w->all.replicas = 0;
    for (int q = 0; q < w->all.size; q++)
        w->all.replicas += w->all.rows[q];
    uint64_t replica = 0;
    for (int host = 0; host < w->hosts; host++) {
        group *g = &w->of_host[host];
        *g = w->all;
        g->size = w->members[host];
        memcpy(g->rows, w->all.rows + member, (size_t)g->size * sizeof *g->rows);
        group_make(g);
        const uint64_t replicas = g->replicas;
        g->replicas = w->all.replicas;
        for (int q = 0; q < g->size; q++, member++) {
            endpoint *s = &w->endpoints[member];
            *s = (endpoint){.g = g, .first_replica = replica, .member = member};
            endpoint_open(s, q);
            split_free(s->split);
            s->split = split_new_over_hosts(member, w->all.size, w->all.rows, host_of);
            if (!s->split)
                fail(s, &(turn){0}, "no split", 0);
            connect_hosts(w, s, host_of);
        }
        replica += replicas;
    }
}

/* The same call for all members, whose hosts may have fewer than the whole has. Of a few
 * elements, nodes go with records; of many, in several blocks. */
static turn turn_over_hosts(const endpoint *s, int number)
{
    static const uint64_t counts[] = {1, 63, 1000, 5000, 20000, 70000, 150000};
    const int size = s->split->over_hosts->size;
    turn t = turn_of(s->g, number);
    t.op = number ? (operation)draw(&t, SEND + 1) : ALL_REDUCE;
    t.how = DIRECT;
    t.heap = NOWHERE;
    t.root = (int)draw(&t, (uint64_t)size);
    t.count = number == 0 ? 4800000 / (uint64_t)size : counts[draw(&t, 7)];
    if (t.op == REDUCE_SCATTER)
        t.count = t.count / s->g->replicas + 1;
    return t;
}

static void *take_part_over_hosts(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    for (int i = 0; i < s->g->turns; i++) {
        const turn t = turn_over_hosts(s, i);
        play(s, &t);
    }
    endpoint_close(s);
    links_close(&s->to_hosts);
    return NULL;
}

static int run_cluster(cluster *w, uint32_t each)
{
    pthread_t threads[MOST_MEMBERS];
    cluster_make(w, each);
    for (int q = 0; q < w->all.size; q++)
        if (pthread_create(&threads[q], NULL, take_part_over_hosts, &w->endpoints[q])) {
            fprintf(stderr, "A thread could not be started.\n");
            _Exit(1);
        }
    for (int q = 0; q < w->all.size; q++)
        pthread_join(threads[q], NULL);
    for (int host = 0; host < w->hosts; host++)
        group_free(&w->of_host[host]);
    return w->all.turns;
}

static int run_hosts(const kernels *simd, uint64_t seed)
{
    static const int members[][MOST_HOSTS] = {{1, 1}, {2, 2}, {3, 1, 2}, {2, 2, 2, 2}};
    static const int hosts[] = {2, 2, 3, 4};
    static cluster w;
    int calls = 0;
    for (int i = 0; i < 4; i++)
        for (uint32_t each = 0; each < MOST_ROWS; each++) {
            w = (cluster){.hosts = hosts[i]};
            memcpy(w.members, members[i], sizeof w.members);
            w.all = (group){.simd = simd, .seed = seed + each, .turns = 20};
            calls += run_cluster(&w, each);
        }
    return calls;
}

/* --- Ends */

static bool stop_at_once(comm *c, int peer, uint64_t waited_ns)
{
    (void)c, (void)peer, (void)waited_ns;
    return true;
}

static status reduce_some(endpoint *s)
{
    const turn t = {.op = ALL_REDUCE, .how = DIRECT, .count = 1000};
    table x = {0};
    table_make(s, &t, &x);
    const call k = {.c = &s->c,
                    .split = s->split,
                    .op = ALL_REDUCE,
                    .root = -1,
                    .how = DIRECT,
                    .arrays = x.arrays,
                    .count_of_arrays = x.parts,
                    .total = x.total,
                    .heap_in = NOT_IN_HEAP,
                    .heap_out = NOT_IN_HEAP};
    const status found = reduce_run(&k);
    table_free(&t, &x);
    return found;
}

static status wait_for_member_0(endpoint *s)
{
    char message[4];
    switch (s->g->end.waiting) {
    case BARRIER:
        return barrier_run(&s->c, 0);
    case RECEIVE:
        return receive_message(&s->c, 0, FLOAT32, message, sizeof message);
    default:
        return reduce_some(s);
    }
}

/* Member 0's part: DONE where it only keeps the others waiting. */
static status let_down(endpoint *s)
{
    const char message[4] = {0};
    if (s->g->end.why == END_REQUESTED)
        return end_with_error(&s->c, STOPPED, NULL, 0, "enough");
    if (s->g->end.why != MISMATCH)
        return DONE;
    if (s->g->end.waiting != RECEIVE)
        return barrier_run(&s->c, 7);
    for (int q = 1; q < s->g->size; q++)
        send_message(&s->c, q, INT8, message, sizeof message);
    return DONE;
}

static void *come_to_an_end(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    const header *head = s->c.head;
    const turn t = {.op = BARRIER};
    /* In a tree, a member may still wait to be released when member 0 ends the group. */
    s->found = barrier_run(&s->c, 0);
    if (s->found == ENDED && s->g->size > FEW_MEMBERS) {
        endpoint_close(s);
        return NULL;
    }
    must(s, &t, s->found);
    /* Not before: on a loaded machine a member may come late to the barrier. */
    if (s->g->end.why == TIMED_OUT && s->g->size <= FEW_MEMBERS)
        s->c.timeout_ns = 50000000;
    /* One that waits for member 1, which waits for member 0. */
    if (s->g->end.why == TIMED_OUT && s->c.rank == s->g->size - 1)
        s->c.timeout_ns = 2000000000;
    if (s->c.rank > 0) {
        if (s->g->end.why == STOPPED && s->c.rank == 1)
            s->c.during_long_wait = stop_at_once;
        s->found = wait_for_member_0(s);
    } else if ((s->found = let_down(s)) == DONE) {
        s->found = ENDED;
        while (s->g->end.why != PEER_LOST && atomic_load(&head->ended) != EXPLAINED)
            sched_yield();
    }
    endpoint_close(s);
    return NULL;
}

/* One member notices, and gives the reason; all others learn that it is over. */
static void check_end(const group *g, const endpoint *endpoints)
{
    const header *head = (const header *)(const void *)g->arena;
    bool right = head->end.reason == g->end.why;
    for (int q = 0; q < g->size; q++)
        right &= endpoints[q].found == (q == head->end.by ? g->end.why : ENDED);
    if (g->end.why == END_REQUESTED)
        right &= head->end.by == 0 && !strcmp(head->end.message, "enough");
    else if (g->end.why != STOPPED && g->end.why != MISMATCH)
        right &= head->end.about == 0;
    if (right)
        return;
    fprintf(stderr, "end %d in operation %d: member %d said %u about %d:", g->end.why,
            g->end.waiting, head->end.by, head->end.reason, head->end.about);
    for (int q = 0; q < g->size; q++)
        fprintf(stderr, " %d", endpoints[q].found);
    fprintf(stderr, "\n");
    _Exit(1);
}

/* Members 0 and 1 wait for each other: that is seen at once, and named for both. */
static void *cross(void *endpoint_of_ours)
{
    enum { LARGE = 3 * MESSAGE_SLOT_BYTES }; /* does not fit between the two */
    endpoint *s = endpoint_of_ours;
    const turn t = {.op = BARRIER};
    const int other = 1 - s->c.rank;
    char *message = allocated(LARGE);
    memset(message, 0, LARGE);
    must(s, &t, barrier_run(&s->c, 0));
    switch (s->g->cross.of[s->c.rank]) {
    case SEND:
        s->found = send_message(&s->c, other, INT8, message, LARGE);
        break;
    case RECEIVE:
        s->found = receive_message(&s->c, other, INT8, message, LARGE);
        break;
    default:
        s->found = barrier_run(&s->c, 0);
    }
    free(message);
    endpoint_close(s);
    return NULL;
}

static void check_deadlock(const group *g, const endpoint *endpoints)
{
    const ending *e = &((const header *)(const void *)g->arena)->end;
    bool right = e->reason == MISMATCH && (e->by == 0 || e->by == 1)
                 && e->about == 1 - e->by && e->mine.operation == g->cross.of[e->by]
                 && e->theirs.operation == g->cross.of[e->about];
    for (int q = 0; q < g->size; q++)
        right &= endpoints[q].found == (q == e->by ? MISMATCH : ENDED);
    if (right)
        return;
    fprintf(stderr, "operations %d and %d: %d and %d, reason %u by %d: %d and %d\n",
            g->cross.of[0], g->cross.of[1], endpoints[0].found, endpoints[1].found, e->reason,
            e->by, e->mine.operation, e->theirs.operation);
    _Exit(1);
}

static int deadlock_all(const kernels *simd)
{
    static const deadlock all[] = {{{RECEIVE, BARRIER}},
                                   {{BARRIER, SEND}},
                                   {{RECEIVE, RECEIVE}},
                                   {{SEND, SEND}}};
    for (int i = 0; i < 4; i++) {
        group g = {.simd = simd, .size = 2, .rows = {1, 1}, .cross = all[i]};
        endpoint endpoints[MOST_MEMBERS];
        group_make(&g);
        group_run(&g, endpoints, cross);
        check_deadlock(&g, endpoints);
        group_free(&g);
    }
    return 4;
}

/* Member 1 sleeps until a message comes, and then answers: it must not be taken for one
 * that goes on sleeping, at whatever moment member 0 looks. */
static void *answer_messages(void *endpoint_of_ours)
{
    enum { ROUNDS = 50, ASLEEP_NS = 4000000 };
    endpoint *s = endpoint_of_ours;
    char message[4] = {0};
    for (int i = 1; i <= ROUNDS; i++) {
        const turn t = {.op = s->c.rank ? RECEIVE : SEND, .number = i};
        if (s->c.rank == 1) {
            must(s, &t, receive_message(&s->c, 0, INT8, message, sizeof message));
            must(s, &t, send_message(&s->c, 0, INT8, message, sizeof message));
            continue;
        }
        for (uint64_t until = now_ns() + ASLEEP_NS; now_ns() < until;)
            sched_yield();
        must(s, &t, send_message(&s->c, 1, INT8, message, sizeof message));
        const channel *ch = channel_at(&s->c, 1, 0);
        while (atomic_load(&ch->sent.count) < (uint64_t)i)
            if (is_deadlock(&s->c, RECEIVE, 1)
                && atomic_load(&ch->sent.count) < (uint64_t)i)
                fail(s, &t, "a deadlock where there is none, in round", (uint64_t)i);
        must(s, &t, receive_message(&s->c, 1, INT8, message, sizeof message));
    }
    endpoint_close(s);
    return NULL;
}

static void answer_all_messages(const kernels *simd)
{
    group g = {.simd = simd, .size = 2, .rows = {1, 1}};
    endpoint endpoints[MOST_MEMBERS];
    group_make(&g);
    group_run(&g, endpoints, answer_messages);
    group_free(&g);
}

/* Member 0 begins to tell why it ends the group, and gets no further: it is gone, or
 * only stopped. */
static void *fall_silent(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    header *head = s->c.head;
    const turn t = {.op = BARRIER};
    must(s, &t, barrier_run(&s->c, 0));
    if (s->c.rank == 0)
        atomic_store(&head->ended, writing(0));
    else {
        s->found = barrier_run(&s->c, 0);
        if (!why_ended(&s->c, &s->told))
            fail(s, &t, "the group has not ended", 0);
    }
    if (s->c.rank > 0 || s->g->end.why == PEER_LOST)
        endpoint_close(s);
    return NULL;
}

static int fall_silent_both_ways(const kernels *simd)
{
    static const status whys[] = {PEER_LOST, STOPPED};
    for (int i = 0; i < 2; i++) {
        const ending_case end = {whys[i], BARRIER};
        group g = {.simd = simd, .size = 3, .rows = {1, 1, 1}, .end = end};
        endpoint endpoints[MOST_MEMBERS];
        group_make(&g);
        group_run(&g, endpoints, fall_silent);
        for (int q = 1; q < g.size; q++) {
            const ending *told = &endpoints[q].told;
            if (endpoints[q].found == ENDED && told->reason == whys[i] && told->about == 0
                && told->by == (whys[i] == STOPPED ? 0 : endpoints[1].told.by))
                continue;
            fprintf(stderr, "silence %d: member %d found %d, and was told %u by %d\n",
                    whys[i], q, endpoints[q].found, told->reason, told->by);
            _Exit(1);
        }
        if (whys[i] == STOPPED)
            endpoint_close(&endpoints[0]);
        group_free(&g);
    }
    return 2;
}

/* Words that are too long end with a whole character of one to four bytes. */
static int cut_words(const kernels *simd)
{
    static const char *const characters[] = {"x", "\u00e9", "\u20ac", "\U0001f600"};
    for (int i = 0; i < 4; i++) {
        group g = {.simd = simd, .size = 1, .rows = {1}};
        endpoint s = {.g = &g};
        const size_t width = strlen(characters[i]);
        char message[2000] = "";
        for (size_t at = 0; at + width < sizeof message; at += width)
            memcpy(message + at, characters[i], width + 1);
        group_make(&g);
        endpoint_open(&s, 0);
        end_with_error(&s.c, STOPPED, NULL, 0, message);
        const char *kept = s.c.head->end.message;
        const size_t length = strlen(kept), most = sizeof s.c.head->end.message - 1;
        if (length != most / width * width || memcmp(kept, message, length)) {
            fprintf(stderr, "%u bytes of characters of %u\n", (unsigned)length,
                    (unsigned)width);
            _Exit(1);
        }
        endpoint_close(&s);
        group_free(&g);
    }
    return 4;
}

static int let_all_down(const kernels *simd)
{
    static const status whys[] = {STOPPED, TIMED_OUT, PEER_LOST, MISMATCH, END_REQUESTED};
    static const operation waiting[] = {BARRIER, ALL_REDUCE, RECEIVE};
    int ends = 0;
    for (int i = 0; i < 5 * 3; i++, ends++) {
        group g = {.simd = simd,
                   .size = 3,
                   .rows = {1, 1, 1},
                   .end = {whys[i / 3], waiting[i % 3]}};
        endpoint endpoints[MOST_MEMBERS];
        group_make(&g);
        group_run(&g, endpoints, come_to_an_end);
        check_end(&g, endpoints);
        group_free(&g);
    }
    return ends;
}

/* In a tree of members, those far from member 0 name it, not the one between. */
static void let_crowd_down(const kernels *simd)
{
    static const ending_case ends[] = {{TIMED_OUT, BARRIER},
                                       {PEER_LOST, BARRIER},
                                       {PEER_LOST, ALL_REDUCE},
                                       {MISMATCH, BARRIER},
                                       {END_REQUESTED, ALL_REDUCE}};
    for (int i = 0; i < 5; i++) {
        static endpoint endpoints[MOST_MEMBERS];
        group g = {.simd = simd, .size = 33, .end = ends[i]};
        share_rows(&g, 1);
        group_make(&g);
        group_run(&g, endpoints, come_to_an_end);
        check_end(&g, endpoints);
        group_free(&g);
    }
}

/* Another thread of member 0 ends the group while that member is in a call. */
static void *end_from_beside(void *endpoint_of_another)
{
    endpoint *s = endpoint_of_another;
    while (calls_of(&s->c) < 20)
        sched_yield();
    end_with_error(&s->c, STOPPED, NULL, 0, "enough");
    return NULL;
}

static void *call_until_ended(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    pthread_t beside;
    const bool ends = s->c.rank == 0;
    if (ends)
        pthread_create(&beside, NULL, end_from_beside, s);
    while ((s->found = reduce_some(s)) == DONE && (s->found = barrier_run(&s->c, 0)) == DONE)
        ;
    if (ends)
        pthread_join(beside, NULL);
    endpoint_close(s);
    return NULL;
}

static int end_all_from_beside(const kernels *simd)
{
    group g = {.simd = simd, .size = 3, .rows = {1, 1, 1}};
    endpoint endpoints[MOST_MEMBERS];
    group_make(&g);
    group_run(&g, endpoints, call_until_ended);
    const ending *e = &((const header *)(const void *)g.arena)->end;
    bool right = e->reason == END_REQUESTED && e->by == 0 && e->call >= 20;
    for (int q = 0; q < g.size; q++)
        right &= endpoints[q].found == ENDED;
    if (!right) {
        fprintf(stderr, "ended from beside: reason %u by %d in call %u\n", e->reason, e->by,
                (unsigned)e->call);
        _Exit(1);
    }
    group_free(&g);
    return 1;
}

static int come_to_all_ends(const kernels *simd)
{
    answer_all_messages(simd);
    return let_all_down(simd) + deadlock_all(simd) + fall_silent_both_ways(simd)
           + end_all_from_beside(simd) + cut_words(simd);
}

/* --- Spinning */

enum { LATE_ROUNDS = 20 };

/* Member 1 is late each time. */
static void *wait_for_late_member(void *endpoint_of_ours)
{
    endpoint *s = endpoint_of_ours;
    const struct timespec late = {0, 5000000};
    const turn t = {.op = BARRIER};
    for (int i = 1; i <= LATE_ROUNDS; i++) {
        const announcement *first = &member_at(&s->c, 0)->announcements[i & 1];
        while (s->c.rank == 1 && atomic_load(&first->stamp) < (uint64_t)i)
            sched_yield();
        if (s->c.rank == 1)
            nanosleep(&late, NULL);
        must(s, &t, barrier_run(&s->c, 0));
    }
    if (s->c.rank == 0) {
        const waiting *w = &s->c.waits;
        const bool spun = w->spins > 0 && w->yields + w->sleeps == 0;
        const bool gave_up = w->yields + w->sleeps > 0;
        if (s->g->spin_us < 1000 ? !gave_up : !spun)
            fail(s, &t, "waits did not spin for their time, but so often", w->spins);
    }
    endpoint_close(s);
    return NULL;
}

static void wait_for_late_members(const kernels *simd)
{
    static const uint64_t spins_us[] = {1, 60000000};
    for (int i = 0; i < 2; i++) {
        group g = {.simd = simd, .size = 2, .rows = {1, 1}, .spin_us = spins_us[i]};
        endpoint endpoints[MOST_MEMBERS];
        group_make(&g);
        group_run(&g, endpoints, wait_for_late_member);
        group_free(&g);
    }
}

/* --- All of it */

static int run_calls(group *g, bool drill, int turns)
{
    static endpoint endpoints[MOST_MEMBERS];
    g->drill = drill;
    g->turns = turns;
    g->seed++;
    group_make(g);
    group_run(g, endpoints, take_part);
    group_free(g);
    return turns;
}

static int run_level(const kernels *simd, uint64_t seed)
{
    static const int sizes[] = {3, 1, 2, 5, 8};
    /* Levels differ in how they compute, and not in who waits for whom. */
    const int most = FINDS_RACES && simd != kernels_named(NULL) ? 1 : 5;
    group g = {.simd = simd, .seed = seed};
    int calls = 0;
    for (int i = 0; i < most; i++)
        for (uint32_t each = 0; each <= MOST_ROWS; each++) {
            g.size = sizes[i];
            g.spin_us = each % 2; /* with and without lanes in the slots */
            share_rows(&g, each);
            calls += run_calls(&g, false, LENGTHS * ALGORITHMS);
            calls += run_calls(&g, true, DRILL);
        }
    return calls;
}

/* Polls that run out become shorter, others longer, within bounds. */
static void check_spins(void)
{
    waiting w = waiting_new(80);
    bool right = w.spin_ns == 80000;
    note_spin(&w, false);
    right = right && w.spin_ns == 40000;
    for (int i = 0; i < 20; i++)
        note_spin(&w, false);
    right = right && w.spin_ns == LEAST_SPIN_NS && w.spins == 0;
    for (int i = 0; i < 20; i++)
        note_spin(&w, true);
    right = right && w.spin_ns == 80000 && w.spins == 20;
    w = waiting_new(1);
    note_spin(&w, false);
    right = right && w.spin_ns == 1000;
    w = waiting_new(80);
    for (int i = 0; i < 20; i++) {
        note_spin(&w, false);
        note_yielded(&w, 100000, 90000); /* a longer wait than any poll */
        note_yielded(&w, 10000, 2000);   /* others used the core */
    }
    right = right && w.spin_ns == LEAST_SPIN_NS;
    for (int i = 0; i < 20; i++) {
        note_spin(&w, false);
        note_yielded(&w, 10000, 9000);
    }
    right = right && w.spin_ns == 80000;
    w = waiting_new(0);
    note_spin(&w, false);
    if (!right || w.spin_ns) {
        fprintf(stderr, "Members do not poll for as long as polls succeed.\n");
        exit(1);
    }
}

/* Return how many waits on a shared core come before one that sleeps to leave it. */
static uint32_t waits_until_leaving(waiting *w)
{
    for (uint32_t waits = 0; waits < 10000; waits++) {
        if (leaves_core(w))
            return waits;
        note_yielded(w, 10000, 2000);
    }
    return UINT32_MAX;
}

/* A member leaves a shared core by a sleep, seldom where that does not help. */
static void check_leaving(void)
{
    waiting w = waiting_new(80);
    bool right = waits_until_leaving(&w) == FIRST_DISPLACED;
    right = right && waits_until_leaving(&w) == 2 * FIRST_DISPLACED;
    for (int i = 0; i < 20; i++)
        right = right && waits_until_leaving(&w) <= MOST_DISPLACED;
    note_yielded(&w, 10000, 2000);
    note_spin(&w, true);
    right = right && waits_until_leaving(&w) == FIRST_DISPLACED;
    w = waiting_new(0);
    if (!right || waits_until_leaving(&w) != UINT32_MAX) {
        fprintf(stderr, "Members do not leave a core that they share.\n");
        exit(1);
    }
}

/* More members than wait for each one singly. */
static int run_crowds(const kernels *simd)
{
    static const int sizes[] = {17, 33, 64, 128};
    int calls = 0;
    let_crowd_down(simd);
    for (int i = 0; i < 8; i++) {
        group g = {.simd = simd, .size = sizes[i / 2], .seed = 7000 + (uint64_t)i};
        share_rows(&g, (uint32_t)i / 2 % 2); /* not equally many, or one each */
        for (int q = 0; i % 2 && q < g.size; q++)
            g.cache_of[q] = (uint8_t)(q / 8 % 3);
        calls += run_calls(&g, true, 400 / g.size);
    }
    return calls;
}

/* Return how many members report to one of another cache; all of them report, and each
 * place in what member 0 collects is that of one member. */
static int reports_between_caches(const uint8_t *cache_of, int size)
{
    static hierarchy of[MAX_MEMBERS];
    int between = 0, below = 0;
    for (int q = 0; q < size; q++) {
        hierarchy_make(&of[q], cache_of, q, size);
        for (int i = 0; i < of[q].below_count; i++, below++) {
            const int other = of[q].below[i];
            between += cache_of[other] != cache_of[q];
            below += 1000 * (other <= q || of[q].top[other] != (q ? of[q].top[q] : other));
        }
    }
    for (int q = 0; q < size; q++)
        for (int other = 1; other < q; other++)
            below += 1000 * (of[0].top[q] == of[0].top[other]
                             && of[0].place[q] == of[0].place[other]);
    for (int q = 1; q < size; q++)
        below += 1000 * (of[q].above >= q || of[0].place[q] >= of[0].members[of[0].top[q]]
                         || of[0].members[of[0].top[q]] > of[0].largest);
    return below == size - 1 ? between : -1;
}

/* Members report within their caches first, so one of each cache reports to another. */
static void check_hierarchy(void)
{
    static uint8_t together[MAX_MEMBERS], apart[MAX_MEMBERS], in_turn[MAX_MEMBERS];
    for (int q = 0; q < MAX_MEMBERS; q++) {
        apart[q] = (uint8_t)(q / 8);
        in_turn[q] = (uint8_t)(q % 5);
    }
    for (int size = 1; size <= MAX_MEMBERS; size += size < 40 ? 1 : 43) {
        const int caches = size < 5 ? size : 5;
        if (reports_between_caches(together, size) == 0
            && reports_between_caches(apart, size) == (size - 1) / 8
            && reports_between_caches(in_turn, size) == caches - 1)
            continue;
        fprintf(stderr, "%d members do not report within their caches first.\n", size);
        exit(1);
    }
}

/* A late yield is followed by sleep, for longer each time; a quiet machine by yields. */
static void check_waiting(void)
{
    waiting w = {0};
    const uint64_t late = LATE_YIELD_NS + 1;
    uint64_t now = 1000;
    note_yield(&w, now, now + LATE_YIELD_NS);
    bool right = may_yield(&w, now) && w.late_yields == 0;
    uint64_t pause = 0;
    for (int i = 0; i < 20; i++) {
        note_yield(&w, now, now + late);
        now += late;
        right = right && w.yield_from - now >= pause && !may_yield(&w, w.yield_from - 1);
        pause = w.yield_from - now;
        right = right && pause >= FIRST_PAUSE * late && pause <= LONGEST_PAUSE_NS;
        now = w.yield_from;
        right = right && may_yield(&w, now);
    }
    right = right && pause == LONGEST_PAUSE_NS && w.late_yields == 20;
    now += 3 * pause;
    note_yield(&w, now, now + late);
    right = right && w.yield_from == now + late + FIRST_PAUSE * late;
    /* Yields in vain as well: for longer each time, unless others succeed in between. */
    w = waiting_new(0);
    for (uint64_t longer = 1; longer <= 4; longer *= 2) {
        note_vain_yields(&w, 1000, 1500);
        right = right && w.yield_from == 1500 + longer * 500;
    }
    for (int i = 0; i < QUIET_WAITS; i++)
        note_yielded(&w, 10, 10);
    note_vain_yields(&w, 1000, 1500);
    if (!right || w.yield_from != 2000) {
        fprintf(stderr, "Members do not sleep and yield as late yields say.\n");
        exit(1);
    }
}

/* A class of calls, and its plan as of now and as of before the last call ended. */
typedef struct {
    const trial_kind *kind;
    _Atomic uint64_t plan, older;
    trial_costs costs;
} trial_class;

/* One call of the class, a byte of which costs so much with each choice. Returns the choice.
 * A member that begins the call may have read either plan: the choice must be the same. */
static unsigned call_once(trial_class *k, const double *costs, double noise)
{
    const trial t = {k->kind, 0, &k->plan, &k->costs, k->costs.calls++};
    trial by_older = t;
    by_older.plan = &k->older;
    const unsigned choice = trial_choice(&t);
    if (choice >= k->kind->choices || trial_choice(&by_older) != choice) {
        fprintf(stderr, "Two members choose differently for one call.\n");
        exit(1);
    }
    atomic_store(&k->older, atomic_load(&k->plan));
    trial_note(&t, costs[choice] * noise);
    return choice;
}

/* Return the number of some calls that were made by the second choice of two. */
static int second_of(trial_class *k, int calls, double first, double second)
{
    int found = 0;
    for (int call = 0; call < calls; call++)
        found += (int)call_once(k, (const double[]){first, second}, 1);
    return found;
}

/* Stores to the heap follow what they cost, and what costs more is tried seldom. */
static void check_heap_stores(void)
{
    trial_class k = {.kind = &heap_stores};
    const int soon = second_of(&k, 8, 1.0, 0.8), kept = second_of(&k, 2000, 1.0, 0.95);
    const int left = second_of(&k, 200, 1.0, 1.5), tried = second_of(&k, 1000, 1.0, 1.5);
    if (soon < 5 || kept < 1650 || left > 100 || tried < 3 || tried > 36) {
        fprintf(stderr, "Stores to the heap do not follow what they cost.\n");
        exit(1);
    }
}

/* Calls whose bytes cost so much with blocks of each size, times 1 to 1 + noise. */
static bool settles(const double *costs, double noise, uint64_t seed)
{
    trial_class k = {.kind = &block_sizes};
    double least = costs[0], spent = 0;
    for (int i = 1; i < BLOCK_SIZES; i++)
        least = costs[i] < least ? costs[i] : least;
    for (uint64_t call = 0; call < 5000; call++) {
        const double held_up = (double)(mixed(seed, call) % 1000) / 1000 * noise;
        const unsigned size = call_once(&k, costs, 1 + held_up);
        spent += call < 2000 ? 0 : costs[size];
    }
    return spent < 3000 * 1.1 * least;
}

/* The size of blocks follows what they cost. In microseconds, of arrays of 1, 4 and
 * 64 MiB on two cores with 1 MiB of L2 each, and on two with 2 MiB; where it makes no
 * difference; and where the next smaller size is no better, but the one after that.
 * Other work on the machine holds up every call, each for another time: then it may
 * take longer in a few cases. */
static void check_block_sizes(void)
{
    static const double machines[][BLOCK_SIZES] = {
        {146, 127, 68, 62, 67},
        {768, 630, 275, 245, 262},
        {11900, 9500, 8200, 7300, 7580},
        {100, 102, 105, 109, 125},
        {100, 110, 150, 200, 220},
        {100, 100, 100, 100, 100},
        {68, 120, 100, 105, 110},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        int wrong = 0;
        for (uint64_t seed = 1; seed <= 100; seed++)
            wrong += !settles(machines[i], 0.5, seed);
        if (wrong > 3 || !settles(machines[i], 0, 0)) {
            fprintf(stderr, "Blocks do not get the size that costs least: case %zu, %d "
                            "times.\n", i, wrong);
            exit(1);
        }
    }
}

/* Oneshot and direct are chosen by what calls take as a rule. The fastest calls say little:
 * a member that comes last to one does not wait in oneshot, and does in direct. */
static void check_algorithms(void)
{
    static const double costs[][2] = {{60, 40}, {25, 45}};
    for (size_t i = 0; i < 2; i++) {
        trial_class k = {.kind = &algorithms};
        int direct = 0;
        for (int call = 0; call < 3000; call++) {
            const double now[] = {call % 5 ? costs[i][0] : 2, costs[i][1]};
            direct += call_once(&k, now, 1) == DIRECT && call >= 1000;
        }
        if (i == 0 ? direct < 1900 : direct > 100) {
            fprintf(stderr, "The algorithm does not follow what calls take: case %zu, "
                            "%d direct.\n", i, direct);
            exit(1);
        }
    }
}

/* Trials of stores compare what most blocks cost, if enough were measured. */
static void check_store_trials(void)
{
    static const double costs[] = {4, 3};
    trial_class often = {.kind = &stores}, rare = {.kind = &stores};
    trial_class seldom_cheap = {.kind = &stores}, untouched = {.kind = &stores};
    int changed = 0, unmeasured = 0, by_few = 0, by_first = 0;
    for (int block = 0; block < 3000; block++) {
        changed += (int)call_once(&often, costs, block % 5 ? 1 : 9000);
        by_few += (int)call_once(&seldom_cheap, (const double[]){4, block % 7 ? 5 : 1}, 1);
        by_first += block < 100 && call_once(&untouched, (const double[]){4, 5},
                                             block < 10 ? 9 : 1);
        unmeasured += (int)call_once(&rare, costs, 1);
        /* Of a class with other blocks in between, no trial has three measured ones. */
        rare.costs.calls += 3;
    }
    if (changed < 2700 || by_few > 200 || by_first > 8 || unmeasured > 200) {
        fprintf(stderr, "Trials of stores do not compare what most blocks cost.\n");
        exit(1);
    }
}

/* A trial of stores does not compare blocks of one size with blocks of another one, between
 * which the direct algorithm changes. */
static void check_store_classes(void)
{
    group g = {.simd = kernels_named("baseline"), .size = 2, .rows = {1, 1}};
    group_make(&g);
    endpoint s = {.g = &g};
    endpoint_open(&s, 0);
    const settings sizes = {.size = 2, .block_bytes = 512 << 10};
    for (unsigned i = 0; i + 1 < BLOCK_SIZES; i++)
        if (traffic_of(&s.c, block_bytes_at(&sizes, i), 1).size_class
            == traffic_of(&s.c, block_bytes_at(&sizes, i + 1), 1).size_class) {
            fprintf(stderr, "Two sizes of blocks have one class of stores.\n");
            exit(1);
        }
    endpoint_close(&s);
    group_free(&g);
}

int main(void)
{
    check_hierarchy();
    check_store_classes();
    check_block_sizes();
    check_algorithms();
    check_heap_stores();
    check_store_trials();
    check_waiting();
    check_spins();
    check_leaving();
    wait_for_late_members(kernels_named("baseline"));
    static const char *const levels[] = {"baseline", "avx2", "avx512", "neon"};
    for (int i = 0; i < 4; i++) {
        const kernels *simd = kernels_named(levels[i]);
        if (!simd)
            continue;
        const uint64_t seed = 1000 * (uint64_t)i;
        const int calls = run_level(simd, seed), over_hosts = run_hosts(simd, seed);
        const int ends = come_to_all_ends(simd);
        printf("%s: %d calls are right, so are %d over hosts, and %d ends.\n", simd->name,
               calls, over_hosts, ends);
    }
    printf("%d calls of up to %d members are right.\n", run_crowds(kernels_named(NULL)),
           MOST_MEMBERS);
    return 0;
}
