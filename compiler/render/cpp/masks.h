// Booleans in memory, one byte each, as masks as wide as the lanes that they choose between, and back.
//
// T names the lanes: mlc_load_bools<int, 8> gives a mask that selects among eight floats or ints.
#pragma once
#include "memory.h"

template <typename T, int N>
MLC_INLINE mlc_mask<T, N> mlc_load_bools(const unsigned char* p) {
  return mlc_resize_mask<T>(mlc_to_mask(mlc_load<unsigned char, N>(p)));
}
template <typename M>
MLC_INLINE void mlc_store_bools(unsigned char* p, M mask) {
  mlc_store(p, mlc_from_mask<unsigned char>(mask));
}
template <typename T, typename X>
MLC_INLINE mlc_mask<T, mlc_lanes<X>> mlc_gather_bools(const unsigned char* base, X index) {
  return mlc_resize_mask<T>(mlc_to_mask(mlc_gather<unsigned char>(base, index)));
}
template <typename T, int N>
MLC_INLINE mlc_mask<T, N> mlc_load_strided_bools(const unsigned char* p, long stride) {
  return mlc_resize_mask<T>(mlc_to_mask(mlc_load_strided<unsigned char, N>(p, stride)));
}
template <typename T, int N>
MLC_INLINE mlc_mask<T, N> mlc_broadcast_mask(bool x) {
  return mlc_broadcast<mlc_lane<mlc_mask<T, N>>, N>(x ? -1 : 0);
}
