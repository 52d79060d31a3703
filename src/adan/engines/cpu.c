/* One step of Adan on the CPU, for all tensors of an optimizer in one call. Plain C11 on raw pointers: it knows nothing
 * of Python or PyTorch. Coefficients come from adan/scalars.py; this file only multiplies with them.
 *
 * Every operation is a single IEEE addition, multiplication, division or square root (the file is compiled with
 * -ffp-contract=off), in the order of engines/loop.py. So results are the same bits on AVX-512, AVX2, SSE2 and NEON,
 * in the vector body and in the tail of a loop, for any number of threads. A step of fp32 states moves 44 bytes and
 * computes about 25 operations for a parameter: fused multiply-adds would save little.
 */
#define _POSIX_C_SOURCE 200809L

#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define EXPORT __attribute__((visibility("default")))
#define INLINE static inline __attribute__((always_inline))

/* ---- types ------------------------------------------------------------------------------------------------------ */

enum { F32, F64, BF16, F16, TYPES, CODES8 = TYPES, CODES4 };

typedef uint16_t bf16_t;
typedef uint16_t f16_t;

INLINE float as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
INLINE uint32_t as_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

INLINE float load_f32(float x) { return x; }
INLINE float store_f32(float x) { return x; }
INLINE double load_f64(double x) { return x; }
INLINE double store_f64(double x) { return x; }

INLINE float load_bf16(bf16_t x) { return as_float((uint32_t)x << 16); }

/* Cut off after an addition to the lower half. A NaN stays one: its payload could lie wholly in the bits cut off. */
INLINE bf16_t round_bf16(float x, uint32_t word) {
    uint32_t bits = as_bits(x), rounded = (bits + (word & 0xffff)) >> 16;
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : (bf16_t)rounded;
}

/* To nearest, ties to even. */
INLINE bf16_t store_bf16(float x) { return round_bf16(x, 0x7fff + (as_bits(x) >> 16 & 1)); }

/* By integers and two multiplications, as not every compiler has _Float16, and GCC 12 does not vectorize it.
 * 2^112 moves the exponent's bias from 15 to 127, which also makes normal numbers of fp16's subnormal ones. */
INLINE float load_f16(f16_t x) {
    uint32_t magnitude = (uint32_t)(x & 0x7fff) << 13, sign = (uint32_t)(x & 0x8000) << 16;
    uint32_t scaled = as_bits(as_float(magnitude) * 0x1p112f);
    return as_float((magnitude >= 0x0f800000 ? magnitude | 0x7f800000 : scaled) | sign);
}

/* The addition of a power of two that is 2^13 units above x's last fp16 place rounds to that place: to nearest, ties to
 * even, by the hardware. The two factors make what is too large for fp16 an infinity first. */
INLINE f16_t store_f16(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, twice = bits << 1;
    uint32_t exponent = twice & 0xff000000;
    exponent = exponent < 0x71000000 ? 0x71000000 : exponent;
    float magnitude = as_float(bits & 0x7fffffff) * 0x1p112f * 0x1p-110f;
    uint32_t rounded = as_bits(as_float((exponent >> 1) + 0x07800000) + magnitude);
    uint32_t half = (rounded >> 13 & 0x7c00) + (rounded & 0x0fff);
    return (f16_t)(sign | (twice > 0xff000000 ? 0x7e00 : half));
}

INLINE float root_float(float x) { return sqrtf(x); }
INLINE double root_double(double x) { return sqrt(x); }

/* ---- one stretch of one tensor ---------------------------------------------------------------------------------- */

/* Tables are arrays of these structs, of 8-byte fields. Each list is written once: it makes the struct, and the text by
 * which cpu.py sees that both mean the same. The scalars and the displacement are those of adan/scalars.py. */
#define SCALARS(X)                                                                                                     \
    X(double, grad_scale) X(double, has_prev) X(double, lookahead) X(double, w_m) X(double, w_v) X(double, w_n)        \
    X(double, step_m) X(double, step_v) X(double, root_n) X(double, eps) X(double, keep) X(double, shrink)

#define DISPLACEMENT(X)                                                                                                \
    X(double, theta) X(double, step) X(double, grad) X(double, prev_m) X(double, prev_v) X(double, prev_grad)          \
    X(double, prev_root) X(double, prev_eps)

/* Where a tensor and its states begin, all in one dense layout.
 * grad: NULL, and the tensor stays as it is.
 * exp_avg_diff: NULL in the coupled form.
 * averaging: NULL, or the 4-bit format's factor A: g − A·v is stored for v.
 * exponents: of quantized states: of each block those of the four states.
 * compensation: NULL, or what rounding the parameter has cut off, in its type.
 * stochastic, rng_offset, cycle: whether the parameter is rounded so; where its random bits start; the restarts so far.
 * scalars: which of the sets of coefficients. */
#define TENSOR(X)                                                                                                      \
    X(char *, param) X(const char *, grad) X(char *, exp_avg) X(char *, exp_avg_diff) X(char *, exp_avg_sq)            \
    X(char *, prev_grad) X(double *, step) X(double *, averaging) X(uint8_t *, exponents) X(char *, compensation)      \
    X(int64_t, size) X(int64_t, type) X(int64_t, grad_type) X(int64_t, state_type) X(int64_t, stochastic)              \
    X(int64_t, rng_offset) X(int64_t, cycle) X(int64_t, scalars)

#define FIELD(type, name) type name;
#define NAME(type, name) " " #name

struct scalars { SCALARS(FIELD) };
struct displacement { DISPLACEMENT(FIELD) };
struct tensor { TENSOR(FIELD) };

/* Elements between two prefetches of each array, and how many bytes ahead these look. Processors' own prefetchers stop
 * at the end of a page, which six arrays reach every 1024 elements. One Sapphire Rapids core, 25 M fp32 parameters,
 * fastest of 13 in turns: blocks of 32, 64, 128, 512 elements 33, 36, 38, 45 ms. In other runs of 15, no prefetch took
 * 1.03 to 1.08 times as long as blocks of 64, and stores around the cache (non-temporal) 1.85 times. */
#define BLOCK 32
#define AHEAD 512

/* No element of an array is another's: the loop below it may be done in vectors. Pointers that are `restrict` say the
 * same, but GCC 12 forgets it when it inlines. */
#if defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

#define LINES(pointer, write)                                                                                          \
    for (size_t line = 0; line < BLOCK * sizeof *(pointer); line += 64)                                                \
    __builtin_prefetch((const char *)((pointer) + i) + AHEAD + line, write)

/* One element, from expressions for its states before the step; of n, a step of quantized states leaves the root. */
#define ELEMENT(T, C, k, OLD_M, OLD_V, OLD_N, BEFORE)                                                                  \
    C old_m = OLD_M, old_v = OLD_V, old_n = OLD_N, before = BEFORE;                                                    \
    C g = load_##T(grad[k]) * grad_scale;                                                                              \
    C d = has_prev * (g - before);                                                                                     \
    C m_ = old_m + w_m * (g - old_m);                                                                                  \
    C v_ = COUPLED ? 0 : old_v + w_v * (d - old_v);                                                                    \
    C ahead = g + lookahead * d;                                                                                       \
    C n_ = old_n + w_n * (ahead * ahead - old_n);                                                                      \
    m_ = COUPLED ? m_ + w_d * d : m_;                                                                                  \
    C u = COUPLED ? step_m * m_ : step_m * m_ + step_v * v_;                                                           \
    C root = root_##C(n_);                                                                                             \
    C theta = shrink * (keep * load_##T(param[k]) - u / (root_n * root + eps));                                        \
    m[k] = m_;                                                                                                         \
    if (!COUPLED)                                                                                                      \
        v[k] = v_;                                                                                                     \
    n[k] = QUANTIZED ? root : n_;                                                                                      \
    prev[k] = g;                                                                                                       \
    param[k] = store_##T(theta);

#define COEFFICIENTS(C)                                                                                                \
    const C grad_scale = (C)s->grad_scale, has_prev = (C)s->has_prev, lookahead = (C)s->lookahead;                     \
    const C w_m = (C)s->w_m, w_v = (C)s->w_v, w_n = (C)s->w_n, w_d = (C)(s->lookahead * s->w_v);                       \
    const C step_m = (C)s->step_m, step_v = (C)s->step_v, root_n = (C)s->root_n, eps = (C)s->eps;                      \
    const C keep = (C)s->keep, shrink = (C)s->shrink;

#define PLAIN(T, C, k) ELEMENT(T, C, k, m[k], COUPLED ? 0 : v[k], n[k], prev[k])

/* A call with COUPLED, the last argument, as a constant, so that either form is a loop without a branch. */
#define EITHER_FORM(v, F, ...) ((v) ? F(__VA_ARGS__, 0) : F(__VA_ARGS__, 1))

/* T: the type of a parameter and its gradient; C: of the arithmetic and the states. */
#define STRETCH(T, S, C)                                                                                               \
    INLINE void stretch_##T(const struct tensor *x, const struct scalars *s, int64_t start, int64_t size,              \
                            const int COUPLED) {                                                                       \
        enum { QUANTIZED = 0 };                                                                                        \
        S *param = (S *)x->param + start;                                                                              \
        const S *grad = (const S *)x->grad + start;                                                                    \
        C *m = (C *)x->exp_avg + start, *n = (C *)x->exp_avg_sq + start;                                               \
        C *v = (C *)x->exp_avg_diff + (COUPLED ? 0 : start), *prev = (C *)x->prev_grad + start;                        \
        COEFFICIENTS(C)                                                                                                \
        int64_t i = 0;                                                                                                 \
        for (; i + BLOCK <= size; i += BLOCK) {                                                                        \
            LINES(param, 1);                                                                                           \
            LINES(grad, 0);                                                                                            \
            LINES(m, 1);                                                                                               \
            if (!COUPLED)                                                                                              \
                LINES(v, 1);                                                                                           \
            LINES(n, 1);                                                                                               \
            LINES(prev, 1);                                                                                            \
            INDEPENDENT for (int64_t k = i; k < i + BLOCK; k++) {                                                      \
                PLAIN(T, C, k)                                                                                         \
            }                                                                                                          \
        }                                                                                                              \
        INDEPENDENT for (; i < size; i++) {                                                                            \
            PLAIN(T, C, i)                                                                                             \
        }                                                                                                              \
    }

STRETCH(f32, float, float)
STRETCH(f64, double, double)
STRETCH(bf16, bf16_t, float)
STRETCH(f16, f16_t, float)

/* ---- states in 4, 8 or 16 bits, weights that do not stall: the codes, random bits and roundings of adan/lowbit.py */

/* Elements that share exponents, and how many are worked on at a time: their arrays stay in the cache, and each block
 * prefetches what lies one SPAN ahead. One Neoverse-N1 core, 25 M fp32 parameters, fastest of 3: 6.9 ns per parameter
 * in 8 bits, as when all of it is in the cache; 7.1 without prefetches, 7.9 with those of a whole SPAN at once.
 *
 * What limits a quantized step is the number of vector instructions. GCC 12 makes 101 for 4 elements on a Neoverse-N1:
 * 31 of the step itself, 26 to decode, 40 to encode and 4 for random bits; at 2 per cycle these take 50 cycles
 * (measured: 68), and a step of fp32 states takes 25. LLVM's model of the same loops says 6 cycles for one element with
 * AVX2 (Zen 3) and 5 with AVX-512 (Ice Lake), which is about what reading and writing fp32 states takes there. */
#define SHARED 32
#define SPAN 256

/* The columns of the exponents. */
enum { M, V, N, G, STATES };

/* How far a code is shifted, the code of 0, whose float is δ too, and its width if its highest bit is a sign. */
#define CODES(X)                                                                                                       \
    X(SIGNED, 18, 3940, 8) X(ROOT, 17, 7878, 0) X(SIGNED6, 20, 986, 6) X(ROOT6, 19, 1971, 0) X(SIGNED4, 21, 503, 4)
#define CODE(name, shift, base, width) static const struct code name = {shift, base, width};
#define CODE_TEXT(name, shift, base, width) " " #shift " " #base

struct code { int shift, base, width; };
CODES(CODE)

/* What makes the random words of four neighbors of one hash. */
#define SPREAD(X) X(0x1) X(0x2265b147) X(0x91b7584b) X(0xd8f16ab1)
#define FACTOR(x) x,
#define FACTOR_TEXT(x) " " #x

/* What is added to all of them in each step and after each restart, and what makes the word of a weight. */
#define ADVANCE 0x9f9f9f9f
#define ADVANCE_CYCLE 0xc2c2c2c2
#define OF_WEIGHT 0x9e37b02f

#define TEXT(x) #x
#define VALUE(x) " " TEXT(x)

/* cpu.py compares this with what it takes the interface to be, before it calls anything else. */
EXPORT const char *adan_cpu_interface(void) {
    return "tensor:" TENSOR(NAME) " scalars:" SCALARS(NAME) " displacement:" DISPLACEMENT(NAME) " codes:" CODES(
        CODE_TEXT) VALUE(SHARED) SPREAD(FACTOR_TEXT) VALUE(ADVANCE) VALUE(ADVANCE_CYCLE) VALUE(OF_WEIGHT);
}

INLINE uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352d;
    x = (x ^ x >> 15) * 0x846ca68b;
    return x ^ x >> 16;
}

/* The random words of SPAN elements: one hash serves four neighbors, a multiplication each makes four words of it. */
INLINE void random_words(uint32_t *words, uint32_t key, uint32_t moved) {
    static const uint32_t spread[] = {SPREAD(FACTOR)};
    uint32_t hashes[SPAN / 4];
    for (int j = 0; j < SPAN / 4; j++)
        hashes[j] = mix(key + (uint32_t)j);
    for (int j = 0; j < SPAN / 4; j++)
        for (int k = 0; k < 4; k++)
            words[4 * j + k] = hashes[j] * spread[k] + moved;
}

/* The random bits of a state are the element's word, rotated by a byte each. */
INLINE uint32_t random_bits(uint32_t word, int state) {
    return state == M ? word : word << 8 * state | word >> (32 - 8 * state);
}

/* x plus the upper `count` of the low 24 random bits of a state; few vector units rotate, but many shift and add. */
INLINE uint32_t randomized(uint32_t x, uint32_t word, const int state, const int count) {
    x += state == G ? 0 : word << (8 + 8 * state) >> (32 - count);
    return x + (state == M ? 0 : word >> (56 - 8 * state - count));
}

/* Codes, as in adan/lowbit.py, but as much as possible in 16 or 8 bits, where a vector holds two or four times as many
 * elements: every δ has zeros in its lower half, and of a block's largest element only the exponent is looked for. */

INLINE float decoded(uint8_t code, float scale, const struct code c) {
    const uint32_t delta = (uint32_t)c.base << c.shift;
    const uint8_t highest = c.width ? 1 << (c.width - 1) : 0;
    uint8_t magnitude = c.width ? code & (highest - 1) : code, minus = code & highest;
    uint16_t upper = (uint16_t)((uint16_t)(magnitude << (c.shift - 16)) + (uint16_t)(delta >> 16));
    uint16_t sign = (uint16_t)(minus << (16 - c.width));
    float value = (as_float((uint32_t)upper << 16) - as_float(delta)) * scale;
    return as_float(as_bits(value) | (uint32_t)sign << 16);
}

INLINE float scale_of(uint8_t exponent) { return as_float((uint32_t)exponent << 23); }

INLINE uint8_t encoded(float value, float scale, uint32_t word, const int state, const struct code c) {
    const float delta = as_float((uint32_t)c.base << c.shift);
    uint32_t bits = randomized(as_bits(fabsf(value) * scale + delta), word, state, c.shift);
    uint16_t upper = (uint16_t)(bits >> 16), own = (uint16_t)(as_bits(value) >> 16);
    uint8_t code = (uint8_t)((uint8_t)(upper >> (c.shift - 16)) - (uint8_t)c.base);
    uint8_t sign = (uint8_t)(own >> 8) & 128, exponent = (uint8_t)(own >> 7);
    uint8_t least = exponent > 1 ? 1 : exponent; /* a root that became 0 would be divided by */
    return c.width ? code | sign >> (8 - c.width) : code > least ? code : least;
}

INLINE void decode(float *to, const uint8_t *codes, const uint8_t *exponents, int64_t blocks, const int state,
                   const struct code c) {
    for (int64_t i = 0; i < blocks; i++, to += SHARED, codes += SHARED) {
        const float scale = scale_of(exponents[i * STATES + state]);
        INDEPENDENT for (int k = 0; k < SHARED; k++) {
            float value = decoded(codes[k], scale, c);
            to[k] = state == N ? value * value : value;
        }
    }
}

INLINE void encode(uint8_t *codes, uint8_t *exponents, const float *values, const uint32_t *words, int64_t blocks,
                   const int state, const struct code c) {
    const int random_state = c.width == 4 ? G : state; /* V is read from both: the same random bits */
    float scales[SPAN / SHARED];
    for (int64_t i = 0; i < blocks; i++) { /* not in the loop below, which would wait for it */
        uint8_t largest = 0;
        for (int k = 0; k < SHARED; k++) {
            uint8_t exponent = (uint8_t)((uint16_t)(as_bits(values[i * SHARED + k]) >> 16) >> 7);
            largest = exponent > largest ? exponent : largest;
        }
        const int finite = largest < 253; /* what is not finite stays so */
        exponents[i * STATES + state] = finite ? (uint8_t)(largest + 1) : 255;
        scales[i] = as_float(finite ? (253u - largest) << 23 : 0);
    }
    for (int64_t i = 0; i < blocks; i++, values += SHARED, words += SHARED, codes += SHARED) {
        const float scale = scales[i];
        INDEPENDENT for (int k = 0; k < SHARED; k++)
            codes[k] = encoded(values[k], scale, words[k], random_state, c);
    }
}

/* X of each state and its code, which are constants to it. */
#define EACH_CODE(four, X)                                                                                             \
    if (four) {                                                                                                        \
        X(M, SIGNED6) X(V, SIGNED4) X(N, ROOT6) X(G, SIGNED4)                                                          \
    } else {                                                                                                           \
        X(M, SIGNED) X(V, SIGNED) X(N, ROOT) X(G, SIGNED)                                                              \
    }

/* The loop of ELEMENTs from codes to fp32. `x` is of fp32, whole blocks of it; `per` is 1 / A. */
INLINE void step_codes(const struct tensor *x, uint8_t *const codes[STATES], const uint8_t *exponents,
                       const struct scalars *s, float per, int64_t blocks, const int FOUR, const int COUPLED) {
    enum { QUANTIZED = 1 };
    const struct code of_m = FOUR ? SIGNED6 : SIGNED, of_n = FOUR ? ROOT6 : ROOT, c = FOUR ? SIGNED4 : SIGNED;
    COEFFICIENTS(float)
    for (int64_t i = 0; i < blocks; i++, exponents += STATES) {
        const int64_t at = i * SHARED;
        const float *grad = (const float *)x->grad + at;
        float *param = (float *)x->param + at, *m = (float *)x->exp_avg + at, *n = (float *)x->exp_avg_sq + at;
        float *v = COUPLED ? NULL : (float *)x->exp_avg_diff + at, *prev = (float *)x->prev_grad + at;
        const uint8_t *in_m = codes[M] + at, *in_v = codes[V] + at, *in_n = codes[N] + at, *in_g = codes[G] + at;
        for (int k = 0; k < SHARED; k += 16) {
            __builtin_prefetch(param + SPAN + k, 1);
            __builtin_prefetch(grad + SPAN + k, 0);
        }
        for (int k = 0; k < STATES; k++)
            __builtin_prefetch(codes[k] + SPAN + at, 1);
        const float scale_m = scale_of(exponents[M]), scale_v = scale_of(exponents[V]);
        const float scale_n = scale_of(exponents[N]), scale_g = scale_of(exponents[G]);
        INDEPENDENT for (int k = 0; k < SHARED; k++) {
            float last = decoded(in_g[k], scale_g, c), stored = COUPLED ? 0 : decoded(in_v[k], scale_v, c);
            float r = decoded(in_n[k], scale_n, of_n);
            ELEMENT(f32, float, k, decoded(in_m[k], scale_m, of_m), FOUR ? (last - stored) * per : stored,
                    r * r, last)
        }
    }
}

INLINE void prefetch_next(const void *from, int64_t bytes) {
    for (int64_t line = 0; line < bytes; line += 64)
        __builtin_prefetch((const char *)from + bytes + line, 1);
}

#define BLOCKS(size) (((size) + SHARED - 1) / SHARED)

/* The codes of whole blocks, a byte each: where they are, or in `room`. */
INLINE uint8_t *unpacked(uint8_t *from, uint8_t *room, int64_t start, int64_t size, const int nibbles) {
    from += nibbles ? start / 2 : start;
    if (nibbles) {
        prefetch_next(from, SPAN / 2);
        INDEPENDENT for (int64_t k = 0; k < BLOCKS(size) * (SHARED / 2); k++) {
            room[2 * k] = from[k] & 15;
            room[2 * k + 1] = from[k] >> 4;
        }
    } else if (size % SHARED)
        memcpy(memset(room, 0, SPAN), from, (size_t)size);
    return nibbles || size % SHARED ? room : from;
}

/* Back to where they are stored; what is missing of a last block are zeros. */
INLINE void pack(uint8_t *to, uint8_t *codes, int64_t start, int64_t size, const int nibbles) {
    if (nibbles) {
        memset(codes + size, 0, (size_t)(BLOCKS(size) * SHARED - size));
        INDEPENDENT for (int64_t k = 0; k < BLOCKS(size) * (SHARED / 2); k++)
            to[start / 2 + k] = (uint8_t)(codes[2 * k] | codes[2 * k + 1] << 4);
    } else if (size % SHARED)
        memcpy(to + start, codes, (size_t)size);
}

/* Numbers of 16 or 32 bits as fp32, whole blocks of them. */
INLINE void widen(float *to, const char *data, int64_t type, int64_t start, int64_t size) {
    const int64_t width = type == F32 ? 4 : 2;
    const void *from = data + start * width;
    prefetch_next(from, SPAN * width);
    if (type == F32)
        memcpy(to, from, (size_t)size * sizeof *to);
    else if (type == BF16)
        INDEPENDENT for (int64_t k = 0; k < size; k++)
            to[k] = load_bf16(((const bf16_t *)from)[k]);
    else
        INDEPENDENT for (int64_t k = 0; k < size; k++)
            to[k] = load_f16(((const f16_t *)from)[k]);
    for (int64_t k = size; k % SHARED; k++)
        to[k] = 0;
}

/* A parameter, and its compensation where there is one. */
#define WRITE_PARAM(T, S)                                                                                              \
    for (int64_t k = 0; k < size; k++) {                                                                               \
        S rounded = store_##T(theta[k]);                                                                               \
        ((S *)x->param)[start + k] = rounded;                                                                          \
        if (x->compensation)                                                                                           \
            ((S *)x->compensation)[start + k] = store_##T(theta[k] - load_##T(rounded));                               \
    }

INLINE void write_param(const struct tensor *x, const float *theta, const uint32_t *words, int64_t start,
                        int64_t size, const int in_place) {
    if (x->stochastic)
        INDEPENDENT for (int64_t k = 0; k < size; k++)
            ((bf16_t *)x->param)[start + k] = round_bf16(theta[k], words[k] * OF_WEIGHT);
    else if (x->type == BF16)
        INDEPENDENT WRITE_PARAM(bf16, bf16_t)
    else if (x->type == F16)
        INDEPENDENT WRITE_PARAM(f16, f16_t)
    else if (!in_place)
        memcpy((float *)x->param + start, theta, (size_t)size * sizeof *theta);
}

/* The displacement of y over up to SPAN elements, as in adan.scalars.Displacement: the terms from before the step, and,
 * from those and what the step made of g, m, v and n, the sum of (root_n·√n + eps)·(y_{k+1} − y_k)². v is NULL in the
 * coupled form. */
#define MEASURE(T, C)                                                                                                  \
    INLINE void before_##T(C *moved, const C *theta, const C *m, const C *v, const C *n, const C *prev,                \
                           const struct displacement *w, int64_t size) {                                               \
        const C in_theta = (C)w->theta, prev_m = (C)w->prev_m, prev_v = (C)w->prev_v, prev_grad = (C)w->prev_grad;     \
        const C prev_root = (C)w->prev_root, prev_eps = (C)w->prev_eps;                                                \
        for (int64_t k = 0; k < size; k++) {                                                                           \
            C back = prev_m * m[k] + (v ? prev_v * v[k] : 0) - prev_grad * prev[k];                                    \
            moved[k] = in_theta * theta[k] - back / (prev_root * root_##C(n[k]) + prev_eps);                           \
        }                                                                                                              \
    }                                                                                                                  \
    INLINE double after_##T(C *moved, const C *grad, const C *m, const C *v, const C *n, const struct scalars *s,      \
                            const struct displacement *w, int64_t size, const int roots) {                             \
        const C step_m = (C)s->step_m, step_v = (C)s->step_v, root_n = (C)s->root_n, eps = (C)s->eps;                  \
        const C in_step = (C)w->step, in_grad = (C)w->grad;                                                            \
        double sums[16] = {0}, total = 0;                                                                              \
        for (int64_t k = 0; k < size; k++) {                                                                           \
            C u = step_m * m[k] + (v ? step_v * v[k] : 0);                                                             \
            C denom = root_n * (roots ? n[k] : root_##C(n[k])) + eps;                                                  \
            C y = moved[k] + (in_step * u - in_grad * grad[k]) / denom;                                                \
            moved[k] = denom * y * y;                                                                                  \
        }                                                                                                              \
        for (int64_t k = size; k % 16; k++)                                                                            \
            moved[k] = 0;                                                                                              \
        for (int64_t i = 0; i < size; i += 16)                                                                         \
            for (int k = 0; k < 16; k++)                                                                               \
                sums[k] += moved[i + k];                                                                               \
        for (int k = 0; k < 16; k++)                                                                                   \
            total += sums[k];                                                                                          \
        return total;                                                                                                  \
    }

MEASURE(f32, float)
MEASURE(f64, double)

#define DECODE(i, code)                                                                                                \
    if (stored[i])                                                                                                     \
        decode(room[i], codes[i], exponents, blocks, i, code);
#define ENCODE(i, code)                                                                                                \
    if (stored[i])                                                                                                     \
        encode(codes[i], exponents, room[i], words, blocks, i, code);

/* The loop of ELEMENTs on fp32 copies of what is no fp32; returns the squared displacement where `w` is not NULL. */
INLINE double span(const struct tensor *x, const struct scalars *s, const struct displacement *w, int64_t start,
                   int64_t size) {
    float moved[SPAN], theta[SPAN], rest[SPAN], grad[SPAN], room[STATES][SPAN], *state[STATES];
    uint8_t bytes[STATES][SPAN], *codes[STATES];
    uint32_t words[SPAN];
    char *const stored[STATES] = {x->exp_avg, x->exp_avg_diff, x->exp_avg_sq, x->prev_grad};
    const int four = x->state_type == CODES4, quantized = four || x->state_type == CODES8, full = size % SHARED == 0;
    const int64_t blocks = BLOCKS(size), whole = blocks * SHARED;
    uint8_t *exponents = quantized ? x->exponents + start / SHARED * STATES : NULL;
    const double factor = x->averaging ? *x->averaging : 0;
    const float averaging = (float)factor, per = (float)(factor > 0 ? 1 / factor : 0); /* of A = b2 = 0 nothing is read */
    const int param_in_place = x->type == F32 && full, grad_in_place = x->grad_type == F32 && full;
    if (!param_in_place)
        widen(theta, x->param, x->type, start, size);
    if (!grad_in_place)
        widen(grad, x->grad, x->grad_type, start, size);
    if (x->compensation) {
        widen(rest, x->compensation, x->type, start, size);
        for (int64_t k = 0; k < size; k++)
            theta[k] += rest[k];
    }
    float *param = param_in_place ? (float *)x->param + start : theta;
    const float *gradient = grad_in_place ? (const float *)x->grad + start : grad;

    for (int i = 0; i < STATES; i++) {
        state[i] = stored[i] && x->state_type == F32 ? (float *)stored[i] + start : room[i];
        codes[i] = bytes[i];
        if (stored[i] && quantized)
            codes[i] = unpacked((uint8_t *)stored[i], bytes[i], start, size, four && i != M);
        else if (stored[i] && x->state_type == BF16)
            widen(room[i], stored[i], BF16, start, size);
    }
    float *v = x->exp_avg_diff ? state[V] : NULL;
    uint8_t *const m_codes = codes[M], *const n_codes = codes[N];
    if (four) /* the two lower bits of n's codes lie above m's */
        INDEPENDENT for (int64_t k = 0; k < whole; k++)
            n_codes[k] = (uint8_t)(n_codes[k] << 2 | m_codes[k] >> 6);
    if (w && quantized) {
        EACH_CODE(four, DECODE)
    }
    if (w && four && v)
        for (int64_t k = 0; k < size; k++)
            v[k] = (state[G][k] - v[k]) * per;
    if (w)
        before_f32(moved, param, state[M], v, state[N], state[G], w, size);
    const struct tensor plain = {
        .param = (char *)param, .grad = (const char *)gradient, .exp_avg = (char *)state[M],
        .exp_avg_diff = (char *)v, .exp_avg_sq = (char *)state[N], .prev_grad = (char *)state[G],
    };
    if (four)
        EITHER_FORM(v, step_codes, &plain, codes, exponents, s, per, blocks, 1);
    else if (quantized)
        EITHER_FORM(v, step_codes, &plain, codes, exponents, s, per, blocks, 0);
    else
        EITHER_FORM(v, stretch_f32, &plain, s, 0, size);
    const double square = w ? after_f32(moved, state[G], state[M], v, state[N], s, w, size, quantized) : 0;

    const uint32_t moved_by = (uint32_t)(int64_t)(*x->step + 1.0) * ADVANCE + (uint32_t)x->cycle * ADVANCE_CYCLE;
    random_words(words, (uint32_t)x->rng_offset + (uint32_t)(start / 4), moved_by);
    if (four && v)
        for (int64_t k = 0; k < whole; k++)
            v[k] = room[G][k] - averaging * v[k];
    if (quantized) {
        EACH_CODE(four, ENCODE)
    }
    for (int i = 0; i < STATES; i++)
        if (stored[i] && x->state_type == BF16)
            INDEPENDENT for (int64_t k = 0; k < size; k++)
                ((bf16_t *)stored[i])[start + k] = round_bf16(room[i][k], random_bits(words[k], i));
    if (four)
        INDEPENDENT for (int64_t k = 0; k < whole; k++) {
            m_codes[k] |= (uint8_t)(n_codes[k] << 6);
            n_codes[k] >>= 2;
        }
    for (int i = 0; i < STATES; i++)
        if (stored[i] && quantized)
            pack((uint8_t *)stored[i], codes[i], start, size, four && i != M);
    write_param(x, theta, words, start, size, param_in_place);
    return square;
}

INLINE double span_f64(const struct tensor *x, const struct scalars *s, const struct displacement *w, int64_t start,
                       int64_t size) {
    double moved[SPAN], grad[SPAN];
    const double *m = (double *)x->exp_avg + start, *n = (double *)x->exp_avg_sq + start;
    const double *v = x->exp_avg_diff ? (double *)x->exp_avg_diff + start : NULL;
    for (int64_t k = 0; k < size; k++)
        grad[k] = ((const double *)x->grad)[start + k] * s->grad_scale;
    before_f64(moved, (double *)x->param + start, m, v, n, (double *)x->prev_grad + start, w, size);
    EITHER_FORM(v, stretch_f64, x, s, start, size);
    return after_f64(moved, grad, m, v, n, s, w, size, 0);
}

/* The sum of squares of a stretch, in fp64: 16 partial sums are what a compiler may keep in vectors without reordering
 * an addition. */
#define SQUARES(T, S)                                                                                                  \
    INLINE double squares_##T(const void *data, int64_t start, int64_t size) {                                         \
        const S *x = (const S *)data + start;                                                                          \
        double sums[16] = {0}, total = 0;                                                                              \
        int64_t i = 0;                                                                                                 \
        for (; i + 16 <= size; i += 16)                                                                                \
            for (int k = 0; k < 16; k++) {                                                                             \
                double y = load_##T(x[i + k]);                                                                         \
                sums[k] += y * y;                                                                                      \
            }                                                                                                          \
        for (; i < size; i++) {                                                                                        \
            double y = load_##T(x[i]);                                                                                 \
            sums[i & 15] += y * y;                                                                                     \
        }                                                                                                              \
        for (int k = 0; k < 16; k++)                                                                                   \
            total += sums[k];                                                                                          \
        return total;                                                                                                  \
    }

SQUARES(f32, float)
SQUARES(f64, double)
SQUARES(bf16, bf16_t)
SQUARES(f16, f16_t)

#define EACH_TYPE(type, X)                                                                                             \
    switch (type) {                                                                                                    \
    case F32: X(f32)                                                                                                   \
    case F64: X(f64)                                                                                                   \
    case BF16: X(bf16)                                                                                                 \
    default: X(f16)                                                                                                    \
    }
#define SUM(T) return squares_##T(x->grad, start, size);
#define STEP(T)                                                                                                        \
    EITHER_FORM(x->exp_avg_diff, stretch_##T, x, s, start, size);                                                      \
    return 0;

/* A step of a stretch; returns the squared displacement of y where `w` is not NULL. Without `s`: the sum of squares of
 * the gradient. */
INLINE double stretch(const struct tensor *x, const struct scalars *s, const struct displacement *w, int64_t start,
                      int64_t size) {
    /* Whether the types alone say how a tensor is read and written. In double precision they always do. */
    const int fp32_states = x->state_type == F32 && x->grad_type == x->type && !x->stochastic && !x->compensation;
    double total = 0;
    if (!s)
        EACH_TYPE(x->grad_type, SUM)
    if (!w && (x->type == F64 || fp32_states))
        EACH_TYPE(x->type, STEP)
    for (int64_t end = start + size; start < end; start += SPAN) {
        int64_t part = end - start < SPAN ? end - start : SPAN;
        if (!w) /* apart, so that a compiler leaves out all that measures */
            span(x, s, NULL, start, part);
        else
            total += x->type == F64 ? span_f64(x, s, w, start, part) : span(x, s, w, start, part);
    }
    return total;
}

/* The loops above once for each instruction set: inlined, they are compiled for the function they are inlined into. */
typedef double kernel(const struct tensor *, const struct scalars *, const struct displacement *, int64_t, int64_t);

#define KERNEL(NAME, TARGET)                                                                                           \
    TARGET static double NAME(const struct tensor *x, const struct scalars *s, const struct displacement *w,           \
                              int64_t start, int64_t size) {                                                           \
        return stretch(x, s, w, start, size);                                                                          \
    }

KERNEL(baseline, ) /* SSE2 on x86-64, NEON on aarch64 */
#if defined(__x86_64__)
#if defined(__clang__)
#define WIDTH "" /* it takes vectors of 512 bits by itself, and ignores a whole target in which it is told to */
#else
#define WIDTH ",prefer-vector-width=512"
#endif
KERNEL(avx2, __attribute__((target("avx2"))))
KERNEL(avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl" WIDTH))))

/* Whether the processor has all of these features (EBX of CPUID's leaf 7) and the system saves these registers (XCR0).
 * Not __builtin_cpu_supports: with clang it refers to a runtime library that a wheel cannot count on. */
static int has(uint32_t features, uint32_t registers) {
    uint32_t a, b, c, d, saved;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    return (saved & registers) == registers && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & features) == features;
}
#endif

static kernel *chosen(void) {
#if defined(__x86_64__)
    if (has(bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL, 0xe6))
        return avx512;
    if (has(bit_AVX2, 0x06))
        return avx2;
#endif
    return baseline;
}

/* ---- sharing the work ------------------------------------------------------------------------------------------- */

/* Elements that a thread takes at a time, whole blocks of codes; 8k to 128k made no difference.
 * Less than one is not worth waking a thread. */
#define CHUNK 32768

struct job {
    kernel *kernel;
    const struct tensor *tensors;
    const struct scalars *scalars; /* NULL for a sum of squares */
    const struct displacement *displacements; /* NULL, or one set for each of the scalars */
    const int64_t *ends;   /* of each tensor: how many chunks it and those before it have */
    int64_t chunks;
    double *sums;          /* the result for each chunk */
    atomic_llong next;
    fenv_t rounding; /* of the calling thread: whether it flushes subnormal numbers holds for the whole step */
};

/* Take chunks, in order, until there are none. Whichever thread is free takes the next, so that a processor that is
 * busy with something else delays the step by one chunk at most. */
static void work(struct job *job) {
    int64_t i = 0, chunk;
    while ((chunk = atomic_fetch_add_explicit(&job->next, 1, memory_order_relaxed)) < job->chunks) {
        while (job->ends[i] <= chunk)
            i++;
        const struct tensor *x = &job->tensors[i];
        int64_t start = (chunk - (i ? job->ends[i - 1] : 0)) * CHUNK;
        int64_t size = x->size - start < CHUNK ? x->size - start : CHUNK;
        const struct scalars *s = job->scalars ? &job->scalars[x->scalars] : NULL;
        const struct displacement *w = job->displacements ? &job->displacements[x->scalars] : NULL;
        job->sums[chunk] = job->kernel(x, s, w, start, size);
    }
}

/* The threads, created when first needed and never stopped. Not OpenMP's: linking it would bring a second OpenMP beside
 * PyTorch's, it does not survive fork(), and its barriers wait for threads that were not scheduled yet. */
static struct {
    pthread_mutex_t busy; /* held by the caller whose job the threads do */
    pthread_mutex_t lock; /* guards all that follows */
    pthread_cond_t wake, done;
    struct job *job;       /* NULL: nothing to do */
    unsigned long number;  /* of the job, to tell it from the last one */
    int threads, wanted, working;
} pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .wake = PTHREAD_COND_INITIALIZER,
          .done = PTHREAD_COND_INITIALIZER};

static void *thread_main(void *index) {
    unsigned long seen = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.job || pool.number == seen || (intptr_t)index >= pool.wanted)
            pthread_cond_wait(&pool.wake, &pool.lock);
        struct job *job = pool.job;
        seen = pool.number;
        pool.working++;
        pthread_mutex_unlock(&pool.lock);
        fesetenv(&job->rounding);
        work(job);
        pthread_mutex_lock(&pool.lock);
        if (--pool.working == 0)
            pthread_cond_signal(&pool.done);
    }
    return NULL;
}

/* A child of fork() has none of the threads, and perhaps a lock that no thread is left to release. */
static void after_fork(void) {
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.wake, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.job = NULL;
    pool.threads = pool.working = 0;
}

static void grow(int threads) {
    static int registered;
    sigset_t all, before;
    pthread_attr_t detached;
    if (pool.threads >= threads)
        return;
    if (!registered)
        registered = pthread_atfork(NULL, NULL, after_fork) == 0;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's, not ours */
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    for (pthread_t id; registered && pool.threads < threads; pool.threads++)
        if (pthread_create(&id, &detached, thread_main, (void *)(intptr_t)pool.threads))
            break;
    pthread_attr_destroy(&detached);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void run(struct job *job, int threads) {
    int helpers = (int)(job->chunks < threads ? job->chunks : threads) - 1;
    fegetenv(&job->rounding);
    /* Where another thread's step holds the pool, this one's own thread does it all. */
    if (helpers < 1 || pthread_mutex_trylock(&pool.busy)) {
        work(job);
        return;
    }
    pthread_mutex_lock(&pool.lock);
    grow(helpers);
    pool.job = job;
    pool.wanted = helpers;
    pool.number++;
    pthread_cond_broadcast(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
    work(job);
    pthread_mutex_lock(&pool.lock);
    pool.job = NULL; /* threads that have not begun need not: wait only for those at work */
    while (pool.working)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
    pthread_mutex_unlock(&pool.busy);
}

/* ---- what cpu.py and guard.py call ------------------------------------------------------------------------------ */

/* Whether the tensors of a Python list are these objects, at these addresses. The functions are Python's and PyTorch's:
 * an item of a list, and the address of a tensor. */
EXPORT int adan_are_same(void *(*data_ptr)(void *), void *(*item)(void *, intptr_t), void *list, int64_t count,
                         void *const *objects, void *const *addresses) {
    for (int64_t i = 0; i < count; i++) {
        void *tensor = item(list, i);
        if (tensor != objects[i] || data_ptr(tensor) != addresses[i])
            return 0;
    }
    return 1;
}

/* The counters, side by side. */
EXPORT void adan_cpu_counts(const struct tensor *tensors, int64_t count, double *counts) {
    for (int64_t i = 0; i < count; i++)
        counts[i] = *tensors[i].step;
}

/* One step of all tensors that have a gradient; counters are advanced. Without `scalars` nothing changes. `sum` becomes
 * the sum over all tensors of what `stretch` returns, in an order that does not depend on the number of threads.
 * Returns −1 when there is no memory for the list of chunks, else 0. */
EXPORT int adan_cpu_run(const struct tensor *tensors, int64_t count, const struct scalars *scalars,
                        const struct displacement *displacements, int threads, double *sum) {
    int64_t chunks = 0, size = 0, *ends = malloc((size_t)(count ? count : 1) * sizeof *ends);
    for (int64_t i = 0; ends && i < count; i++) {
        int64_t own = tensors[i].grad ? tensors[i].size : 0;
        size += own;
        chunks += own / CHUNK + (own % CHUNK != 0);
        ends[i] = chunks;
    }
    double *sums = ends ? malloc((size_t)(chunks ? chunks : 1) * sizeof *sums) : NULL;
    *sum = 0;
    if (sums) {
        struct job job = {.kernel = chosen(), .tensors = tensors, .scalars = scalars, .displacements = displacements,
                          .ends = ends, .chunks = chunks, .sums = sums};
        run(&job, size < CHUNK ? 1 : threads);
        for (int64_t i = 0; i < chunks; i++)
            *sum += sums[i];
        for (int64_t i = 0; scalars && i < count; i++)
            *tensors[i].step += tensors[i].grad != NULL;
    }
    free(sums);
    free(ends);
    return sums ? 0 : -1;
}
