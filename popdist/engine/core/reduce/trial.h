/* A choice between a few ways to carry out calls, made while a program runs.
 *
 * Now and then all members try another way for a few calls, and member 0 compares the
 * times. All members must carry out a call in the same way, so member 0 publishes a plan
 * for calls to come, by their numbers within a class of calls; all members count these
 * alike. Results do not depend on it.
 */
#ifndef POPDIST_TRIAL_H
#define POPDIST_TRIAL_H

#include "sync/comm.h"

/* A new plan holds from the call after the next one: before a member begins that call,
 * it has seen member 0 announce the one before it. */
enum { NOTICE = 2 };

/* The choices of one kind. */
typedef struct {
    unsigned choices; /* they are numbers from 0 */
    unsigned first;   /* the one to begin with */
    /* The calls of a trial that are compared with as many before it, MOST_COMPARED at
     * most. The fastest ones are compared, because the rest were held up. Medians are
     * compared if the fastest call is the one to which this member came last. */
    unsigned compared;
    bool by_median;
} trial_kind;

/* `other` in the calls from `from` on, `length` of them or all to come if it is 0;
 * `usual` in the rest. */
typedef struct {
    uint64_t from;
    unsigned length, usual, other;
} trial_plan;

/* 0, the value in a new arena, encodes the plan that a group begins with. */
trial_plan trial_plan_of(const trial_kind *kind, uint64_t encoded);
uint64_t trial_plan_encoded(trial_plan p);

/* The choice that a plan makes for a call. */
unsigned planned_choice(const trial_plan *p, uint64_t call);

/* Whether the time of a call is compared. */
bool is_compared(const trial_kind *kind, const trial_plan *p, uint64_t call);

/* Record the cost of a byte in a call of the class. Returns whether the plan has
 * changed; the change takes effect in the call after the next one at the earliest. */
bool note_cost(const trial_kind *kind, trial_costs *costs, trial_plan *p, uint64_t call,
               double ns_a_byte);

#endif
