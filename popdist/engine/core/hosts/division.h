/* How a reduction over several hosts is divided.
 *
 * Carriers are the first members of each host, as many on all hosts; the leader is one.
 * What is little goes with the records of the call. More goes in blocks. Of a small total,
 * each leader gets all nodes and completes them all: one exchange. Of a large one, each
 * carrier has a part of every block, of which each host completes a share and hands the
 * result of that on: two exchanges, of less data.
 *
 * Of a reduce_scatter, each host completes what its own members get: one exchange. A block
 * has elements for every host, so that all receive at the same time.
 */
#ifndef POPDIST_HOSTS_DIVISION_H
#define POPDIST_HOSTS_DIVISION_H

#include "hosts/window.h"

typedef struct {
    const host_split *hosts;
    uint64_t total;
    bool in_records, scatters;
    bool whole;        /* each leader completes all of a block */
    uint32_t carriers; /* of each host: the members below that rank */
    bool carries;      /* this member is one */
    /* Elements: of a block, of the longest part of one, and of the longest share of that. */
    uint64_t block, part, share;
    uint64_t count; /* blocks */
    /* Of a reduce_scatter: elements that a replica gets, and the members of each host
     * together. */
    uint64_t each, *of_each_host;
} division;

/* Divide a call whose nodes have elements of so many bytes. False if there is no memory. */
bool division_open(division *d, const call *k, size_t node_element);
void division_close(division *d);

/* Which elements of `count` a carrier has, by its rank on its host. */
chunk part_of(const division *d, uint64_t count, int carrier);

/* Which elements of what a host's members get of a reduce_scatter a carrier has. */
chunk scattered_part(const division *d, uint32_t host, uint64_t number, int carrier);

/* How many elements of a carrier's part of a block a host completes, and all hosts. */
uint64_t length_of_share(const division *d, uint64_t number, int carrier, uint32_t host);
uint64_t length_of_part(const division *d, uint64_t number, int carrier);

/* How many ranges of the call's row a block may have. */
uint32_t most_ranges(const division *d);

/* Let a window be of a block's elements: of those of all carriers, one after the other. */
void move_to_block(const division *d, window *to, uint64_t number);

#endif
