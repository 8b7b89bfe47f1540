/* Counts what calls of many members cost, each member being a thread: see count_lines.py.
 *
 * With LINES defined, the core is compiled with -fsanitize=thread, and the functions at the
 * end stand for the sanitizer's library. They see every access to the arena, and so count
 * the cache lines and bytes that a member reads from others.
 */
#define _GNU_SOURCE /* MAP_ANONYMOUS, RUSAGE_THREAD */
#include "move/exchange.h"
#include "reduce/call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { MOST_LINES = 4096, WARM_UP = 40, MOST_BYTES = 64 << 10 };

typedef struct {
    /* Lines of others' counters and announcements, of their entries on the board, and of
     * their data; of both kinds, those of members in other caches. */
    uint64_t lines, far_lines, board_lines, bytes, far_bytes;
    uint64_t waits, switches;
} counts;

typedef struct {
    const char *name;
    operation op;
    int how; /* an algorithm, or -1 for the engine's choice */
    uint64_t bytes; /* of a member's array */
} task;

static const task tasks[] = {
    {"barrier", BARRIER, 0, 0},
    {"all_reduce 8 B", ALL_REDUCE, -1, 8},
    {"all_reduce 4 KiB", ALL_REDUCE, -1, 4 << 10},
    {"all_reduce 4 KiB, oneshot", ALL_REDUCE, ONESHOT, 4 << 10},
    {"all_reduce 64 KiB", ALL_REDUCE, -1, 64 << 10},
    {"all_gather 8 B", ALL_GATHER, 0, 8},
    {"all_gather 4 KiB", ALL_GATHER, 0, 4 << 10},
};

static unsigned char *arena;
static places at;
static uint8_t cache_of[MAX_MEMBERS];
static int members, calls;
static task current;
static pthread_barrier_t all_ready;
static counts total;
static pthread_mutex_t adding = PTHREAD_MUTEX_INITIALIZER;

/* What this thread's member reads while it is on. Of its calls the one with the fewest lines
 * counts: a wait of many milliseconds looks at more. */
static _Thread_local struct {
    bool on;
    int rank;
    counts c;
    uint64_t seen[MOST_LINES]; /* the lines read in this call, by a hash of their number */
} reader;

static void check(bool right, const char *what)
{
    if (right)
        return;
    fprintf(stderr, "%s\n", what);
    exit(1);
}

/* One call of the task; its own function, so that callgrind counts within it. */
__attribute__((noinline)) static void measured_call(comm *c, const replica_split *split,
                                                    char *in, char *out)
{
    uint64_t lengths[MAX_MEMBERS] = {0};
    status s;
    if (current.op == BARRIER) {
        s = barrier_run(c, 0);
    } else if (current.op == ALL_GATHER) {
        for (int q = 0; q < members; q++)
            lengths[q] = current.bytes;
        const exchange x = {.c = c, .op = ALL_GATHER, .type = FLOAT32, .root = -1,
                            .lengths = lengths, .in = in, .out = out};
        s = exchange_run(&x);
    } else {
        const array_rows row = {current.bytes / 4, &in, &out};
        call k = call_of(c, split, ALL_REDUCE, FLOAT32, SUM);
        k.arrays = &row;
        k.count_of_arrays = 1;
        k.total = row.count;
        reduce_prepare(&k, current.how);
        s = reduce_run(&k);
    }
    check(s == DONE, "A call has failed.");
}

static uint64_t switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nvcsw;
}

static uint64_t waits_of(const comm *c)
{
    return c->waits.spins + c->waits.yields + c->waits.sleeps;
}

static void add_counts(const counts *more)
{
    uint64_t *to = (uint64_t *)&total;
    const uint64_t *from = (const uint64_t *)more;
    pthread_mutex_lock(&adding);
    for (size_t i = 0; i < sizeof total / sizeof *to; i++)
        to[i] += from[i];
    pthread_mutex_unlock(&adding);
}

static void *take_part(void *rank)
{
    uint32_t rows[MAX_MEMBERS] = {0};
    comm *c = calloc(1, sizeof *c);
    char *in = calloc(1, MOST_BYTES), *out = calloc((size_t)members, MOST_BYTES);
    for (int q = 0; q < members; q++)
        rows[q] = 1;
    replica_split *split = split_new((int)(intptr_t)rank, members, rows);
    check(c && in && out && split && comm_open(c, arena, (int)(intptr_t)rank, 0),
          "There is no memory for a member.");
    c->simd = kernels_named(NULL);
    c->timeout_ns = UINT64_C(60000000000);
    for (int i = 0; i < WARM_UP; i++)
        measured_call(c, split, in, out);
    pthread_barrier_wait(&all_ready);
    const uint64_t waited = waits_of(c), switched = switches();
    reader.rank = c->rank;
    counts least = {.lines = UINT64_MAX};
    for (int i = 0; i < calls; i++) {
        reader.c = (counts){0};
        memset(reader.seen, 0, sizeof reader.seen);
        reader.on = true;
        measured_call(c, split, in, out);
        reader.on = false;
        least = reader.c.lines < least.lines ? reader.c : least;
    }
    least.waits = (waits_of(c) - waited) / (uint64_t)calls;
    least.switches = (switches() - switched) / (uint64_t)calls;
    add_counts(&least);
    pthread_barrier_wait(&all_ready);
    comm_close(c);
    split_free(split);
    free(c), free(in), free(out);
    return NULL;
}

static void run(const task *t, const settings *agreed)
{
    pthread_t threads[MAX_MEMBERS];
    arena = mmap(NULL, at.total, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(arena != MAP_FAILED, "There is no memory for an arena.");
    arena_initialise(arena, agreed, cache_of);
    current = *t;
    total = (counts){0};
    for (int q = 0; q < members; q++)
        check(!pthread_create(&threads[q], NULL, take_part, (void *)(intptr_t)q),
              "A thread could not be started.");
    for (int q = 0; q < members; q++)
        pthread_join(threads[q], NULL);
    const uint64_t *columns = (const uint64_t *)&total;
    printf("%s", t->name);
    for (size_t i = 0; i < sizeof total / sizeof *columns; i++)
        printf("\t%llu", (unsigned long long)columns[i]);
    printf("\n");
    munmap(arena, at.total);
}

/* Arguments: members, members that share a cache, measured calls; bytes of oneshot and of
 * a block, microseconds of a spin; then the numbers of tasks, all if there are none. */
int main(int argc, char **argv)
{
    check(argc >= 7, "Run scripts/count_lines.py.");
    members = atoi(argv[1]);
    calls = atoi(argv[3]);
    const settings agreed = {(uint64_t)members, strtoull(argv[5], NULL, 10),
                             strtoull(argv[4], NULL, 10), strtoull(argv[6], NULL, 10)};
    at = places_of(&agreed);
    for (int q = 0; q < members; q++)
        cache_of[q] = (uint8_t)(q / atoi(argv[2]));
    pthread_barrier_init(&all_ready, NULL, (unsigned)members);
    for (int i = 0; i < (int)(sizeof tasks / sizeof *tasks); i++)
        if (argc == 7 || atoi(argv[7]) == i)
            run(&tasks[i], &agreed);
    return 0;
}

#ifdef LINES
/* Whether the current call reads this line for the first time. */
static bool is_new(uint64_t line)
{
    uint64_t place = line * UINT64_C(0x9e3779b97f4a7c15) >> 52;
    for (;; place = (place + 1) % MOST_LINES) {
        if (reader.seen[place] == line + 1)
            return false;
        if (!reader.seen[place])
            break;
    }
    reader.seen[place] = line + 1;
    return true;
}

/* Count the reading of a member's part of the arena, `inside` bytes after its begin. */
static void note_line(uint64_t owner, uint64_t offset, uint64_t *lines)
{
    if ((int)owner == reader.rank || !is_new(offset / CACHE_LINE))
        return;
    ++*lines;
    if (lines == &reader.c.lines)
        reader.c.far_lines += cache_of[owner] != cache_of[reader.rank];
}

static void note_data(uint64_t owner, size_t bytes)
{
    if ((int)owner == reader.rank)
        return;
    reader.c.bytes += bytes;
    reader.c.far_bytes += cache_of[owner] != cache_of[reader.rank] ? bytes : 0;
}

static void note_read(const void *address, size_t bytes)
{
    const uint64_t offset = (uint64_t)((uintptr_t)address - (uintptr_t)arena);
    if (!reader.on || offset >= at.total || offset < at.members)
        return;
    if (offset >= at.board)
        note_line((offset - at.board) / sizeof(activity), offset, &reader.c.board_lines);
    else if (offset >= at.slots)
        note_data((offset - at.slots) / at.slot_bytes, bytes);
    if (offset >= at.channels)
        return;
    const uint64_t owner = (offset - at.members) / sizeof(member);
    const uint64_t inside = (offset - at.members) % sizeof(member);
    const uint64_t first = offsetof(member, announcements);
    if (inside >= first && (inside - first) % sizeof(announcement) >= offsetof(announcement, data))
        note_data(owner, bytes);
    if (inside < first || (inside - first) % sizeof(announcement) < CACHE_LINE)
        note_line(owner, offset, &reader.c.lines);
}

#define READ(bytes) \
    void __tsan_read##bytes(void *p); \
    void __tsan_read##bytes(void *p) { note_read(p, bytes); } \
    void __tsan_unaligned_read##bytes(void *p); \
    void __tsan_unaligned_read##bytes(void *p) { note_read(p, bytes); }
#define WRITE(bytes) \
    void __tsan_write##bytes(void *p); \
    void __tsan_write##bytes(void *p) { (void)p; } \
    void __tsan_unaligned_write##bytes(void *p); \
    void __tsan_unaligned_write##bytes(void *p) { (void)p; }
#define ATOMIC(bits, type) \
    type __tsan_atomic##bits##_load(const volatile type *p, int order); \
    type __tsan_atomic##bits##_load(const volatile type *p, int order) \
    { \
        (void)order; \
        note_read((const void *)p, sizeof *p); \
        return __atomic_load_n(p, __ATOMIC_SEQ_CST); \
    } \
    void __tsan_atomic##bits##_store(volatile type *p, type value, int order); \
    void __tsan_atomic##bits##_store(volatile type *p, type value, int order) \
    { \
        (void)order; \
        __atomic_store_n(p, value, __ATOMIC_SEQ_CST); \
    } \
    type __tsan_atomic##bits##_fetch_add(volatile type *p, type value, int order); \
    type __tsan_atomic##bits##_fetch_add(volatile type *p, type value, int order) \
    { \
        (void)order; \
        return __atomic_fetch_add(p, value, __ATOMIC_SEQ_CST); \
    } \
    type __tsan_atomic##bits##_fetch_sub(volatile type *p, type value, int order); \
    type __tsan_atomic##bits##_fetch_sub(volatile type *p, type value, int order) \
    { \
        (void)order; \
        return __atomic_fetch_sub(p, value, __ATOMIC_SEQ_CST); \
    } \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, \
                                                      type value, int order, int other); \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type *p, type *expected, \
                                                      type value, int order, int other) \
    { \
        (void)order, (void)other; \
        return __atomic_compare_exchange_n(p, expected, value, false, __ATOMIC_SEQ_CST, \
                                           __ATOMIC_SEQ_CST); \
    }
READ(1) READ(2) READ(4) READ(8) READ(16)
WRITE(1) WRITE(2) WRITE(4) WRITE(8) WRITE(16)
ATOMIC(8, uint8_t) ATOMIC(32, uint32_t) ATOMIC(64, uint64_t)
void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *p);
void __tsan_func_entry(void *p) { (void)p; }
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
void __tsan_read_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes) { note_read(p, bytes); }
void __tsan_write_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes) { (void)p, (void)bytes; }
void *__real_memcpy(void *to, const void *from, size_t bytes);
void *__wrap_memcpy(void *to, const void *from, size_t bytes);
void *__wrap_memcpy(void *to, const void *from, size_t bytes)
{
    note_read(from, bytes);
    return __real_memcpy(to, from, bytes);
}
#endif
