// Products of which each lane of the sums takes some neighbours along k at a time: two bf16 in f32, by vdpbf16ps where there
// is that, which rounds to nearest even after each product and takes denormals for zeros, factors and sums alike; or four
// int8 in 32 bits, by vpdpbusd where there is that.
#pragma once
#include "gemm_int8.h"

// Neighbours along k of one column, as many as have 32 bits, the first of them in the lowest.
template <typename E>
struct mlc_group {
  static constexpr int SIZE = sizeof(unsigned) / sizeof(E);
  unsigned bits;
};
template <typename B>
constexpr bool mlc_is_group = false;
template <typename E>
constexpr bool mlc_is_group<mlc_group<E>> = true;

MLC_INLINE unsigned mlc_group_bits(mlc_bf16 x) {
  return x.bits;
}
MLC_INLINE unsigned mlc_group_bits(signed char x) {
  return (unsigned char)x;
}

// sum + the products of both halves of each lane
template <int W>
MLC_INLINE void mlc_add_groups(mlc_vec<float, W>& sum, const mlc_vec<unsigned, W>& a, const mlc_vec<unsigned, W>& b) {
#if defined(__AVX512BF16__) && defined(MLC_AVX512)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  typedef mlc_vec<float, W> V;
  sum += mlc_bitcast<V>(a << 16) * mlc_bitcast<V>(b << 16);
  sum += mlc_bitcast<V>(a & 0xffff0000u) * mlc_bitcast<V>(b & 0xffff0000u);
#endif
}
// sum + the products of the four bytes of each lane, unsigned of a and signed of b
template <int W>
MLC_INLINE void mlc_add_groups(mlc_vec<int, W>& sum, const mlc_vec<unsigned, W>& a, const mlc_vec<unsigned, W>& b) {
#if defined(MLC_VNNI)
  asm(MLC_VNNI "vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  typedef mlc_vec<int, W> V;
#pragma GCC unroll 4
  for (int bit = 0; bit < 32; bit += 8) sum += (V)(a >> bit & 255u) * ((V)(b << (24 - bit)) >> 24);
#endif
}
// The first n elements, or all, of those that go into W sums.
template <int W, bool PARTIAL = false>
MLC_INLINE mlc_vec<unsigned, W> mlc_load_pairs(const mlc_bf16* p, [[maybe_unused]] long n = 2 * W) {
  if constexpr (PARTIAL)
    return mlc_bitcast<mlc_vec<unsigned, W>>(mlc_load_first<unsigned short, 2 * W>((const unsigned short*)p, n));
  else
    return mlc_load<unsigned, W>((const unsigned*)p);
}

// sum[i][j] += row i of A times row j of B, as many elements as a vector has.
template <int MR, int NR, bool PARTIAL, int W>
MLC_INLINE void mlc_dot_pairs(
    mlc_vec<float, W> (&sum)[MR][NR], const mlc_bf16* a, long a_m, const mlc_bf16* b, long b_n, long n) {
  mlc_vec<unsigned, W> column[NR];
#pragma GCC unroll 8
  for (int j = 0; j < NR; j++) {
    column[j] = mlc_load_pairs<W, PARTIAL>(b + j * b_n, n);
    mlc_keep(column[j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) {
    mlc_vec<unsigned, W> row = mlc_load_pairs<W, PARTIAL>(a + i * a_m, n);
    mlc_keep(row);
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) mlc_add_groups<W>(sum[i][j], row, column[j]);
  }
}

// What is added to each element of A, so that it is unsigned. The row of B after the last tells what the sums begin with.
template <typename E>
constexpr unsigned mlc_group_offset = mlc_same<E, signed char> ? 0x80808080u : 0;

// sum[i][j] += a group of row i of A times groups of vector j of the columns of B; REST: of the group there are `rest`.
template <int W, bool REST, typename V, typename E, int MR, int NV>
MLC_INLINE void mlc_group_step(
    V (&sum)[MR][NV], const E* a, long a_m, const mlc_group<E>* b, [[maybe_unused]] long rest) {
  mlc_vec<unsigned, W> row[NV];
#pragma GCC unroll 8
  for (int j = 0; j < NV; j++) {
    row[j] = mlc_load<unsigned, W>((const unsigned*)b + j * W);
    mlc_keep(row[j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) {
    unsigned group = 0;
    if constexpr (REST)
      for (long e = 0; e < rest; e++) group |= mlc_group_bits(a[i * a_m + e]) << (8 * sizeof(E) * e);
    else
      __builtin_memcpy(&group, a + i * a_m, sizeof(group));
    mlc_vec<unsigned, W> x = mlc_broadcast<unsigned, W>(group);
    if constexpr (mlc_group_offset<E> != 0) x ^= mlc_group_offset<E>;
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) mlc_add_groups<W>(sum[i][j], x, row[j]);
  }
}
template <int W, typename V, typename E, int MR, int NV>
MLC_INLINE void mlc_group_tile(
    V (&sum)[MR][NV], long k, const E* a, long a_m, const mlc_group<E>* b, long b_p) {
  constexpr int SIZE = mlc_group<E>::SIZE;
  const long whole = k / SIZE, rest = k % SIZE;
  if constexpr (mlc_group_offset<E> != 0) {
    const int* beyond = (const int*)(b + (whole + (rest != 0)) * b_p);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) sum[i][j] = mlc_load<int, W>(beyond + j * W);
  }
  for (long p = 0; p < whole; p++, b += b_p) mlc_group_step<W, false>(sum, a + p * SIZE, a_m, b, 0);
  if (rest) mlc_group_step<W, true>(sum, a + whole * SIZE, a_m, b, rest);
}
