/* The hierarchy of the members of a large group.
 *
 * To begin a call, each member reports to the one above it once all below it have, and then
 * learns from it that all members have begun. Members that share a last-level cache report
 * to the first one of them, so few lines pass from one cache to another.
 */
#ifndef POPDIST_HIERARCHY_H
#define POPDIST_HIERARCHY_H

#include "shm/arena.h"

enum {
    /* A group of more members has a hierarchy. In a smaller one each reads all others'
     * counters. */
    HIERARCHY_ABOVE = 16,
    /* Members directly below one: of its own cache, and as many of other caches. */
    MOST_BELOW = 16,
};

typedef struct {
    int above;                     /* -1 for member 0 */
    int below[2 * MOST_BELOW];     /* those of its cache first */
    int below_count;
    /* Of each member: the members of its subtree, with itself; the one directly below member
     * 0 in whose subtree it is; and its place there, if each follows the one above it. */
    int members[MAX_MEMBERS], top[MAX_MEMBERS], place[MAX_MEMBERS];
    int largest;                   /* the most members of a subtree below member 0 */
} hierarchy;

/* The same for all members but for `above` and `below`. */
void hierarchy_make(hierarchy *h, const uint8_t *cache_of, int rank, int size);

#endif
