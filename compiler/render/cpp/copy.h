// Copies of blocks between tensors in memory, which may lie in different orders.
#pragma once
#include "memory.h"

// Two rows exchange the halves of each group of 2 * STEP elements that are on the wrong side of the diagonal.
template <int STEP, bool HIGH, typename V, int... I>
MLC_INLINE V mlc_exchange(V a, V b, mlc_indices<I...>) {
  constexpr int N = sizeof...(I);
  return __builtin_shufflevector(a, b, (HIGH ? (I & STEP ? N + I : I + STEP) : (I & STEP ? N + I - STEP : I))...);
}
template <int STEP, typename V>
MLC_INLINE void mlc_transpose_steps(V* row) {
  constexpr int N = mlc_lanes<V>;
  if constexpr (STEP < N) {
#pragma GCC unroll 64
    for (int i = 0; i < N; i++)
      if (!(i & STEP)) {
        const V a = row[i], b = row[i + STEP];
        row[i] = mlc_exchange<STEP, false>(a, b, mlc_count<N>());
        row[i + STEP] = mlc_exchange<STEP, true>(a, b, mlc_count<N>());
      }
    mlc_transpose_steps<2 * STEP>(row);
  }
}
// Elements of narrow types need not fill a vector: larger squares take more instructions an element.
template <typename T>
constexpr int mlc_square = MLC_VECTOR_BYTES / sizeof(T) < 16 ? MLC_VECTOR_BYTES / sizeof(T) : 16;

// to[j][i] = from[i][j] for one square of vectors
template <typename T>
static void mlc_transpose_square(const T* from, long from_row, T* to, long to_row) {
  constexpr int W = mlc_square<T>;
  mlc_vec<T, W> row[W];
#pragma GCC unroll 64
  for (int i = 0; i < W; i++) row[i] = mlc_load<T, W>(from + i * from_row);
  mlc_transpose_steps<1>(row);
#pragma GCC unroll 64
  for (int i = 0; i < W; i++) mlc_store(to + i * to_row, row[i]);
}
// How both sides of a copy lie, as far as that is known: what is not needed is not compiled.
enum {
  MLC_ANY,         // any way
  MLC_ROWS,        // rows contiguous in both
  MLC_WHOLE_ROWS,  // and all of them exist
  MLC_TURNED,      // rows of the source contiguous, and columns of the target
};

template <bool WHOLE, typename T>
static void mlc_copy_rows(
    long m, long n, long rows, long columns, const T* from, long from_m, T* to, long to_m) {
  constexpr int W = MLC_VECTOR_BYTES / sizeof(T);
  constexpr long AHEAD = 16;  // rows that are asked for before they are read: each may be on a page of its own
  for (long i = 0; i < rows; i++) {
    const T* row = from + i * from_m;
    T* copy = to + i * to_m;
    long j = 0;
#pragma GCC unroll 4
    for (; j + W <= columns; j += W) {
      mlc_prefetch(row + j, AHEAD * from_m * (long)sizeof(T));
      mlc_store(copy + j, mlc_load<T, W>(row + j));
    }
    if (j < columns) __builtin_memcpy(copy + j, row + j, (columns - j) * sizeof(T));
    if (!WHOLE && columns < n) __builtin_memset(copy + columns, 0, (n - columns) * sizeof(T));
  }
  if (!WHOLE)
    for (long i = rows; i < m; i++) __builtin_memset(to + i * to_m, 0, n * sizeof(T));
}
template <int HOW, typename T>
static void mlc_copy_raw(long m, long n, long m_there, long n_there, const T* from, long from_m, long from_n, T* to,
    long to_m, long to_n) {
  constexpr int W = mlc_square<T>;
  if constexpr (HOW == MLC_WHOLE_ROWS)
    return mlc_copy_rows<true>(m, n, m, n, from, from_m, to, to_m);
  else {
    const long rows = m_there < m ? m_there > 0 ? m_there : 0 : m, columns = n_there < n ? n_there > 0 ? n_there : 0 : n;
    if constexpr (HOW == MLC_ROWS)
      mlc_copy_rows<false>(m, n, rows, columns, from, from_m, to, to_m);
    else {
      if (HOW == MLC_ANY && from_n == 1 && to_n == 1)
        return mlc_copy_rows<false>(m, n, rows, columns, from, from_m, to, to_m);
      long i = 0, done = 0;
      if (HOW == MLC_TURNED || (from_n == 1 && to_m == 1)) {
        done = columns / W * W;
        for (; i + W <= rows; i += W)
          for (long j = 0; j < done; j += W) mlc_transpose_square(from + i * from_m + j, from_m, to + i + j * to_n, to_n);
      }
      for (long k = 0; k < m; k++)
        for (long j = k < i ? done : 0; j < n; j++)
          to[k * to_m + j * to_n] = k < rows && j < columns ? from[k * from_m + j * from_n] : T(0);
    }
  }
}
// to[i][j] = from[i][j] for i < m, j < n, of which only i < m_there, j < n_there exist: the others read as zero
template <int HOW = MLC_ANY, typename T>
static void mlc_copy_block(long m, long n, long m_there, long n_there, const T* from, long from_m, long from_n, T* to,
    long to_m, long to_n) {
  typedef mlc_raw<T> R;
  mlc_copy_raw<HOW>(m, n, m_there, n_there, (const R*)from, from_m, from_n, (R*)to, to_m, to_n);
}
