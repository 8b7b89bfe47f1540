/* How a reduction over several hosts is divided.
 *
 * Carriers are the first members of each host, the same number on all hosts; the leader is
 * one. A small amount of data goes with the records of the call. More goes in blocks. If
 * the total is small, each leader gets all nodes and completes them all: one exchange. If
 * it is large, each carrier carries a range of every block. Each host completes a share of
 * this range and sends the result to the others: two exchanges, of less data.
 *
 * In a reduce_scatter, each host completes the results for its members: one exchange. A
 * block has elements for every host, so that all receive at the same time.
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
    /* Elements: of a block, of a carrier's longest range of it, and of the longest share
     * of such a range. */
    uint64_t block, carried, share;
    uint64_t count; /* blocks */
    /* For a reduce_scatter: the elements of a replica's result, and of all results on
     * each host. */
    uint64_t each, *of_each_host;
} division;

/* Divide a call; an element of its nodes has so many bytes. False if there is no memory. */
bool division_open(division *d, const call *k, size_t node_element);
void division_close(division *d);

/* The range that a carrier carries of `count` elements, by its rank on its host. */
range division_carried(const division *d, uint64_t count, int carrier);

/* The range that it carries of a host's results of a reduce_scatter, in one block. */
range division_scattered(const division *d, uint32_t host, uint64_t number, int carrier);

/* The elements that it carries of a block: those that one host completes, and all. */
uint64_t division_share_length(const division *d, uint64_t number, int carrier,
                               uint32_t host);
uint64_t division_carried_length(const division *d, uint64_t number, int carrier);

/* The most ranges of the call's row in one block. */
uint32_t division_most_ranges(const division *d);

/* Set a window to a block: the elements of all carriers, one after the other. */
void division_set_window(const division *d, window *to, uint64_t number);

#endif
