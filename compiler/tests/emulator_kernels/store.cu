// y = x + 1 through shared memory, two tiles in turn, which the copy engine takes to y.
#include "mlc/tma.cuh"

extern "C" __global__ void __launch_bounds__(128) kernel(const float* __restrict__ x, float* __restrict__ y, long tiles) {
    MLC_SHARED(float, staging, 256, 128);
    const unsigned t = threadIdx.x;
    const long first = blockIdx.x * tiles * 128;
    for (long k = 0; k < tiles; k++) {
        float* tile = &staging[k % 2 * 128];
        if (t == 0)
            mlc_bulk_wait_read<1>();
        mlc_block_barrier();  // the tile may be written again
        tile[127 - t] = x[first + k * 128 + 127 - t] + 1.0f;
        mlc_fence_async();
        mlc_block_barrier();  // the tile is complete
        if (t == 0) {
            mlc_bulk_store(y + first + k * 128, tile, 512);
            mlc_bulk_commit();
        }
    }
    if (t == 0)
        mlc_bulk_wait<0>();
}
