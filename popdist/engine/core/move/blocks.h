/* How blocks go through the slots when all members first write and then read.
 *
 * Steps are counted over the call: block b has been written from step 2b + 1 on, and
 * read from step 2b + 2. Two phases of a slot take turns, so what is written for a
 * block must wait until all have read the block but one before it.
 */
#ifndef POPDIST_BLOCKS_H
#define POPDIST_BLOCKS_H

#include "sync/comm.h"
#include "move/streaming.h"

typedef struct {
    comm *c;
    uint64_t count;
    uint64_t bytes;  /* that a member writes for the first one */
    uint64_t extent; /* of the first one in a slot */
    uint64_t number; /* of the first one, counted over the arena's life */
    traffic traffic;
    const void *what; /* of the two functions */
    void (*write)(const void *what, uint64_t block, uint64_t number, bool streaming);
    void (*read)(const void *what, uint64_t block, uint64_t number);
} blocks;

status blocks_run(blocks *b, const descriptor *d);

#endif
