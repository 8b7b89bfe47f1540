/* AVX-512 as servers have it since 2017: F, BW, DQ and VL. */
#if defined __x86_64__
#if defined __clang__
#pragma clang attribute push(                                                      \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c"))),            \
    apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,prefer-vector-width=512")
#endif
#include <immintrin.h>
#include <stdint.h>

#define LEVEL avx512
#define LEVEL_NAME "avx512"
#define STREAM_BYTES 64
#define stream_vector(t, f)                                                        \
    _mm512_stream_si512((void *)(t), _mm512_loadu_si512((const void *)(f)))
#define HALVES_BY_VECTOR
#define HALVES 16

static inline void widen_vector(float *t, const uint16_t *f)
{
    _mm512_storeu_ps(
        t, _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)f)));
}

static inline void narrow_vector(uint16_t *t, const float *f)
{
    __m512 v = _mm512_loadu_ps(f);
    __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    v = _mm512_mask_mov_ps(v, nan, _mm512_set1_ps(__builtin_nanf("")));
    _mm256_storeu_si256((__m256i *)(void *)t,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

#include "kernels/loops.h"
#if defined __clang__
#pragma clang attribute pop
#endif
#else
typedef int not_for_this_processor; /* a C file may not be empty */
#endif
