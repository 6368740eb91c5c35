// The tile registers of AMX: eight, each of up to 16 rows of 64 bytes. `multiply` adds to the tile SUM the products of 16
// groups along k (mlc_group: two bf16 in f32, four int8 in 32 bits): row i of the tile LEFT has the groups of row i, row p of
// RIGHT group p of 16 columns. The sums of both halves of a pair are added before they are added to the tile; denormals,
// factors and sums alike, count as zeros. Elsewhere, plain loops mean the same.
#pragma once
#include "interleaved.h"
#if defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__linux__)
#define MLC_AMX
#include <sys/syscall.h>
#include <unistd.h>
// Linux has threads ask before their first use of tiles; what asks is the process, once (arch_prctl, XTILEDATA).
static const long mlc_tiles_granted = syscall(SYS_arch_prctl, 0x1023, 18);
#endif

enum { MLC_TILE = 16, MLC_TILE_BYTES = 64 };  // rows, columns of sums, and groups of a step; bytes of a row

// Rows and bytes of a row of each tile, as ldtilecfg takes them.
struct mlc_tile_shapes {
  unsigned char palette = 1, start = 0, reserved[14] = {};
  unsigned short bytes[16] = {};
  unsigned char rows[16] = {};
};

#ifndef MLC_AMX
struct mlc_tile_memory {
  unsigned words[8][MLC_TILE][MLC_TILE];
  mlc_tile_shapes shapes;
};
static thread_local mlc_tile_memory mlc_tiles;
#endif

MLC_INLINE void mlc_tile_configure(const mlc_tile_shapes& shapes) {
#ifdef MLC_AMX
  asm volatile("ldtilecfg %0" : : "m"(shapes));
#else
  mlc_tiles.shapes = shapes;
#endif
}
MLC_INLINE void mlc_tile_release() {
#ifdef MLC_AMX
  asm volatile("tilerelease");
#endif
}
template <int TILE>
MLC_INLINE void mlc_tile_zero() {
#ifdef MLC_AMX
  asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
#else
  __builtin_memset(mlc_tiles.words[TILE], 0, sizeof(mlc_tiles.words[TILE]));
#endif
}
template <int TILE>
MLC_INLINE void mlc_tile_load(const void* from, long row_bytes) {
#ifdef MLC_AMX
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row_bytes), "i"(TILE) : "memory");
#else
  for (int i = 0; i < mlc_tiles.shapes.rows[TILE]; i++)
    __builtin_memcpy(mlc_tiles.words[TILE][i], (const char*)from + i * row_bytes, mlc_tiles.shapes.bytes[TILE]);
#endif
}
template <int TILE>
MLC_INLINE void mlc_tile_store(void* to, long row_bytes) {
#ifdef MLC_AMX
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(TILE) : "memory");
#else
  for (int i = 0; i < mlc_tiles.shapes.rows[TILE]; i++)
    __builtin_memcpy((char*)to + i * row_bytes, mlc_tiles.words[TILE][i], mlc_tiles.shapes.bytes[TILE]);
#endif
}
template <int SUM, int LEFT, int RIGHT, typename E>
MLC_INLINE void mlc_tile_multiply() {
  constexpr bool FLOAT = mlc_same<E, mlc_bf16>;
#ifdef MLC_AMX
  if constexpr (FLOAT)
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(LEFT), "i"(RIGHT));
  else
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUM), "i"(LEFT), "i"(RIGHT));
#else
  for (int i = 0; i < mlc_tiles.shapes.rows[SUM]; i++)
    for (int j = 0; j < mlc_tiles.shapes.bytes[SUM] / 4; j++) {
      unsigned& word = mlc_tiles.words[SUM][i][j];
      if constexpr (FLOAT) {
        float low = 0, high = 0;
        for (int p = 0; p < MLC_TILE; p++) {
          const unsigned a = mlc_tiles.words[LEFT][i][p], b = mlc_tiles.words[RIGHT][p][j];
          low += mlc_bitcast<float>(a << 16) * mlc_bitcast<float>(b << 16);
          high += mlc_bitcast<float>(a & 0xffff0000u) * mlc_bitcast<float>(b & 0xffff0000u);
        }
        word = mlc_bitcast<unsigned>(mlc_bitcast<float>(word) + (low + high));
      } else
        for (int p = 0; p < MLC_TILE; p++)
          for (int bit = 0; bit < 32; bit += 8)
            word += (int)(signed char)(mlc_tiles.words[LEFT][i][p] >> bit) *
                (int)(signed char)(mlc_tiles.words[RIGHT][p][j] >> bit);
    }
#endif
}
