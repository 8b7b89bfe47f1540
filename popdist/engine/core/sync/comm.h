/* One member's private view of an arena, and how it waits for the others.
 *
 * This file knows nothing of Python and nothing of how the memory was made.
 */
#ifndef POPDIST_COMM_H
#define POPDIST_COMM_H

#include "shm/arena.h"
#include "kernels/kernels.h"
#include "sync/hierarchy.h"
#include "sync/peer.h"
#include "sync/records.h"
#include "sync/trial.h"
#include "sync/waiting.h"

#include <stdbool.h>
#include <sys/types.h>

typedef struct comm comm;
typedef struct links links;

struct comm {
    header *head;
    unsigned char *base;
    places at;
    settings agreed;
    int rank, size;
    hierarchy hierarchy;
    pid_t pid; /* of the process that opened it */
    const kernels *simd;

    /* Calls begun by this member. Another thread may read it during a call. */
    _Atomic uint64_t calls;
    uint64_t array_places; /* of the members that have been seen to begin the call */
    uint64_t posted; /* steps it has taken: its own counter's value */
    uint64_t awaited; /* steps that all must take before our wait ends; 0 while it is for
                       * one peer */
    uint64_t blocks; /* blocks through the slots so far: the next one's number */
    uint64_t sent_to[MAX_MEMBERS], received_from[MAX_MEMBERS];

    peer peers[MAX_MEMBERS];
    int instances[MAX_MEMBERS]; /* what members are called; -1 if not known yet */
    /* Other threads may set these three during a call that has released the GIL. */
    _Atomic uint64_t timeout_ns;
    waiting waits;

    activity *shown; /* this member's */
    uint64_t begun, bytes; /* as shown there */
    call_record *record; /* of the call in progress, if calls are recorded, else NULL */

    /* The heap as this process maps it, NULL while it does not; once mapped, it stays. */
    unsigned char *_Atomic heap;
    _Atomic uint64_t heap_span; /* bytes of one member's region; set before the heap */
    /* How much of each region, from its begin, we can access. */
    uint64_t accessible[MAX_MEMBERS];

    /* Called before the first long wait of a call, and every few hundredths of a
     * second while it lasts; the second one returns true to stop. */
    void (*before_long_wait)(comm *);
    bool (*during_long_wait)(comm *, int peer, uint64_t waited_ns);
    void *owner;

    bool stall_reported; /* of a stall in the call in progress */
    /* The call of a larger group in which this group's calls are steps: members announce
     * it in place of the step, and must agree on both. */
    bool in_larger_call;
    descriptor larger_call;
    uint64_t larger_calls; /* so far */
    int larger_rank; /* of this member in the larger group; if there is none, its rank */
    links *links; /* to the other hosts of that group, or NULL */
    algorithm ran; /* how the last reduction was carried out */
    trial_costs store_costs[STORE_CLASSES], block_costs[BLOCK_CLASSES];
    trial_costs algorithm_costs[ALGORITHM_CLASSES];
    /* This member's choice of stores for large totals to arrays in the heap. */
    trial_costs heap_costs;
    _Atomic uint64_t heap_plan;
    /* From the begin of a slot's part to the current call's blocks. */
    uint64_t lane_input, lane_result;
    unsigned char *scratch; /* SCRATCH_BLOCKS blocks for partial sums */
    /* Room for an entry for each replica in a call: some threads' stacks are too small. */
    struct rows {
        const void *from[MAX_LEAVES];
        unsigned char *to[MAX_LEAVES];
        const void *leaf[MAX_LEAVES];
        bool accumulated[MAX_LEAVES]; /* whether the leaf is accumulated */
    } *rows;
};

static inline member *member_at(const comm *c, int rank)
{
    return (member *)(c->base + c->at.members) + rank;
}

static inline uint64_t calls_of(const comm *c)
{
    return atomic_load_explicit(&c->calls, memory_order_relaxed);
}

/* A member's announcement of the current call. */
static inline announcement *announced_by(const comm *c, int rank)
{
    return &member_at(c, rank)->announcements[calls_of(c) & 1];
}

static inline channel *channel_at(const comm *c, int from, int to)
{
    return (channel *)(c->base + c->at.channels) + (from * c->size + to);
}

static inline activity *activity_at(const comm *c, int rank)
{
    return (activity *)(c->base + c->at.board) + rank;
}

/* A member's description of a call. */
static inline descriptor *description_at(const comm *c, int rank, uint64_t number)
{
    return &activity_at(c, rank)->calls[number % RECENT_CALLS];
}

/* Make the arena's header; only member 0 does, before anyone else sees it. Members with
 * equal numbers in `cache_of` share a last-level cache; NULL if that is not known. */
void arena_initialise(void *base, const settings *agreed, const uint8_t *cache_of);

/* Take part in an initialised arena; `instance` is what the member is called. The caller fills in hooks and pidfds, and
 * frees with comm_close. False if there is no memory for the scratch. */
bool comm_open(comm *c, void *base, int rank, int instance);
void comm_close(comm *c);

/* Whether it is open, and was opened by this process and not by its parent. */
bool comm_is_ours(const comm *c);

/* Take a step, and wake the members that sleep until we do. */
void comm_post(comm *c);
void counter_advance(counter *b, uint64_t count);

/* Wait until a word of `peer` reaches `target`, which it has not yet: poll it, then
 * yield the core, then sleep. The word moves no later than the counter `b` of its
 * writer. */
status wait_on(comm *c, int peer, const _Atomic uint64_t *word, uint64_t target,
               counter *b);

/* Whether members take turns on a core: then none polls a counter, and each pushes the
 * others' data out of the caches. */
static inline bool comm_shares_core(const comm *c)
{
    return c->agreed.spin_us == 0;
}

static inline status wait_word(comm *c, int peer, const _Atomic uint64_t *word,
                               uint64_t target, counter *b)
{
    if (atomic_load_explicit(word, memory_order_acquire) >= target)
        return DONE;
    return wait_on(c, peer, word, target, b);
}

static inline status wait_posted(comm *c, int peer, uint64_t target)
{
    counter *b = &member_at(c, peer)->posted;
    return wait_word(c, peer, &b->count, target, b);
}

/* Whether a member has died, runs another program, or has closed its group. */
bool comm_has_left(comm *c, int peer);

/* Wake all members that sleep until some member takes a step. */
void comm_wake_all(comm *c);

/* Wait until all others have taken their steps up to `target`. */
status wait_all(comm *c, uint64_t target);

/* Wait until all have taken as many steps as this one. All must call it then: members
 * tell each other along a tree. */
status wait_together(comm *c);

/* Show the begin of a call of the program, with so many bytes of this member, and its
 * end. There is one writer, and readers read each number separately. */
static inline void show_begin(comm *c, uint64_t bytes)
{
    c->begun++;
    c->bytes += bytes;
    atomic_store_explicit(&c->shown->bytes, c->bytes, memory_order_relaxed);
    atomic_store_explicit(&c->shown->begun, c->begun, memory_order_relaxed);
}

static inline void show_end(comm *c)
{
    atomic_store_explicit(&c->shown->over, c->begun, memory_order_relaxed);
}

/* Between the two, add up how long a recorded call waits. */
static inline uint64_t waiting_begins(const comm *c)
{
    return c->record ? now_ns() : 0;
}

static inline void waiting_ends(comm *c, uint64_t began)
{
    if (c->record)
        c->record->waited_ns += now_ns() - began;
}

/* Show since when this member waits for an instance; 0 ends the wait. */
void show_wait(comm *c, uint64_t since_ns, int instance);

/* Find the members that have not begun the current call: a bit for each. */
void find_missing(const comm *c, int peer, uint64_t mask[MASK_WORDS]);

/* Describe our call. A member that ends the group may read the description at any time,
 * and may get a mixture of this one and the one before: it serves for messages only. */
void announce_describe(comm *c, const descriptor *d);

void copy_descriptor(descriptor *to, const descriptor *from);

/* Begin a call. `begin` makes the announcement ours to write, `announce` publishes it,
 * with all data written to the slot or the announcement before. */
announcement *announce_begin(comm *c, const descriptor *d);
void announce_call(comm *c);

/* Wait until a member has begun its call, and check that it is the same as ours. */
status announce_await_one(comm *c, int peer);
status announce_await_all(comm *c);

/* The same in three steps, for the members of a large group: wait for the members below;
 * report to the member above, and wait until it reports that all have begun; report this to
 * the members below. Data may go the same ways. Without `call` they only wait for steps. */
status announce_gather(comm *c, bool call);
status announce_await_above(comm *c, bool call);
void announce_release(comm *c);

/* The value of `ended` while that member writes the reason. */
static inline uint32_t writing(int rank)
{
    return EXPLAINED + 1 + (uint32_t)rank;
}

/* A separate call that only waits for all members. */
status barrier_run(comm *c, uint64_t name);

/* End the group: the first reason counts, on all members. Returns `why`. Any thread may
 * call it, also while another one is in a call. end_over() is for a caller that knows
 * the call of `about` better than the arena does. */
status end_group(comm *c, status why, int about);
status end_over(comm *c, status why, int about, const descriptor *theirs);

/* End the group with this member's error: the one for the status `error`, with this
 * message and these lost instances. */
status end_with_error(comm *c, status error, const int32_t *lost, uint32_t lost_count,
                      const char *message);

/* Copy the reason for the end of the group, or return false if it has not ended. This
 * may take some tenths of a second if the member that ended it is slow to write the
 * reason. */
bool why_ended(comm *c, ending *why);

/* Whether that member and this one, in such a call with it, both wait for a message
 * of the other, or for the other to take one. Once true, it stays true. */
bool is_deadlock(const comm *c, operation ours, int peer);

#endif
