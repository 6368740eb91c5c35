// Arithmetic with a defined answer for every operand: nothing traps, NaN arguments of min and max win, integers wrap.
#pragma once
#include "prelude.cuh"

template <typename T>
struct mlc_as_unsigned {
    typedef T type;
};
template <>
struct mlc_as_unsigned<signed char> {
    typedef unsigned char type;
};
template <>
struct mlc_as_unsigned<short> {
    typedef unsigned short type;
};
template <>
struct mlc_as_unsigned<int> {
    typedef unsigned type;
};
template <>
struct mlc_as_unsigned<long> {
    typedef unsigned long type;
};

// ---- integers that wrap around: NVCC assumes that signed ones do not
//
// NVCC cannot simplify across these functions. It would take x < 0 ? 0 - x : x for an absolute value that is never
// negative, which is wrong for the least integer.
// ptxas 13.0 fuses two min/max instructions on three signed integers to one, VIMNMX3, and drops a negation of the
// second operand. So neither compiler may see that an int is negated: as 0 - x, x * -1 or ~x + 1, or as a quotient by a
// negative constant. ptxas does not recognise a negation by two instructions.

MLC_DEVICE int mlc_add(int x, int y) {
#ifdef __CUDACC__
    int made;
    asm("add.s32 %0, %1, %2;" : "=r"(made) : "r"(x), "r"(y));
    return made;
#else
    return (int)((unsigned)x + (unsigned)y);
#endif
}
// x + ~y + 1
MLC_DEVICE int mlc_sub(int x, int y) {
#ifdef __CUDACC__
    int made;
    asm("{\n.reg .b32 part;\nnot.b32 part, %2;\nadd.s32 part, part, 1;\nadd.s32 %0, %1, part;\n}\n"
        : "=r"(made)
        : "r"(x), "r"(y));
    return made;
#else
    return (int)((unsigned)x - (unsigned)y);
#endif
}
// A product of factors that the compiler cannot know to be negative.
MLC_DEVICE int mlc_mul_plain(int x, int y) {
    return (int)((unsigned)x * (unsigned)y);
}
// ~(x * ~y + x) + 1
MLC_DEVICE int mlc_mul(int x, int y) {
    return mlc_sub(0, mlc_add(mlc_mul_plain(x, ~y), x));
}
#ifdef __CUDACC__
#define MLC_LONG(NAME, INSTRUCTION, SYMBOL)                                \
    MLC_DEVICE long NAME(long x, long y) {                                 \
        long made;                                                         \
        asm(INSTRUCTION ".s64 %0, %1, %2;" : "=l"(made) : "l"(x), "l"(y)); \
        return made;                                                       \
    }
#else
#define MLC_LONG(NAME, INSTRUCTION, SYMBOL)                         \
    MLC_DEVICE long NAME(long x, long y) {                          \
        return (long)((unsigned long)x SYMBOL (unsigned long)y);    \
    }
#endif
MLC_LONG(mlc_add, "add", +)
MLC_LONG(mlc_sub, "sub", -)
MLC_LONG(mlc_mul, "mul.lo", *)
#undef MLC_LONG
template <typename T>
MLC_DEVICE T mlc_add(T x, T y) {
    if constexpr (sizeof(T) < 4) return (T)mlc_add((int)x, (int)y);
    return (T)((typename mlc_as_unsigned<T>::type)x + (typename mlc_as_unsigned<T>::type)y);
}
template <typename T>
MLC_DEVICE T mlc_sub(T x, T y) {
    if constexpr (sizeof(T) < 4) return (T)mlc_sub((int)x, (int)y);
    return (T)((typename mlc_as_unsigned<T>::type)x - (typename mlc_as_unsigned<T>::type)y);
}
template <typename T>
MLC_DEVICE T mlc_mul(T x, T y) {
    if constexpr (sizeof(T) < 4) return (T)mlc_mul((int)x, (int)y);
    return (T)((typename mlc_as_unsigned<T>::type)x * (typename mlc_as_unsigned<T>::type)y);
}
template <typename T>
MLC_DEVICE T mlc_negated(T x) {
    return mlc_sub(T(0), x);
}

template <typename T>
MLC_DEVICE bool mlc_isnan(T x) {
    return x != x;
}
// Of NaN and zero as well.
MLC_DEVICE bool mlc_signbit(float x) {
    return __float_as_int(x) < 0;
}
MLC_DEVICE bool mlc_signbit(double x) {
    return __double_as_longlong(x) < 0;
}
template <typename T>
MLC_DEVICE T mlc_max(T a, T b) {
    return b > a || b != b ? b : a;
}
template <typename T>
MLC_DEVICE T mlc_min(T a, T b) {
    return b < a || b != b ? b : a;
}
// Bytes are compared as int: with chains of byte instructions ptxas spills.
#define MLC_NARROW(T)                                  \
    MLC_DEVICE T mlc_max(T a, T b) {                   \
        const int x = a, y = b;                        \
        return (T)(y > x ? y : x);                     \
    }                                                  \
    MLC_DEVICE T mlc_min(T a, T b) {                   \
        const int x = a, y = b;                        \
        return (T)(y < x ? y : x);                     \
    }
MLC_NARROW(signed char)
MLC_NARROW(unsigned char)
MLC_NARROW(short)
#undef MLC_NARROW
#ifdef __CUDACC__
// One instruction in place of three.
MLC_DEVICE float mlc_max(float a, float b) {
    float most;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}
MLC_DEVICE float mlc_min(float a, float b) {
    float least;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
    return least;
}
#endif
// The least integer is its own absolute value.
template <typename T>
MLC_DEVICE T mlc_abs(T x) {
    return x < T(0) ? mlc_negated(x) : x;
}
MLC_DEVICE short mlc_abs(short x) {
    return (short)mlc_abs((int)x);
}
MLC_DEVICE signed char mlc_abs(signed char x) {
    return (signed char)mlc_abs((int)x);
}
MLC_DEVICE float mlc_abs(float x) {
    return fabsf(x);
}
MLC_DEVICE double mlc_abs(double x) {
    return fabs(x);
}
// -1, 0 or 1; NaN gives 0.
template <typename T>
MLC_DEVICE T mlc_sign(T x) {
    return (T)((x > T(0)) - (x < T(0)));
}
// Halves go to the even neighbour.
MLC_DEVICE float mlc_round(float x) {
    return rintf(x);
}
MLC_DEVICE double mlc_round(double x) {
    return rint(x);
}

// By a negative count or by the width and more, all bits (but a sign) fall out.
template <typename T>
MLC_DEVICE T mlc_shl(T x, T count) {
    return count >= T(0) && count < T(8 * sizeof(T)) ? (T)((typename mlc_as_unsigned<T>::type)x << count) : T(0);
}
template <typename T>
MLC_DEVICE T mlc_shr(T x, T count) {
    return count >= T(0) && count < T(8 * sizeof(T)) ? (T)(x >> count) : x < T(0) ? (T)-1 : T(0);
}
// How many bits are ones.
MLC_DEVICE int mlc_ones(int x) {
    return __popc((unsigned)x);
}

// ---- division; by zero, integers give 0

MLC_DEVICE double mlc_div(double x, double y) {
    return x / y;
}
// As exact as `/`, which calls a subroutine in rare cases, so that nothing can be overlapped with it: multiply by a
// reciprocal exact to an ulp, and correct by the remainder, which fma computes exactly. If the true quotient is within
// 2^-45 of halfway between two floats (one in a million), it may be the other one; below 2^-116 it is less exact.
MLC_DEVICE float mlc_quotient_from(float x, float y, float reciprocal) {
    const float quotient = x * reciprocal;
    const float better = fmaf(fmaf(-y, quotient, x), reciprocal, quotient);
    return fabsf(better) > 0.0f ? better : quotient;  // `better` is NaN for infinity, and loses the sign of zero
}
MLC_DEVICE float mlc_reciprocal_approximate(float y) {
#ifdef __CUDACC__
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(y));
    return reciprocal;
#else
    return mlc::emu::approximate(1.0f / mlc::emu::flushed(y));
#endif
}
MLC_DEVICE float mlc_div(float x, float y) {
    // Scale both by the power of 2 that brings y to 1 .. 2, or to 0.5 .. 1 so that x does not overflow.
    const unsigned exponent = mlc_min(__float_as_uint(y) & 0x7f800000u, 0x7e000000u);
    const float scale = __uint_as_float((exponent < 0x3f800000u ? 0x7e800000u : 0x7f000000u) - exponent);
    return mlc_quotient_from(x * scale, y * scale, mlc_reciprocal_approximate(y * scale));
}
// Division by at least one: the reciprocal of a quarter of the divisor is not too small.
MLC_DEVICE float mlc_div_large(float x, float y) {
    return mlc_quotient_from(x, y, 0.25f * mlc_reciprocal_approximate(0.25f * y));
}
MLC_DEVICE double mlc_div_large(double x, double y) {
    return x / y;
}
// Hides a dividend from g++ (in the emulator), which takes -x / y for -(x / y) even if x may be the least integer.
template <typename T>
MLC_DEVICE T mlc_dividend(T x) {
#ifndef __CUDACC__
    asm("" : "+r"(x));
#endif
    return x;
}
template <typename T>
MLC_DEVICE T mlc_truncdiv(T x, T y) {
    if (y == T(0)) return T(0);
    if (T(-1) < T(0) && y == T(-1)) return mlc_negated(x);
    const T q = (T)(mlc_dividend(x) / y);
    return y < T(0) ? mlc_negated(mlc_negated(q)) : q;
}
template <typename T>
MLC_DEVICE T mlc_fmod(T x, T y) {
    if (y == T(0) || (T(-1) < T(0) && y == T(-1))) return T(0);
    return (T)(x % y);
}
MLC_DEVICE float mlc_fmod(float x, float y) {
    return fmodf(x, y);
}
MLC_DEVICE double mlc_fmod(double x, double y) {
    return fmod(x, y);
}
// With the sign of the divisor.
template <typename T>
MLC_DEVICE T mlc_remainder(T x, T y) {
    const T r = mlc_fmod(x, y);
    return r != T(0) && (r < T(0)) != (y < T(0)) ? (T)(r + y) : r;
}
template <typename T>
MLC_DEVICE T mlc_floordiv(T x, T y) {
    if (y == T(0)) return T(0);
    const T q = mlc_truncdiv(x, y);
    return mlc_fmod(x, y) != T(0) && (x < T(0)) != (y < T(0)) ? (T)(q - T(1)) : q;
}
// Floor division that cannot overflow, such as that of indices. The branches of `mlc_floordiv` by a variable make NVCC's
// time grow exponentially with the number of divisions in an expression.
template <typename T>
MLC_DEVICE T mlc_index_floordiv(T x, T y) {
    if (y == T(0)) return T(0);
    const T q = mlc_dividend(x) / y, r = x - q * y;
    return q - (T)((r != T(0)) & ((r < T(0)) != (y < T(0))));
}
template <typename T>
MLC_DEVICE T mlc_index_mod(T x, T y) {
    if (y == T(0)) return T(0);
    const T r = x % y;
    return (r != T(0)) & ((r < T(0)) != (y < T(0))) ? r + y : r;
}
// The greatest common divisor of the magnitudes, by Euclid.
template <typename T>
MLC_DEVICE T mlc_gcd(T x, T y) {
    typedef typename mlc_as_unsigned<T>::type U;
    U a = x < T(0) ? (U)(U(0) - (U)x) : (U)x, b = y < T(0) ? (U)(U(0) - (U)y) : (U)y;
    while (a != U(0)) {
        const U rest = (U)(b % a);
        b = a;
        a = rest;
    }
    return (T)b;
}
// Of numbers that are not negative, by one that is positive.
template <typename T>
MLC_DEVICE T mlc_quotient(T x, T y) {
    typedef typename mlc_as_unsigned<T>::type U;
    return (T)((U)x / (U)y);
}
template <typename T>
MLC_DEVICE T mlc_rest(T x, T y) {
    typedef typename mlc_as_unsigned<T>::type U;
    return (T)((U)x % (U)y);
}
// x is close to y * floordiv + remainder even where x / y rounds up, as in PyTorch.
template <typename F>
MLC_DEVICE F mlc_floordiv_float(F x, F y) {
    const F quotient = x / y;
    if (y == F(0)) return quotient;
    const F r = mlc_fmod(x, y);
    F d = (x - r) / y;
    if (r != F(0) && (r < F(0)) != (y < F(0))) d -= F(1);
    if (d == F(0)) return copysign(F(0), quotient);
    const F f = floor(d);
    return d - f > F(0.5) ? f + F(1) : f;
}
MLC_DEVICE float mlc_floordiv(float x, float y) {
    return mlc_floordiv_float(x, y);
}
MLC_DEVICE double mlc_floordiv(double x, double y) {
    return mlc_floordiv_float(x, y);
}
MLC_DEVICE float mlc_truncdiv(float x, float y) {
    return truncf(x / y);
}
MLC_DEVICE double mlc_truncdiv(double x, double y) {
    return trunc(x / y);
}
