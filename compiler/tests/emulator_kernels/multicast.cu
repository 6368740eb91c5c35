// y[block][i] = x[i] + block over the tiles of x, which block 0 of each cluster of two copies into the memory of both.
#include "mlc/cluster.cuh"
#include "mlc/tma.cuh"

extern "C" __global__ void MLC_CLUSTER(2, 1, 1) __launch_bounds__(64)
    kernel(MLC_TENSOR_MAP(x), float* __restrict__ y, long tiles) {
    MLC_SHARED(float, stage, 2 * 64, 128);
    MLC_SHARED(unsigned long, full, 2, 8);
    MLC_SHARED(unsigned long, empty, 2, 8);
    const unsigned t = threadIdx.x;
    const bool leader = mlc_cluster_rank() == 0;
    if (t == 0) {
        for (int s = 0; s < 2; s++) {
            mlc_mbarrier_init(&full[s], 1);
            mlc_mbarrier_init(&empty[s], 2 * 2);
        }
        mlc_mbarrier_fence_init();
    }
    mlc_cluster_barrier();  // barriers of both blocks are ready
    for (long k = 0; k < tiles; k++) {
        if (t == 0)
            mlc_mbarrier_expect(&full[k % 2], 256);
        if (t == 0 && leader) {
            mlc_mbarrier_wait_cluster(&empty[k % 2], k / 2 % 2 ^ 1);
            mlc_tma_load_multicast(&stage[k % 2 * 64], x, &full[k % 2], 3, k * 64);
        }
        mlc_warp_barrier();
        mlc_mbarrier_wait(&full[k % 2], k / 2 % 2);
        const float value = stage[k % 2 * 64 + 63 - t];
        mlc_warp_barrier();  // the warp has read
        if (t % 32 == 0)
            mlc_mbarrier_arrive_cluster(&empty[k % 2], 0);
        y[(blockIdx.x * tiles + k) * 64 + 63 - t] = value + (float)blockIdx.x;
    }
    mlc_cluster_barrier();  // nothing reaches for a block that has ended
}
