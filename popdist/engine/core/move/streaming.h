/* The choice of stores to publish with: ordinary ones, or stores past the caches.
 *
 * On virtual machines, the time in which a core gets a line just written by another one
 * changes by a factor of four, from one second to the next. While it is slow, lines come
 * sooner from memory. So now and then all members try the other kind for a few blocks, and
 * member 0 compares the cost of publishing and reading with the blocks just before. The
 * results do not depend on it.
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

/* Copy, past the caches if `streaming`. */
void streaming_copy(const kernels *simd, void *to, const void *from, size_t bytes,
                    bool streaming);

typedef struct {
    comm *c;
    int size_class;     /* -1 where there is nothing to choose */
    uint64_t bytes;     /* of a block */
    uint64_t offset;    /* from a block's number to its number within its class */
    bool streaming;     /* the kind for the current block */
    float *cost;        /* member 0 adds the block's cost here, unless NULL */
    uint64_t began;
} traffic;

/* For the next `count` blocks of a group. */
traffic traffic_of(comm *c, uint64_t block_bytes, uint64_t count);

/* Whether blocks of that many bytes pass the caches by, outside trials. */
bool stores_usual(const comm *c, uint64_t block_bytes);

/* Return the cost of the tried kind divided by the usual kind's, 0 if too few blocks
 * were measured. Both are medians, so a few interrupted blocks do not count. */
double trial_ratio(const observed *o);

/* Call these around all accesses to the slots, but not around waits. */
void traffic_begin(traffic *t, uint64_t block);
void traffic_end(traffic *t);

/* Whether the next large total is written to the heap past the caches. */
bool heap_stores_begin(const heap_stores *h);

/* Record the cost of a byte in it; every so often, choose the kind anew. */
void heap_stores_end(heap_stores *h, double ns_a_byte);

#endif
