/* How one member waits: whether to yield its core or to sleep at once.
 *
 * On a quiet machine a yield returns within microseconds. Beside other busy processes
 * it hands the core to one of them for a whole time slice, whereas a sleeper that is
 * woken goes first. So a yield that returns late is followed by a pause in which all
 * waits sleep at once; after it, yielding is tried again.
 *
 * Before it yields, a member polls for a while. A poll that runs out may mean that the
 * peer shares this core and cannot move while we poll, so the next one is half as long;
 * one that succeeds makes the next one twice as long, up to what the group has agreed.
 */
#ifndef POPDIST_WAITING_H
#define POPDIST_WAITING_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* A yield that takes longer is late. Other members' work between two waits takes
     * less as a rule, time slices take 1 to 4 ms. */
    LATE_YIELD_NS = 1000000,
    /* How many times as long as the late yield the first pause lasts: a yield is late
     * also where a peer just computes for longer. Each next one is twice as long, so
     * that trials cost little where they keep failing. */
    FIRST_PAUSE = 1,
    LONGEST_PAUSE_NS = 1000000000,
    /* How long the core is only yielded before we sleep, unless yields return late.
     * Yielding costs the others nothing and answers at once; sleeping spares the power.
     * In a group over hosts most waits are for another host, which takes longer. Members
     * that only yield seem busy to the kernel, which then leaves two leaders on one core. */
    YIELD_NS = 2000000,
    YIELD_OVER_HOSTS_NS = 50000,
    /* The shortest poll, unless the group has agreed on less. */
    LEAST_SPIN_NS = 2000,
};

/* The clock of all waits: nanoseconds, that only grow. */
uint64_t now_ns(void);

/* How long this thread has computed: what others take of its core does not count. */
uint64_t computed_ns(void);

typedef struct {
    uint64_t most_spin_ns, spin_ns; /* as agreed, and for the next poll */
    uint64_t yield_from; /* until then, sleep at once */
    uint64_t pause_ns;   /* the last pause */
    /* Since the group was made: waits that ended while spinning, and what else there
     * was. Late yields are among the yields. */
    uint64_t spins, yields, late_yields, sleeps;
} waiting;

static inline waiting waiting_new(uint64_t spin_us)
{
    return (waiting){.most_spin_ns = 1000 * spin_us, .spin_ns = 1000 * spin_us};
}

/* Take note of whether polling has seen what it waited for. */
static inline void note_spin(waiting *w, bool succeeded)
{
    const uint64_t next = succeeded ? 2 * w->spin_ns : w->spin_ns / 2;
    const uint64_t least = next > LEAST_SPIN_NS ? next : LEAST_SPIN_NS;
    w->spin_ns = least < w->most_spin_ns ? least : w->most_spin_ns;
    w->spins += succeeded;
}

static inline bool may_yield(const waiting *w, uint64_t now)
{
    return now >= w->yield_from;
}

/* Take note of a yield that began and returned at these times. */
static inline void note_yield(waiting *w, uint64_t began, uint64_t returned)
{
    const uint64_t took = returned - began;
    w->yields++;
    if (took <= LATE_YIELD_NS)
        return;
    w->late_yields++;
    /* Yielding that went well for longer than the last pause starts afresh. */
    const bool again = w->pause_ns && began - w->yield_from < 2 * w->pause_ns;
    w->pause_ns = again ? 2 * w->pause_ns : FIRST_PAUSE * took;
    if (w->pause_ns > LONGEST_PAUSE_NS)
        w->pause_ns = LONGEST_PAUSE_NS;
    w->yield_from = returned + w->pause_ns;
}

#endif
