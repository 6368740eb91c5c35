// c[64][64] = (2 a[64][64]) @ b[64][64]^T in f16: operands written to shared memory by threads, then read by wgmma.
#include "mlc/wgmma.cuh"
#include "mlc/mbarrier.cuh"

extern "C" __global__ void __launch_bounds__(128)
    kernel(const mlc_f16* __restrict__ a, const mlc_f16* __restrict__ b, float* __restrict__ c) {
    MLC_SHARED(char, left, 8192, 1024);
    MLC_SHARED(char, right, 8192, 1024);
    const unsigned t = threadIdx.x;
    for (unsigned i = t; i < 4096; i += 128) {
        const unsigned at = i * 2 ^ (i * 2 >> 3 & 112);
        *(mlc_f16*)(left + at) = {mlc_to_f16(2.0f * mlc_from_f16(a[i].bits))};
        *(mlc_f16*)(right + at) = b[i];
    }
    mlc_fence_async();
    mlc_block_barrier();  // operands are complete
    float sums[32];
    for (int i = 0; i < 32; i++)
        sums[i] = 0.0f;
    mlc_wgmma_fence<32>(sums);
    for (int i = 0; i < 4; i++)
        mlc_wgmma<64, mlc_f16, mlc_mk, 128, mlc_nk, 128>(sums, left + i * 32, 0, right + i * 32, 0, 1);
    mlc_wgmma_commit();
    mlc_wgmma_wait<0>();
    const unsigned row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (int i = 0; i < 32; i++)
        c[(row + i / 2 % 2 * 8) * 64 + column + i / 4 * 8 + i % 2] = sums[i];
}
