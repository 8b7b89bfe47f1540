/* Moves blocks through the slots: in each block all members first write and then read. They
 * may then read the others' results in the same slots.
 *
 * Steps are counted over the call: block b is written once step 2b + 1 is taken, and read
 * once step 2b + 2 is. The two phases of a slot take turns, so before a member writes a
 * block, all must have read the block before the previous one.
 */
#ifndef POPDIST_BLOCKS_H
#define POPDIST_BLOCKS_H

#include "sync/comm.h"
#include "move/streaming.h"

typedef struct blocks blocks;

struct blocks {
    comm *c;
    uint64_t count;
    uint64_t bytes;  /* written by a member in the first block */
    uint64_t extent; /* of the first block in a slot */
    uint64_t before; /* steps taken before the first block */
    uint64_t number; /* of the first block, counted over the arena's life */
    traffic traffic;
    void *what; /* of the functions */
    /* Block number `block` of the call is `number` over the arena's life. */
    void (*write)(void *what, uint64_t block, uint64_t number, bool streaming);
    void (*read)(void *what, uint64_t block, uint64_t number, bool streaming);
    status (*take)(blocks *b, uint64_t block); /* or NULL */
};

/* A whole call. */
status blocks_run(blocks *b, const descriptor *d);

/* Its parts, for a call with work in between: begin, write the first block before the
 * call is announced, and do the rest once all have announced it. */
void blocks_begin(blocks *b);
void blocks_write(blocks *b, uint64_t block);
status blocks_go_through(blocks *b);

#endif
