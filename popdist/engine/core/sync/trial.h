/* A choice between a few ways to carry out calls, made while a program runs.
 *
 * Now and then all members try another way for a few calls, and member 0 compares the
 * times. Where all members must carry out a call in the same way, they do: member 0
 * publishes a plan for calls to come, by their numbers within a class of calls, and all
 * members count these alike. Results do not depend on it.
 *
 * What is chosen so: the algorithm (reduce/reduce.c), the size of blocks
 * (reduce/block_size.c), and the kind of stores, for which a block is a call
 * (move/streaming.c).
 */
#ifndef POPDIST_TRIAL_H
#define POPDIST_TRIAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A new plan holds from the call after the next one: before a member begins that call,
 * it has seen member 0 announce the one before it. */
enum { NOTICE = 2, MOST_COMPARED = 16 };

/* The choices of one kind. */
typedef struct {
    unsigned choices; /* they are numbers from 0 */
    /* The first calls of a class, which no trial is compared with. */
    unsigned warm_up;
    /* In the first calls of a trial, the caches are still as the usual choice leaves them.
     * The others are compared with as many calls before the trial, MOST_COMPARED at most. */
    unsigned unsettled, compared;
    /* The fastest calls are compared, because the rest were held up. Medians are compared
     * if the fastest call is the one to which this member came last. */
    bool by_median;
    /* A choice becomes the usual one if it takes less than that share of the time. */
    double clearly_less;
    /* Calls from one trial to the next: few at first, then more and more while no other
     * choice is better; and the most of them after a trial of a much worse choice. */
    uint64_t shortest_pause, longest_pause, most_pause;
} trial_kind;

/* The times for a byte in some calls, the shortest first. */
typedef struct {
    double ns[MOST_COMPARED];
    unsigned count;
} call_costs;

/* The calls of one class, and member 0's observations around a trial. */
typedef struct {
    uint64_t calls; /* so far, counted by all members alike */
    call_costs usual, tried;
    uint64_t pause; /* calls before the last trial */
    unsigned last_tried, failures; /* the last one tried; trials since one was better */
} trial_costs;

/* A call of a class. */
typedef struct {
    const trial_kind *kind;
    unsigned first; /* the choice that the class begins with */
    _Atomic uint64_t *plan; /* 0 in a new arena; member 0 writes it */
    trial_costs *costs;
    uint64_t call; /* its number within the class */
} trial;

/* The choice for this call, and for calls outside of trials. */
unsigned trial_choice(const trial *t);
unsigned trial_usual(const trial *t);

/* Whether the time of the call is compared. */
bool trial_compares(const trial *t);

/* Record the cost of a byte in the call, as member 0. Returns whether another choice becomes
 * the usual one, in the call after the next one at the earliest. */
bool trial_note(const trial *t, double ns_a_byte);

/* Let a class that has had no calls begin with another choice, as member 0. A first call
 * that another member has begun keeps its choice. */
void trial_begin_with(const trial *t, unsigned choice);

#endif
