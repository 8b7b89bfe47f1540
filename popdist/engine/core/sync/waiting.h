/* How one member waits: whether to yield its core or to sleep at once.
 *
 * On a quiet machine a yield returns within microseconds. Beside other busy processes it
 * hands the core to one of them for a whole time slice, whereas a sleeper goes first once
 * it is woken. If the peer is kept from its core, yielding keeps a core busy that the
 * kernel could give to the peer. So after a yield that returns late, or many yields in
 * vain, there is a pause: all waits sleep at once. After it, yielding is tried again.
 *
 * Before it yields, a member polls for a while. If a poll runs out, the peer may share this
 * core and cannot run meanwhile, so the next one is half as long. After a poll that
 * succeeds or was only too short, the next one is twice as long, up to the agreed time.
 *
 * Members with a core each may still come to share one. They hand it to each other by
 * yields, and the kernel leaves them there, also while another core is free. A member that
 * is woken from a sleep moves to a free core. So waits in which others use our core are
 * counted, and after some of them one wait sleeps at once.
 */
#ifndef POPDIST_WAITING_H
#define POPDIST_WAITING_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* A yield that takes longer is late. Other members' work between two waits takes
     * less as a rule, time slices take 1 to 4 ms. */
    LATE_YIELD_NS = 1000000,
    /* The length of the first pause as a multiple of the late yield: a yield is also
     * late if a peer just computes for longer. Each next pause is twice as long, so that
     * trials cost little while they keep failing. */
    FIRST_PAUSE = 1,
    LONGEST_PAUSE_NS = 1000000000,
    /* For so long the core is only yielded before we sleep, unless yields return late.
     * Yielding costs the others nothing and answers at once; sleeping saves power. In a
     * group over hosts most waits are for another host, and take longer. Members that
     * only yield seem busy to the kernel: it then leaves two leaders on one core. */
    YIELD_NS = 2000000,
    YIELD_OVER_HOSTS_NS = 50000,
    /* The most yields of a wait. If members work on this core in the meantime, a wait
     * needs few yields. */
    MOST_YIELDS = 100,
    /* The shortest poll, unless the group's agreed one is shorter. */
    LEAST_SPIN_NS = 2000,
    /* The next pause is short once yields have ended so many waits since the last one. */
    QUIET_WAITS = 16,
    /* The waits on a shared core after which a member first sleeps to leave it, and the
     * most such waits: while sleeping does not help, their number doubles each time. */
    FIRST_DISPLACED = 16,
    MOST_DISPLACED = 4096,
};

/* The clock of all waits: nanoseconds, that only grow. */
uint64_t now_ns(void);

/* The CPU time of this thread, which leaves out other users of its core. */
uint64_t computed_ns(void);

typedef struct {
    uint64_t most_spin_ns, spin_ns; /* as agreed, and for the next poll */
    uint64_t yield_from; /* until then, sleep at once */
    uint64_t pause_ns;   /* the last pause */
    uint64_t yielded;    /* waits that yields have ended since then */
    /* Waits with a shared core less waits without, and the number of them at which the
     * next wait sleeps. */
    uint32_t displaced, most_displaced;
    /* Counted since the group was made: waits that ended while spinning, yields, late
     * ones among these, and sleeps. */
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

/* Count a wait, by whether others shared the core in it. */
static inline void note_core(waiting *w, bool shared)
{
    if (shared)
        w->displaced++;
    else if (w->displaced && --w->displaced == 0)
        w->most_displaced = FIRST_DISPLACED;
}

/* Adapt the next poll to the success of this one. */
static inline void note_spin(waiting *w, bool succeeded)
{
    adapt_spin(w, succeeded);
    w->spins += succeeded;
    if (succeeded)
        note_core(w, false);
}

/* Count a wait ended by yields. This member has computed for `computed` of its time, and
 * others have used its core for the rest. */
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

/* Sleep at once for as long as the vain yields took: longer each time, unless yields
 * have ended many waits since the last pause. */
static inline void pause_yields(waiting *w, uint64_t began, uint64_t ended, bool again)
{
    w->pause_ns = again ? 2 * w->pause_ns : FIRST_PAUSE * (ended - began);
    if (w->pause_ns > LONGEST_PAUSE_NS)
        w->pause_ns = LONGEST_PAUSE_NS;
    w->yield_from = ended + w->pause_ns;
    w->yielded = 0;
}

/* Count a yield that began and returned at these times. */
static inline void note_yield(waiting *w, uint64_t began, uint64_t returned)
{
    w->yields++;
    if (returned - began <= LATE_YIELD_NS)
        return;
    w->late_yields++;
    pause_yields(w, began, returned, w->pause_ns && began - w->yield_from < 2 * w->pause_ns);
}

/* Count a wait with yields in vain. */
static inline void note_vain_yields(waiting *w, uint64_t began, uint64_t ended)
{
    pause_yields(w, began, ended, w->pause_ns && w->yielded < QUIET_WAITS);
}

#endif
