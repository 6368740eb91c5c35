// Matrix products of any size from small blocks of C held in registers: C[m][n] += A[m][k] B[k][n].
//
// mlc_fma_block takes vectors along the rows of B and C (b_n = 1) and broadcasts the elements of A, which may lie in any
// way; mlc_dot_block takes vectors along k (a_k = b_k = 1) and adds up their lanes in the end. Every operand comes with the
// distance between its rows and columns, in elements; C is contiguous along n. A and B may be of a narrower type than C,
// and are converted as they are loaded.
//
// A block is MR x NR elements of C. What divides neither m nor n is left to smaller blocks: M_LEFT = m % MR and
// N_LEFT = n % NR say which, so that only those are compiled; where they are not known, -1 stands for any. N_LEFT = NR asks
// mlc_dot_block to do columns that are left over in a whole block, which begins earlier: n is NR at least. Likewise k is
// a multiple of K_UNIT: where that is one of whole vectors, nothing is compiled for the last elements of a row. The
// accumulators, the vectors of B and one of A must fit the registers, and at least eight accumulators hide the latency of
// a multiply-add: 6 x 2 vectors or 4 x 3 for 16 registers, 8 x 3 or 6 x 4 for 32.
#pragma once
#include "gemm_int8.h"
#include "memory.h"
#include "interleaved.h"

template <typename T>
constexpr int mlc_width = MLC_VECTOR_BYTES / sizeof(T);

// The type in which elements of C are summed.
template <typename T>
struct mlc_sum_type {
  typedef T type;
};
template <>
struct mlc_sum_type<mlc_bf16> {
  typedef float type;
};

// sum[i][j] = row i of A times vector j of the columns of B. For PARTIAL the last vector has n columns.
template <typename T, int MR, int NV, bool PARTIAL, typename A, typename B, int W = mlc_width<T>>
MLC_INLINE void mlc_fma_tile(
    mlc_vec<T, W> (&sum)[MR][NV], long k, const A* a, long a_m, long a_k, const B* b, long b_k, long n) {
  typedef mlc_vec<T, W> V;
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) sum[i][j] = V{};
  if constexpr (mlc_is_group<B>) return mlc_group_tile<W>(sum, k, a, a_m, b, b_k);
  else for (long step = 0; step < k; step++) {
    V row[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      if (PARTIAL && j == NV - 1)
        row[j] = mlc_load_n<T, W>(b + j * W, n);
      else
        row[j] = mlc_load_as<T, W>(b + j * W);
      if (MR > 1) mlc_keep(row[j]);
      mlc_prefetch(b + j * W, 8 * b_k * (long)sizeof(B));
    }
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      V x = mlc_broadcast<T, W>(mlc_load_as<T, 1>(a + i * a_m));
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) sum[i][j] += x * row[j];
    }
    a += a_k;
    b += b_k;
  }
}

// C[MR][NV * W], of which the last vector has n columns, += the block.
template <typename T, int MR, int NV, bool PARTIAL, int W = mlc_width<T>>
MLC_INLINE void mlc_add_tile(const mlc_vec<T, W> (&sum)[MR][NV], T* c, long c_m, long n) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      T* p = c + i * c_m + j * W;
      if (PARTIAL && j == NV - 1)
        mlc_store_n(p, sum[i][j] + mlc_load_n<T, W>(p, n), n);
      else
        mlc_store(p, sum[i][j] + mlc_load<T, W>(p));
    }
}

// Sums of pairs, rounded. Their instructions leave no denormals, which alone the machine's conversion rounds in another way.
template <int W>
MLC_INLINE mlc_vec<unsigned short, W> mlc_round_pairs(const mlc_vec<float, W>& sum) {
#if defined(__AVX512BF16__) && defined(MLC_AVX512)
  return mlc_bitcast<mlc_vec<unsigned short, W>>(__builtin_ia32_cvtneps2bf16_v16sf(sum));
#else
  return mlc_to_bf16(sum);
#endif
}

// C[MR][NV * W], of which the last vector has n columns, = the sums of pairs.
template <int MR, int NV, bool PARTIAL, int W = mlc_width<float>>
MLC_INLINE void mlc_store_tile(const mlc_vec<float, W> (&sum)[MR][NV], mlc_bf16* c, long c_m, long n) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      unsigned short* p = &c[i * c_m + j * W].bits;
      const mlc_vec<unsigned short, W> rounded = mlc_round_pairs<W>(sum[i][j]);
      if (PARTIAL && j == NV - 1)
        mlc_store_n(p, rounded, n);
      else
        mlc_store(p, rounded);
    }
}

// Each block is a function of its own: compiled once, however many places use it. A result of bf16 is not added to.
template <int MR, int NV, bool PARTIAL, typename T, typename A, typename B>
static __attribute__((noinline)) void mlc_fma_panel(
    long k, const A* a, long a_m, long a_k, const B* b, long b_k, T* c, long c_m, long n) {
  typedef typename mlc_sum_type<T>::type S;
  mlc_vec<S, mlc_width<S>> sum[MR][NV];
  mlc_fma_tile<S, MR, NV, PARTIAL>(sum, k, a, a_m, a_k, b, b_k, n);
  if constexpr (mlc_same<T, mlc_bf16>) {
    static_assert(mlc_is_group<B>, "other sums may be denormal");
    mlc_store_tile<MR, NV, PARTIAL>(sum, c, c_m, n);
  } else
    mlc_add_tile<T, MR, NV, PARTIAL>(sum, c, c_m, n);
}
// One block of m rows, where m is MR or, with ANY, less.
template <int MR, bool ANY, int NV, bool PARTIAL, typename T, typename A, typename B>
MLC_INLINE void mlc_fma_rows_left(
    long m, long k, const A* a, long a_m, long a_k, const B* b, long b_k, T* c, long c_m, long n) {
  if constexpr (MR > 0) {
    if (m == MR)
      mlc_fma_panel<MR, NV, PARTIAL>(k, a, a_m, a_k, b, b_k, c, c_m, n);
    else if constexpr (ANY)
      mlc_fma_rows_left<MR - 1, ANY, NV, PARTIAL>(m, k, a, a_m, a_k, b, b_k, c, c_m, n);
  }
}
// All rows of some columns: NV vectors, n in the last of them.
template <int MR, int NV, int M_LEFT, bool PARTIAL, typename T, typename A, typename B>
MLC_INLINE void mlc_fma_columns(
    long m, long k, const A* a, long a_m, long a_k, const B* b, long b_k, T* c, long c_m, long n) {
  long i = 0;
  for (; i + MR <= m; i += MR)
    mlc_fma_panel<MR, NV, PARTIAL>(k, a + i * a_m, a_m, a_k, b, b_k, c + i * c_m, c_m, n);
  if constexpr (M_LEFT != 0)
    mlc_fma_rows_left<M_LEFT < 0 ? MR - 1 : M_LEFT, M_LEFT<0, NV, PARTIAL>(
        m - i, k, a + i * a_m, a_m, a_k, b, b_k, c + i * c_m, c_m, n);
}
template <int MR, int NR, int M_LEFT, int N_LEFT, typename T, typename A, typename B>
static void mlc_fma_block(
    long m, long n, long k, const A* a, long a_m, long a_k, const B* b, long b_k, long, T* c, long c_m) {
  constexpr int W = mlc_width<T>;
  long j = 0;
  for (; j + NR <= n; j += NR) mlc_fma_columns<MR, NR / W, M_LEFT, false>(m, k, a, a_m, a_k, b + j, b_k, c + j, c_m, W);
  if constexpr (N_LEFT > 0) {
    constexpr int NV = (N_LEFT + W - 1) / W, LAST = N_LEFT - (NV - 1) * W;
    if (j < n) mlc_fma_columns<MR, NV, M_LEFT, LAST != W>(m, k, a, a_m, a_k, b + j, b_k, c + j, c_m, LAST);
  } else if constexpr (N_LEFT < 0)
    for (; j < n; j += W)
      mlc_fma_columns<MR, 1, M_LEFT, true>(m, k, a, a_m, a_k, b + j, b_k, c + j, c_m, n - j < W ? n - j : W);
}

// sum[i][j] += row i of A times row j of B, element by element of one vector.
template <typename T, int MR, int NR, bool PARTIAL, typename A, typename B, int W = mlc_width<T>>
MLC_INLINE void mlc_dot_step(mlc_vec<T, W> (&sum)[MR][NR], const A* a, long a_m, const B* b, long b_n, long n) {
  typedef mlc_vec<T, W> V;
  V column[NR];
#pragma GCC unroll 8
  for (int j = 0; j < NR; j++) {
    column[j] = PARTIAL ? mlc_load_n<T, W>(b + j * b_n, n) : mlc_load_as<T, W>(b + j * b_n);
    mlc_keep(column[j]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++) {
    V row = PARTIAL ? mlc_load_n<T, W>(a + i * a_m, n) : mlc_load_as<T, W>(a + i * a_m);
    mlc_keep(row);
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) sum[i][j] += row * column[j];
  }
}
// Lane r of the result is the sum of all lanes of v[r], each added by halves as mlc_reduce_add does, but several at a time:
// every v[i] holds groups of L lanes, and two of them become one whose groups are half as long.
template <int L, typename V, int... I>
MLC_INLINE V mlc_add_halves(V a, V b, mlc_indices<I...>) {
  constexpr int N = sizeof...(I), H = L / 2;
  return __builtin_shufflevector(a, b, (I / (N / 2) * N + I % (N / 2) / H * L + I % H)...) +
      __builtin_shufflevector(a, b, (I / (N / 2) * N + I % (N / 2) / H * L + I % H + H)...);
}
template <int COUNT, int L, typename V>
MLC_INLINE V mlc_add_lanes(V* v) {
  if constexpr (L == 1)
    return v[0];
  else {
    constexpr int PAIRS = (COUNT + 1) / 2;
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++)
      v[i] = mlc_add_halves<L>(v[2 * i], v[2 * i + 1 < COUNT ? 2 * i + 1 : 2 * i], mlc_count<mlc_lanes<V>>());
    return mlc_add_lanes<PAIRS, L / 2>(v);
  }
}
template <typename T, typename A, typename B>
constexpr bool mlc_dot_is_int8 = mlc_same<T, int> && mlc_same<A, signed char> && mlc_same<B, signed char>;
template <typename T, typename A, typename B>
constexpr bool mlc_dot_is_offset = mlc_int8_is_offset && mlc_dot_is_int8<T, A, B>;
// C[MR][NR] += the block, but for its first `done` columns. The first rows of int8 tell the others what is `beyond`.
template <int MR, int NR, int K_UNIT, bool FIRST, typename T, typename A, typename B>
static __attribute__((noinline)) void mlc_dot_panel(
    long k, const A* a, long a_m, const B* b, long b_n, T* c, long c_m, long done, T* beyond) {
  constexpr int W = mlc_width<T>;
  mlc_vec<T, W> sum[MR][NR] = {};
  long step = 0;
  if constexpr (mlc_dot_is_int8<T, A, B>) {
    constexpr int DEPTH = mlc_int8_depth<W>;
    mlc_vec<int, W> more[NR] = {};
    for (; step + DEPTH <= k; step += DEPTH)
      mlc_int8_step<MR, NR, FIRST, false, W>(sum, more, a + step, a_m, b + step, b_n, DEPTH);
    if constexpr (K_UNIT % DEPTH != 0)
      if (step < k) mlc_int8_step<MR, NR, FIRST, true, W>(sum, more, a + step, a_m, b + step, b_n, k - step);
    if constexpr (FIRST)
#pragma GCC unroll 8
      for (int j = 0; j < NR; j++) beyond[j] = mlc_reduce_add(more[j]);
  } else if constexpr (mlc_same<T, float> && mlc_same<A, mlc_bf16> && mlc_same<B, mlc_bf16>) {
    for (; step + 2 * W <= k; step += 2 * W) mlc_dot_pairs<MR, NR, false, W>(sum, a + step, a_m, b + step, b_n, 2 * W);
    if constexpr (K_UNIT % (2 * W) != 0)
      if (step < k) mlc_dot_pairs<MR, NR, true, W>(sum, a + step, a_m, b + step, b_n, k - step);
  } else {
    for (; step + W <= k; step += W) mlc_dot_step<T, MR, NR, false>(sum, a + step, a_m, b + step, b_n, W);
    if constexpr (K_UNIT % W != 0)
      if (step < k) mlc_dot_step<T, MR, NR, true>(sum, a + step, a_m, b + step, b_n, k - step);
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
    if constexpr (NR <= W) {
      typedef typename mlc_integer_type<sizeof(T)>::type I;
      const mlc_mask<T, W> fresh = mlc_iota<I, W>() >= (I)done;
      mlc_vec<T, W> total = mlc_add_lanes<NR, W>(sum[i]);
      if constexpr (mlc_dot_is_offset<T, A, B>) total -= mlc_load_n<T, W>(beyond, NR);
      total = mlc_where(fresh, total, mlc_vec<T, W>{});
      mlc_store_n(c + i * c_m, mlc_load_n<T, W>(c + i * c_m, NR) + total, NR);
    } else
      for (int j = done; j < NR; j++) c[i * c_m + j] += mlc_reduce_add(sum[i][j]);
}
template <int MR, bool ANY, int NR, int K_UNIT, bool FIRST, typename T, typename A, typename B>
MLC_INLINE void mlc_dot_rows_left(
    long m, long k, const A* a, long a_m, const B* b, long b_n, T* c, long c_m, long done, T* beyond) {
  if constexpr (MR > 0) {
    if (m == MR)
      mlc_dot_panel<MR, NR, K_UNIT, FIRST>(k, a, a_m, b, b_n, c, c_m, done, beyond);
    else if constexpr (ANY)
      mlc_dot_rows_left<MR - 1, ANY, NR, K_UNIT, FIRST>(m, k, a, a_m, b, b_n, c, c_m, done, beyond);
  }
}
template <int MR, int NR, int M_LEFT, int K_UNIT, typename T, typename A, typename B>
MLC_INLINE void mlc_dot_columns(
    long m, long k, const A* a, long a_m, const B* b, long b_n, T* c, long c_m, long done) {
  constexpr int MOST_LEFT = M_LEFT < 0 ? MR - 1 : M_LEFT;
  constexpr bool FIRST = mlc_dot_is_offset<T, A, B>;
  T beyond[NR];
  long i = 0;
  if (FIRST && m >= MR) {
    mlc_dot_panel<MR, NR, K_UNIT, FIRST>(k, a, a_m, b, b_n, c, c_m, done, beyond);
    i = MR;
  }
  for (; i + MR <= m; i += MR)
    mlc_dot_panel<MR, NR, K_UNIT, false>(k, a + i * a_m, a_m, b, b_n, c + i * c_m, c_m, done, beyond);
  if constexpr (M_LEFT != 0) {
    if (FIRST && i == 0)
      mlc_dot_rows_left<MOST_LEFT, M_LEFT<0, NR, K_UNIT, FIRST>(m, k, a, a_m, b, b_n, c, c_m, done, beyond);
    else
      mlc_dot_rows_left<MOST_LEFT, M_LEFT<0, NR, K_UNIT, false>(
          m - i, k, a + i * a_m, a_m, b, b_n, c + i * c_m, c_m, done, beyond);
  }
}
template <int MR, int NR, int M_LEFT, int N_LEFT, int K_UNIT = 1, typename T, typename A, typename B>
static void mlc_dot_block(
    long m, long n, long k, const A* a, long a_m, long, const B* b, long, long b_n, T* c, long c_m) {
  constexpr int LEFT = N_LEFT < 0 ? 1 : N_LEFT;
  long j = 0;
  if constexpr (LEFT == NR)
    for (; j < n; j += NR) {
      const long start = j + NR <= n ? j : n - NR;
      mlc_dot_columns<MR, NR, M_LEFT, K_UNIT>(m, k, a, a_m, b + start * b_n, b_n, c + start, c_m, j - start);
    }
  else {
    for (; j + NR <= n; j += NR)
      mlc_dot_columns<MR, NR, M_LEFT, K_UNIT>(m, k, a, a_m, b + j * b_n, b_n, c + j, c_m, 0);
    if constexpr (LEFT > 0)
      for (; j < n; j += LEFT)
        mlc_dot_columns<MR, LEFT, M_LEFT, K_UNIT>(m, k, a, a_m, b + j * b_n, b_n, c + j, c_m, 0);
  }
}
