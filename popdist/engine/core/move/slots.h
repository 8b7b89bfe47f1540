/* The places of a call's blocks in the slots.
 *
 * One member writes to a slot and all others read it. It has two phases, which take turns
 * from block to block, each with a part for inputs and one for results.
 *
 * Lines in other cores' caches are slow to write: the core must take them away from these
 * first. So calls of one small block do not write where the call before the last one did,
 * but go round their phase in lanes; until they come back, the lane has left those caches.
 * Members that share cores have no lanes: together these are larger than a core's caches.
 */
#ifndef POPDIST_SLOTS_H
#define POPDIST_SLOTS_H

#include "sync/comm.h"

/* Begin a call of `count` blocks with at most `block_bytes` of input each. */
void slots_choose_lane(comm *c, uint64_t block_bytes, uint64_t count);

/* The input and the result part of a member's slot, in the phase of a block. */
unsigned char *slot_input_at(const comm *c, int rank, uint64_t block);
unsigned char *slot_result_at(const comm *c, int rank, uint64_t block);

#endif
