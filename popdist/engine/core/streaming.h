/* Which stores to publish with: ordinary ones, or such that pass the caches by.
 *
 * How fast a core gets a line that another one has just written changes by a factor
 * of four on virtual machines, from one second to the next. Where it is slow, lines
 * that went to memory come sooner. So member 0 measures what publishing and reading
 * cost with either kind, tries the other kind every now and then, and tells the rest.
 * The results do not depend on it.
 */
#ifndef POPDIST_STREAMING_H
#define POPDIST_STREAMING_H

#include "comm.h"

typedef struct {
    comm *c;
    int size_class;
    bool usual;     /* the kind that is the better one, as far as we know */
    bool streaming; /* the kind of the block at hand */
    bool measuring;
    uint64_t bytes; /* of a block */
    uint64_t began;
    uint64_t spent[2], blocks[2], last[2];
} traffic;

traffic traffic_of(comm *c, uint64_t block_bytes);

/* Around whatever touches the slots; waiting does not count. */
void traffic_begin(traffic *t, uint64_t block);
void traffic_end(traffic *t);

/* At the end of a call: draw the conclusions. */
void traffic_learn(traffic *t);

#endif
