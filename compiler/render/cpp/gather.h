// Loads at indices by the processor's own instructions, at indices of 4 or 8 bytes. They are used where MLC_GATHERS says
// that they are faster than a load for each lane.
#pragma once
#include "convert.h"

#if defined(MLC_GATHERS) && defined(__AVX2__)
// Whether there are such instructions for elements R at indices X.
template <typename R, typename X>
constexpr bool mlc_has_gather = mlc_lanes<X> >= 4 && (mlc_same<mlc_lane<X>, int> || mlc_same<mlc_lane<X>, long>);

// p[index[i]] of integers where the mask, as wide as they are, is set, else 0; lanes that are not set read nothing.
template <typename R, typename X, typename M>
MLC_INLINE M mlc_gather_bits(const R* p, X index, M mask) {
  constexpr int N = mlc_lanes<X>;
  typedef mlc_vec<long long, N> L;
  constexpr bool LONG = sizeof(mlc_lane<X>) == 8;
#ifdef MLC_AVX512
  if constexpr (sizeof(R) == 4 && N == 16 && !LONG)
    return __builtin_ia32_gathersiv16si(M{}, p, index, __builtin_ia32_cvtd2mask512(mask), 4);
  else if constexpr (sizeof(R) == 4 && N == 8 && LONG)
    return __builtin_ia32_gatherdiv16si(M{}, p, (L)index, __builtin_ia32_cvtd2mask256(mask), 4);
  else if constexpr (sizeof(R) == 8 && N == 8 && !LONG)
    return (M)__builtin_ia32_gathersiv8di(L{}, p, index, __builtin_ia32_cvtq2mask512((L)mask), 8);
  else if constexpr (sizeof(R) == 8 && N == 8)
    return (M)__builtin_ia32_gatherdiv8di(L{}, p, (L)index, __builtin_ia32_cvtq2mask512((L)mask), 8);
  else
#endif
      if constexpr (sizeof(R) == 4 && N == 8 && !LONG)
    return __builtin_ia32_gathersiv8si(M{}, (const int*)p, index, mask, 4);
  else if constexpr (sizeof(R) == 4 && N == 4 && !LONG)
    return __builtin_ia32_gathersiv4si(M{}, (const int*)p, index, mask, 4);
  else if constexpr (sizeof(R) == 4 && N == 4)
    return __builtin_ia32_gatherdiv4si256(M{}, (const int*)p, (L)index, mask, 4);
  else if constexpr (sizeof(R) == 8 && N == 4 && !LONG)
    return (M)__builtin_ia32_gathersiv4di(L{}, (const long long*)p, index, (L)mask, 8);
  else if constexpr (sizeof(R) == 8 && N == 4)
    return (M)__builtin_ia32_gatherdiv4di(L{}, (const long long*)p, (L)index, (L)mask, 8);
  else
    return mlc_join(
        mlc_gather_bits(p, mlc_low(index), mlc_low(mask)), mlc_gather_bits(p, mlc_high(index), mlc_high(mask)));
}
template <typename R, typename X, typename M>
MLC_INLINE mlc_vec<R, mlc_lanes<X>> mlc_gather_raw(const R* p, X index, M mask) {
  if constexpr (sizeof(R) >= 4)
    return mlc_bitcast<mlc_vec<R, mlc_lanes<X>>>(mlc_gather_bits(p, index, mask));
  else {
    // The aligned 4 bytes that an element lies in: these are in one page of memory, so that they can be read if it can.
    constexpr int SIZE = sizeof(R), LOG = SIZE == 2 ? 1 : 2, LAST = (1 << LOG) - 1;
    const int before = ((unsigned long)p & 3) / SIZE;
    const X place = (index & LAST) + before;
    auto words = mlc_gather_bits((const int*)(p - before), (index >> LOG) + (place >> LOG), mlc_resize_mask<int>(mask));
    return mlc_convert<R>(words >> mlc_convert<int>((place & LAST) * (8 * SIZE)));
  }
}
#else
template <typename R, typename X>
constexpr bool mlc_has_gather = false;
#endif
