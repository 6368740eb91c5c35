// y[i] = x[127 - i] + k, in turns: one half of the block writes a tile and the other reads it, over two named barriers.
#include "mlc/mbarrier.cuh"

extern "C" __global__ void __launch_bounds__(256) kernel(const float* __restrict__ x, float* __restrict__ y, long turns) {
    MLC_SHARED(float, tile, 128, 16);
    const unsigned t = threadIdx.x % 128;
    if (threadIdx.x < 128) {
        for (long k = 0; k < turns; k++) {
            mlc_named_barrier(1, 256);  // the tile is free
            tile[t] = x[t] + (float)k;
            mlc_named_barrier_arrive(2, 256);
        }
    } else {
        mlc_named_barrier_arrive(1, 256);
        for (long k = 0; k < turns; k++) {
            mlc_named_barrier(2, 256);  // the tile is written
            y[k * 128 + t] = tile[127 - t];
            if (k + 1 < turns)
                mlc_named_barrier_arrive(1, 256);
        }
    }
}
