// Stable sorting of a row of keys: by counting if it is short, else by radix sort from the lowest digit. NaN is larger
// than all other keys.
#pragma once
#include "memory.h"

enum { MLC_ASCENDING, MLC_DESCENDING };

// All bits of a lane, where the condition holds.
template <typename U, typename M>
MLC_INLINE U mlc_where_all(M condition) {
  if constexpr (mlc_is_scalar<U>) return (U)(0 - (U)condition);
  else return (U)condition;
}
// The bits of keys of type T as unsigned numbers that order as they do: both zeros give one number, and so do all NaNs.
template <int HOW, typename T, typename V>
MLC_INLINE mlc_unsigned<V> mlc_ordered(V bits) {
  typedef mlc_unsigned<V> U;
  typedef mlc_lane<U> L;
  constexpr int LAST = 8 * sizeof(L) - 1;
  constexpr L SIGN = (L)((L)1 << LAST);
  constexpr L INFINITE = (L)(mlc_same<T, float> ? 0x7f800000u : mlc_same<T, double> ? 0x7ff0000000000000ul :
      mlc_same<T, mlc_bf16> ? 0x7f80u : mlc_same<T, mlc_f16> ? 0x7c00u : 0);
  U key = (U)bits;
  if constexpr (INFINITE) {
    const U size = key & (L)~SIGN;
    key &= mlc_where_all<U>(size != 0);
    key = (U)(key ^ ((U)((V)key >> LAST) | SIGN)) | mlc_where_all<U>(size > INFINITE);
  } else if constexpr (!mlc_same<T, bool> && !mlc_same<T, unsigned char>)
    key ^= SIGN;
  return HOW == MLC_DESCENDING ? (U)~key : key;
}
template <int HOW, int W = 1, typename T>
MLC_INLINE auto mlc_ordered_at(const T* p) {
  typedef typename mlc_integer_type<sizeof(T)>::type R;
  return mlc_ordered<HOW, T>(mlc_load<R, W>((const R*)p));
}
// A key and its place: one number where the key is short.
struct mlc_placed {
  unsigned long key, place;
};
template <typename K>
MLC_INLINE auto mlc_place(K key, long place) {
  if constexpr (sizeof(K) == 8) return mlc_placed{key, (unsigned long)place};
  else return (unsigned long)key << 32 | (unsigned long)place;
}
MLC_INLINE unsigned long mlc_key_of(unsigned long x) { return x >> 32; }
MLC_INLINE unsigned long mlc_key_of(mlc_placed x) { return x.key; }
MLC_INLINE long mlc_place_of(unsigned long x) { return (long)(x & 0xffffffffu); }
MLC_INLINE long mlc_place_of(mlc_placed x) { return (long)x.place; }

// A key's place is the number of smaller keys, and of equal ones before it. Whole vectors of keys can be read.
template <typename S>
static void mlc_order_by_counting(long n, const S* keys, long* order) {
  constexpr int W = MLC_VECTOR_BYTES / sizeof(S);
  typedef mlc_vec<S, W> V;
  for (long i = 0; i < n; i++) {
    const V mine = V{} + keys[i];
    V before = V{};
    S place = (S)-i;
    V turn = mlc_iota<S, W>() + place;
    for (long j = 0; j < n; j += W, turn += W) {
      const V key = mlc_load<S, W>(keys + j);
      before += (V)(key < mine) | ((V)(key == mine) & (V)(turn < 0));
    }
    order[-(long)mlc_reduce_add(before)] = i;
  }
}
// Stable radix sort; a digit equal in all keys is skipped. Returns the array that has the result, `from` or `to`.
template <int DIGITS, typename E>
static E* mlc_order_by_digits(long n, E* from, E* to) {
  constexpr int BITS = 8;
  constexpr long SIZE = 1l << BITS;
  unsigned counts[DIGITS][SIZE];
  __builtin_memset(counts, 0, sizeof(counts));
  for (long i = 0; i < n; i++) {
    const unsigned long key = mlc_key_of(from[i]);
#pragma GCC unroll 8
    for (int d = 0; d < DIGITS; d++) counts[d][key >> d * BITS & (SIZE - 1)]++;
  }
  for (int d = 0; d < DIGITS; d++) {
    unsigned* count = counts[d];
    if (count[mlc_key_of(from[0]) >> d * BITS & (SIZE - 1)] == n) continue;
    unsigned sum = 0;
    for (long i = 0; i < SIZE; i++) {
      const unsigned here = count[i];
      count[i] = sum;
      sum += here;
    }
    for (long i = 0; i < n; i++) to[count[mlc_key_of(from[i]) >> d * BITS & (SIZE - 1)]++] = from[i];
    E* const other = from;
    from = to;
    to = other;
  }
  return from;
}
// Append the keys from number i on that are below `limit` to the `m` in `to`, while there is room; returns the next i.
template <int HOW, typename T, typename E>
static long mlc_order_some(long i, long n, const T* keys, long step, unsigned long limit, E* to, long& m, long room) {
  constexpr int W = MLC_VECTOR_BYTES / sizeof(T);
  typedef decltype(mlc_ordered_at<HOW>(keys)) U;
  while (i < n && m + W <= room) {
    const bool many = step == 1 && i + W <= n;
    if (many && !mlc_any(mlc_ordered_at<HOW, W>(keys + i) < (U)limit)) {
      i += W;
      continue;
    }
    for (const long end = many ? i + W : i + 1; i < end; i++) {
      const U key = mlc_ordered_at<HOW>(keys + i * step);
      to[m] = mlc_place(key, i);
      m += key < (U)limit;
    }
  }
  return i;
}
// The first few of many: kept sorted, and each key before the last of them is inserted.
template <int HOW, int MOST, typename T>
static void mlc_order_few(long n, long kept, const T* keys, long step, long* places, long apart) {
  constexpr int W = MLC_VECTOR_BYTES / sizeof(T);
  typedef decltype(mlc_ordered_at<HOW>(keys)) U;
  decltype(mlc_place(U(), 0)) found[MOST];
  const auto insert = [&](U key, long i, long last) {
    for (; last > 0 && mlc_key_of(found[last - 1]) > key; last--) found[last] = found[last - 1];
    found[last] = mlc_place(key, i);
  };
  for (long i = 0; i < kept; i++) insert(mlc_ordered_at<HOW>(keys + i * step), i, i);
  for (long i = kept; i < n;) {
    U limit = (U)mlc_key_of(found[kept - 1]);
    const bool many = step == 1 && i + W <= n;
    if (many && !mlc_any(mlc_ordered_at<HOW, W>(keys + i) < limit)) {
      i += W;
      continue;
    }
    for (const long end = many ? i + W : i + 1; i < end; i++) {
      const U key = mlc_ordered_at<HOW>(keys + i * step);
      if (key < limit) {
        insert(key, i, kept - 1);
        limit = (U)mlc_key_of(found[kept - 1]);
      }
    }
  }
  for (long i = 0; i < kept; i++) places[i * apart] = mlc_place_of(found[i]);
}
// The first of many, by radix sort; if few are kept, keys that cannot be among them are dropped as they are read.
template <int HOW, typename T>
static void mlc_order_many(long n, long kept, const T* keys, long step, long* places, long apart) {
  constexpr long FEW = 1024;  // elements for which the stack has room
  constexpr int DIGITS = sizeof(T);
  typedef decltype(mlc_place(mlc_ordered_at<HOW>(keys), 0)) E;
  const long room = kept <= n / 4 - 64 ? 2 * kept + 128 : n;
  E on_stack[2 * FEW];
  E* const memory = room <= FEW ? on_stack : (E*)__builtin_malloc(2 * room * sizeof(E));
  if (!memory) __builtin_trap();
  for (long i = 0; i < room; i++) memory[i] = mlc_place(mlc_ordered_at<HOW>(keys + i * step), i);
  E* found = mlc_order_by_digits<DIGITS>(room, memory, memory + room);
  for (long i = room; i < n;) {
    long m = kept;
    i = mlc_order_some<HOW>(i, n, keys, step, mlc_key_of(found[kept - 1]), found, m, room);
    found = mlc_order_by_digits<DIGITS>(m, found, found == memory ? memory + room : memory);
  }
  for (long i = 0; i < kept; i++) places[i * apart] = mlc_place_of(found[i]);
  if (room > FEW) __builtin_free(memory);
}
// places[i * apart] = the index of the i-th in order of n keys, `step` elements apart, for i < kept
template <int HOW, typename T>
static void mlc_order(long n, long kept, const T* keys, long step, long* places, long apart) {
  constexpr long FEW = 64;
  if (kept <= 0) return;
  if (n > FEW && kept <= FEW && kept <= n / 8) return mlc_order_few<HOW, FEW>(n, kept, keys, step, places, apart);
  if (n > FEW) return mlc_order_many<HOW>(n, kept, keys, step, places, apart);
  typedef typename mlc_integer_type<sizeof(T) == 8 ? 8 : 4>::type S;  // signed, as most machines compare
  constexpr S LEAST = (S)(1ul << (8 * sizeof(S) - 1));
  S row[FEW + MLC_VECTOR_BYTES / sizeof(S)];
  for (long i = 0; i < n; i++) row[i] = (S)mlc_ordered_at<HOW>(keys + i * step) ^ LEAST;
  for (long i = n; i % (MLC_VECTOR_BYTES / (long)sizeof(S)); i++) row[i] = ~LEAST;
  long order[FEW];
  mlc_order_by_counting(n, row, order);
  for (long i = 0; i < kept; i++) places[i * apart] = order[i];
}
