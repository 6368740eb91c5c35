// c[m, n] = a[m, k] . b[n, k]^T in bf16 with sums in f32, for sm_90a: tiles of 128 x 256 by blocks that stay. One
// thread has the copy engine fill three stages of 64 along k; two warpgroups of 64 rows each multiply them by wgmma,
// and send their part of c through shared memory. Edges need no guards: what lies outside reads as zero and is not
// written.
#include "mlc/prelude.cuh"
#include "mlc/convert.cuh"
#include "mlc/matrix.cuh"
#include "mlc/mbarrier.cuh"
#include "mlc/registers.cuh"
#include "mlc/tma.cuh"
#include "mlc/vote.cuh"
#include "mlc/wgmma.cuh"

extern "C" __global__ void __launch_bounds__(384, 1)
    matmul(MLC_TENSOR_MAP(a), MLC_TENSOR_MAP(b), MLC_TENSOR_MAP(c), long m, long n, long k) {
    // 3 stages of a (128 x 64) and b (256 x 64), 49152 bytes each; for each warpgroup 4 panels of c (64 x 64), 32768
    // bytes; barriers that say that a stage is full, and empty.
    MLC_DYNAMIC_SHARED(memory);
    unsigned long* const full = (unsigned long*)(memory + 3 * 49152 + 2 * 32768);
    unsigned long* const empty = full + 3;
    const int t = threadIdx.x % 128, lane = t % 32, warp = t / 32;
    const int role = (int)mlc_warp_uniform(threadIdx.x / 128);  // 0 copies, 1 and 2 multiply
    if (threadIdx.x == 0) {
        for (int s = 0; s < 3; s++) {
            mlc_mbarrier_init(full + s, 1);
            mlc_mbarrier_init(empty + s, 8);  // every warp that multiplies
        }
        mlc_mbarrier_fence_init();
        mlc_tma_prefetch(a);
        mlc_tma_prefetch(b);
        mlc_tma_prefetch(c);
    }
    mlc_block_barrier();
    const int tiles_m = (int)((m + 127) / 128), tiles_n = (int)((n + 255) / 256), steps = (int)((k + 63) / 64);

    if (role == 0) {
        mlc_registers_decrease<24>();
        if (threadIdx.x == 0) {
            int stage = 0, parity = 1;  // the first pass over empty stages does not wait
            for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
                // 16 rows of tiles at a time, so that operands are met again in L2
                const int group = tile / (16 * tiles_n), in_group = tile - group * 16 * tiles_n;
                const int rows = tiles_m - 16 * group < 16 ? tiles_m - 16 * group : 16;
                const int row = (16 * group + in_group % rows) * 128, column = in_group / rows * 256;
                for (int step = 0; step < steps; step++) {
                    char* const at = memory + stage * 49152;
                    mlc_mbarrier_wait(empty + stage, parity);
                    mlc_mbarrier_expect(full + stage, 49152);
                    mlc_tma_load(at, a, full + stage, step * 64, row);
                    mlc_tma_load(at + 16384, b, full + stage, step * 64, column);
                    stage = stage == 2 ? 0 : stage + 1;
                    parity ^= stage == 0;
                }
            }
        }
    } else {
        mlc_registers_increase<240>();
        char* const mine = memory + 3 * 49152 + (role - 1) * 32768;
        int stage = 0, parity = 0;
        for (int tile = blockIdx.x; tile < tiles_m * tiles_n; tile += gridDim.x) {
            const int group = tile / (16 * tiles_n), in_group = tile - group * 16 * tiles_n;
            const int rows = tiles_m - 16 * group < 16 ? tiles_m - 16 * group : 16;
            const int row = (16 * group + in_group % rows) * 128 + (role - 1) * 64, column = in_group / rows * 256;
            float acc[128];
            int previous = -1;
            for (int step = 0; step < steps; step++) {
                const char* const tile_a = memory + stage * 49152 + (role - 1) * 8192;
                const char* const tile_b = memory + stage * 49152 + 16384;
                mlc_mbarrier_wait(full + stage, parity);
                mlc_wgmma_fence<128>(acc);
#pragma unroll
                for (int s = 0; s < 4; s++)
                    mlc_wgmma<256, mlc_bf16, mlc_mk, 128, mlc_nk, 128>(acc, tile_a + 32 * s, 0, tile_b + 32 * s, 0,
                                                                       step + s);
                mlc_wgmma_commit();
                mlc_wgmma_wait<1>();  // this warp has read the stage before
                if (previous >= 0 && lane == 0) mlc_mbarrier_arrive(empty + previous);
                previous = stage;
                stage = stage == 2 ? 0 : stage + 1;
                parity ^= stage == 0;
            }
            mlc_wgmma_wait<0>();
            mlc_wgmma_hold<128>(acc);
            if (lane == 0) mlc_mbarrier_arrive(empty + previous);

            if (t == 0) mlc_bulk_wait_read<0>();  // the tile before has left
            mlc_named_barrier(role, 128);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const int r = warp * 16 + lane % 16, piece = 2 * j + lane / 16;
                unsigned pairs[4];
#pragma unroll
                for (int i = 0; i < 4; i++) pairs[i] = mlc_pack_bf16(acc[8 * j + 2 * i], acc[8 * j + 2 * i + 1]);
                mlc_stmatrix<4>(mine + piece / 8 * 8192 + r * 128 + ((piece % 8 ^ r % 8) << 4), pairs);
            }
            mlc_fence_async();
            mlc_named_barrier(role, 128);
            if (t == 0) {
#pragma unroll
                for (int p = 0; p < 4; p++) mlc_tma_store(c, mine + p * 8192, column + p * 64, row);
                mlc_bulk_commit();
            }
        }
        if (t == 0) mlc_bulk_wait<0>();
    }
}
