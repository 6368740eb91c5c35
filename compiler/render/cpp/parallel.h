// Independent iterations spread over threads.
#pragma once
#include "vector.h"

// f(start, stop) for stretches that together are 0 .. count, one for each thread; with one thread, a plain call:
// entering a parallel region costs 0.4 us even then.
template <typename F>
MLC_INLINE void mlc_parallel(int threads, long count, F f) {
  if (threads > count) threads = count;
  if (threads > 1) {
#pragma omp parallel for num_threads(threads)
    for (int part = 0; part < threads; part++) f(count * part / threads, count * (part + 1) / threads);
  } else
    f(0, count);
}
