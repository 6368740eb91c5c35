// Conversions between element types: short floats in memory, numbers, masks and booleans.
//
// Short floats are storage only: a vector of them is mlc_vec<unsigned short, N>, or of 8 bits mlc_vec<unsigned char, N>
// (raw bits), computed with as float.
// Rounding is to nearest even, NaN stays NaN. Floats become integers by truncation; what int cannot hold becomes
// INT_MIN (LONG_MIN for 64 bits), and 8- and 16-bit results are the low bits of that int (u8: of the 64-bit integer),
// as in PyTorch on x86.
#pragma once
#include "resize.h"

struct mlc_bf16 {
  unsigned short bits;
};
struct mlc_f16 {
  unsigned short bits;
};
struct mlc_f8e4m3 {
  unsigned char bits;
};
struct mlc_f8e5m2 {
  unsigned char bits;
};

// How an element type is kept in a vector straight from memory.
template <typename S>
struct mlc_raw_type {
  typedef S type;
};
template <>
struct mlc_raw_type<mlc_bf16> {
  typedef unsigned short type;
};
template <>
struct mlc_raw_type<mlc_f16> {
  typedef unsigned short type;
};
template <>
struct mlc_raw_type<mlc_f8e4m3> {
  typedef unsigned char type;
};
template <>
struct mlc_raw_type<mlc_f8e5m2> {
  typedef unsigned char type;
};
template <>
struct mlc_raw_type<bool> {
  typedef unsigned char type;
};
template <typename S>
using mlc_raw = typename mlc_raw_type<S>::type;

// The same value, about which the compiler knows nothing.
template <typename V>
MLC_INLINE V mlc_opaque(V x) {
#ifdef __x86_64__
  if constexpr (mlc_is_scalar<V> && !mlc_is_float<V>)
    asm("" : "+r"(x));
  else
    asm("" : "+v"(x));
#endif
  return x;
}
// Floats to int or long by the machine's own instruction. Without the barriers the compiler would fold constants that are
// out of range in its own way, and turn (float)(int)x into trunc(x), which keeps -0 and what int cannot hold.
template <typename I, typename V>
MLC_INLINE mlc_vec<I, mlc_lanes<V>> mlc_truncate(V x) {
  constexpr int N = mlc_lanes<V>;
  if constexpr (N == 1)
    return mlc_opaque((I)mlc_opaque(x));
  else if constexpr (sizeof(V) > MLC_VECTOR_BYTES || N * sizeof(I) > MLC_VECTOR_BYTES)
    return mlc_join(mlc_truncate<I>(mlc_low(x)), mlc_truncate<I>(mlc_high(x)));
#ifndef MLC_AVX512
  else if constexpr (sizeof(I) == 8)
    return mlc_each_lane<mlc_vec<I, N>>([](mlc_lane<V> y) { return mlc_truncate<I>(y); }, x, mlc_count<N>());
#endif
  else
    return mlc_opaque(mlc_cast<I>(mlc_opaque(x)));
}

template <typename T, typename V>
MLC_INLINE mlc_vec<T, mlc_lanes<V>> mlc_convert(V v) {
#ifdef MLC_AVX512
  // GCC 12 and 13 make one instruction of the load of part of a register, its widening and a mask behind it, and then
  // cannot print it.
  if constexpr (!mlc_is_scalar<V> && !mlc_is_float<V> && sizeof(V) < 16 && sizeof(mlc_lane<V>) < sizeof(T))
    return mlc_opaque(mlc_cast<T>(v));
#endif
  if constexpr (!mlc_is_float<V> || mlc_same<T, float> || mlc_same<T, double>)
    return mlc_cast<T>(v);
  else if constexpr (sizeof(T) >= 4)
    return mlc_truncate<T>(v);
  else if constexpr (mlc_same<T, unsigned char> && sizeof(mlc_lane<V>) == 8)
    return mlc_cast<T>(mlc_truncate<long>(v));
  else
    return mlc_cast<T>(mlc_truncate<int>(v));
}

// f of float lanes, computed in machine vectors of double and rounded once at the end.
template <typename F, typename V, typename... MORE>
MLC_INLINE V mlc_through_double(F f, V x, MORE... more) {
  if constexpr (2 * sizeof(V) > MLC_VECTOR_BYTES && mlc_lanes<V> > 2)
    return mlc_join(
        mlc_through_double(f, mlc_low(x), mlc_low(more)...), mlc_through_double(f, mlc_high(x), mlc_high(more)...));
  else
    return mlc_cast<float>(f(mlc_cast<double>(x), mlc_cast<double>(more)...));
}

// ---- bf16: the upper half of a float

enum { MLC_DENORMAL = 0x20 };  // among the classes of vfpclassps

template <typename V>
MLC_INLINE mlc_vec<float, mlc_lanes<V>> mlc_from_bf16(V raw) {
  constexpr int N = mlc_lanes<V>;
  return mlc_bitcast<mlc_vec<float, N>>(mlc_cast<unsigned>(raw) << 16);
}
template <typename V>
MLC_INLINE mlc_vec<unsigned short, mlc_lanes<V>> mlc_to_bf16_bits(V x) {
  constexpr int N = mlc_lanes<V>;
  typedef mlc_vec<unsigned, N> U;
  U bits = mlc_bitcast<U>(x);
  U rounded = (bits + (0x7fffu + ((bits >> 16) & 1u))) >> 16;
  U quiet = (bits >> 16) | 0x40u;
  return mlc_cast<unsigned short>((U)(x != x ? quiet : rounded));
}
template <typename V>
MLC_INLINE mlc_vec<unsigned short, mlc_lanes<V>> mlc_to_bf16(V x) {
#if defined(__AVX512BF16__) && defined(MLC_AVX512)
  constexpr int N = mlc_lanes<V>;
  typedef mlc_vec<unsigned short, N> R;
  if constexpr (N > 16) return mlc_join(mlc_to_bf16(mlc_low(x)), mlc_to_bf16(mlc_high(x)));
  // The instruction rounds as we do, except that it takes denormals for zeros: vectors with one go the long way.
  if constexpr (N == 16)
    if (__builtin_expect(__builtin_ia32_fpclassps512_mask(x, MLC_DENORMAL, -1) == 0, 1))
      return mlc_bitcast<R>(__builtin_ia32_cvtneps2bf16_v16sf(x));
  if constexpr (N == 8)
    if (__builtin_expect(__builtin_ia32_fpclassps256_mask(x, MLC_DENORMAL, -1) == 0, 1))
      return mlc_bitcast<R>(__builtin_ia32_cvtneps2bf16_v8sf(x));
#endif
  return mlc_to_bf16_bits(x);
}

// ---- f16 (IEEE binary16)

// Without F16C: the exponent is rebiased by a multiplication, which also normalises denormals.
template <int N>
MLC_INLINE mlc_vec<float, N> mlc_from_f16_bits(mlc_vec<unsigned short, N> raw) {
  typedef mlc_vec<unsigned, N> U;
  typedef mlc_vec<float, N> F;
  U h = mlc_cast<unsigned>(raw), magnitude = (h & 0x7fffu) << 13;
  U finite = mlc_bitcast<U>(mlc_bitcast<F>(magnitude) * 0x1p112f);
  U special = (h & 0x3ffu) << 13 | 0x7f800000u;
  return mlc_bitcast<F>((h & 0x8000u) << 16 | (U)(magnitude >= 0x7c00u << 13 ? special : finite));
}
template <int N>
MLC_INLINE mlc_vec<unsigned short, N> mlc_to_f16_bits(mlc_vec<float, N> x) {
  typedef mlc_vec<unsigned, N> U;
  typedef mlc_vec<float, N> F;
  U bits = mlc_bitcast<U>(x), a = bits & 0x7fffffffu, sign = bits >> 16 & 0x8000u;
  U normal = (a + 0xfffu + (a >> 13 & 1u) - (112u << 23)) >> 13;
  // Adding 0.5 shifts a denormal result into the low bits, rounded to nearest even by the addition itself.
  U denormal = mlc_bitcast<U>(mlc_bitcast<F>(a) + 0.5f) - 0x3f000000u;
  U special = a > 0x7f800000u ? (a >> 13 & 0x3ffu) | 0x7e00u : U{} + 0x7c00u;
  U result = a < 0x38800000u ? denormal : (a < 0x47800000u ? normal : special);
  return mlc_cast<unsigned short>(result | sign);
}

template <typename V>
MLC_INLINE mlc_vec<float, mlc_lanes<V>> mlc_from_f16(V raw) {
  constexpr int N = mlc_lanes<V>;
#ifdef __F16C__
  if constexpr (N == 1) return __builtin_ia32_vcvtph2ps(mlc_vec<short, 8>{(short)raw})[0];
  if constexpr (N == 4)
    return __builtin_ia32_vcvtph2ps(
        (mlc_vec<short, 8>)mlc_join(mlc_bitcast<mlc_vec<long, 1>>(raw), 0l));
  if constexpr (N == 8) return __builtin_ia32_vcvtph2ps256((mlc_vec<short, 8>)raw);
#ifdef MLC_AVX512
  if constexpr (N == 16)
    return __builtin_ia32_vcvtph2ps512_mask((mlc_vec<short, 16>)raw, mlc_vec<float, 16>{}, -1, 4);
#endif
  if constexpr (N > 8) return mlc_join(mlc_from_f16(mlc_low(raw)), mlc_from_f16(mlc_high(raw)));
#endif
  return mlc_from_f16_bits<N>(raw);
}
template <typename V>
MLC_INLINE mlc_vec<unsigned short, mlc_lanes<V>> mlc_to_f16(V x) {
  constexpr int N = mlc_lanes<V>;
#ifdef __F16C__
  typedef mlc_vec<unsigned short, N> R;
  if constexpr (N == 1) return __builtin_ia32_vcvtps2ph(mlc_only(x), 0)[0];
  if constexpr (N == 4) return mlc_bitcast<R>(((mlc_vec<long, 2>)__builtin_ia32_vcvtps2ph(x, 0))[0]);
  if constexpr (N == 8) return (R)__builtin_ia32_vcvtps2ph256(x, 0);
#ifdef MLC_AVX512
  if constexpr (N == 16) return (R)__builtin_ia32_vcvtps2ph512_mask(x, 0, mlc_vec<short, 16>{}, -1);
#endif
  if constexpr (N > 8) return mlc_join(mlc_to_f16(mlc_low(x)), mlc_to_f16(mlc_high(x)));
#endif
  return mlc_to_f16_bits<N>(x);
}

// A float rounded to what bf16 or f16 would keep of it.
template <typename V>
MLC_INLINE V mlc_round_bf16(V x) {
  return mlc_from_bf16(mlc_to_bf16(x));
}
template <typename V>
MLC_INLINE V mlc_round_f16(V x) {
  return mlc_from_f16(mlc_to_f16(x));
}

// ---- 8 bits: to nearest even; what is too large for f8e4m3 becomes the greatest number, for f8e5m2 an infinity

// SHIFT bits of a float's fraction go, and REBIAS of its exponent; LEAST is that of the least normal number, OVER are the
// bits of what is too large.
template <int SHIFT, unsigned REBIAS, unsigned LEAST, unsigned OVER, typename V>
MLC_INLINE mlc_vec<unsigned char, mlc_lanes<V>> mlc_to_eight(V x) {
  constexpr int N = mlc_lanes<V>;
  typedef mlc_vec<unsigned, N> U;
  typedef mlc_vec<float, N> F;
  constexpr unsigned LARGE = (LEAST + SHIFT) << 23;  // of a sum whose last bit is the least number
  U bits = mlc_bitcast<U>(x), a = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  U normal = (a + ((1u << (SHIFT - 1)) - 1) + (a >> SHIFT & 1u) - (REBIAS << 23)) >> SHIFT;
  U denormal = mlc_bitcast<U>(mlc_bitcast<F>(a) + __builtin_bit_cast(float, LARGE)) - LARGE;
  U number = a < LEAST << 23 ? denormal : (normal < OVER ? normal : U{} + OVER);
  return mlc_cast<unsigned char>((a > 0x7f800000u ? U{} + 0x7fu : number) | sign);
}
template <typename V>
MLC_INLINE mlc_vec<unsigned char, mlc_lanes<V>> mlc_to_f8e4m3(V x) {
  return mlc_to_eight<20, 120, 121, 0x7e>(x);
}
template <typename V>
MLC_INLINE mlc_vec<unsigned char, mlc_lanes<V>> mlc_to_f8e5m2(V x) {
  return mlc_to_eight<21, 112, 113, 0x7c>(x);
}
template <typename V>
MLC_INLINE mlc_vec<float, mlc_lanes<V>> mlc_from_f8e4m3(V raw) {
  constexpr int N = mlc_lanes<V>;
  typedef mlc_vec<unsigned, N> U;
  typedef mlc_vec<float, N> F;
  U bits = mlc_cast<unsigned>(raw), magnitude = bits & 0x7fu;
  U finite = mlc_bitcast<U>(mlc_bitcast<F>((U)(magnitude << 20)) * 0x1p120f);
  return mlc_bitcast<F>((U)(magnitude == 0x7fu ? U{} + 0x7fc00000u : finite) | (bits & 0x80u) << 24);
}
template <typename V>
MLC_INLINE mlc_vec<float, mlc_lanes<V>> mlc_from_f8e5m2(V raw) {
  return mlc_from_f16((mlc_vec<unsigned short, mlc_lanes<V>>)(mlc_cast<unsigned short>(raw) << 8));
}

// ---- masks and booleans

// 1 where the mask is set, else 0, as lanes of T.
template <typename T, typename M>
MLC_INLINE mlc_vec<T, mlc_lanes<M>> mlc_from_mask(M mask) {
  if constexpr (mlc_same<M, bool>)
    return (T)mask;
  else
    return mlc_cast<T>(mask & 1);
}
// The mask of the lanes that are not zero (NaN is not zero), as wide as the lanes of v.
template <typename V>
MLC_INLINE auto mlc_to_mask(V v) {
  return v != 0;
}
// The same mask for lanes of T.
template <typename T, typename M>
MLC_INLINE mlc_mask<T, mlc_lanes<M>> mlc_resize_mask(M mask) {
  if constexpr (mlc_same<M, bool>)
    return mask;
  else
    return mlc_cast<mlc_lane<mlc_mask<T, mlc_lanes<M>>>>(mask);
}
template <typename M>
MLC_INLINE M mlc_not_mask(M mask) {
  if constexpr (mlc_same<M, bool>)
    return !mask;
  else
    return ~mask;
}

// ---- between what memory holds (raw lanes of element type S) and lanes of T to compute with

template <typename T, typename S, typename R>
MLC_INLINE mlc_vec<T, mlc_lanes<R>> mlc_from_raw(R raw) {
  if constexpr (mlc_same<S, mlc_bf16>)
    return mlc_convert<T>(mlc_from_bf16(raw));
  else if constexpr (mlc_same<S, mlc_f16>)
    return mlc_convert<T>(mlc_from_f16(raw));
  else if constexpr (mlc_same<S, mlc_f8e4m3>)
    return mlc_convert<T>(mlc_from_f8e4m3(raw));
  else if constexpr (mlc_same<S, mlc_f8e5m2>)
    return mlc_convert<T>(mlc_from_f8e5m2(raw));
  else
    return mlc_convert<T>(raw);
}
template <typename S, typename V>
MLC_INLINE mlc_vec<mlc_raw<S>, mlc_lanes<V>> mlc_to_raw(V v) {
  if constexpr (mlc_same<S, mlc_bf16>)
    return mlc_to_bf16(mlc_convert<float>(v));
  else if constexpr (mlc_same<S, mlc_f16>)
    return mlc_to_f16(mlc_convert<float>(v));
  else if constexpr (mlc_same<S, mlc_f8e4m3>)
    return mlc_to_f8e4m3(mlc_convert<float>(v));
  else if constexpr (mlc_same<S, mlc_f8e5m2>)
    return mlc_to_f8e5m2(mlc_convert<float>(v));
  else if constexpr (mlc_same<S, bool>)
    return mlc_from_mask<unsigned char>(mlc_to_mask(v));
  else
    return mlc_convert<S>(v);
}
