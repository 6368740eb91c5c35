// c[m][n] = a[m][k] @ b[n][k]^T in f16 with f32 sums, by tiles of 64x64: tensor maps, a ring of 3 stages, wgmma.
#include "mlc/tma.cuh"
#include "mlc/wgmma.cuh"

extern "C" __global__ void __launch_bounds__(160, 1)
    kernel(MLC_TENSOR_MAP(a), MLC_TENSOR_MAP(b), float* __restrict__ c, long n, long tiles) {
    MLC_DYNAMIC_SHARED(memory);
    MLC_SHARED(unsigned long, full, 3, 8);
    MLC_SHARED(unsigned long, empty, 3, 8);
    const unsigned t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 3; s++) {
            mlc_mbarrier_init(&full[s], 1);
            mlc_mbarrier_init(&empty[s], 1);
        }
        mlc_mbarrier_fence_init();
    }
    mlc_block_barrier();
    if (t >= 128) {
        if (t == 128)
            for (long k = 0; k < tiles; k++) {
                char* stage = memory + k % 3 * 16384;
                mlc_mbarrier_wait(&empty[k % 3], k / 3 % 2 ^ 1);
                mlc_mbarrier_expect(&full[k % 3], 16384);
                mlc_tma_load(stage, a, &full[k % 3], k * 64, (long)blockIdx.y * 64);
                mlc_tma_load(stage + 8192, b, &full[k % 3], k * 64, (long)blockIdx.x * 64);
            }
    } else {
        float sums[32];
        for (int i = 0; i < 32; i++)
            sums[i] = 0.0f;
        for (long k = 0; k < tiles; k++) {
            const char* stage = memory + k % 3 * 16384;
            mlc_mbarrier_wait(&full[k % 3], k / 3 % 2);
            mlc_wgmma_fence<32>(sums);
            for (int i = 0; i < 4; i++)
                mlc_wgmma<64, mlc_f16, mlc_mk, 128, mlc_nk, 128>(sums, stage + i * 32, 0, stage + 8192 + i * 32, 0, 1);
            mlc_wgmma_commit();
            mlc_wgmma_wait<1>();  // the previous stage has been read
            mlc_named_barrier(1, 128);
            if (t == 0 && k > 0)
                mlc_mbarrier_arrive(&empty[(k - 1) % 3]);
        }
        mlc_wgmma_wait<0>();
        const long row = (long)blockIdx.y * 64 + t / 32 * 16 + t % 32 / 4, column = (long)blockIdx.x * 64 + t % 4 * 2;
        for (int i = 0; i < 32; i++)
            c[(row + i / 2 % 2 * 8) * n + column + i / 4 * 8 + i % 2] = sums[i];
    }
}
