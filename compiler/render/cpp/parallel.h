// Independent iterations spread over threads.
#pragma once
#include "vector.h"

extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();

// f(start, stop) for stretches that together are 0 .. count, one for each thread; with one thread, a plain call:
// entering a parallel region costs 0.4 us even then. A loop that OpenMP spreads would take g++ longer to compile.
// Of two kernels that do the same, GCC 12 would take one region for both, and then not inline what enters it.
template <typename F>
MLC_INLINE __attribute__((no_icf)) void mlc_parallel(int threads, long count, F f) {
  if (threads > count) threads = count;
  if (threads > 1) {
#pragma omp parallel num_threads(threads)
    {
      const long part = omp_get_thread_num(), parts = omp_get_num_threads();
      f(count * part / parts, count * (part + 1) / parts);
    }
  } else
    f(0, count);
}
