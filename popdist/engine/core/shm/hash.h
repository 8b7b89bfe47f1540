/* The hash function for all values that members compare. */
#ifndef POPDIST_HASH_H
#define POPDIST_HASH_H

#include <stddef.h>
#include <stdint.h>

/* Return the hash of the numbers in `hash`, followed by one more. */
static inline uint64_t hash_with(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ (hash >> 32);
}

/* Return the hash of some more numbers. */
static inline uint64_t hash_with_all(uint64_t hash, const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        hash = hash_with(hash, values[i]);
    return hash;
}

#endif
