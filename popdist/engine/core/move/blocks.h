/* How blocks go through the slots when all members first write and then read, and may
 * then take what the others have made of what they read.
 *
 * Steps are counted over the call: block b has been written from step 2b + 1 on, and
 * read from step 2b + 2. Two phases of a slot take turns, so what is written for a
 * block must wait until all have read the block but one before it.
 */
#ifndef POPDIST_BLOCKS_H
#define POPDIST_BLOCKS_H

#include "sync/comm.h"
#include "move/streaming.h"

typedef struct blocks blocks;

struct blocks {
    comm *c;
    uint64_t count;
    uint64_t bytes;  /* that a member writes for the first one */
    uint64_t extent; /* of the first one in a slot */
    uint64_t before; /* steps taken before the first one */
    uint64_t number; /* of the first one, counted over the arena's life */
    traffic traffic;
    void *what; /* of the functions */
    /* Block number `block` of the call is `number` over the arena's life. */
    void (*write)(void *what, uint64_t block, uint64_t number, bool streaming);
    void (*read)(void *what, uint64_t block, uint64_t number, bool streaming);
    status (*take)(blocks *b, uint64_t block); /* or NULL */
};

/* A whole call. */
status blocks_run(blocks *b, const descriptor *d);

/* Its parts, for a call that does more in between: begin, write the first block before
 * the call is announced, and once all have announced it, do all the rest. */
void blocks_begin(blocks *b);
void blocks_write(blocks *b, uint64_t block);
status blocks_go_through(blocks *b);

#endif
