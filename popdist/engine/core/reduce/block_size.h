/* The size of blocks in the direct algorithm.
 *
 * The best size differs between machines by a factor of two, so it is found by trials, for
 * each class of array sizes: see sync/trial.h.
 */
#ifndef POPDIST_BLOCK_SIZE_H
#define POPDIST_BLOCK_SIZE_H

#include "sync/comm.h"

extern const trial_kind block_sizes;

/* A call of the direct algorithm. */
typedef struct {
    comm *c;
    int size_class; /* -1 if there is nothing to choose */
    trial choice;
    uint64_t began, spent_ns;
} block_trial;

/* Begin the call: all members must, with the same number of bytes. Returns the size of
 * its blocks in bytes. */
uint64_t block_size_begin(block_trial *t, comm *c, uint64_t bytes);

/* Around the work that depends on the size: waiting for others to begin does not count. */
void block_trial_begin(block_trial *t);
void block_trial_pause(block_trial *t);

/* End a call that has gone through slots. */
void block_trial_end(block_trial *t, uint64_t bytes);

/* The bytes of blocks outside trials, for arrays of so many bytes. */
uint64_t block_size_usual(comm *c, uint64_t bytes);

#endif
