// Matrix products of bf16 in f32, and of int8 in 32 bits: mlc_interleaved_block takes vectors along the columns of B and C,
// as mlc_fma_block does, and neighbours along k that have 32 bits together. B may lie in any way, and is laid out so a panel
// of columns at a time; of A, k is contiguous. mlc_interleaved_block_store stores C = A B, rounded to bf16, instead of adding
// to C: sums stay in registers, and k is DEPTH.
#pragma once
#include "copy.h"
#include "gemm.h"

// to[p][j] = the group p of column j, for k elements of n columns; what is beyond them is zero. The last row are the sums
// of no products, less than zero by what offsets make too much.
template <int NR, int W, typename E>
static void mlc_interleave(long k, long n, const E* b, long b_k, long b_n, unsigned* to) {
  typedef typename mlc_unsigned_type<sizeof(E)>::type U;
  constexpr int SIZE = mlc_group<E>::SIZE, BITS = 8 * sizeof(E);
  const long groups = (k + SIZE - 1) / SIZE;
  long whole = 0, wide = n / W * W;  // so many groups, of so many columns, are done in vectors
  if (b_n == 1) {
    whole = k / SIZE;
    for (long p = 0; p < whole; p++) {
      const U* row = (const U*)(b + SIZE * p * b_k);
      for (long j = 0; j < wide; j += W) {
        mlc_vec<unsigned, W> group = mlc_cast<unsigned>(mlc_load<U, W>(row + j));
#pragma GCC unroll 4
        for (int e = 1; e < SIZE; e++) group |= mlc_cast<unsigned>(mlc_load<U, W>(row + e * b_k + j)) << (BITS * e);
        mlc_store(to + p * NR + j, group);
      }
    }
  } else if (b_k == 1) {
    whole = k / (SIZE * W) * W;
    for (long j = 0; j < wide; j += W)
      for (long p = 0; p < whole; p += W) {
        mlc_vec<unsigned, W> row[W];
#pragma GCC unroll 64
        for (int i = 0; i < W; i++) {
          const E* from = b + (j + i) * b_n + SIZE * p;
          row[i] = mlc_load<unsigned, W>((const unsigned*)from);
          mlc_prefetch<2>(from, W * b_n * (long)sizeof(*b));  // the columns after these, too few of each for the machine
        }
        mlc_transpose_steps<1>(row);
#pragma GCC unroll 64
        for (int i = 0; i < W; i++) mlc_store(to + (p + i) * NR + j, row[i]);
      }
  }
  for (long p = 0; p < groups; p++)
    for (long j = p < whole ? wide : 0; j < NR; j++) {
      const E* from = b + SIZE * p * b_k + j * b_n;
      unsigned group = 0;
      if (j < n && b_k == 1 && SIZE * (p + 1) <= k)
        __builtin_memcpy(&group, from, sizeof(group));
      else if (j < n)
        for (long e = 0; e < SIZE && SIZE * p + e < k; e++) group |= mlc_group_bits(from[e * b_k]) << (BITS * e);
      to[p * NR + j] = group;
    }
  if constexpr (mlc_group_offset<E> != 0)
    for (long j = 0; j < NR; j += W) {
      mlc_vec<int, W> sum = {};
      for (long p = 0; p < groups; p++)
        mlc_add_groups<W>(sum, mlc_broadcast<unsigned, W>(mlc_group_offset<E>), mlc_load<unsigned, W>(to + p * NR + j));
      mlc_store((int*)to + groups * NR + j, -sum);
    }
}

// All rows of the columns of one panel, `wide` of them.
template <int MR, int NR, int M_LEFT, int N_LEFT, typename E, typename C>
MLC_INLINE void mlc_interleaved_columns(
    long m, long wide, long k, const E* a, long a_m, const mlc_group<E>* panel, C* c, long c_m) {
  constexpr int W = mlc_width<unsigned>;
  if (wide == NR)
    mlc_fma_columns<MR, NR / W, M_LEFT, false>(m, k, a, a_m, 1, panel, NR, c, c_m, W);
  else if constexpr (N_LEFT > 0) {
    constexpr int NV = (N_LEFT + W - 1) / W, LAST = N_LEFT - (NV - 1) * W;
    mlc_fma_columns<MR, NV, M_LEFT, LAST != W>(m, k, a, a_m, 1, panel, NR, c, c_m, LAST);
  } else if constexpr (N_LEFT < 0)
    for (long i = 0; i < wide; i += W)
      mlc_fma_columns<MR, 1, M_LEFT, true>(m, k, a, a_m, 1, panel + i, NR, c + i, c_m, wide - i < W ? wide - i : W);
}
template <int MR, int NR, int M_LEFT, int N_LEFT, typename E, typename C>
static void mlc_interleaved_block(
    long m, long n, long k, const E* a, long a_m, long, const E* b, long b_k, long b_n, C* c, long c_m) {
  constexpr int W = mlc_width<unsigned>, GROUPS = 24 * 1024 / (int)(NR * sizeof(unsigned));  // half a first level
  constexpr int DEEP = GROUPS * mlc_group<E>::SIZE;
  alignas(64) mlc_group<E> panel[(GROUPS + 1) * NR];
  for (long step = 0; step < k; step += DEEP)
    for (long j = 0; j < n; j += NR) {
      const long depth = k - step < DEEP ? k - step : DEEP, wide = n - j < NR ? n - j : NR;
      mlc_interleave<NR, W>(depth, wide, b + step * b_k + j * b_n, b_k, b_n, &panel[0].bits);
      mlc_interleaved_columns<MR, NR, M_LEFT, N_LEFT>(m, wide, depth, a + step, a_m, panel, c + j, c_m);
    }
}
template <int MR, int NR, int M_LEFT, int N_LEFT, int DEPTH>
static void mlc_interleaved_block_store(long m, long n, long k, const mlc_bf16* a, long a_m, long, const mlc_bf16* b,
    long b_k, long b_n, mlc_bf16* c, long c_m) {
  alignas(64) mlc_group<mlc_bf16> panel[(DEPTH + 1) / 2 * NR];
  for (long j = 0; j < n; j += NR) {
    const long wide = n - j < NR ? n - j : NR;
    mlc_interleave<NR, mlc_width<unsigned>>(k, wide, b + j * b_n, b_k, b_n, &panel[0].bits);
    mlc_interleaved_columns<MR, NR, M_LEFT, N_LEFT>(m, wide, k, a, a_m, panel, c + j, c_m);
  }
}
