// y[block] = sum of x over the four blocks of its cluster, each reading the others' shared memory.
#include "mlc/cluster.cuh"

extern "C" __global__ void MLC_CLUSTER(4, 1, 1) __launch_bounds__(32)
    kernel(const float* __restrict__ x, float* __restrict__ y) {
    MLC_SHARED(float, mine, 32, 16);
    const unsigned t = threadIdx.x;
    mine[t] = x[blockIdx.x * 32 + t];
    mlc_cluster_barrier();  // everybody's memory is written
    float sum = 0.0f;
    for (unsigned rank = 0; rank < 4; rank++)
        sum += ((const float*)mlc_cluster_map(mine, rank))[31 - t];
    mlc_cluster_barrier();  // nobody's memory is read any more
    y[blockIdx.x * 32 + 31 - t] = sum;
}
