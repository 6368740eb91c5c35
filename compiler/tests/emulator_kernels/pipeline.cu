// y[row] = sum over tiles of 512 floats of x[row], each thread adding what its neighbour has copied: cp.async, 3 stages.
#include "mlc/async.cuh"

extern "C" __global__ void __launch_bounds__(128) kernel(const float* __restrict__ x, float* __restrict__ y, long tiles) {
    MLC_SHARED(float, stage, 3 * 512, 16);
    MLC_SHARED(float, parts, 128, 16);
    const unsigned t = threadIdx.x;
    const float* row = x + blockIdx.x * tiles * 512;
    for (long k = 0; k < 2; k++) {
        if (k < tiles)
            mlc_cp_async<16>(&stage[k * 512 + t * 4], row + k * 512 + t * 4);
        mlc_cp_async_commit();
    }
    float sum = 0.0f;
    for (long k = 0; k < tiles; k++) {
        mlc_cp_async_wait<1>();
        mlc_block_barrier();  // everybody's copies have landed
        if (k + 2 < tiles)
            mlc_cp_async<16>(&stage[(k + 2) % 3 * 512 + t * 4], row + (k + 2) * 512 + t * 4);
        mlc_cp_async_commit();
        const float* tile = &stage[k % 3 * 512];
        for (int i = 0; i < 4; i++)
            sum += tile[(t * 4 + 4 + i) % 512];
    }
    mlc_cp_async_wait<0>();
    parts[t] = sum;
    mlc_block_barrier();
    if (t == 0) {
        for (int i = 1; i < 128; i++)
            sum += parts[i];
        y[blockIdx.x] = sum;
    }
}
