/* The loops of one level: LEVEL.c includes them, with options for the compiler. No
 * include guard: each inclusion makes another set of functions. */
#include "kernels/kernels.h"

#include <string.h>

#define GLUED(name, level) name##_##level
#define GLUE(name, level) GLUED(name, level)
#define FN(name) GLUE(name, LEVEL)

/* Each element depends on its own index only, also where `to` is `a` or `b`. */
#if defined __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define EACH(n) INDEPENDENT for (size_t i = 0; i < (n); i++)

static inline float FN(clean_f32)(float v)
{
    return v == v ? v : __builtin_nanf("");
}

static inline double FN(clean_f64)(double v)
{
    return v == v ? v : __builtin_nan("");
}

static inline uint32_t FN(bits)(float v)
{
    uint32_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static inline float FN(value)(uint32_t b)
{
    float v;
    memcpy(&v, &b, sizeof v);
    return v;
}

static inline float FN(value_of_half)(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    uint32_t normal = (rest << 13) + 0x38000000 + (rest >= 0x7c00 ? 0x38000000 : 0);
    uint32_t subnormal = FN(bits)((float)rest * 0x1p-24f);
    return FN(value)(sign | (rest < 0x400 ? subnormal : normal));
}

static inline uint16_t FN(half_of)(float v)
{
    uint32_t b = FN(bits)(v), sign = (b >> 16) & 0x8000, rest = b & 0x7fffffff;
    uint32_t moved = rest - 0x38000000;
    uint32_t normal = (moved + 0xfff + ((moved >> 13) & 1)) >> 13;
    /* The steps between subnormal halves have the size of the steps between floats near
     * 0.5. */
    uint32_t subnormal = FN(bits)(FN(value)(rest) + 0.5f) - 0x3f000000;
    uint32_t half = rest < 0x38800000 ? subnormal : normal;
    half = rest >= 0x47800000 ? 0x7c00 : half;
    return rest > 0x7f800000 ? 0x7e00 : (uint16_t)(sign | half);
}

static inline float FN(value_of_bf16)(uint16_t bits)
{
    return FN(value)((uint32_t)bits << 16);
}

static inline uint16_t FN(bf16_of)(float v)
{
    uint32_t b = FN(bits)(v);
    uint32_t rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
    return (b & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (uint16_t)rounded;
}

/* Minimum and maximum of IEEE 754-2019, whatever the order: -0.0 is less than 0.0, and a
 * NaN gives a NaN. Both selections are the same number unless the two are equal, when
 * only signs of zeros can differ, or one is a NaN: then they are one operand each. */
#define FLOAT_EXTREMES(suffix, type, word)                                         \
    static inline type FN(min_of_##suffix)(type a, type b)                         \
    {                                                                              \
        type one = a < b ? a : b, other = b < a ? b : a;                           \
        word x, y;                                                                 \
        memcpy(&x, &one, sizeof x);                                                \
        memcpy(&y, &other, sizeof y);                                              \
        x |= y;                                                                    \
        memcpy(&one, &x, sizeof x);                                                \
        return one;                                                                \
    }                                                                              \
    static inline type FN(max_of_##suffix)(type a, type b)                         \
    {                                                                              \
        type one = a > b ? a : b, other = b > a ? b : a;                           \
        word x, y;                                                                 \
        memcpy(&x, &one, sizeof x);                                                \
        memcpy(&y, &other, sizeof y);                                              \
        x = __builtin_isunordered(a, b) ? x | y : x & y;                                    \
        memcpy(&one, &x, sizeof x);                                                \
        return one;                                                                \
    }

FLOAT_EXTREMES(f32, float, uint32_t)
FLOAT_EXTREMES(f64, double, uint64_t)

/* For each integer type: its name, code and type, the unsigned type for combining (so
 * that it wraps), and the type for dividing. */
#define EACH_INTEGER(with)                                                         \
    with(i8, INT8, int8_t, uint32_t, int64_t)                                      \
    with(i16, INT16, int16_t, uint32_t, int64_t)                                   \
    with(i32, INT32, int32_t, uint32_t, int64_t)                                   \
    with(i64, INT64, int64_t, uint64_t, int64_t)                                   \
    with(u8, UINT8, uint8_t, uint32_t, uint64_t)                                   \
    with(u16, UINT16, uint16_t, uint32_t, uint64_t)                                \
    with(u32, UINT32, uint32_t, uint32_t, uint64_t)                                \
    with(u64, UINT64, uint64_t, uint64_t, uint64_t)

#define SUM_OF(u, a, b) ((u)(a) + (u)(b))
#define PROD_OF(u, a, b) ((u)(a) * (u)(b))
#define MIN_OF(u, a, b) ((b) < (a) ? (b) : (a))
#define MAX_OF(u, a, b) ((b) > (a) ? (b) : (a))
#define MIN_F32(u, a, b) FN(min_of_f32)((a), (b))
#define MAX_F32(u, a, b) FN(max_of_f32)((a), (b))
#define MIN_F64(u, a, b) FN(min_of_f64)((a), (b))
#define MAX_F64(u, a, b) FN(max_of_f64)((a), (b))
#define OR_OF(u, a, b) ((a) != 0 || (b) != 0)
#define AND_OF(u, a, b) ((a) != 0 && (b) != 0)

#define COMBINE(name, type, wide, of)                                              \
    static void FN(name)(void *to, const void *a, const void *b, size_t n)         \
    {                                                                              \
        type *t = to;                                                              \
        const type *x = a, *y = b;                                                 \
        EACH(n) t[i] = (type)of(wide, x[i], y[i]);                                 \
    }

#define COMBINE_ALL(name, type, wide, min_of, max_of)                              \
    COMBINE(sum_##name, type, wide, SUM_OF)                                        \
    COMBINE(min_##name, type, wide, min_of)                                        \
    COMBINE(max_##name, type, wide, max_of)                                        \
    COMBINE(prod_##name, type, wide, PROD_OF)

COMBINE_ALL(f32, float, float, MIN_F32, MAX_F32)
COMBINE_ALL(f64, double, double, MIN_F64, MAX_F64)
#define COMBINE_INTEGER(name, code, type, wide, widest)                            \
    COMBINE_ALL(name, type, wide, MIN_OF, MAX_OF)
EACH_INTEGER(COMBINE_INTEGER)
COMBINE(or_bool, uint8_t, uint8_t, OR_OF)
COMBINE(and_bool, uint8_t, uint8_t, AND_OF)

#define LAST(name, type, from, of, made)                                           \
    static void FN(name)(void *to, const void *a, const void *b, size_t n)         \
    {                                                                              \
        type *t = to;                                                              \
        const from *x = a, *y = b;                                                 \
        EACH(n) t[i] = FN(made)(of(from, x[i], y[i]));                             \
    }

#define LAST_ALL(name, type, from, made, min_of, max_of)                           \
    LAST(last_sum_##name, type, from, SUM_OF, made)                                \
    LAST(last_min_##name, type, from, min_of, made)                                \
    LAST(last_max_##name, type, from, max_of, made)                                \
    LAST(last_prod_##name, type, from, PROD_OF, made)

LAST_ALL(f32, float, float, clean_f32, MIN_F32, MAX_F32)
LAST_ALL(f64, double, double, clean_f64, MIN_F64, MAX_F64)
LAST_ALL(bf16, uint16_t, float, bf16_of, MIN_F32, MAX_F32)

/* --- Two bfloat16, without a pass that widens them. */

#define COMBINE_BF16(name, to_type, made, of)                                      \
    static void FN(name)(void *to, const void *a, const void *b, size_t n)         \
    {                                                                              \
        to_type *t = to;                                                           \
        const uint16_t *x = a, *y = b;                                             \
        EACH(n)                                                                    \
            t[i] = made(of(float, FN(value_of_bf16)(x[i]), FN(value_of_bf16)(y[i]))); \
    }

#define COMBINE_BF16_ALL(prefix, to_type, made)                                    \
    COMBINE_BF16(prefix##sum_bf16, to_type, made, SUM_OF)                          \
    COMBINE_BF16(prefix##min_bf16, to_type, made, MIN_F32)                         \
    COMBINE_BF16(prefix##max_bf16, to_type, made, MAX_F32)                         \
    COMBINE_BF16(prefix##prod_bf16, to_type, made, PROD_OF)

COMBINE_BF16_ALL(, float, )
COMBINE_BF16_ALL(last_of_, uint16_t, FN(bf16_of))

/* --- Halves: by the processor's own instructions if it has them, else as above. */

#if defined HALVES_BY_VECTOR /* HALVES, widen_vector and narrow_vector are defined */
static void FN(widen_half)(void *to, const void *from, size_t n)
{
    float *t = to;
    const uint16_t *f = from;
    size_t i = 0;
    for (; i + HALVES <= n; i += HALVES)
        widen_vector(t + i, f + i);
    for (; i < n; i++)
        t[i] = FN(value_of_half)(f[i]);
}

static void FN(narrow_half)(uint16_t *t, const float *f, size_t n)
{
    size_t i = 0;
    for (; i + HALVES <= n; i += HALVES)
        narrow_vector(t + i, f + i);
    for (; i < n; i++)
        t[i] = FN(half_of)(f[i]);
}
#else
static void FN(widen_half)(void *to, const void *from, size_t n)
{
    float *t = to;
    const uint16_t *f = from;
    EACH(n) t[i] = FN(value_of_half)(f[i]);
}

static void FN(narrow_half)(uint16_t *t, const float *f, size_t n)
{
    EACH(n) t[i] = FN(half_of)(f[i]);
}
#endif

/* The sum of a piece fits the first-level cache once more before it is narrowed. */
#define LAST_HALF(name, of)                                                        \
    static void FN(last_##name##_half)(void *to, const void *a, const void *b,     \
                                       size_t n)                                   \
    {                                                                              \
        enum { PIECE = 128 };                                                      \
        uint16_t *t = to;                                                          \
        const float *x = a, *y = b;                                                \
        float sum[PIECE];                                                          \
        for (size_t done = 0; done < n; done += PIECE) {                           \
            size_t m = n - done < PIECE ? n - done : PIECE;                        \
            EACH(m) sum[i] = of(float, x[done + i], y[done + i]);                  \
            FN(narrow_half)(t + done, sum, m);                                     \
        }                                                                          \
    }

LAST_HALF(sum, SUM_OF)
LAST_HALF(min, MIN_F32)
LAST_HALF(max, MAX_F32)
LAST_HALF(prod, PROD_OF)

static void FN(widen_bf16)(void *to, const void *from, size_t n)
{
    float *t = to;
    const uint16_t *f = from;
    EACH(n) t[i] = FN(value_of_bf16)(f[i]);
}

/* --- From accumulated to elements. */

#define FINISH(name, type, from_type, made)                                        \
    static void FN(finish_##name)(void *to, const void *from, size_t n,            \
                                  uint64_t divisor)                                \
    {                                                                              \
        type *t = to;                                                              \
        const from_type *f = from;                                                 \
        from_type by = (from_type)divisor;                                         \
        if (divisor == 1)                                                          \
            EACH(n) t[i] = FN(made)(f[i]);                                         \
        else                                                                       \
            EACH(n) t[i] = FN(made)(f[i] / by);                                    \
    }

FINISH(f32, float, float, clean_f32)
FINISH(f64, double, double, clean_f64)
FINISH(bf16, uint16_t, float, bf16_of)

static void FN(finish_half)(void *to, const void *from, size_t n, uint64_t divisor)
{
    enum { PIECE = 128 };
    uint16_t *t = to;
    const float *f = from;
    float divided[PIECE], by = (float)divisor;
    if (divisor == 1) {
        FN(narrow_half)(t, f, n);
        return;
    }
    for (size_t done = 0; done < n; done += PIECE) {
        size_t m = n - done < PIECE ? n - done : PIECE;
        EACH(m) divided[i] = f[done + i] / by;
        FN(narrow_half)(t + done, divided, m);
    }
}

/* Division of integers truncates towards zero, as C's does. */
#define FINISH_INTEGER(name, code, type, wide, widest)                             \
    static void FN(finish_##name)(void *to, const void *from, size_t n,            \
                                  uint64_t divisor)                                \
    {                                                                              \
        type *t = to;                                                              \
        const type *f = from;                                                      \
        if (divisor == 1) {                                                        \
            memmove(t, f, n * sizeof *t);                                          \
            return;                                                                \
        }                                                                          \
        for (size_t i = 0; i < n; i++)                                             \
            t[i] = (type)((widest)f[i] / (widest)divisor);                         \
    }

EACH_INTEGER(FINISH_INTEGER)

static void FN(finish_bool)(void *to, const void *from, size_t n, uint64_t divisor)
{
    uint8_t *t = to;
    const uint8_t *f = from;
    (void)divisor; /* a bool has no mean */
    EACH(n) t[i] = f[i] != 0;
}

/* --- Copies. */

static void FN(copy)(void *to, const void *from, size_t bytes)
{
    unsigned char *t = to;
    const unsigned char *f = from;
    size_t whole = bytes & ~(size_t)255;
    for (size_t i = 0; i < whole; i += 256) {
        for (size_t line = i; line < i + 256; line += 64)
            memcpy(t + line, f + line, 64);
        /* Else compilers replace the loop by the C library's memcpy. */
        __asm__ __volatile__("" : : : "memory");
    }
    memcpy(t + whole, f + whole, bytes - whole);
}

static void FN(stream)(void *to, const void *from, size_t bytes, const void *ahead)
{
#if defined STREAM_BYTES /* and stream_vector is defined */
    unsigned char *t = to;
    const unsigned char *f = from, *next = ahead;
    size_t head = (size_t)(-(uintptr_t)t & 63);
    if (head > bytes)
        head = bytes;
    memcpy(t, f, head);
    t += head, f += head, bytes -= head;
    size_t whole = bytes & ~(size_t)63;
    for (size_t i = 0; next && i < whole; i += STREAM_BYTES) {
        __builtin_prefetch(next + i);
        stream_vector(t + i, f + i);
    }
    for (size_t i = 0; !next && i < whole; i += STREAM_BYTES)
        stream_vector(t + i, f + i);
    memcpy(t + whole, f + whole, bytes - whole);
#else
    (void)ahead; /* without such stores, the processor's own prefetching has to do */
    memcpy(to, from, bytes);
#endif
}

#define ROW(name)                                                                  \
    {                                                                              \
        FN(sum_##name), FN(min_##name), FN(max_##name), FN(prod_##name)            \
    }
#define LASTS(name)                                                                \
    {                                                                              \
        FN(last_sum_##name), FN(last_min_##name), FN(last_max_##name),             \
            FN(last_prod_##name)                                                   \
    }
#define LASTS_OF_ELEMENTS(name)                                                    \
    {                                                                              \
        FN(last_of_sum_##name), FN(last_of_min_##name), FN(last_of_max_##name),    \
            FN(last_of_prod_##name)                                                \
    }
#define BOOLS                                                                      \
    {                                                                              \
        FN(or_bool), FN(and_bool), FN(or_bool), FN(and_bool)                       \
    }

#define ROW_OF_INTEGER(name, code, type, wide, widest) [code] = ROW(name),
#define FINISH_OF_INTEGER(name, code, type, wide, widest) [code] = FN(finish_##name),

const kernels FN(kernels) = {
    .name = LEVEL_NAME,
    .combine = {EACH_INTEGER(ROW_OF_INTEGER)
                [FLOAT32] = ROW(f32),
                [FLOAT64] = ROW(f64),
                [FLOAT16] = ROW(f32),
                [BFLOAT16] = ROW(f32),
                [BOOL] = BOOLS},
    .combine_last = {EACH_INTEGER(ROW_OF_INTEGER)
                     [FLOAT32] = LASTS(f32),
                     [FLOAT64] = LASTS(f64),
                     [FLOAT16] = LASTS(half),
                     [BFLOAT16] = LASTS(bf16),
                     [BOOL] = BOOLS},
    .combine_elements = {[BFLOAT16] = ROW(bf16)},
    .combine_elements_last = {[BFLOAT16] = LASTS_OF_ELEMENTS(bf16)},
    .finish = {EACH_INTEGER(FINISH_OF_INTEGER)
               [FLOAT32] = FN(finish_f32),
               [FLOAT64] = FN(finish_f64),
               [FLOAT16] = FN(finish_half),
               [BFLOAT16] = FN(finish_bf16),
               [BOOL] = FN(finish_bool)},
    .widen = {[FLOAT16] = FN(widen_half), [BFLOAT16] = FN(widen_bf16)},
    .copy = FN(copy),
    .stream = FN(stream),
};
