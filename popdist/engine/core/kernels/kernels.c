#include "kernels/kernels.h"

#include <string.h>

#if defined __x86_64__
#include <emmintrin.h>
extern const kernels kernels_baseline, kernels_avx2, kernels_avx512;
#elif defined __aarch64__
extern const kernels kernels_baseline, kernels_neon;
#else
extern const kernels kernels_baseline;
#endif

static const struct {
    size_t element, accumulated;
} widths[DTYPES] = {
    [FLOAT32] = {4, 4}, [FLOAT64] = {8, 8}, [FLOAT16] = {2, 4}, [BFLOAT16] = {2, 4},
    [INT8] = {1, 1},    [INT16] = {2, 2},   [INT32] = {4, 4},   [INT64] = {8, 8},
    [UINT8] = {1, 1},   [UINT16] = {2, 2},  [UINT32] = {4, 4},  [UINT64] = {8, 8},
    [BOOL] = {1, 1},
};

size_t element_bytes(dtype t)
{
    return widths[t].element;
}

size_t accumulated_bytes(dtype t)
{
    return widths[t].accumulated;
}

#if defined __x86_64__
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f")
           && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
           && __builtin_cpu_supports("avx512vl");
}
#endif

const kernels *kernels_named(const char *name)
{
#if defined __x86_64__
    if (has_avx512() && (!name || !strcmp(name, "avx512")))
        return &kernels_avx512;
    if (has_avx2() && (!name || !strcmp(name, "avx2")))
        return &kernels_avx2;
#elif defined __aarch64__
    if (!name || !strcmp(name, "neon"))
        return &kernels_neon;
#endif
    return !name || !strcmp(name, "baseline") ? &kernels_baseline : NULL;
}

void stores_done(void)
{
#if defined __x86_64__
    _mm_sfence();
#endif
}

#if defined __x86_64__
/* All exceptions masked, rounding to nearest, no flush to zero. */
enum { PLAIN_MODE = 0x1f80, MODE_BITS = 0xe040 };

uint64_t float_mode_enter(void)
{
    uint32_t saved = _mm_getcsr();
    if (saved & MODE_BITS)
        _mm_setcsr(PLAIN_MODE);
    return saved;
}

void float_mode_leave(uint64_t saved)
{
    if (saved & MODE_BITS)
        _mm_setcsr((uint32_t)saved);
}
#elif defined __aarch64__
/* Rounding mode, flush to zero (also of halves), alternative halves, default NaN. */
#define MODE_BITS (UINT64_C(0x1fc) << 18)

static void set_mode(uint64_t mode)
{
    __asm__ __volatile__("msr fpcr, %0" : : "r"(mode));
}

uint64_t float_mode_enter(void)
{
    uint64_t saved;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(saved));
    if (saved & MODE_BITS)
        set_mode(saved & ~MODE_BITS);
    return saved;
}

void float_mode_leave(uint64_t saved)
{
    if (saved & MODE_BITS)
        set_mode(saved);
}
#else
uint64_t float_mode_enter(void)
{
    return 0;
}

void float_mode_leave(uint64_t saved)
{
    (void)saved;
}
#endif
