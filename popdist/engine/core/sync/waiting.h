/* How one member waits: whether to yield its core or to sleep at once.
 *
 * On a quiet machine a yield returns within microseconds. Beside other busy processes
 * it hands the core to one of them for a whole time slice, whereas a sleeper that is
 * woken goes first. Or the peer is kept from its core: then yielding keeps a core busy
 * that the kernel could give to the peer. So a yield that returns late, or yields that
 * do not end a wait, are followed by a pause in which all waits sleep at once; after it,
 * yielding is tried again.
 *
 * Before it yields, a member polls for a while. A poll that runs out may mean that the
 * peer shares this core and cannot move while we poll, so the next one is half as long;
 * one that succeeds, or that was only too short, makes the next one twice as long, up to
 * what the group has agreed.
 *
 * Members that have a core each may still come to share one. They hand it to each other
 * by yields, and the kernel leaves them there, also while another core is free. A member
 * that is woken from a sleep moves to a free core. So waits in which others use our core
 * are counted, and after some of them one wait sleeps at once.
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
    /* How many times a wait yields at most. Where members work on this core in the
     * meantime, a wait needs few yields. */
    MOST_YIELDS = 100,
    /* The shortest poll, unless the group has agreed on less. */
    LEAST_SPIN_NS = 2000,
    /* Once yields have ended so many waits since the last pause, the next one is short. */
    QUIET_WAITS = 16,
    /* After how many waits on a shared core a member first sleeps to leave it, and after
     * how many at most where that does not help: twice as many each time. */
    FIRST_DISPLACED = 16,
    MOST_DISPLACED = 4096,
};

/* The clock of all waits: nanoseconds, that only grow. */
uint64_t now_ns(void);

/* How long this thread has computed: what others take of its core does not count. */
uint64_t computed_ns(void);

typedef struct {
    uint64_t most_spin_ns, spin_ns; /* as agreed, and for the next poll */
    uint64_t yield_from; /* until then, sleep at once */
    uint64_t pause_ns;   /* the last pause */
    uint64_t yielded;    /* waits that yields have ended since then */
    /* How many more waits had to share the core than had not, and at how many the next
     * one sleeps. */
    uint32_t displaced, most_displaced;
    /* Since the group was made: waits that ended while spinning, and what else there
     * was. Late yields are among the yields. */
    uint64_t spins, yields, late_yields, sleeps;
} waiting;

static inline waiting waiting_new(uint64_t spin_us)
{
    return (waiting){
        .most_spin_ns = 1000 * spin_us,
        .spin_ns = 1000 * spin_us,
        .most_displaced = FIRST_DISPLACED,
    };
}

/* Make the next poll longer or shorter. */
static inline void adapt_spin(waiting *w, bool longer)
{
    const uint64_t next = longer ? 2 * w->spin_ns : w->spin_ns / 2;
    const uint64_t least = next > LEAST_SPIN_NS ? next : LEAST_SPIN_NS;
    w->spin_ns = least < w->most_spin_ns ? least : w->most_spin_ns;
}

/* Take note of whether the core was ours in a wait. */
static inline void note_core(waiting *w, bool shared)
{
    if (shared)
        w->displaced++;
    else if (w->displaced && --w->displaced == 0)
        w->most_displaced = FIRST_DISPLACED;
}

/* Take note of whether polling has seen what it waited for. */
static inline void note_spin(waiting *w, bool succeeded)
{
    adapt_spin(w, succeeded);
    w->spins += succeeded;
    if (succeeded)
        note_core(w, false);
}

/* Take note of a wait that yields have ended: of its time, this member has computed so
 * much, and others have used its core for the rest. */
static inline void note_yielded(waiting *w, uint64_t waited_ns, uint64_t computed)
{
    const bool shared = computed < waited_ns / 2;
    w->yielded++;
    note_core(w, shared);
    /* The poll was half as long or shorter: polling on would have ended the wait, too. */
    if (!shared && waited_ns < w->most_spin_ns) {
        adapt_spin(w, true);
        adapt_spin(w, true);
    }
}

/* Whether the next wait sleeps at once, to be woken on another core. */
static inline bool leaves_core(waiting *w)
{
    if (w->most_spin_ns == 0 || w->displaced < w->most_displaced)
        return false;
    w->displaced = 0;
    if (w->most_displaced < MOST_DISPLACED)
        w->most_displaced *= 2;
    return true;
}

static inline bool may_yield(const waiting *w, uint64_t now)
{
    return now >= w->yield_from;
}

/* Sleep at once for as long as yielding took that did not help: longer each time, unless
 * it went well for long since the last pause. */
static inline void pause_yields(waiting *w, uint64_t began, uint64_t ended, bool again)
{
    w->pause_ns = again ? 2 * w->pause_ns : FIRST_PAUSE * (ended - began);
    if (w->pause_ns > LONGEST_PAUSE_NS)
        w->pause_ns = LONGEST_PAUSE_NS;
    w->yield_from = ended + w->pause_ns;
    w->yielded = 0;
}

/* Take note of a yield that began and returned at these times. */
static inline void note_yield(waiting *w, uint64_t began, uint64_t returned)
{
    w->yields++;
    if (returned - began <= LATE_YIELD_NS)
        return;
    w->late_yields++;
    pause_yields(w, began, returned, w->pause_ns && began - w->yield_from < 2 * w->pause_ns);
}

/* Take note of a wait that yields have not ended in that time. */
static inline void note_vain_yields(waiting *w, uint64_t began, uint64_t ended)
{
    pause_yields(w, began, ended, w->pause_ns && w->yielded < QUIET_WAITS);
}

#endif
