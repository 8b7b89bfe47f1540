/* Operations on elements: one table of functions for each level of SIMD.
 *
 * All levels give the same bits. 16-bit floats accumulate in float, everything else in its
 * own type. `finish` and `combine_last` turn sums into elements again, with canonical NaNs
 * and bools of 0 or 1.
 */
#ifndef POPDIST_KERNELS_H
#define POPDIST_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    FLOAT32,
    FLOAT64,
    FLOAT16,
    BFLOAT16,
    INT8,
    INT16,
    INT32,
    INT64,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    BOOL,
    DTYPES,
} dtype;

typedef enum { SUM, MIN, MAX, PROD, REDUCTIONS, MEAN = REDUCTIONS } reduction;

enum {
    /* Partial sums stay in the first-level cache: a few of these fit. */
    SCRATCH_BYTES = 4096,
    SCRATCH_BLOCKS = 20,
};

typedef void combine_fn(void *to, const void *a, const void *b, size_t n);
typedef void finish_fn(void *to, const void *from, size_t n, uint64_t divisor);
typedef void widen_fn(void *to, const void *from, size_t n);
typedef void copy_fn(void *to, const void *from, size_t bytes);
typedef void stream_fn(void *to, const void *from, size_t bytes, const void *ahead);

typedef struct {
    const char *name;
    /* Accumulated a and b to accumulated. `to` may be a or b. */
    combine_fn *combine[DTYPES][REDUCTIONS];
    /* Accumulated a and b to elements. */
    combine_fn *combine_last[DTYPES][REDUCTIONS];
    /* The same two for elements a and b, in one pass. NULL if elements need no widening,
     * or if one pass takes as long as widening first. */
    combine_fn *combine_elements[DTYPES][REDUCTIONS];
    combine_fn *combine_elements_last[DTYPES][REDUCTIONS];
    /* Accumulated to elements, divided unless the divisor is 1. */
    finish_fn *finish[DTYPES];
    /* Elements to accumulated; NULL where they are the same. */
    widen_fn *widen[DTYPES];
    /* Copy many lines that have been in another core's caches, by vectors: the C library
     * uses one string instruction, which is slower in this case. */
    copy_fn *copy;
    /* Copy past the caches, and meanwhile fetch as many bytes from `ahead`, unless it
     * is NULL. Call stores_done() before any step that publishes it. */
    stream_fn *stream;
} kernels;

/* The table of that name, or for NULL the best one for this processor. NULL if the
 * processor or this build does not support the level. */
const kernels *kernels_named(const char *name);

/* Make streamed stores visible to every thread that sees the next atomic store. */
void stores_done(void);

/* Round to nearest and keep subnormals, whatever the program has set. */
uint64_t float_mode_enter(void);
void float_mode_leave(uint64_t saved);

size_t element_bytes(dtype t);
size_t accumulated_bytes(dtype t);

#endif
