// y[block] = sums over the four blocks of its cluster, each storing its own into the others' shared memory (st.async).
#include "mlc/cluster.cuh"
#include "mlc/mbarrier.cuh"

extern "C" __global__ void MLC_CLUSTER(4, 1, 1) __launch_bounds__(32)
    kernel(const float* __restrict__ x, float* __restrict__ y) {
    MLC_SHARED(float, parts, 4, 16);
    MLC_SHARED(unsigned long, ready, 1, 8);
    const unsigned t = threadIdx.x;
    if (t == 0) {
        mlc_mbarrier_init(ready, 1);
        mlc_mbarrier_fence_init();
        mlc_mbarrier_expect(ready, 16);
    }
    mlc_cluster_barrier();  // barriers of all blocks are ready
    float sum = x[blockIdx.x * 32 + t];
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (t < 4)
        mlc_cluster_store_async(&parts[mlc_cluster_rank()], sum, ready, t);
    mlc_mbarrier_wait_cluster(ready, 0);
    if (t == 0)
        y[blockIdx.x] = parts[0] + parts[1] + parts[2] + parts[3];
    mlc_cluster_barrier();  // nothing reaches for a block that has ended
}
