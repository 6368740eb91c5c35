// Scalar operations for the Loop IR interpreter, as compiler/interpret/scalar.py defines them.
typedef long long i64;
typedef int i32;
typedef short i16;
typedef signed char i8;
typedef unsigned char u8;
typedef float f32;
typedef double f64;
struct bf16 { unsigned short bits; };
struct f16 { unsigned short bits; };
struct f8e4m3 { unsigned char bits; };
struct f8e5m2 { unsigned char bits; };

// As there, a function of f32 is computed in f64 and rounded once.
#define UNARY(name) \
    extern "C" double name(double); \
    static inline f64 op_##name(f64 x) { return name(x); } \
    static inline f32 op_##name(f32 x) { return (f32)name((f64)x); }
#define BINARY(name) \
    extern "C" double name(double, double); \
    static inline f64 op_##name(f64 x, f64 y) { return name(x, y); } \
    static inline f32 op_##name(f32 x, f32 y) { return (f32)name((f64)x, (f64)y); }
UNARY(floor) UNARY(ceil) UNARY(trunc) UNARY(sqrt) UNARY(rint)
FUNCTIONS  // of ir/functions.py: UNARY(exp), BINARY(pow), ..
static inline f64 op_exp2_ftz(f64 x) { return x < -1022 ? 0 : op_exp2(x); }
static inline f32 op_exp2_ftz(f32 x) { return x < -126 ? 0 : op_exp2(x); }
BINARY(fmod)
extern "C" double fma(double, double, double);
extern "C" float fmaf(float, float, float);
static inline f64 op_fma(f64 a, f64 b, f64 c) { return fma(a, b, c); }
static inline f32 op_fma(f32 a, f32 b, f32 c) { return fmaf(a, b, c); }
template <class T> static inline T op_round(T x) { return op_rint(x); }
static inline f32 op_tf32(f32 x) {
    unsigned bits;
    __builtin_memcpy(&bits, &x, 4);
    bits = (bits + 0x1000u) & 0xffffe000u;
    f32 y;
    __builtin_memcpy(&y, &bits, 4);
    return x != x ? x : y;
}
static inline f64 op_tf32(f64 x) {
    unsigned long bits;
    __builtin_memcpy(&bits, &x, 8);
    bits = (bits + (1ul << 41)) >> 42 << 42;
    f64 y;
    __builtin_memcpy(&y, &bits, 8);
    return x != x ? x : y;
}
static inline f64 op_rsqrt(f64 x) { return 1.0 / sqrt(x); }
static inline f32 op_rsqrt(f32 x) { return (f32)(1.0 / sqrt((f64)x)); }

template <class T> struct is_float { static const bool value = false; };
template <> struct is_float<f32> { static const bool value = true; };
template <> struct is_float<f64> { static const bool value = true; };

template <class T> static inline T op_add(T a, T b) { return (T)(a + b); }
template <class T> static inline T op_sub(T a, T b) { return (T)(a - b); }
template <class T> static inline T op_mul(T a, T b) { return (T)(a * b); }
// For integers by way of unsigned ones: if g++ recognises x < 0 ? -x : x as an absolute value, it assumes that the
// result is zero unless it is positive, even with -fwrapv.
#define WRAPPING(T, U) \
    static inline T op_add(T a, T b) { return (T)((U)a + (U)b); } \
    static inline T op_sub(T a, T b) { return (T)((U)a - (U)b); } \
    static inline T op_mul(T a, T b) { return (T)((U)a * (U)b); } \
    static inline T op_neg(T a) { return (T)(0 - (U)a); } \
    static inline T op_abs(T a) { return a < 0 ? op_neg(a) : a; }
WRAPPING(i32, unsigned)
WRAPPING(i64, unsigned long long)
template <class T> static inline T op_div(T a, T b) { return (T)(a / b); }
template <class T> static inline T op_neg(T a) { return (T)(-a); }
template <class T> static inline T op_sign(T a) { return (T)((a > 0) - (a < 0)); }
static inline f64 op_abs(f64 a) { return __builtin_fabs(a); }
static inline f32 op_abs(f32 a) { return __builtin_fabsf(a); }
template <class T> static inline T op_abs(T a) { return (T)(a < 0 ? -a : a); }
template <class T> static inline T op_min(T a, T b) { return a != a ? a : b != b ? b : b < a ? b : a; }
template <class T> static inline T op_max(T a, T b) { return a != a ? a : b != b ? b : a < b ? b : a; }
template <class T> static inline bool op_lt(T a, T b) { return a < b; }
template <class T> static inline bool op_le(T a, T b) { return a <= b; }
template <class T> static inline bool op_gt(T a, T b) { return a > b; }
template <class T> static inline bool op_ge(T a, T b) { return a >= b; }
template <class T> static inline bool op_eq(T a, T b) { return a == b; }
template <class T> static inline bool op_ne(T a, T b) { return a != b; }
template <class T> static inline T op_and(T a, T b) { return (T)(a & b); }
template <class T> static inline T op_or(T a, T b) { return (T)(a | b); }
template <class T> static inline T op_xor(T a, T b) { return (T)(a ^ b); }
static inline bool op_not(bool a) { return !a; }
template <class T> static inline T op_not(T a) { return (T)~a; }
template <class T> static inline bool op_isnan(T a) { return a != a; }
static inline bool op_signbit(f64 a) { return __builtin_signbit(a); }
static inline bool op_signbit(f32 a) { return __builtin_signbit(a); }
template <class T> static inline T op_where(bool c, T a, T b) { return c ? a : b; }
template <class T> static inline T op_shl(T a, T b) {
    return b < 0 || (i64)b >= (i64)(8 * sizeof(T)) ? (T)0 : (T)((unsigned long long)a << b);
}
template <class T> static inline T op_shr(T a, T b) {
    return b < 0 || (i64)b >= (i64)(8 * sizeof(T)) ? (T)(a < 0 ? -1 : 0) : (T)(a >> b);
}
// Integers: nothing divided by zero is zero, and the least number divided by -1 wraps.
template <class T> static inline T op_truncdiv(T a, T b) {
    if (b == 0) return 0;
    if (b == (T)-1 && (T)-1 < 0) return (T)(-a);
    asm("" : "+r"(a));  // g++ turns -a / b into -(a / b), also for the least number, even with -fwrapv
    return (T)(a / b);
}
template <class T> static inline T op_rem(T a, T b) { return b == 0 || (b == (T)-1 && (T)-1 < 0) ? (T)0 : (T)(a % b); }
static inline f32 op_rem(f32 a, f32 b) { return op_fmod(a, b); }
static inline f64 op_rem(f64 a, f64 b) { return op_fmod(a, b); }
template <class T> static inline T op_mod(T a, T b) {
    T r = op_rem(a, b);
    return r != 0 && (r < 0) != (b < 0) ? (T)(r + b) : r;
}
template <class T> static inline T divide_down(T a, T b) {
    if (b == 0) return a / b;
    T r = op_rem(a, b), q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return __builtin_copysign(0.0, a / b);
    T down = op_floor(q);
    return q - down > (T)0.5 ? down + 1 : down;
}
static inline f32 op_floordiv(f32 a, f32 b) { return divide_down(a, b); }
static inline f64 op_floordiv(f64 a, f64 b) { return divide_down(a, b); }
template <class T> static inline T op_floordiv(T a, T b) {
    T q = op_truncdiv(a, b);
    return op_rem(a, b) != 0 && (a < 0) != (b < 0) ? (T)(q - 1) : q;
}

// By subtraction of the magnitudes, after removing their common powers of 2.
template <class T> static inline T op_gcd(T a, T b) {
    unsigned long long x = a < 0 ? 0ULL - (unsigned long long)a : a, y = b < 0 ? 0ULL - (unsigned long long)b : b;
    if (x == 0 || y == 0) return (T)(x | y);
    int twos = 0;
    for (; ((x | y) & 1) == 0; twos++) x >>= 1, y >>= 1;
    while ((x & 1) == 0) x >>= 1;
    while (y != 0) {
        while ((y & 1) == 0) y >>= 1;
        if (x > y) { unsigned long long z = x; x = y; y = z; }
        y -= x;
    }
    return (T)(x << twos);
}

static inline unsigned bits_of(f32 x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
static inline f32 of_bits(unsigned u) { f32 x; __builtin_memcpy(&x, &u, 4); return x; }
static inline bf16 to_bf16(f32 x) {
    unsigned u = bits_of(x);
    if (x != x) return {(unsigned short)(u >> 16 | 0x40)};
    return {(unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16)};
}
static inline f32 from_bf16(bf16 x) { return of_bits((unsigned)x.bits << 16); }
static inline f16 to_f16(f32 x) {
    unsigned u = bits_of(x), sign = u >> 16 & 0x8000, size = u & 0x7fffffff;
    if (size > 0x7f800000) return {(unsigned short)(sign | 0x7e00)};
    if (size >= 0x477ff000) return {(unsigned short)(sign | 0x7c00)};  // rounds to 65536 or more
    if (size < 0x38800000) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24 in the low bits, rounded to even
        unsigned steps = bits_of(of_bits(size) + 0.5f) - bits_of(0.5f);
        return {(unsigned short)(sign | steps)};
    }
    return {(unsigned short)(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13))};
}
static inline f32 from_f16(f16 x) {
    unsigned sign = (unsigned)(x.bits & 0x8000) << 16, size = x.bits & 0x7fff;
    if (size >= 0x7c00) return of_bits(sign | 0x7f800000 | (size & 0x3ff) << 13);
    if (size < 0x400) return of_bits(sign | bits_of((f32)size * 0x1p-24f));
    return of_bits(sign | ((size << 13) + 0x38000000));
}

// Floats of 8 bits, as compiler/ir/float8.py defines them: the fraction's bits go to the end of the word.
static inline unsigned char to_eight(f32 x, int shift, unsigned rebias, unsigned least, unsigned over) {
    unsigned u = bits_of(x), sign = u >> 24 & 0x80, size = u & 0x7fffffff;
    if (size > 0x7f800000) return (unsigned char)(sign | 0x7f);
    if (size < least << 23) {  // a sum whose last bit is the least number
        unsigned large = (least + shift) << 23;
        return (unsigned char)(sign | (bits_of(of_bits(size) + of_bits(large)) - large));
    }
    unsigned bits = (size - (rebias << 23) + (1u << (shift - 1)) - 1 + (size >> shift & 1)) >> shift;
    return (unsigned char)(sign | (bits < over ? bits : over));
}
static inline f8e4m3 to_f8e4m3(f32 x) { return {to_eight(x, 20, 120, 121, 0x7e)}; }
static inline f8e5m2 to_f8e5m2(f32 x) { return {to_eight(x, 21, 112, 113, 0x7c)}; }
static inline f32 from_f8e4m3(f8e4m3 x) {
    unsigned sign = (unsigned)(x.bits & 0x80) << 24, size = x.bits & 0x7f;
    if (size == 0x7f) return of_bits(sign | 0x7fc00000);
    return of_bits(sign | bits_of(of_bits(size << 20) * 0x1p120f));
}
static inline f32 from_f8e5m2(f8e5m2 x) { return from_f16({(unsigned short)(x.bits << 8)}); }

template <class To, class From, bool whole> struct Convert {
    static To go(From x) { return (To)x; }
};
template <class To, class From> struct Convert<To, From, true> {  // float to integer, as x86 converts
    static To go(From x) {
        if (sizeof(To) == 8) return x >= (From)-0x1p63 && x < (From)0x1p63 ? (To)(i64)x : (To)(-0x7fffffffffffffffLL - 1);
        return (f64)x > -2147483649.0 && (f64)x < 2147483648.0 ? (To)(i32)x : (To)(-2147483647 - 1);
    }
};
template <class To, class From> static inline To convert(From x) {
    return Convert<To, From, is_float<From>::value && !is_float<To>::value>::go(x);
}
template <class From> static inline bool to_bool(From x) { return x != 0; }

// The first access out of bounds: kernel, buffer, dimension, index, 1 for a store, and whether there was one; then
// whether a requirement failed.
static i64 *violation;
template <class T> static inline T op_require(bool holds, T x) {
    if (!holds) violation[6] = 1;
    return holds ? x : T{};
}
static inline i64 within(i64 index, i64 extent, i64 kernel, i64 buffer, i64 dimension, i64 store) {
    if (index >= 0 && index < extent) return index;
    if (!violation[5]) {
        violation[0] = kernel; violation[1] = buffer; violation[2] = dimension;
        violation[3] = index; violation[4] = store; violation[5] = 1;
    }
    return 0;
}

// Stable argsort of the keys by a merge sort; NaN is larger than all else.
template <class K> struct in_order {
    i64 n;
    K *keys;
    i64 *places, *other;
    explicit in_order(i64 count)
        : n(count), keys((K *)__builtin_malloc((count + 1) * sizeof(K))),
          places((i64 *)__builtin_malloc((count + 1) * 8)), other((i64 *)__builtin_malloc((count + 1) * 8)) {}
    ~in_order() { __builtin_free(keys), __builtin_free(places), __builtin_free(other); }
    static bool less(K a, K b) { return a < b || (b != b && a == a); }
    void sort(bool descending) {
        for (i64 i = 0; i < n; ++i) places[i] = i;
        for (i64 run = 1; run < n; run *= 2) {
            for (i64 k = 0, start = 0, a = 0, b = 0, middle = 0, end = 0; k < n; ++k) {
                if (k == end) {
                    start = end, middle = start + run < n ? start + run : n, end = middle + run < n ? middle + run : n;
                    a = start, b = middle;
                }
                const K x = keys[places[a < middle ? a : start]], y = keys[places[b < end ? b : start]];
                const bool second = a == middle || (b < end && (descending ? less(x, y) : less(y, x)));
                other[k] = places[second ? b++ : a++];
            }
            i64 *const old = places;
            places = other;
            other = old;
        }
    }
};
