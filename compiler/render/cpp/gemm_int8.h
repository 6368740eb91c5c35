// Steps of dot products of int8, summed in 32 bits: each lane takes as many neighbours along k as an instruction does.
//
// vpdpbusd multiplies four unsigned by signed bytes: the left factor goes in with 128 added to each, and what that adds to
// the sum of a column is summed beside it, with the first rows of a block, and taken off in the end. vpmaddwd takes two,
// widened to 16 bits.
#pragma once
#include "memory.h"

// The value stays in a register: otherwise GCC loads it anew for each of its uses, and loads become the bottleneck.
template <typename V>
MLC_INLINE void mlc_keep([[maybe_unused]] V& v) {
#ifdef __AVX__
  asm("" : "+v"(v));
#endif
}

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define MLC_VNNI ""
#elif defined(__AVXVNNI__)
#define MLC_VNNI "%{vex%} "
#endif
#if defined(MLC_VNNI)
typedef signed char mlc_int8_factor;
#elif defined(__AVX2__)
typedef short mlc_int8_factor;
#else
typedef int mlc_int8_factor;
#endif
// Whether sums are too large by what is beyond.
#ifdef MLC_VNNI
constexpr bool mlc_int8_is_offset = true;
#else
constexpr bool mlc_int8_is_offset = false;
#endif
// Elements of a factor in a vector of W sums.
template <int W>
constexpr int mlc_int8_depth = W * (int)(sizeof(int) / sizeof(mlc_int8_factor));
template <int W>
using mlc_int8_vec = mlc_vec<mlc_int8_factor, mlc_int8_depth<W>>;

template <int W, bool PARTIAL>
MLC_INLINE mlc_int8_vec<W> mlc_load_int8(const signed char* p, long n) {
  constexpr int N = mlc_int8_depth<W>;
  if constexpr (PARTIAL)
    return __builtin_convertvector(mlc_load_first<signed char, N>(p, n), mlc_int8_vec<W>);
  else
    return __builtin_convertvector(mlc_load<signed char, N>(p), mlc_int8_vec<W>);
}

// sum + the products of all elements; where there is vpdpbusd those of `a` count as unsigned.
template <int W>
MLC_INLINE void mlc_add_products(mlc_vec<int, W>& sum, const mlc_int8_vec<W>& a, const mlc_int8_vec<W>& b) {
#if defined(MLC_VNNI)
  asm(MLC_VNNI "vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#elif defined(__AVX2__)
  mlc_vec<int, W> pairs;
  asm("vpmaddwd %2, %1, %0" : "=v"(pairs) : "v"(a), "v"(b));
  sum += pairs;
#else
  sum += a * b;
#endif
}

// sum[i][j] += row i of A times row j of B, as many elements as a vector has; FIRST: beyond[j] += what is too much of it.
template <int MR, int NR, bool FIRST, bool PARTIAL, int W>
MLC_INLINE void mlc_int8_step(
    mlc_vec<int, W> (&sum)[MR][NR], [[maybe_unused]] mlc_vec<int, W> (&beyond)[NR], const signed char* a, long a_m,
    const signed char* b, long b_n, long n) {
  mlc_int8_vec<W> column[NR];
#pragma GCC unroll 8
  for (int j = 0; j < NR; j++) {
    column[j] = mlc_load_int8<W, PARTIAL>(b + j * b_n, n);
    mlc_keep(column[j]);
#ifdef MLC_VNNI
    if constexpr (FIRST) mlc_add_products<W>(beyond[j], mlc_int8_vec<W>{} ^ (signed char)-128, column[j]);
#endif
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    mlc_int8_vec<W> row = mlc_load_int8<W, PARTIAL>(a + i * a_m, n);
#ifdef MLC_VNNI
    row ^= (signed char)-128;
#endif
    mlc_keep(row);
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) mlc_add_products<W>(sum[i][j], row, column[j]);
  }
}
