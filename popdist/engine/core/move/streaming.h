/* The choice of stores to publish with: ordinary ones, or stores past the caches.
 *
 * On virtual machines, the time in which a core gets a line just written by another one
 * changes by a factor of four, from one second to the next. While it is slow, lines come
 * sooner from memory. So now and then all members try the other kind for a few blocks, and
 * member 0 compares the cost of publishing and reading with the blocks just before: see
 * sync/trial.h. The results do not depend on it.
 */
#ifndef POPDIST_STREAMING_H
#define POPDIST_STREAMING_H

#include "sync/comm.h"

/* Results of at least so many bytes are larger than the caches, so they are written past
 * them. In the heap every total is written to the arrays of all members: whether stores
 * past the caches do that sooner depends on the processor, so both kinds are tried, from
 * a larger size on. */
enum {
    STREAM_OUT_BYTES = 4 << 20,
    STREAM_TO_ALL_BYTES = 32 << 20,
};

extern const trial_kind stores, heap_stores;

/* Copy, past the caches if `streaming`. */
void streaming_copy(const kernels *simd, void *to, const void *from, size_t bytes,
                    bool streaming);

typedef struct {
    comm *c;
    int size_class;     /* -1 where there is nothing to choose */
    uint64_t bytes;     /* of a block */
    uint64_t offset;    /* from a block's number to its number within its class */
    bool streaming;     /* the kind for the current block */
    bool timed;
    uint64_t began;
    uint64_t spent_ns[2]; /* by member 0 on the blocks in progress, which are two at most */
} traffic;

/* For the next `count` blocks of a group. */
traffic traffic_of(comm *c, uint64_t block_bytes, uint64_t count);

/* Whether blocks of that many bytes pass the caches by, outside trials. */
bool streaming_usual(comm *c, uint64_t block_bytes);

/* Call these around all accesses to the slots, but not around waits. */
void traffic_begin(traffic *t, uint64_t block);
void traffic_end(traffic *t, uint64_t block);

/* This member accesses the block no more. */
void traffic_done(traffic *t, uint64_t block);

/* The choice of stores for the next large total that this member writes to the heap. Each
 * member decides alone. */
trial streaming_to_heap(comm *c);

#endif
