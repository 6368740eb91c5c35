// Sums of the rows of x[m][128] by a tree in shared memory, whose last steps are within one warp.
#include "mlc/prelude.cuh"

extern "C" __global__ void __launch_bounds__(128) kernel(const float* __restrict__ x, float* __restrict__ y) {
    MLC_SHARED(float, tree, 128, 16);
    const unsigned t = threadIdx.x;
    tree[t] = x[blockIdx.x * 128 + t];
    mlc_block_barrier();
    if (t < 64)
        tree[t] += tree[t + 64];
    mlc_block_barrier();
    if (t < 32) {
        tree[t] += tree[t + 32];
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            mlc_warp_barrier();
            const float other = tree[t + lanes];
            __syncwarp(0xffffffffu);
            tree[t] += other;
        }
        if (t == 0)
            y[blockIdx.x] = tree[0];
    }
}
