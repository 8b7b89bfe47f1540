/* A choice between a few ways to carry out calls, made while a program runs.
 *
 * Now and then all members try another way for a few calls, and member 0 compares what
 * these took. All members must take the same way in a call, so member 0 publishes a plan
 * for calls to come, by their numbers within a class of calls, which all members count
 * alike. Results do not depend on it.
 */
#ifndef POPDIST_TRIAL_H
#define POPDIST_TRIAL_H

#include "sync/comm.h"

/* A new plan holds from the call after the next one: a member that begins that call has seen
 * what member 0 did in the one between. */
enum { NOTICE = 2 };

/* The choices of one kind. */
typedef struct {
    unsigned choices; /* they are numbers below that */
    unsigned first;   /* the one to begin with */
    /* How many calls of a trial are compared with as many before it, MOST_COMPARED at most.
     * The fastest ones are compared, because the rest were held up. Their medians are, if
     * the fastest call is one to which this member came last. */
    unsigned compared;
    bool by_median;
} trial_kind;

/* `other` in the calls from `from` on, `length` of them or all to come if it is 0;
 * `usual` in the rest. */
typedef struct {
    uint64_t from;
    unsigned length, usual, other;
} trial_plan;

/* 0, which a new arena holds, stands for the plan that a group begins with. */
trial_plan trial_plan_of(const trial_kind *kind, uint64_t encoded);
uint64_t trial_plan_encoded(trial_plan p);

/* The choice that a plan makes for a call. */
unsigned planned_choice(const trial_plan *p, uint64_t call);

/* Whether it matters what a call takes. */
bool is_compared(const trial_kind *kind, const trial_plan *p, uint64_t call);

/* Take note of what a byte cost in a call of the class. Returns whether the plan is
 * another one now, which holds for the call after the next one at the earliest. */
bool note_cost(const trial_kind *kind, trial_costs *costs, trial_plan *p, uint64_t call,
               double ns_a_byte);

#endif
