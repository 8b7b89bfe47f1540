/* How large the blocks are in which the direct algorithm moves an array.
 *
 * Which size is best differs between machines by a factor of two, so it is tried, for
 * each class of array sizes: now and then all members use another size for a few calls,
 * and member 0 compares what the calls took. All members must use the same size in a
 * call, so member 0 publishes a plan for calls to come, by their numbers within the
 * class. The results do not depend on it.
 */
#ifndef POPDIST_BLOCK_SIZE_H
#define POPDIST_BLOCK_SIZE_H

#include "sync/comm.h"

/* `other` in the calls from `from` on, `length` of them or all to come if it is 0;
 * `usual` in the rest. Sizes are numbers below BLOCK_SIZES. */
typedef struct {
    uint64_t from;
    unsigned length, usual, other;
} block_plan;

/* 0, which a new arena holds, stands for the plan that a group begins with. */
block_plan block_plan_of(uint64_t encoded);
uint64_t block_plan_encoded(block_plan p);

/* The size that a plan says for a call. */
unsigned planned_size(const block_plan *p, uint64_t call);

/* Take note of what a byte cost in a call of the class. Returns whether the plan is
 * another one now, which holds for the call after the next one at the earliest. */
bool note_block_cost(block_costs *costs, block_plan *p, uint64_t call, double ns_a_byte);

/* A call of the direct algorithm. */
typedef struct {
    comm *c;
    int size_class; /* -1 where there is nothing to choose */
    uint64_t call;  /* its number within the class */
    uint64_t began, spent_ns;
} block_trial;

/* Begin the call: all members must, with the same number of bytes. Returns the most
 * bytes that a block has. */
uint64_t block_size_begin(block_trial *t, comm *c, uint64_t bytes);

/* Around what the size matters for: waiting for others to begin does not count. */
void block_trial_begin(block_trial *t);
void block_trial_pause(block_trial *t);

/* End a call that has gone through slots. */
void block_trial_end(block_trial *t, uint64_t bytes);

/* The bytes of blocks when nothing is tried, for arrays of so many bytes. */
uint64_t usual_block_bytes(const comm *c, uint64_t bytes);

#endif
