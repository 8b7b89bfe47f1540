#define _GNU_SOURCE
#include "sync/comm.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    /* The length of one sleep, before we check the other members. */
    SLEEP_NS = 20000000,
    /* Polls for each reading of the clock: one poll takes 20 to 140 ns, by processor. */
    POLLS_PER_CLOCK = 16,
};

static uint64_t nanoseconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t now_ns(void)
{
    return nanoseconds_of(CLOCK_MONOTONIC);
}

uint64_t computed_ns(void)
{
    return nanoseconds_of(CLOCK_THREAD_CPUTIME_ID);
}

void arena_initialise(void *base, const settings *agreed, const uint8_t *cache_of)
{
    header *head = base;
    head->agreed = *agreed;
    if (cache_of)
        memcpy(head->cache_of, cache_of, agreed->size);
    const places at = places_of(agreed);
    board_end *end = (board_end *)(void *)((unsigned char *)base + at.total) - 1;
    *end = (board_end){
        .magic = BOARD_MAGIC,
        .members = (uint32_t)agreed->size,
        .activity_bytes = sizeof(activity),
        .from_end = at.total - at.board,
    };
    head->layout = arena_layout();
    head->magic = ARENA_MAGIC;
}

bool comm_open(comm *c, void *base, int rank, int instance)
{
    c->head = base;
    c->base = base;
    c->agreed = c->head->agreed;
    c->at = places_of(&c->agreed);
    c->rank = c->larger_rank = rank;
    c->pid = getpid();
    c->size = (int)c->agreed.size;
    c->shown = activity_at(c, rank);
    atomic_store(&c->shown->instance, instance);
    atomic_store(&c->shown->waits_for, -1);
    atomic_store(&c->shown->pid, c->pid);
    hierarchy_make(&c->hierarchy, c->head->cache_of, rank, c->size);
    c->waits = waiting_new(c->agreed.spin_us);
    for (int i = 0; i < MAX_MEMBERS; i++)
        c->peers[i].pidfd = c->instances[i] = -1;
    c->scratch = aligned_alloc(PAGE, SCRATCH_BLOCKS * SCRATCH_BYTES);
    c->rows = malloc(sizeof *c->rows);
    return c->scratch && c->rows;
}

bool comm_is_ours(const comm *c)
{
    return c->base && c->pid == getpid();
}

void comm_close(comm *c)
{
    /* A forked child closes only its copy: the endpoint is its parent's. */
    if (comm_is_ours(c))
        atomic_store_explicit(&member_at(c, c->rank)->left, 1, memory_order_release);
    free(c->scratch);
    free(c->rows);
    c->scratch = NULL;
    c->rows = NULL;
    c->base = NULL;
}

/* A futex is 32 bits wide: return the counter's low half, which changes with each step. */
static uint32_t *futex_word(counter *b)
{
    uint32_t *halves = (uint32_t *)(void *)&b->count;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    return halves;
#else
    return halves + 1;
#endif
}

void counter_advance(counter *b, uint64_t count)
{
    /* Sequentially consistent on both sides: either the sleeper sees the new count
     * when it looks once more, or we see that it sleeps. */
#ifdef BREAK_ORDERING
    atomic_store_explicit(&b->count, count, memory_order_relaxed);
#else
    atomic_store(&b->count, count);
#endif
    if (atomic_load(&b->sleepers))
        syscall(SYS_futex, futex_word(b), FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void show_wait(comm *c, uint64_t since_ns, int instance)
{
    activity *a = c->shown;
    atomic_store_explicit(&a->waits_for, instance, memory_order_relaxed);
    for (int i = 0; !since_ns && i < MASK_WORDS; i++)
        atomic_store_explicit(&a->missing[i], 0, memory_order_relaxed);
    atomic_store_explicit(&a->waits_since_ns, since_ns, memory_order_release);
}

static void add_to(uint64_t mask[MASK_WORDS], int q)
{
    mask[q / 64] |= UINT64_C(1) << q % 64;
}

void find_missing(const comm *c, int peer, uint64_t mask[MASK_WORDS])
{
    /* Another thread may end the group, and get here, while the member begins a call. */
    descriptor own;
    copy_descriptor(&own, description_at(c, c->rank, calls_of(c)));
    memset(mask, 0, MASK_WORDS * sizeof *mask);
    if (own.operation == SEND || own.operation == RECEIVE) {
        if (peer >= 0 && peer != c->rank)
            add_to(mask, peer);
        return;
    }
    for (int q = 0; q < c->size; q++) {
        if (q != c->rank && atomic_load(&announced_by(c, q)->stamp) < calls_of(c))
            add_to(mask, q);
    }
}

void comm_post(comm *c)
{
    counter_advance(&member_at(c, c->rank)->posted, ++c->posted);
}

static void sleep_for(counter *b, const _Atomic uint64_t *word, uint64_t target)
{
    struct timespec limit = {0, SLEEP_NS};
    atomic_fetch_add(&b->sleepers, 1);
    uint64_t seen = atomic_load(&b->count);
    if (atomic_load_explicit(word, memory_order_acquire) < target)
        syscall(SYS_futex, futex_word(b), FUTEX_WAIT, (uint32_t)seen, &limit, NULL, 0);
    atomic_fetch_sub(&b->sleepers, 1);
}

typedef uint64_t __attribute__((__may_alias__)) word;

void copy_descriptor(descriptor *to, const descriptor *from)
{
    word *t = (word *)to;
    const word *f = (const word *)from;
    for (size_t i = 0; i < sizeof *to / sizeof *t; i++)
        __atomic_store_n(t + i, __atomic_load_n(f + i, __ATOMIC_RELAXED),
                         __ATOMIC_RELAXED);
}

bool comm_has_left(comm *c, int peer)
{
    return peer_ended(&c->peers[peer])
           || atomic_load_explicit(&member_at(c, peer)->left, memory_order_acquire);
}

/* Whether a member waits for us in a later call than ours. No member completes a call
 * before all have begun it, so as long as we are in ours it does nothing more for us. */
static bool is_ahead(const comm *c, int peer)
{
    const announcement *next = &member_at(c, peer)->announcements[(calls_of(c) + 1) & 1];
    return atomic_load_explicit(&next->stamp, memory_order_acquire) == calls_of(c) + 1;
}

bool is_deadlock(const comm *c, operation ours, int peer)
{
    /* Only the peer sleeps on this counter. Once the counter shows that it has done
     * everything we allow it to do, its earlier sleeps are over. If it is seen to sleep
     * after that, it sleeps until we act, and we do not. */
    if (ours == RECEIVE) {
        channel *ch = channel_at(c, c->rank, peer);
        return atomic_load(&ch->received.count) == c->sent_to[peer]
               && atomic_load(&ch->sent.sleepers);
    }
    channel *ch = channel_at(c, peer, c->rank);
    return atomic_load(&ch->sent.count) == c->received_from[peer] + 2
           && atomic_load(&ch->received.sleepers);
}

/* End the group if the awaited message cannot come: everything that the peer did before
 * it began to wait for us is visible, and the word still has not moved. */
static status check_deadlock(comm *c, int peer, const _Atomic uint64_t *word,
                              uint64_t target)
{
    const uint8_t ours = description_at(c, c->rank, calls_of(c))->operation;
    if (ours != SEND && ours != RECEIVE)
        return DONE;
    const bool ahead = is_ahead(c, peer);
    if (!ahead && !is_deadlock(c, (operation)ours, peer))
        return DONE;
    if (atomic_load_explicit(word, memory_order_acquire) >= target)
        return DONE;
    descriptor theirs;
    copy_descriptor(&theirs, description_at(c, peer, calls_of(c) + ahead));
    return end_over(c, MISMATCH, peer, &theirs);
}

/* If our wait is for the steps of all members, return one that has not taken them. Else,
 * or if there is none, return `peer`, the writer of the awaited word. */
static int late_member(const comm *c, int peer)
{
    for (int i = 0; c->awaited && i < c->size; i++) {
        const int q = (peer + i) % c->size;
        if (atomic_load(&member_at(c, q)->posted.count) < c->awaited)
            return q;
    }
    return peer;
}

/* Return what a member is called. That is read once: the member writes to its line in each
 * call, so to read it at each wait would slow the member down. */
static int instance_of(comm *c, int peer)
{
    const activity *theirs = activity_at(c, peer);
    if (c->instances[peer] < 0 && atomic_load(&theirs->pid))
        c->instances[peer] = atomic_load(&theirs->instance);
    return c->instances[peer];
}

static void show_missing(comm *c, int peer)
{
    uint64_t mask[MASK_WORDS];
    find_missing(c, peer, mask);
    for (int i = 0; i < MASK_WORDS; i++)
        atomic_store_explicit(&c->shown->missing[i], mask[i], memory_order_relaxed);
    atomic_store_explicit(&c->shown->waits_for, instance_of(c, peer), memory_order_relaxed);
}

/* Check the awaited member, and whether the wait may go on. */
static status check_wait(comm *c, int peer, const _Atomic uint64_t *word,
                          uint64_t target, uint64_t waited)
{
    peer = late_member(c, peer);
    /* A member may leave after its last step: only the awaited one counts as lost. If
     * another member is lost, the members that wait for it end the group. */
    if (comm_has_left(c, peer)
        && atomic_load_explicit(word, memory_order_acquire) < target)
        return end_group(c, PEER_LOST, peer);
    status s = check_deadlock(c, peer, word, target);
    if (s != DONE)
        return s;
    show_missing(c, peer);
    if (waited > c->timeout_ns)
        return end_group(c, TIMED_OUT, peer);
    const bool stop = c->during_long_wait && c->during_long_wait(c, peer, waited);
    /* In a child that a signal's handler has forked, the group is its parent's. */
    if (!comm_is_ours(c))
        return STOPPED;
    return stop ? end_group(c, STOPPED, c->rank) : DONE;
}

/* Whether a wait since `began` yields the core once more after so many times. */
static bool yields_on(comm *c, uint64_t began, uint64_t now, uint64_t yields)
{
    if (!may_yield(&c->waits, now))
        return false;
    if (now - began >= (c->links ? YIELD_OVER_HOSTS_NS : YIELD_NS))
        return false;
    if (yields < MOST_YIELDS || c->links)
        return true;
    note_vain_yields(&c->waits, began, now);
    return false;
}

/* The CPU time that shows whether others used the core in a wait. It matters only to members
 * with a core each, and to read this clock takes a system call. */
static uint64_t computed_in_wait(const comm *c)
{
    return comm_shares_core(c) ? 0 : computed_ns();
}

static status wait_since(comm *c, int peer, const _Atomic uint64_t *word, uint64_t target,
                         counter *b, uint64_t began)
{
    uint64_t next_look = began + SLEEP_NS;
    const uint64_t computed = computed_in_wait(c), yielded = c->waits.yields;
    bool yields = !leaves_core(&c->waits);
    if (c->before_long_wait)
        c->before_long_wait(c);
    for (uint64_t now = began;; now = now_ns()) {
        /* Before the word: a member may end the group after the call that is waited for. */
        const bool ended = atomic_load_explicit(&c->head->ended, memory_order_acquire);
        if (atomic_load_explicit(word, memory_order_acquire) >= target) {
            if (yields)
                note_yielded(&c->waits, now - began, computed_in_wait(c) - computed);
            return DONE;
        }
        if (ended)
            return ENDED;
        if (now >= next_look) {
            status s = check_wait(c, peer, word, target, now - began);
            if (s != DONE)
                return s;
            next_look = now + SLEEP_NS;
        }
        yields = yields && yields_on(c, began, now, c->waits.yields - yielded);
        if (yields) {
            sched_yield();
            note_yield(&c->waits, now, now_ns());
        } else {
            c->waits.sleeps++;
            sleep_for(b, word, target);
        }
    }
}

static status wait_long(comm *c, int peer, const _Atomic uint64_t *word, uint64_t target,
                        counter *b)
{
    const uint64_t began = now_ns();
    show_wait(c, began, instance_of(c, peer));
    const status s = wait_since(c, peer, word, target, b, began);
    show_wait(c, 0, -1);
    return s;
}

static inline void relax(void)
{
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ __volatile__("yield");
#endif
}

/* Poll the word for a while; return whether it has reached its target. */
static bool spin(const comm *c, const _Atomic uint64_t *word, uint64_t target)
{
    uint64_t until = 0;
    for (uint64_t polls = 1; c->waits.spin_ns; polls++) {
        relax();
        if (atomic_load_explicit(word, memory_order_acquire) >= target)
            return true;
        if (polls % POLLS_PER_CLOCK)
            continue;
        const uint64_t now = now_ns();
        if (!until)
            until = now + c->waits.spin_ns;
        else if (now >= until)
            break;
    }
    return false;
}

status wait_on(comm *c, int peer, const _Atomic uint64_t *word, uint64_t target, counter *b)
{
    const uint64_t began = waiting_begins(c);
    const bool reached = spin(c, word, target);
    note_spin(&c->waits, reached);
    const status s = reached ? DONE : wait_long(c, peer, word, target, b);
    waiting_ends(c, began);
    return s;
}

status wait_all(comm *c, uint64_t target)
{
    for (int i = 1; i < c->size; i++) {
        status s = wait_posted(c, (c->rank + i) % c->size, target);
        if (s != DONE)
            return s;
    }
    return DONE;
}

void comm_wake_all(comm *c)
{
    for (int i = 0; i < c->size; i++) {
        member *m = member_at(c, i);
        counter *const counters[] = {&m->posted, &m->gathered, &m->released};
        for (int j = 0; j < 3; j++)
            syscall(SYS_futex, futex_word(counters[j]), FUTEX_WAKE, INT32_MAX, NULL, NULL,
                    0);
    }
}
