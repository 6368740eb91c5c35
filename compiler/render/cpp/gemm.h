// Matrix product micro-kernels: a small block of C in registers, over all of k.
//
// T is the type computed in; the elements in memory may be of another type (A, B), converted as they are loaded. Vectors
// have W lanes. An element of A is a[row * a_row + k * a_k]: a_row = 1, a_k = MR for A packed MR wide, a_row = lda,
// a_k = 1 for A as it is. A row of B or C is contiguous; b_row and c_row are the distances between rows, in elements.
// MR * NV accumulators, NV vectors of B and one broadcast must fit the registers: 6 x 2 or 4 x 3 of 16, 12 x 2 or 8 x 3
// of 32. A block of few accumulators waits for their latency: 1 x 8 and 2 x 4 are better than 1 x 2.
#pragma once
#include "memory.h"

template <typename T>
constexpr int mlc_width = MLC_VECTOR_BYTES / sizeof(T);

// sum[i][j] = row i of A times vector j of the columns of B. For PARTIAL the last vector has n columns.
template <typename T, int MR, int NV, bool PARTIAL = false, typename A, typename B, int W = mlc_width<T>>
MLC_INLINE void mlc_fma_tile(
    mlc_vec<T, W> (&sum)[MR][NV], long k, const A* a, long a_row, long a_k, const B* b, long b_row, long n = W) {
  typedef mlc_vec<T, W> V;
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) sum[i][j] = V{};
  for (long step = 0; step < k; step++) {
    V row[NV];
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++)
      if (PARTIAL && j == NV - 1)
        row[j] = mlc_load_n<T, W>(b + j * W, n);
      else
        row[j] = mlc_load_as<T, W>(b + j * W);
#pragma GCC unroll 16
    for (int i = 0; i < MR; i++) {
      V x = mlc_broadcast<T, W>(mlc_load_as<T, 1>(a + i * a_row));
#pragma GCC unroll 8
      for (int j = 0; j < NV; j++) sum[i][j] += x * row[j];
    }
    a += a_k;
    b += b_row;
  }
}

// C[MR][NV * W], of which the last vector has n columns, = or += the block.
template <typename T, int MR, int NV, bool PARTIAL = false, int W = mlc_width<T>>
MLC_INLINE void mlc_store_tile(const mlc_vec<T, W> (&sum)[MR][NV], T* c, long c_row, bool accumulate, long n = W) {
#pragma GCC unroll 16
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NV; j++) {
      T* p = c + i * c_row + j * W;
      if (PARTIAL && j == NV - 1)
        mlc_store_n(p, accumulate ? sum[i][j] + mlc_load_n<T, W>(p, n) : sum[i][j], n);
      else
        mlc_store(p, accumulate ? sum[i][j] + mlc_load<T, W>(p) : sum[i][j]);
    }
}

// C[MR][NV * W] (+)= A[MR][k] B[k][NV * W], A packed MR wide: element (i, k) at a[k * a_k + i]
template <typename T, int MR, int NV, typename A, typename B>
static void mlc_fma_panel(long k, const A* a, long a_k, const B* b, long b_row, T* c, long c_row, bool accumulate) {
  mlc_vec<T, mlc_width<T>> sum[MR][NV];
  mlc_fma_tile<T>(sum, k, a, 1, a_k, b, b_row);
  mlc_store_tile<T>(sum, c, c_row, accumulate);
}
// The same with A as it is: element (i, k) at a[i * a_row + k]
template <typename T, int MR, int NV, typename A, typename B>
static void mlc_fma_panel_rows(long k, const A* a, long a_row, const B* b, long b_row, T* c, long c_row, bool accumulate) {
  mlc_vec<T, mlc_width<T>> sum[MR][NV];
  mlc_fma_tile<T>(sum, k, a, a_row, 1, b, b_row);
  mlc_store_tile<T>(sum, c, c_row, accumulate);
}
// The edge: `columns` from (NV - 1) * W + 1 to NV * W, nothing beyond them is read or written; A at any strides.
template <typename T, int MR, int NV, typename A, typename B>
static void mlc_fma_panel_edge(long k, const A* a, long a_row, long a_k, const B* b, long b_row, T* c, long c_row,
    long columns, bool accumulate) {
  constexpr int W = mlc_width<T>;
  const long n = columns - (NV - 1) * W;
  mlc_vec<T, W> sum[MR][NV];
  mlc_fma_tile<T, MR, NV, true>(sum, k, a, a_row, a_k, b, b_row, n);
  mlc_store_tile<T, MR, NV, true>(sum, c, c_row, accumulate, n);
}

// ---- packing: one panel, in the order in which the kernels read it

// out[k][WIDTH] = a[rows][k] transposed; rows that are missing become zero.
template <typename T, int WIDTH, typename S>
static void mlc_pack_rows(T* out, const S* a, long a_row, long rows, long k) {
  for (long i = 0; i < WIDTH; i++)
    if (i < rows)
      for (long step = 0; step < k; step++) out[step * WIDTH + i] = mlc_load_as<T, 1>(a + i * a_row + step);
    else
      for (long step = 0; step < k; step++) out[step * WIDTH + i] = T(0);
}
// out[k][WIDTH] = b[k][columns], WIDTH a multiple of W; columns that are missing become zero.
template <typename T, int WIDTH, typename S>
static void mlc_pack_columns(T* out, const S* b, long b_row, long columns, long k) {
  constexpr int W = mlc_width<T>;
  for (long step = 0; step < k; step++, b += b_row, out += WIDTH)
    if (columns >= WIDTH)
#pragma GCC unroll 8
      for (int j = 0; j < WIDTH; j += W) mlc_store(out + j, mlc_load_as<T, W>(b + j));
    else
      for (int j = 0; j < WIDTH; j += W) {
        const long left = columns - j;
        mlc_store(out + j, mlc_load_n<T, W>(b + j, left < 0 ? 0 : left < W ? left : W));
      }
}

// ---- few rows: what counts is to read the weights once, in order

// y[0 .. n) (+)= x[0 .. ROWS) B[ROWS][n], n <= W for PARTIAL
template <int ROWS, bool PARTIAL, typename T, typename A, typename B>
MLC_INLINE void mlc_gemv_step(long n, const A* x, long x_k, const B* b, long b_row, T* y, bool accumulate) {
  constexpr int W = mlc_width<T>;
  typedef mlc_vec<T, W> V;
  V factor[ROWS];
#pragma GCC unroll 8
  for (int i = 0; i < ROWS; i++) factor[i] = mlc_broadcast<T, W>(mlc_load_as<T, 1>(x + i * x_k));
  for (long j = 0; j < n; j += W) {
    V sum[2] = {};
    if (accumulate) sum[0] = PARTIAL ? mlc_load_n<T, W>(y + j, n) : mlc_load<T, W>(y + j);
#pragma GCC unroll 8
    for (int i = 0; i < ROWS; i++) {
      const B* p = b + i * b_row + j;
      sum[i % 2] += factor[i] * (PARTIAL ? mlc_load_n<T, W>(p, n) : mlc_load_as<T, W>(p));
    }
    if (PARTIAL)
      mlc_store_n(y + j, sum[0] + sum[1], n);
    else
      mlc_store(y + j, sum[0] + sum[1]);
  }
}
// y[n] (+)= x[k] B[k][n], k >= 1: eight rows of B at a time, so that y is read and written once for eight.
template <typename T, typename A, typename B>
static void mlc_gemv(long n, long k, const A* x, long x_k, const B* b, long b_row, T* y, bool accumulate) {
  constexpr int W = mlc_width<T>;
  const long whole = n / W * W, left = n - whole;
  long i = 0;
  for (; i + 8 <= k; i += 8, accumulate = true) {
    mlc_gemv_step<8, false>(whole, x + i * x_k, x_k, b + i * b_row, b_row, y, accumulate);
    if (left) mlc_gemv_step<8, true>(left, x + i * x_k, x_k, b + i * b_row + whole, b_row, y + whole, accumulate);
  }
  for (; i < k; i++, accumulate = true) {
    mlc_gemv_step<1, false>(whole, x + i * x_k, x_k, b + i * b_row, b_row, y, accumulate);
    if (left) mlc_gemv_step<1, true>(left, x + i * x_k, x_k, b + i * b_row + whole, b_row, y + whole, accumulate);
  }
}

// C[MR][NR] (+)= A[MR][k] B[NR][k] transposed: both are read along k. Element (i, j) of C at c[i * c_row + j * c_column].
template <typename T, int MR, int NR, typename A, typename B>
static void mlc_dot_panel(long k, const A* a, long a_row, const B* b, long b_row, T* c, long c_row, long c_column,
    bool accumulate) {
  constexpr int W = mlc_width<T>;
  typedef mlc_vec<T, W> V;
  V sum[MR][NR] = {};
  long step = 0;
  for (; step + W <= k; step += W) {
    V row[MR];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) row[i] = mlc_load_as<T, W>(a + i * a_row + step);
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) {
      V column = mlc_load_as<T, W>(b + j * b_row + step);
#pragma GCC unroll 8
      for (int i = 0; i < MR; i++) sum[i][j] += row[i] * column;
    }
  }
  if (step < k) {
    V row[MR];
#pragma GCC unroll 8
    for (int i = 0; i < MR; i++) row[i] = mlc_load_n<T, W>(a + i * a_row + step, k - step);
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) {
      V column = mlc_load_n<T, W>(b + j * b_row + step, k - step);
#pragma GCC unroll 8
      for (int i = 0; i < MR; i++) sum[i][j] += row[i] * column;
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < MR; i++)
#pragma GCC unroll 8
    for (int j = 0; j < NR; j++) {
      T* p = c + i * c_row + j * c_column;
      *p = mlc_reduce_add(sum[i][j]) + (accumulate ? *p : T(0));
    }
}
