// Loads and stores at any alignment, converting between the element type in memory and the lanes computed with.
//
// T and N are the lanes wanted (N = 1 gives a scalar), S the element type in memory: any of float, double, mlc_bf16,
// mlc_f16, long, int, short, signed char, unsigned char, bool. A bool loads as 0 or 1; a store to bool writes v != 0.
#pragma once
#include "convert.h"
#include "gather.h"

template <typename T, int N>
MLC_INLINE mlc_vec<T, N> mlc_load(const T* p) {
  return *(const typename mlc_vector_type<T, N>::unaligned*)p;
}
template <typename V>
MLC_INLINE void mlc_store(mlc_lane<V>* p, V v) {
  *(typename mlc_vector_type<mlc_lane<V>, mlc_lanes<V>>::unaligned*)p = v;
}
template <typename T, int N, typename S>
MLC_INLINE mlc_vec<T, N> mlc_load_as(const S* p) {
  mlc_vec<T, N> v = mlc_from_raw<T, S>(mlc_load<mlc_raw<S>, N>((const mlc_raw<S>*)p));
#ifdef MLC_AVX512
  // GCC 12 puts the load, the widening and a mask behind it into one instruction, and then cannot print that.
  if constexpr (N > 1 && sizeof(S) * N < 16 && sizeof(S) < sizeof(T)) return mlc_opaque(v);
#endif
  return v;
}
template <typename S, typename V>
MLC_INLINE void mlc_store_as(S* p, V v) {
  mlc_store((mlc_raw<S>*)p, mlc_to_raw<S>(v));
}
// Memory is asked for what is so many bytes behind p, to bring it to the first level of cache or to the second. No pointer
// goes there: it may be outside of what p points into.
template <int LEVEL = 1, int WRITE = 0>
MLC_INLINE void mlc_prefetch(const void* p, long bytes) {
  __builtin_prefetch((const void*)((unsigned long)p + (unsigned long)bytes), WRITE, 4 - LEVEL);
}
// The same loads, with a prefetch of what lies so many bytes further.
template <typename T, int N>
MLC_INLINE mlc_vec<T, N> mlc_load_ahead(const T* p, long bytes) {
  mlc_prefetch(p, bytes);
  return mlc_load<T, N>(p);
}
template <typename T, int N, typename S>
MLC_INLINE mlc_vec<T, N> mlc_load_as_ahead(const S* p, long bytes) {
  mlc_prefetch(p, bytes);
  return mlc_load_as<T, N>(p);
}
// The same stores, with a prefetch for writing.
template <typename T, typename V>
MLC_INLINE void mlc_store_owned(T* p, V v, long bytes) {
  mlc_prefetch<1, 1>(p, bytes);
  mlc_store(p, v);
}
template <typename S, typename V>
MLC_INLINE void mlc_store_as_owned(S* p, V v, long bytes) {
  mlc_store_owned((mlc_raw<S>*)p, mlc_to_raw<S>(v), bytes);
}
// A store past the caches, where the address allows; the fence orders such stores before all that follow.
template <typename V>
MLC_INLINE void mlc_store_past(mlc_lane<V>* p, V v) {
#ifdef MLC_AVX512
  if constexpr (sizeof(V) == 64)
    if (((unsigned long)p & 63) == 0) return __builtin_ia32_movntps512((float*)p, mlc_bitcast<mlc_vec<float, 16>>(v));
#endif
#ifdef __AVX__
  if constexpr (sizeof(V) == 32)
    if (((unsigned long)p & 31) == 0) return __builtin_ia32_movntps256((float*)p, mlc_bitcast<mlc_vec<float, 8>>(v));
#endif
#ifdef __SSE2__
  if constexpr (sizeof(V) == 16)
    if (((unsigned long)p & 15) == 0) return __builtin_ia32_movntps((float*)p, mlc_bitcast<mlc_vec<float, 4>>(v));
#endif
  if constexpr (sizeof(V) > MLC_VECTOR_BYTES && !mlc_is_scalar<V>) {
    mlc_store_past(p, mlc_low(v));
    mlc_store_past(p + mlc_lanes<V> / 2, mlc_high(v));
  } else
    mlc_store(p, v);
}
MLC_INLINE void mlc_fence() {
#ifdef __SSE2__
  __builtin_ia32_sfence();
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}
// Booleans in memory and the mask for lanes of T.
template <typename T, int N>
MLC_INLINE mlc_mask<T, N> mlc_load_mask(const bool* p) {
  return mlc_resize_mask<T>(mlc_to_mask(mlc_load<unsigned char, N>((const unsigned char*)p)));
}
template <typename M>
MLC_INLINE void mlc_store_mask(bool* p, M mask) {
  mlc_store((unsigned char*)p, mlc_from_mask<unsigned char>(mask));
}

// ---- the first n of N lanes, 0 <= n <= N: nothing else is read (the other lanes are 0) or written

#ifdef __AVX2__
template <typename R, int N>
constexpr bool mlc_has_partial = (sizeof(R) == 4 || sizeof(R) == 8) && (N * sizeof(R) == 16 || N * sizeof(R) == 32);
template <typename R, int N>
MLC_INLINE auto mlc_first(long n) {
  typedef typename mlc_integer_type<sizeof(R)>::type I;
  return mlc_iota<I, N>() < (I)n;
}
#else
template <typename R, int N>
constexpr bool mlc_has_partial = false;
#endif

template <typename R, int N>
MLC_INLINE mlc_vec<R, N> mlc_load_first(const R* p, long n) {
  typedef mlc_vec<R, N> V;
  if constexpr (N == 1) return n > 0 ? *p : R(0);
#ifdef __AVX2__
  else if constexpr (mlc_has_partial<R, N>) {
    auto mask = mlc_first<R, N>(n);
    if constexpr (sizeof(R) == 4 && sizeof(V) == 16) return (V)__builtin_ia32_maskloadd((const mlc_vec<int, 4>*)p, mask);
    if constexpr (sizeof(R) == 4 && sizeof(V) == 32)
      return (V)__builtin_ia32_maskloadd256((const mlc_vec<int, 8>*)p, mask);
    if constexpr (sizeof(R) == 8 && sizeof(V) == 16)
      return (V)__builtin_ia32_maskloadq((const mlc_vec<long long, 2>*)p, (mlc_vec<long long, 2>)mask);
    if constexpr (sizeof(R) == 8 && sizeof(V) == 32)
      return (V)__builtin_ia32_maskloadq256((const mlc_vec<long long, 4>*)p, (mlc_vec<long long, 4>)mask);
  }
#endif
#ifdef MLC_AVX512
  else if constexpr (N == 16 && sizeof(R) == 4)
    return (V)__builtin_ia32_loadups512_mask((const float*)p, mlc_vec<float, 16>{}, (1u << n) - 1);
  else if constexpr (N == 8 && sizeof(R) == 8)
    return (V)__builtin_ia32_loadupd512_mask((const double*)p, mlc_vec<double, 8>{}, (1u << n) - 1);
  else if constexpr (N == 32 && sizeof(R) == 2)
    return (V)__builtin_ia32_loaddquhi512_mask((const short*)p, mlc_vec<short, 32>{}, (unsigned)((1ul << n) - 1));
  else if constexpr (N == 64 && sizeof(R) == 1)
    return (V)__builtin_ia32_loaddquqi512_mask((const char*)p, mlc_vec<char, 64>{}, n < 64 ? (1ul << n) - 1 : ~0ul);
#endif
  else {
    V v = {};
    for (long i = 0; i < n; i++) v[i] = p[i];
    return v;
  }
}
template <typename V>
MLC_INLINE void mlc_store_first(mlc_lane<V>* p, V v, long n) {
  constexpr int N = mlc_lanes<V>;
  [[maybe_unused]] constexpr int BYTES = sizeof(mlc_lane<V>);
  if constexpr (N == 1) {
    if (n > 0) *p = v;
  }
#ifdef __AVX2__
  else if constexpr (mlc_has_partial<mlc_lane<V>, N>) {
    auto mask = mlc_first<mlc_lane<V>, N>(n);
    if constexpr (BYTES == 4 && sizeof(V) == 16)
      __builtin_ia32_maskstored((mlc_vec<int, 4>*)p, mask, (mlc_vec<int, 4>)v);
    if constexpr (BYTES == 4 && sizeof(V) == 32)
      __builtin_ia32_maskstored256((mlc_vec<int, 8>*)p, mask, (mlc_vec<int, 8>)v);
    if constexpr (BYTES == 8 && sizeof(V) == 16)
      __builtin_ia32_maskstoreq((mlc_vec<long long, 2>*)p, (mlc_vec<long long, 2>)mask, (mlc_vec<long long, 2>)v);
    if constexpr (BYTES == 8 && sizeof(V) == 32)
      __builtin_ia32_maskstoreq256((mlc_vec<long long, 4>*)p, (mlc_vec<long long, 4>)mask, (mlc_vec<long long, 4>)v);
  }
#endif
#ifdef MLC_AVX512
  else if constexpr (N == 16 && BYTES == 4)
    __builtin_ia32_storeups512_mask((float*)p, (mlc_vec<float, 16>)v, (1u << n) - 1);
  else if constexpr (N == 8 && BYTES == 8)
    __builtin_ia32_storeupd512_mask((double*)p, (mlc_vec<double, 8>)v, (1u << n) - 1);
#endif
  else
    for (long i = 0; i < n; i++) p[i] = v[i];
}
template <typename T, int N, typename S>
MLC_INLINE mlc_vec<T, N> mlc_load_n(const S* p, long n) {
  return mlc_from_raw<T, S>(mlc_load_first<mlc_raw<S>, N>((const mlc_raw<S>*)p, n));
}
template <typename S, typename V>
MLC_INLINE void mlc_store_n(S* p, V v, long n) {
  mlc_store_first((mlc_raw<S>*)p, mlc_to_raw<S>(v), n);
}

// ---- strided, indexed and masked access, element by element

// Every STRIDE-th element from p on, of the first K + 1 vectors of memory: the last of STRIDE loads ends where the last of
// the elements does, not behind it, and each but the first takes one shuffle.
template <int STRIDE, int K = STRIDE - 1, typename R, int... I>
MLC_INLINE auto mlc_pick_spaced(const R* p, mlc_indices<I...> lanes) {
  constexpr int N = sizeof...(I), LAST = (N - 1) * (STRIDE - 1), AT = K * N < LAST ? K * N : LAST;
  if constexpr (K == 0)
    return mlc_load<R, N>(p);
  else
    return __builtin_shufflevector(mlc_pick_spaced<STRIDE, K - 1>(p, lanes), mlc_load<R, N>(p + AT),
        (I * STRIDE < K * N      ? (K == 1 ? I * STRIDE : I)
            : I * STRIDE < AT + N ? N + I * STRIDE - AT
                                  : 0)...);
}
// The elements before and at p, the last of them first.
template <typename R, int... I>
MLC_INLINE auto mlc_pick_reversed(const R* p, mlc_indices<I...>) {
  constexpr int N = sizeof...(I);
  auto v = mlc_load<R, N>(p - N + 1);
  return __builtin_shufflevector(v, v, (N - 1 - I)...);
}
template <typename V, typename R, int... I>
MLC_INLINE V mlc_pick_strided(const R* p, long stride, mlc_indices<I...>) {
  return V{p[I * stride]...};
}
template <typename T, int N, typename S>
MLC_INLINE mlc_vec<T, N> mlc_load_strided(const S* p, long stride) {
  typedef mlc_raw<S> R;
  if constexpr (N > 1 && N * sizeof(R) <= MLC_VECTOR_BYTES) {
#ifdef MLC_AVX512
    constexpr bool SHUFFLES = sizeof(R) >= 2;
#else
    constexpr bool SHUFFLES = sizeof(R) >= 4;
#endif
    const auto lanes = mlc_count<N>();
    if (__builtin_constant_p(stride) && stride == -1) return mlc_from_raw<T, S>(mlc_pick_reversed((const R*)p, lanes));
    if (__builtin_constant_p(stride) && stride == 2) return mlc_from_raw<T, S>(mlc_pick_spaced<2>((const R*)p, lanes));
    if constexpr (SHUFFLES) {
      if (__builtin_constant_p(stride) && stride == 3) return mlc_from_raw<T, S>(mlc_pick_spaced<3>((const R*)p, lanes));
      if (__builtin_constant_p(stride) && stride == 4) return mlc_from_raw<T, S>(mlc_pick_spaced<4>((const R*)p, lanes));
    }
  }
  return mlc_from_raw<T, S>(mlc_pick_strided<mlc_vec<R, N>>((const R*)p, stride, mlc_count<N>()));
}

template <long X, long... MORE>
constexpr long mlc_nearest() {
  long least = X;
  ((least = MORE < least ? MORE : least), ...);
  return least;
}
// Whether runs of so many elements, one from the first on and one up to the last, hold all that are asked for.
template <long... AT>
constexpr bool mlc_in_two_runs(long first, long last, long run) {
  return run <= last - first + 1 && ((AT < first + run || AT > last - run) && ...);
}
template <typename V, int RUN, long FIRST, long LAST, long... AT, typename R>
MLC_INLINE V mlc_pick_from_runs(const R* p) {
  auto low = mlc_load<R, RUN>(p + FIRST), high = mlc_load<R, RUN>(p + LAST - RUN + 1);
  if constexpr (RUN == mlc_lanes<V>)
    return __builtin_shufflevector(low, high, (AT < FIRST + RUN ? AT - FIRST : AT - LAST + 2 * RUN - 1)...);
  else {
    auto both = mlc_join(low, high);
    return __builtin_shufflevector(both, both, (AT < FIRST + RUN ? AT - FIRST : AT - LAST + 2 * RUN - 1)...);
  }
}
// The elements so far from p, distances that are known when compiling: where two loads hold them, these and a shuffle.
template <typename T, long... AT, typename S>
MLC_INLINE mlc_vec<T, sizeof...(AT)> mlc_load_at(const S* p) {
  typedef mlc_raw<S> R;
  typedef mlc_vec<R, sizeof...(AT)> V;
  constexpr long N = sizeof...(AT);
  constexpr long FIRST = mlc_nearest<AT...>(), LAST = -mlc_nearest<-AT...>();
  constexpr bool FITS = N > 2 && N * sizeof(R) <= MLC_VECTOR_BYTES;
  if constexpr (FITS && N * sizeof(R) >= 16 && mlc_in_two_runs<AT...>(FIRST, LAST, N / 2))
    return mlc_from_raw<T, S>(mlc_pick_from_runs<V, N / 2, FIRST, LAST, AT...>((const R*)p));
  else if constexpr (FITS && mlc_in_two_runs<AT...>(FIRST, LAST, N))
    return mlc_from_raw<T, S>(mlc_pick_from_runs<V, N, FIRST, LAST, AT...>((const R*)p));
  else
    return mlc_from_raw<T, S>(V{((const R*)p)[AT]...});
}
template <typename S, typename V>
MLC_INLINE void mlc_store_strided(S* p, long stride, V v) {
  auto raw = mlc_to_raw<S>(v);
  if constexpr (mlc_is_scalar<V>)
    *(mlc_raw<S>*)p = raw;
  else
    for (int i = 0; i < mlc_lanes<V>; i++) ((mlc_raw<S>*)p)[i * stride] = raw[i];
}

template <typename V, typename R, typename X, int... I>
MLC_INLINE V mlc_pick(const R* p, X index, mlc_indices<I...>) {
  return V{p[index[I]]...};
}
// A vector of which the compiler does not know that it was in memory, if it is widened to 64 bits: GCC 12 fails on what
// it makes of elements that it finds to be in order, a masked extension of memory.
template <typename T, typename V>
MLC_INLINE V mlc_hidden(V v) {
#ifdef MLC_AVX512
  if constexpr (sizeof(T) == 8 && sizeof(mlc_lane<V>) <= 2 && sizeof(V) >= 4) asm("" : "+x"(v));
#endif
  return v;
}
// base[index[i]]
template <typename T, typename S, typename X>
MLC_INLINE mlc_vec<T, mlc_lanes<X>> mlc_gather(const S* base, X index) {
  typedef mlc_raw<S> R;
  if constexpr (mlc_is_scalar<X>)
    return mlc_from_raw<T, S>(((const R*)base)[index]);
  else if constexpr (mlc_has_gather<R, X>)
    return mlc_from_raw<T, S>(mlc_gather_raw((const R*)base, index, ~mlc_mask<R, mlc_lanes<X>>{}));
  else
    return mlc_from_raw<T, S>(
        mlc_hidden<T>(mlc_pick<mlc_vec<R, mlc_lanes<X>>>((const R*)base, index, mlc_count<mlc_lanes<X>>())));
}
// base[index[i]] where the mask is set, else `other`; lanes that are not set read nothing.
template <typename T, typename S, typename X, typename M>
MLC_INLINE mlc_vec<T, mlc_lanes<X>> mlc_gather_masked(const S* base, X index, M mask, mlc_vec<T, mlc_lanes<X>> other) {
  typedef mlc_raw<S> R;
  if constexpr (mlc_is_scalar<X>)
    return mask ? mlc_from_raw<T, S>(((const R*)base)[index]) : other;
  else if constexpr (mlc_has_gather<R, X>)
    return mlc_where(mlc_resize_mask<T>(mask),
        mlc_from_raw<T, S>(mlc_gather_raw((const R*)base, index, mlc_resize_mask<R>(mask))), other);
  else {
    mlc_vec<R, mlc_lanes<X>> raw = {};
    for (int i = 0; i < mlc_lanes<X>; i++)
      if (mask[i]) raw[i] = ((const R*)base)[index[i]];
    return mlc_where(mlc_resize_mask<T>(mask), mlc_from_raw<T, S>(raw), other);
  }
}
// base[at + i] where the mask is set, else `other`; lanes that are not set read nothing, wherever they may be.
template <typename T, typename S, typename M>
MLC_INLINE mlc_vec<T, mlc_lanes<M>> mlc_load_masked(const S* base, long at, M mask, mlc_vec<T, mlc_lanes<M>> other) {
  typedef mlc_raw<S> R;
  constexpr int N = mlc_lanes<M>;
  [[maybe_unused]] const R* p = (const R*)((unsigned long)base + at * sizeof(R));
#ifdef MLC_AVX512
  if constexpr (mlc_same<R, float> && N == 16)
    return (mlc_vec<T, N>)__builtin_ia32_loadups512_mask(
        p, (mlc_vec<float, N>)other, __builtin_ia32_cvtd2mask512((mlc_vec<int, N>)mask));
  else if constexpr (mlc_same<R, double> && N == 8)
    return (mlc_vec<T, N>)__builtin_ia32_loadupd512_mask(
        p, (mlc_vec<double, N>)other, __builtin_ia32_cvtq2mask512((mlc_vec<long long, N>)mask));
  else
#endif
#if defined(__AVX512BW__) && defined(__AVX512VL__)
      if constexpr (mlc_same<R, unsigned short> && mlc_same<T, R> && (N == 16 || N == 32)) {
    typedef mlc_vec<short, N> V;
    const V set = (V)mlc_resize_mask<T>(mask);
    if constexpr (N == 16)
      return (mlc_vec<T, N>)__builtin_ia32_loaddquhi256_mask(
          (const short*)p, (V)other, __builtin_ia32_cvtw2mask256(set));
    else
      return (mlc_vec<T, N>)__builtin_ia32_loaddquhi512_mask(
          (const short*)p, (V)other, __builtin_ia32_cvtw2mask512(set));
  } else
#endif
#ifdef __AVX2__
      if constexpr (mlc_same<R, float> && N == 8)
    return mlc_where(mask, (mlc_vec<T, N>)__builtin_ia32_maskloadps256((const mlc_vec<float, N>*)p, mask), other);
  else if constexpr (mlc_same<R, double> && N == 4)
    return mlc_where(mask,
        (mlc_vec<T, N>)__builtin_ia32_maskloadpd256((const mlc_vec<double, N>*)p, (mlc_vec<long long, N>)mask), other);
  else
#endif
    return mlc_gather_masked<T>(base, at + mlc_iota<long, N>(), mask, other);
}
// base[index[i]] = v[i] in the order of the lanes, so that of equal indices the last wins.
template <typename S, typename X, typename V>
MLC_INLINE void mlc_scatter(S* base, X index, V v) {
  auto raw = mlc_to_raw<S>(v);
  if constexpr (mlc_is_scalar<X>)
    ((mlc_raw<S>*)base)[index] = raw;
  else
    for (int i = 0; i < mlc_lanes<X>; i++) ((mlc_raw<S>*)base)[index[i]] = raw[i];
}
template <typename S, typename X, typename V, typename M>
MLC_INLINE void mlc_scatter_masked(S* base, X index, V v, M mask) {
  auto raw = mlc_to_raw<S>(v);
  if constexpr (mlc_is_scalar<X>) {
    if (mask) ((mlc_raw<S>*)base)[index] = raw;
  } else
    for (int i = 0; i < mlc_lanes<X>; i++)
      if (mask[i]) ((mlc_raw<S>*)base)[index[i]] = raw[i];
}
