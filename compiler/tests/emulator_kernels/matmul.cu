// c[n][n] = a @ b by 16x16 tiles in shared memory.
#include "mlc/prelude.cuh"

extern "C" __global__ void __launch_bounds__(256)
    kernel(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, long n) {
    MLC_SHARED(float, left, 16 * 17, 16);
    MLC_SHARED(float, right, 16 * 17, 16);
    const unsigned column = threadIdx.x % 16, row = threadIdx.x / 16;
    const long i = blockIdx.y * 16 + row, j = blockIdx.x * 16 + column;
    float sum = 0.0f;
    for (long k = 0; k < n; k += 16) {
        left[row * 17 + column] = i < n && k + column < n ? a[i * n + k + column] : 0.0f;
        right[row * 17 + column] = k + row < n && j < n ? b[(k + row) * n + j] : 0.0f;
        mlc_block_barrier();  // tiles are written
        for (int l = 0; l < 16; l++)
            sum += left[row * 17 + l] * right[l * 17 + column];
        mlc_block_barrier();  // tiles are read
    }
    if (i < n && j < n)
        c[i * n + j] = sum;
}
