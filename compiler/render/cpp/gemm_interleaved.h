// Matrix products of bf16 in f32: mlc_interleaved_block takes vectors along the columns of B and C, as mlc_fma_block does,
// and pairs along k. B may lie in any way, and is laid out in pairs a panel of columns at a time; of A, k is contiguous.
// mlc_interleaved_block_store stores C = A B, rounded to bf16, instead of adding to C: sums stay in registers, and k is
// DEPTH.
#pragma once
#include "copy.h"
#include "gemm.h"

// to[p][j] = the pair p of column j, for k elements of n columns; what is beyond them is zero.
template <int NR, int W>
static void mlc_lay_pairs(long k, long n, const mlc_bf16* b, long b_k, long b_n, unsigned* to) {
  long whole = 0, wide = n / W * W;  // so many pairs, of so many columns, are done in vectors
  if (b_n == 1) {
    whole = k / 2;
    for (long p = 0; p < whole; p++) {
      const unsigned short* row = (const unsigned short*)(b + 2 * p * b_k);
      for (long j = 0; j < wide; j += W)
        mlc_store(to + p * NR + j, mlc_cast<unsigned>(mlc_load<unsigned short, W>(row + j)) |
                mlc_cast<unsigned>(mlc_load<unsigned short, W>(row + b_k + j)) << 16);
    }
  } else if (b_k == 1) {
    whole = k / (2 * W) * W;
    for (long j = 0; j < wide; j += W)
      for (long p = 0; p < whole; p += W) {
        mlc_vec<unsigned, W> row[W];
#pragma GCC unroll 64
        for (int i = 0; i < W; i++) {
          const mlc_bf16* pairs = b + (j + i) * b_n + 2 * p;
          row[i] = mlc_load_pairs<W>(pairs);
          mlc_prefetch<2>(pairs, W * b_n * (long)sizeof(*b));  // the columns after these, too few of each for the machine
        }
        mlc_transpose_steps<1>(row);
#pragma GCC unroll 64
        for (int i = 0; i < W; i++) mlc_store(to + (p + i) * NR + j, row[i]);
      }
  }
  for (long p = 0; 2 * p < k; p++)
    for (long j = p < whole ? wide : 0; j < NR; j++) {
      const mlc_bf16* pair = b + 2 * p * b_k + j * b_n;
      to[p * NR + j] = j < n ? pair[0].bits | (2 * p + 1 < k ? (unsigned)pair[b_k].bits << 16 : 0u) : 0u;
    }
}

// All rows of the columns of one panel, `wide` of them.
template <int MR, int NR, int M_LEFT, int N_LEFT, typename C>
MLC_INLINE void mlc_pair_columns(
    long m, long wide, long k, const mlc_bf16* a, long a_m, const mlc_pair* pairs, C* c, long c_m) {
  constexpr int W = mlc_width<float>;
  if (wide == NR)
    mlc_fma_columns<MR, NR / W, M_LEFT, false>(m, k, a, a_m, 1, pairs, NR, c, c_m, W);
  else if constexpr (N_LEFT > 0) {
    constexpr int NV = (N_LEFT + W - 1) / W, LAST = N_LEFT - (NV - 1) * W;
    mlc_fma_columns<MR, NV, M_LEFT, LAST != W>(m, k, a, a_m, 1, pairs, NR, c, c_m, LAST);
  } else if constexpr (N_LEFT < 0)
    for (long i = 0; i < wide; i += W)
      mlc_fma_columns<MR, 1, M_LEFT, true>(m, k, a, a_m, 1, pairs + i, NR, c + i, c_m, wide - i < W ? wide - i : W);
}
template <int MR, int NR, int M_LEFT, int N_LEFT>
static void mlc_interleaved_block(long m, long n, long k, const mlc_bf16* a, long a_m, long, const mlc_bf16* b,
    long b_k, long b_n, float* c, long c_m) {
  constexpr int W = mlc_width<float>, DEEP = 2 * (24 * 1024 / (int)(NR * sizeof(mlc_pair)));  // half a first level
  alignas(64) mlc_pair pairs[DEEP / 2 * NR];
  for (long step = 0; step < k; step += DEEP)
    for (long j = 0; j < n; j += NR) {
      const long depth = k - step < DEEP ? k - step : DEEP, wide = n - j < NR ? n - j : NR;
      mlc_lay_pairs<NR, W>(depth, wide, b + step * b_k + j * b_n, b_k, b_n, &pairs[0].bits);
      mlc_pair_columns<MR, NR, M_LEFT, N_LEFT>(m, wide, depth, a + step, a_m, pairs, c + j, c_m);
    }
}
template <int MR, int NR, int M_LEFT, int N_LEFT, int DEPTH>
static void mlc_interleaved_block_store(long m, long n, long k, const mlc_bf16* a, long a_m, long, const mlc_bf16* b,
    long b_k, long b_n, mlc_bf16* c, long c_m) {
  alignas(64) mlc_pair pairs[(DEPTH + 1) / 2 * NR];
  for (long j = 0; j < n; j += NR) {
    const long wide = n - j < NR ? n - j : NR;
    mlc_lay_pairs<NR, mlc_width<float>>(k, wide, b + j * b_n, b_k, b_n, &pairs[0].bits);
    mlc_pair_columns<MR, NR, M_LEFT, N_LEFT>(m, wide, k, a, a_m, pairs, c + j, c_m);
  }
}
