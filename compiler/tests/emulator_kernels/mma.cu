// c[m][64] = a[m][k] @ b[k][64] in f16 with f32 sums, 64 rows a block: cp.async in 2 stages, ldmatrix, mma.sync.
#include "mlc/async.cuh"
#include "mlc/matrix.cuh"

extern "C" __global__ void __launch_bounds__(128)
    kernel(const mlc_f16* __restrict__ a, const mlc_f16* __restrict__ b, float* __restrict__ c, long k) {
    MLC_SHARED(mlc_f16, left, 2 * 64 * 40, 16);   // rows of 32, padded against conflicts of banks
    MLC_SHARED(mlc_f16, right, 2 * 32 * 72, 16);  // rows of 64
    const unsigned t = threadIdx.x, warp = t / 32, lane = t % 32;
    float sums[8][4] = {};
    for (long tile = -1; tile < k / 32; tile++) {
        const unsigned next = (tile + 1) & 1;
        if (tile + 1 < k / 32)
            for (unsigned i = t; i < 256; i += 128) {
                mlc_cp_async<16>(&left[(next * 64 + i / 4) * 40 + i % 4 * 8],
                                 &a[(blockIdx.x * 64 + i / 4) * k + (tile + 1) * 32 + i % 4 * 8]);
                mlc_cp_async<16>(&right[(next * 32 + i / 8) * 72 + i % 8 * 8], &b[((tile + 1) * 32 + i / 8) * 64 + i % 8 * 8]);
            }
        mlc_cp_async_commit();
        if (tile < 0)
            continue;
        mlc_cp_async_wait<1>();
        mlc_block_barrier();  // the stage is complete
        const unsigned now = tile & 1;
        for (unsigned step = 0; step < 32; step += 16) {
            alignas(16) mlc_f16 row[8], column[4];
            mlc_ldmatrix<4>(row, &left[(now * 64 + warp * 16 + lane % 16) * 40 + step + lane / 16 * 8]);
            for (int n = 0; n < 8; n++) {
                mlc_ldmatrix_transposed<2>(column, &right[(now * 32 + step + lane % 16) * 72 + n * 8]);
                mlc_mma_sync<16, 8, 16>(sums[n], row, column);
            }
        }
        mlc_block_barrier();  // the stage has been read
    }
    const long first = blockIdx.x * 64 + warp * 16 + lane / 4;
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            c[(first + i / 2 * 8) * 64 + n * 8 + lane % 4 * 2 + i % 2] = sums[n][i];
}
