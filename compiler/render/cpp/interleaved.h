// Products of bf16 summed in f32, two neighbours along k at a time, by vdpbf16ps where there is that: it rounds to nearest
// even after each product, and takes denormals for zeros, factors and sums alike.
#pragma once
#include "gemm_int8.h"

// The elements 2p and 2p + 1 along k of a column, the first of them in the lower bits.
struct mlc_pair {
  unsigned bits;
};

// sum + the products of both halves of each lane
template <int W>
MLC_INLINE void mlc_add_pairs(mlc_vec<float, W>& sum, const mlc_vec<unsigned, W>& a, const mlc_vec<unsigned, W>& b) {
#if defined(__AVX512BF16__) && defined(MLC_AVX512)
  asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
#else
  typedef mlc_vec<float, W> V;
  sum += mlc_bitcast<V>(a << 16) * mlc_bitcast<V>(b << 16);
  sum += mlc_bitcast<V>(a & 0xffff0000u) * mlc_bitcast<V>(b & 0xffff0000u);
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
    for (int j = 0; j < NR; j++) mlc_add_pairs<W>(sum[i][j], row, column[j]);
  }
}

// sum[i][j] += a pair of row i of A times pairs of vector j of the columns of B; of the LAST pair there is one element.
template <bool LAST, int MR, int NV, int W>
MLC_INLINE void mlc_pair_step(mlc_vec<float, W> (&sum)[MR][NV], const mlc_bf16* a, long a_m, const mlc_pair* b) {
  mlc_vec<unsigned, W> row[NV];
#pragma GCC unroll 8
  for (int j = 0; j < NV; j++) {
    row[j] = mlc_load<unsigned, W>((const unsigned*)b + j * W);
    mlc_keep(row[j]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++) {
    unsigned pair = 0;
    __builtin_memcpy(&pair, a + i * a_m, LAST ? sizeof(*a) : sizeof(pair));
    const mlc_vec<unsigned, W> x = mlc_broadcast<unsigned, W>(pair);
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) mlc_add_pairs<W>(sum[i][j], x, row[j]);
  }
}
template <int MR, int NV, int W>
MLC_INLINE void mlc_pair_tile(
    mlc_vec<float, W> (&sum)[MR][NV], long k, const mlc_bf16* a, long a_m, const mlc_pair* b, long b_p) {
  for (long step = 0; step + 2 <= k; step += 2, b += b_p) mlc_pair_step<false, MR, NV, W>(sum, a + step, a_m, b);
  if (k % 2) mlc_pair_step<true, MR, NV, W>(sum, a + k - 1, a_m, b);
}
