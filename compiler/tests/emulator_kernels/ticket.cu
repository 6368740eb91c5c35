// y[0] = sum of x in one launch: the last block to finish adds what the blocks have left. count[0] is 0 before and after.
#include "mlc/prelude.cuh"

extern "C" __global__ void clear(int* count) {
    count[0] = 0;
}

extern "C" __global__ void __launch_bounds__(64)
    kernel(const float* __restrict__ x, float* __restrict__ y, float* parts, int* count) {
    MLC_SHARED(float, values, 64, 16);
    MLC_SHARED(int, last, 1, 4);
    const unsigned t = threadIdx.x;
    values[t] = x[blockIdx.x * 64 + t];
    mlc_block_barrier();
    if (t == 0) {
        float sum = 0.0f;
        for (int i = 0; i < 64; i++)
            sum += values[i];
        parts[blockIdx.x] = sum;
        __threadfence();  // release
        last[0] = atomicAdd(count, 1) == (int)gridDim.x - 1;
        __threadfence();  // acquire
    }
    mlc_block_barrier();
    if (last[0] && t == 0) {
        float sum = 0.0f;
        for (unsigned i = 0; i < gridDim.x; i++)
            sum += parts[i];
        y[0] = sum;
    }
}
