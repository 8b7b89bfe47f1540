/* Ranges of elements or bytes: the shares of members, and blocks. */
#ifndef POPDIST_RANGES_H
#define POPDIST_RANGES_H

#include "shm/arena.h"

typedef struct {
    uint64_t begin, end;
} range;

static inline uint64_t range_length(range c)
{
    return c.end - c.begin;
}

static inline uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static inline uint64_t most(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Return the share of one of `size` members: whole units, except for the last one. */
static inline range range_of_share(uint64_t count, int size, int member, uint64_t unit)
{
    uint64_t share = round_up((count + (uint64_t)size - 1) / (uint64_t)size, unit);
    uint64_t begin = share * (uint64_t)member, end = begin + share;
    return (range){begin < count ? begin : count, end < count ? end : count};
}

/* Return block `number` of blocks of `length`, empty after the last one. */
static inline range range_of_block(uint64_t count, uint64_t length, uint64_t number)
{
    uint64_t begin = number * length;
    begin = begin < count ? begin : count;
#ifdef BREAK_BOUNDS
    return (range){begin, begin + length};
#else
    return (range){begin, count - begin < length ? count : begin + length};
#endif
}

#endif
