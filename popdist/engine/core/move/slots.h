/* Where in the slots the blocks of a call lie.
 *
 * A slot is what one member writes and all others read. It has two phases, which take
 * turns from block to block, each with a part for inputs and one for results. A core
 * that writes what others have in their caches must take it away from them first. So
 * calls of one small block do not write where the call before the last one did, but go
 * round their phase in lanes; until they come back, it has left those caches.
 */
#ifndef POPDIST_SLOTS_H
#define POPDIST_SLOTS_H

#include "sync/comm.h"

/* Begin a call of that many blocks, each of at most so many bytes in the inputs. */
void choose_lane(comm *c, uint64_t block_bytes, uint64_t count);

/* The input and the result part of a member's slot, in the phase of a block. */
unsigned char *input_at(const comm *c, int rank, uint64_t block);
unsigned char *result_at(const comm *c, int rank, uint64_t block);

#endif
