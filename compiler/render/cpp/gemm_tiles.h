// Matrix products of bf16 in f32, and of int8 in 32 bits, in tile registers: mlc_tile_block. One factor, the left, is read as
// it lies, its rows contiguous along k; the other is laid out in groups along k, as mlc_interleaved_block does. Where B is
// contiguous along k and has more columns than A has rows, B is the left one, and the result is turned as it is stored.
// mlc_tile_block_store stores C = A B, rounded to bf16, instead of adding to C; k is DEPTH.
#pragma once
#include "gemm_interleaved.h"
#include "tiles.h"

enum {
  MLC_TILE_ROWS = 2 * MLC_TILE,     // of the left factor, of which the sums are in registers together
  MLC_TILE_COLUMNS = 2 * MLC_TILE,  // of a panel
  MLC_TILE_DEPTH = 512,             // groups along k of a panel
  MLC_TILE_PANELS = 256 * 1024,     // groups that are laid out at a time, in all panels: half a second level
};
// One for all products of a thread. Behind each panel, of 16 groups along k at least, is the last row of mlc_interleave.
alignas(64) static thread_local unsigned mlc_tile_memory[MLC_TILE_PANELS + MLC_TILE_PANELS / MLC_TILE];

// Shapes for tiles of sums (0 to 3), two beside each other, and of left (4, 5) and right factors (6, 7), for so many rows.
MLC_INLINE void mlc_tile_shape(long rows) {
  mlc_tile_shapes shapes;
  for (int t = 0; t < 8; t++) {
    const long left = t < 2 || t == 4 ? rows : t < 4 || t == 5 ? rows - MLC_TILE : (long)MLC_TILE;
    shapes.bytes[t] = MLC_TILE_BYTES;
    shapes.rows[t] = left < 1 ? 1 : left < MLC_TILE ? left : (long)MLC_TILE;
  }
  mlc_tile_configure(shapes);
}
// One step of 16 groups.
template <int TM, int TN, typename E>
MLC_INLINE void mlc_tile_step(const E* left, long row_bytes, const mlc_group<E>* right) {
  constexpr long PANEL_BYTES = MLC_TILE_COLUMNS * sizeof(unsigned);
  mlc_tile_load<6>(right, PANEL_BYTES);
  if constexpr (TN > 1) mlc_tile_load<7>(right + MLC_TILE, PANEL_BYTES);
  mlc_tile_load<4>(left, row_bytes);
  mlc_tile_multiply<0, 4, 6, E>();
  if constexpr (TN > 1) mlc_tile_multiply<1, 4, 7, E>();
  if constexpr (TM > 1) {
    mlc_tile_load<5>((const char*)left + MLC_TILE * row_bytes, row_bytes);
    mlc_tile_multiply<2, 5, 6, E>();
    if constexpr (TN > 1) mlc_tile_multiply<3, 5, 7, E>();
  }
}
// A tile that is as wide as C there is loaded from C before its sums are added, and stored to C; of others the sums begin
// with zero and are added to C behind.
template <typename C>
MLC_INLINE bool mlc_tile_is_whole(bool turned, long columns) {
  return !turned && mlc_same<C, typename mlc_sum_type<C>::type> && columns == MLC_TILE;
}
template <int TILE, typename C>
MLC_INLINE void mlc_tile_begin(bool turned, long columns, const C* c, long c_m) {
  if (mlc_tile_is_whole<C>(turned, columns))
    mlc_tile_load<TILE>(c, c_m * (long)sizeof(C));
  else
    mlc_tile_zero<TILE>();
}
// The sums of a tile go to C, of which there are rows x columns; TURNED: the tile's rows are its columns.
template <bool TURNED, typename C, typename S>
static __attribute__((noinline)) void mlc_tile_add(const S* sums, long rows, long columns, C* c, long c_m) {
  typedef mlc_vec<S, MLC_TILE> V;
  V row[MLC_TILE];
#pragma GCC unroll 16
  for (int i = 0; i < MLC_TILE; i++) row[i] = mlc_load<S, MLC_TILE>(sums + i * MLC_TILE);
  if constexpr (TURNED) {
    mlc_transpose_steps<1>(row);
    const long turned = rows;
    rows = columns, columns = turned;
  }
#pragma GCC unroll 16
  for (int i = 0; i < MLC_TILE; i++) {
    if (i >= rows) break;
    C* to = c + i * c_m;
    if constexpr (mlc_same<C, mlc_bf16>) {
      const mlc_vec<unsigned short, MLC_TILE> rounded = mlc_round_pairs<MLC_TILE>(row[i]);
      if (columns == MLC_TILE)
        mlc_store(&to->bits, rounded);
      else
        mlc_store_n(&to->bits, rounded, columns);
    } else if (columns == MLC_TILE)
      mlc_store(to, row[i] + mlc_load<S, MLC_TILE>(to));
    else
      mlc_store_n(to, row[i] + mlc_load_n<S, MLC_TILE>(to, columns), columns);
  }
}
template <int TILE, typename C>
MLC_INLINE void mlc_tile_put(bool turned, long rows, long columns, C* c, long c_m) {
  typedef typename mlc_sum_type<C>::type S;
  if (mlc_tile_is_whole<C>(turned, columns)) return mlc_tile_store<TILE>(c, c_m * (long)sizeof(C));
  alignas(64) S sums[MLC_TILE * MLC_TILE];
  mlc_tile_store<TILE>(sums, MLC_TILE_BYTES);
  if (turned)
    mlc_tile_add<true>(sums, rows, columns, c, c_m);
  else
    mlc_tile_add<false>(sums, rows, columns, c, c_m);
}
// TM x TN tiles: rows of the left factor, whose last elements along k, in no whole step, are in `rest`.
template <int TM, int TN, typename E, typename C>
static __attribute__((noinline, noclone)) void mlc_tile_sums(bool turned, long rows, long columns, long steps,
    bool has_rest, const E* left, long left_row, const E* rest, const mlc_group<E>* right, C* c, long c_m) {
  constexpr int STEP = MLC_TILE_BYTES / sizeof(E), RIGHT = MLC_TILE * MLC_TILE_COLUMNS;
  const long across = MLC_TILE * (turned ? c_m : 1), down = MLC_TILE * (turned ? 1 : c_m);  // between tiles, in C
  const long first_rows = TM > 1 ? (long)MLC_TILE : rows, first_columns = TN > 1 ? (long)MLC_TILE : columns;
  mlc_tile_begin<0>(turned, first_columns, c, c_m);
  if constexpr (TN > 1) mlc_tile_begin<1>(turned, columns - MLC_TILE, c + across, c_m);
  if constexpr (TM > 1) mlc_tile_begin<2>(turned, first_columns, c + down, c_m);
  if constexpr (TM > 1 && TN > 1) mlc_tile_begin<3>(turned, columns - MLC_TILE, c + down + across, c_m);
  for (long s = 0; s < steps; s++)
    mlc_tile_step<TM, TN>(left + s * STEP, left_row * (long)sizeof(E), right + s * RIGHT);
  if (has_rest) mlc_tile_step<TM, TN>(rest, MLC_TILE_BYTES, right + steps * RIGHT);
  mlc_tile_put<0>(turned, first_rows, first_columns, c, c_m);
  if constexpr (TN > 1) mlc_tile_put<1>(turned, first_rows, columns - MLC_TILE, c + across, c_m);
  if constexpr (TM > 1) mlc_tile_put<2>(turned, rows - MLC_TILE, first_columns, c + down, c_m);
  if constexpr (TM > 1 && TN > 1)
    mlc_tile_put<3>(turned, rows - MLC_TILE, columns - MLC_TILE, c + down + across, c_m);
}
// So many rows of the left factor times all panels that are laid out.
template <int TM, typename E, typename C>
static __attribute__((noinline, noclone)) void mlc_tile_rows(bool turned, long rows, long columns, long k,
    const E* left, long left_row, const mlc_group<E>* panels, long panel, C* c, long c_m) {
  constexpr long STEP = MLC_TILE_BYTES / sizeof(E);
  const long steps = k / STEP, tail = k % STEP;
  alignas(64) E rest[TM * MLC_TILE * STEP];
  if (tail) {
    __builtin_memset(rest, 0, sizeof(rest));
    for (long i = 0; i < rows; i++)
      __builtin_memcpy(rest + i * STEP, left + i * left_row + steps * STEP, tail * sizeof(E));
  }
  for (long j = 0; j < columns; j += MLC_TILE_COLUMNS, panels += panel, c += MLC_TILE_COLUMNS * (turned ? c_m : 1)) {
    const long wide = columns - j < MLC_TILE_COLUMNS ? columns - j : (long)MLC_TILE_COLUMNS;
    if (wide > MLC_TILE)
      mlc_tile_sums<TM, 2>(turned, rows, wide, steps, tail, left, left_row, rest, panels, c, c_m);
    else
      mlc_tile_sums<TM, 1>(turned, rows, wide, steps, tail, left, left_row, rest, panels, c, c_m);
  }
}
// A panel of up to MLC_TILE_COLUMNS columns, with groups of zeros up to a whole step.
template <typename E>
MLC_INLINE void mlc_tile_interleave(
    long k, long columns, const E* from, long from_k, long from_n, mlc_group<E>* to) {
  constexpr long SIZE = mlc_group<E>::SIZE;
  const long groups = (k + SIZE - 1) / SIZE, padded = (groups + MLC_TILE - 1) / MLC_TILE * MLC_TILE;
  const long wide = columns < MLC_TILE_COLUMNS ? columns : (long)MLC_TILE_COLUMNS;
  mlc_interleave<MLC_TILE_COLUMNS, mlc_width<unsigned>>(k, wide, from, from_k, from_n, &to[0].bits);
  __builtin_memset(to + groups * MLC_TILE_COLUMNS, 0, (padded - groups) * MLC_TILE_COLUMNS * sizeof(unsigned));
}
// Rows x columns of sums, DEPTH groups along k at a time.
template <int DEPTH, typename E, typename C>
static __attribute__((noinline, noclone)) void mlc_tile_product(bool turned, long rows, long columns, long k,
    const E* left, long left_row, const E* right, long right_k, long right_n, C* c, long c_m) {
  constexpr long SIZE = mlc_group<E>::SIZE, WIDE = MLC_TILE_PANELS / DEPTH / MLC_TILE_COLUMNS * MLC_TILE_COLUMNS;
  constexpr int PANEL = (DEPTH + 1) * MLC_TILE_COLUMNS;
  static_assert(WIDE > 0 && DEPTH % MLC_TILE == 0, "a panel is too deep, or has a part of a step");
  mlc_group<E>* panels = (mlc_group<E>*)mlc_tile_memory;
  const long down = turned ? 1 : c_m, across = turned ? c_m : 1;
  for (long step = 0; step < k; step += DEPTH * SIZE)
    for (long j = 0; j < columns; j += WIDE) {
      const long depth = k - step < DEPTH * SIZE ? k - step : DEPTH * SIZE;
      const long wide = columns - j < WIDE ? columns - j : WIDE;
      // Rows of the factor, each of which may be on a page of its own, go to all panels, a step at a time.
      const long rows_read = right_k == 1 ? depth : MLC_TILE * SIZE;
      for (long row = 0; row < depth; row += rows_read)
        for (long at = 0; at < wide; at += MLC_TILE_COLUMNS)
          mlc_tile_interleave(depth - row < rows_read ? depth - row : rows_read, wide - at,
              right + (step + row) * right_k + (j + at) * right_n, right_k, right_n,
              panels + at / MLC_TILE_COLUMNS * PANEL + row / SIZE * MLC_TILE_COLUMNS);
      const E* from = left + step;
      C* to = c + j * across;
      for (long i = 0; i < rows; i += MLC_TILE_ROWS) {
        const long high = rows - i < MLC_TILE_ROWS ? rows - i : (long)MLC_TILE_ROWS;
        if (i == 0 || high < MLC_TILE_ROWS) mlc_tile_shape(high);
        if (high > MLC_TILE)
          mlc_tile_rows<2>(turned, high, wide, depth, from + i * left_row, left_row, panels, PANEL, to + i * down, c_m);
        else
          mlc_tile_rows<1>(turned, high, wide, depth, from + i * left_row, left_row, panels, PANEL, to + i * down, c_m);
      }
    }
  mlc_tile_release();
}
template <int DEPTH, typename E, typename C>
MLC_INLINE void mlc_tile_any(
    long m, long n, long k, const E* a, long a_m, const E* b, long b_k, long b_n, C* c, long c_m) {
  if (b_k == 1 && m <= n)
    mlc_tile_product<DEPTH>(true, n, m, k, b, b_n, a, 1, a_m, c, c_m);
  else
    mlc_tile_product<DEPTH>(false, m, n, k, a, a_m, b, b_k, b_n, c, c_m);
}
template <int MR, int NR, int M_LEFT, int N_LEFT, typename E, typename C>
MLC_INLINE void mlc_tile_block(
    long m, long n, long k, const E* a, long a_m, long, const E* b, long b_k, long b_n, C* c, long c_m) {
  mlc_tile_any<MLC_TILE_DEPTH>(m, n, k, a, a_m, b, b_k, b_n, c, c_m);
}
template <int MR, int NR, int M_LEFT, int N_LEFT, int DEPTH>
MLC_INLINE void mlc_tile_block_store(long m, long n, long k, const mlc_bf16* a, long a_m, long, const mlc_bf16* b,
    long b_k, long b_n, mlc_bf16* c, long c_m) {
  constexpr int STEP = 2 * MLC_TILE;
  mlc_tile_any<(DEPTH + STEP - 1) / STEP * MLC_TILE>(m, n, k, a, a_m, b, b_k, b_n, c, c_m);
}
