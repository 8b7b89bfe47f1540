/* 64-bit Arm: all these processors have NEON and convert halves. */
#if defined __aarch64__
#include <arm_neon.h>
#include <stdint.h>

#define LEVEL neon
#define LEVEL_NAME "neon"
#define HALVES_BY_VECTOR
#define HALVES 4

static inline void widen_vector(float *t, const uint16_t *f)
{
    vst1q_f32(t, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(f))));
}

static inline void narrow_vector(uint16_t *t, const float *f)
{
    float32x4_t v = vld1q_f32(f);
    v = vbslq_f32(vceqq_f32(v, v), v, vdupq_n_f32(__builtin_nanf("")));
    vst1_u16(t, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}

#include "kernels/loops.h"
#else
typedef int not_for_this_processor; /* a C file may not be empty */
#endif
