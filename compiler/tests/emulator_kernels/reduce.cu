// Sums of the rows of x[m][n]: shuffles within a warp, shared memory across warps.
#include "mlc/prelude.cuh"

extern "C" __global__ void __launch_bounds__(128) kernel(const float* __restrict__ x, float* __restrict__ y, long n) {
    MLC_SHARED(float, parts, 4, 16);
    const unsigned t = threadIdx.x;
    float sum = 0.0f;
    for (long i = t; i < n; i += 128)
        sum += x[blockIdx.x * n + i];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (t % 32 == 0)
        parts[t / 32] = sum;
    mlc_block_barrier();
    if (t == 0)
        y[blockIdx.x] = parts[0] + parts[1] + parts[2] + parts[3];
}
