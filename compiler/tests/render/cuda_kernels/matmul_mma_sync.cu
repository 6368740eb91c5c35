// c[m, n] = a[m, k] . b[n, k]^T in bf16 with sums in f32, for sm_80 and later: blocks of 128 x 128 by 4 warps of 64
// x 64. Three stages of 128 x 64 tiles of a and b arrive by cp.async in rows of 128 bytes, swizzled; ldmatrix brings
// the fragments of one step of 16 while mma.sync multiplies those of the step before. k and n are multiples of 8.
#include "mlc/prelude.cuh"
#include "mlc/async.cuh"
#include "mlc/convert.cuh"
#include "mlc/matrix.cuh"

extern "C" __global__ void __launch_bounds__(128) matmul(const mlc_bf16* __restrict__ a, const mlc_bf16* __restrict__ b,
                                                         mlc_bf16* __restrict__ c, long m, long n, long k) {
    MLC_DYNAMIC_SHARED(memory);  // 3 stages of a and b, 32768 bytes each; afterwards c, 32768 bytes
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int row0 = blockIdx.y * 128, column0 = blockIdx.x * 128;  // of c
    const int warp_row = warp % 2 * 64, warp_column = warp / 2 * 64;
    const int steps = (int)((k + 63) / 64);

    float acc[128];  // fragment 8 i + j is at row 16 i, column 8 j of the warp's part
#pragma unroll
    for (int i = 0; i < 128; i++) acc[i] = 0.0f;

#pragma unroll
    for (int ahead = 0; ahead < 2; ahead++) {
        if (ahead < steps) {
#pragma unroll
            for (int p = 0; p < 8; p++) {
                const int row = (t + p * 128) / 8, piece = (t + p * 128) % 8;
                const int at = ahead * 32768 + row * 128 + ((piece ^ row % 8) << 4);
                const long x = ahead * 64 + piece * 8;
                const bool in_a = row0 + row < m && x < k, in_b = column0 + row < n && x < k;
                mlc_cp_async_zero<16, 128>(memory + at, a + (in_a ? (row0 + row) * k + x : 0), in_a ? 16 : 0);
                mlc_cp_async_zero<16, 128>(memory + at + 16384, b + (in_b ? (column0 + row) * k + x : 0),
                                           in_b ? 16 : 0);
            }
        }
        mlc_cp_async_commit();
    }

    int stage = 0;
    for (int step = 0; step < steps; step++) {
        mlc_cp_async_wait<1>();
        mlc_block_barrier();  // this stage has landed for all, and all are done with the stage that is filled next
        if (step + 2 < steps) {
            const int next = stage >= 1 ? stage - 1 : 2;
#pragma unroll
            for (int p = 0; p < 8; p++) {
                const int row = (t + p * 128) / 8, piece = (t + p * 128) % 8;
                const int at = next * 32768 + row * 128 + ((piece ^ row % 8) << 4);
                const long x = (step + 2) * 64 + piece * 8;
                const bool in_a = row0 + row < m && x < k, in_b = column0 + row < n && x < k;
                mlc_cp_async_zero<16, 128>(memory + at, a + (in_a ? (row0 + row) * k + x : 0), in_a ? 16 : 0);
                mlc_cp_async_zero<16, 128>(memory + at + 16384, b + (in_b ? (column0 + row) * k + x : 0),
                                           in_b ? 16 : 0);
            }
        }
        mlc_cp_async_commit();  // also an empty group: the wait counts groups

        const char* const tile_a = memory + stage * 32768;
        const char* const tile_b = tile_a + 16384;
        mlc_bf16 left[2][32], right[2][32];  // two steps of 16 along k: 4 fragments of a, 8 of b
#pragma unroll
        for (int s = 0; s < 5; s++) {
            if (s < 4) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const int row = warp_row + 16 * i + lane % 16, piece = 2 * s + lane / 16;
                    mlc_ldmatrix<4>(left[s % 2] + 8 * i, tile_a + row * 128 + ((piece ^ row % 8) << 4));
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int row = warp_column + 16 * j + lane % 8 + lane / 16 * 8, piece = 2 * s + lane / 8 % 2;
                    mlc_ldmatrix<4>(right[s % 2] + 8 * j, tile_b + row * 128 + ((piece ^ row % 8) << 4));
                }
            }
            if (s > 0) {
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 8; j++)
                        mlc_mma_sync<16, 8, 16>(acc + 32 * i + 4 * j, left[(s + 1) % 2] + 8 * i,
                                                right[(s + 1) % 2] + 4 * j);
            }
        }
        stage = stage == 2 ? 0 : stage + 1;
    }
    mlc_cp_async_wait<0>();
    mlc_block_barrier();  // all have read the last stage: its memory now holds c, in rows of 256 bytes

#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = warp_row + 16 * i + 8 * half + lane / 4, piece = warp_column / 8 + j;
                const int at = row * 256 + ((piece ^ row % 8) << 4) + lane % 4 * 4;
                const float* const pair = acc + 32 * i + 4 * j + 2 * half;
                *(unsigned*)(memory + at) = mlc_pack_bf16(pair[0], pair[1]);
            }
    mlc_block_barrier();
#pragma unroll
    for (int p = 0; p < 16; p++) {
        const int row = (t + p * 128) / 16, piece = (t + p * 128) % 16;
        if (row0 + row < m && column0 + piece * 8 < n)
            *(uint4*)(c + (row0 + row) * n + column0 + piece * 8) =
                *(const uint4*)(memory + row * 256 + ((piece ^ row % 8) << 4));
    }
}
