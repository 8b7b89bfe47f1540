/* AVX2 and F16C: Intel from 2013, AMD from 2015. */
#if defined __x86_64__
#if defined __clang__
#pragma clang attribute push(__attribute__((target("avx2,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c")
#endif
#include <immintrin.h>
#include <stdint.h>

#define LEVEL avx2
#define LEVEL_NAME "avx2"
#define STREAM_BYTES 32
#define stream_vector(t, f)                                                        \
    _mm256_stream_si256((__m256i *)(void *)(t),                                    \
                        _mm256_loadu_si256((const __m256i *)(const void *)(f)))
#define HALVES_BY_VECTOR
#define HALVES 8

static inline void widen_vector(float *t, const uint16_t *f)
{
    _mm256_storeu_ps(t,
                     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)f)));
}

static inline void narrow_vector(uint16_t *t, const float *f)
{
    __m256 v = _mm256_loadu_ps(f);
    __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
    v = _mm256_blendv_ps(v, _mm256_set1_ps(__builtin_nanf("")), nan);
    _mm_storeu_si128((__m128i *)(void *)t,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernels/loops.h"
#if defined __clang__
#pragma clang attribute pop
#endif
#else
typedef int not_for_this_processor; /* a C file may not be empty */
#endif
