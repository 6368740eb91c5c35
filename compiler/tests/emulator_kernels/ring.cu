// y = 2 x, by a warp that has the copy engine fill a ring of 3 stages, and 4 warps that empty it.
#include "mlc/tma.cuh"

extern "C" __global__ void __launch_bounds__(160) kernel(const float* __restrict__ x, float* __restrict__ y, long tiles) {
    MLC_DYNAMIC_SHARED(memory);
    MLC_SHARED(unsigned long, full, 3, 8);
    MLC_SHARED(unsigned long, empty, 3, 8);
    float* stages = (float*)memory;
    const unsigned t = threadIdx.x;
    const long first = blockIdx.x * tiles * 256;
    if (t == 0) {
        for (int s = 0; s < 3; s++) {
            mlc_mbarrier_init(&full[s], 1);
            mlc_mbarrier_init(&empty[s], 4);
        }
        mlc_mbarrier_fence_init();
    }
    mlc_block_barrier();
    if (t >= 128) {
        if (t == 128)
            for (long k = 0; k < tiles; k++) {
                mlc_mbarrier_wait(&empty[k % 3], k / 3 % 2 ^ 1);
                mlc_mbarrier_expect(&full[k % 3], 1024);
                mlc_bulk_load(stages + k % 3 * 256, x + first + k * 256, 512, &full[k % 3]);  // first half
                mlc_bulk_load(stages + k % 3 * 256 + 128, x + first + k * 256 + 128, 512, &full[k % 3]);
            }
    } else {
        for (long k = 0; k < tiles; k++) {
            mlc_mbarrier_wait(&full[k % 3], k / 3 % 2);
            const float a = stages[k % 3 * 256 + t], b = stages[k % 3 * 256 + t + 128];
            mlc_warp_barrier();  // all lanes have read
            if (t % 32 == 0)
                mlc_mbarrier_arrive(&empty[k % 3]);
            y[first + k * 256 + t] = 2.0f * a;
            y[first + k * 256 + t + 128] = 2.0f * b;
        }
    }
}
