/* The level that every processor of this architecture supports. */
#define LEVEL baseline
#define LEVEL_NAME "baseline"
#if defined __x86_64__
#include <emmintrin.h>
#define STREAM_BYTES 16
#define stream_vector(t, f)                                                        \
    _mm_stream_si128((__m128i *)(void *)(t),                                       \
                     _mm_loadu_si128((const __m128i *)(const void *)(f)))
#endif
#include "kernels/loops.h"
