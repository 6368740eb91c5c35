// CUDA's built-in functions by their own names: barriers, shuffles, votes, atomics, bits.
#pragma once

// Barriers are distinguished by number, also those on one line or in the body of a device function.
#define __syncthreads() ::mlc::emu::block_barrier(__builtin_LINE(), __COUNTER__)
MLC_DEVICE void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) { mlc::emu::warp_barrier(mask, line); }
MLC_DEVICE void __threadfence() { mlc::emu::fence(); }
MLC_DEVICE void __threadfence_block() { mlc::emu::fence(); }
MLC_DEVICE void __threadfence_system() { mlc::emu::fence(); }
MLC_DEVICE void __nanosleep(unsigned) { mlc::emu::pause(); }

namespace mlc::emu {

// Which lane a lane reads: segments of `width` lanes, and outside of the segment its own value, as shfl does.
template <class T, class Source>
__forceinline__ T shuffle(unsigned mask, T value, const char* name, Source source, int line) {
    T in = value, out = value;
    struct {
        Source source;
    } s{source};
    warp_collective(
        mask, name, &in, &out,
        [s](Lanes& lanes) MLC_UNCHECKED {
            for (unsigned i = 0; i < 32; i++) {
                if (!(lanes.mask >> i & 1)) continue;
                unsigned from = s.source(i);
                if (!(lanes.mask >> from & 1)) fail("it reads a lane that does not take part", "divergent collective");
                *(T*)lanes.out[i] = *(const T*)lanes.in[from];
            }
        },
        line);
    return out;
}

}  // namespace mlc::emu

template <class T>
__forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32, int line = __builtin_LINE()) {
    return mlc::emu::shuffle(
        mask, value, "__shfl_sync",
        [=](unsigned i) MLC_UNCHECKED { return (i & ~(unsigned)(width - 1)) | ((unsigned)lane & (unsigned)(width - 1)); },
        line);
}
template <class T>
__forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, int line = __builtin_LINE()) {
    return mlc::emu::shuffle(
        mask, value, "__shfl_xor_sync",
        [=](unsigned i) MLC_UNCHECKED {
            unsigned from = i ^ (unsigned)lanes;
            return from < ((i | (unsigned)(width - 1)) + 1) ? from : i;
        },
        line);
}
template <class T>
__forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    return mlc::emu::shuffle(
        mask, value, "__shfl_down_sync",
        [=](unsigned i) MLC_UNCHECKED { return (i & (unsigned)(width - 1)) + delta < (unsigned)width ? i + delta : i; },
        line);
}
template <class T>
__forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, int line = __builtin_LINE()) {
    return mlc::emu::shuffle(
        mask, value, "__shfl_up_sync",
        [=](unsigned i) MLC_UNCHECKED { return (i & (unsigned)(width - 1)) >= delta ? i - delta : i; }, line);
}

MLC_DEVICE unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    unsigned in = predicate != 0, out = 0;
    mlc::emu::warp_collective(
        mask, "__ballot_sync", &in, &out,
        [](mlc::emu::Lanes& lanes) MLC_UNCHECKED {
            unsigned all = 0;
            for (unsigned i = 0; i < 32; i++)
                if (lanes.mask >> i & 1) all |= *(const unsigned*)lanes.in[i] << i;
            for (unsigned i = 0; i < 32; i++)
                if (lanes.mask >> i & 1) *(unsigned*)lanes.out[i] = all;
        },
        line);
    return out;
}
MLC_DEVICE int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}
MLC_DEVICE int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, !predicate, line) == 0;
}

#define MLC_REDUCE(name, type, combine)                                                \
    MLC_DEVICE type name(unsigned mask, type value, int line = __builtin_LINE()) {     \
        type in = value, out = value;                                                  \
        mlc::emu::warp_collective(                                                     \
            mask, #name, &in, &out,                                                    \
            [](mlc::emu::Lanes& lanes) MLC_UNCHECKED {                                 \
                type a = 0;                                                            \
                bool first = true;                                                     \
                for (unsigned i = 0; i < 32; i++) {                                    \
                    if (!(lanes.mask >> i & 1)) continue;                              \
                    type b = *(const type*)lanes.in[i];                                \
                    a = first ? b : (combine);                                         \
                    first = false;                                                     \
                }                                                                      \
                for (unsigned i = 0; i < 32; i++)                                      \
                    if (lanes.mask >> i & 1) *(type*)lanes.out[i] = a;                 \
            },                                                                         \
            line);                                                                     \
        return out;                                                                    \
    }
MLC_REDUCE(__reduce_add_sync, unsigned, a + b)
MLC_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
MLC_REDUCE(__reduce_max_sync, unsigned, a < b ? b : a)
MLC_REDUCE(__reduce_add_sync, int, a + b)
MLC_REDUCE(__reduce_min_sync, int, a < b ? a : b)
MLC_REDUCE(__reduce_max_sync, int, a < b ? b : a)
#undef MLC_REDUCE

namespace mlc::emu {

template <unsigned size>
struct Word {};
template <>
struct Word<2> {
    typedef unsigned short type;
};
template <>
struct Word<4> {
    typedef unsigned type;
};
template <>
struct Word<8> {
    typedef unsigned long type;
};

// Replaces *p by f(*p) in one step; returns what was there.
template <class T, class F>
__forceinline__ T update(T* p, F f) {
    typedef typename Word<sizeof(T)>::type W;
    atomic(p, sizeof(T), true);
    bool was = arm(false);
    union Both {
        W word;
        T value;
        __forceinline__ Both() {}
    } old, next;
    old.word = __atomic_load_n((W*)p, __ATOMIC_RELAXED);
    do next.value = f(old.value);
    while (!__atomic_compare_exchange_n((W*)p, &old.word, next.word, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    arm(was);
    return old.value;
}

}  // namespace mlc::emu

template <class T>
__forceinline__ T atomicAdd(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return (T)(old + value); });
}
template <class T>
__forceinline__ T atomicMin(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return value < old ? value : old; });
}
template <class T>
__forceinline__ T atomicMax(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return old < value ? value : old; });
}
template <class T>
__forceinline__ T atomicExch(T* p, T value) {
    return mlc::emu::update(p, [=](T) { return value; });
}
template <class T>
__forceinline__ T atomicCAS(T* p, T expected, T value) {
    return mlc::emu::update(p, [=](T old) { return old == expected ? value : old; });
}
template <class T>
__forceinline__ T atomicAnd(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return (T)(old & value); });
}
template <class T>
__forceinline__ T atomicOr(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return (T)(old | value); });
}
template <class T>
__forceinline__ T atomicXor(T* p, T value) {
    return mlc::emu::update(p, [=](T old) { return (T)(old ^ value); });
}
MLC_DEVICE unsigned atomicInc(unsigned* p, unsigned last) {
    return mlc::emu::update(p, [=](unsigned old) { return old >= last ? 0 : old + 1; });
}

#define MLC_AS(name, to, from)                \
    MLC_DEVICE to name(from value) {          \
        to result;                            \
        __builtin_memcpy(&result, &value, sizeof result); \
        return result;                        \
    }
MLC_AS(__float_as_int, int, float)
MLC_AS(__float_as_uint, unsigned, float)
MLC_AS(__int_as_float, float, int)
MLC_AS(__uint_as_float, float, unsigned)
MLC_AS(__double_as_longlong, long long, double)
MLC_AS(__longlong_as_double, double, long long)
#undef MLC_AS

namespace mlc::emu {

// The result of instructions with .ftz for a number below the normal range.
MLC_DEVICE float flushed(float x) { return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x; }
// An exact result as an .approx.ftz instruction may give it: one of four is an ulp too large, one too small. Results that
// PTX documents as exact (zero, one, infinity, NaN) are exact.
__noinline__ inline float approximate(float exact) {
    const unsigned bits = __float_as_uint(exact), magnitude = bits & 0x7fffffffu;
    if (magnitude < 0x00800000u) return flushed(exact);
    if (magnitude == 0x3f800000u || magnitude == 0x00800000u || magnitude >= 0x7f7fffffu) return exact;
    const unsigned dice = bits * 0x9e3779b1u >> 30;
    return __uint_as_float(bits + (dice == 1) - (dice == 2));
}

}  // namespace mlc::emu

MLC_DEVICE int __popc(unsigned x) { return __builtin_popcount(x); }
MLC_DEVICE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
MLC_DEVICE int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
MLC_DEVICE int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
MLC_DEVICE int __ffs(int x) { return __builtin_ffs(x); }
MLC_DEVICE int __ffsll(long long x) { return __builtin_ffsll(x); }
MLC_DEVICE unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long)a * b >> 32); }
MLC_DEVICE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
MLC_DEVICE unsigned long __cvta_generic_to_shared(const void* p) { return mlc::emu::shared_address(p); }
template <class T>
__forceinline__ T __ldg(const T* p) {
    return *p;
}

// libm by the names that CUDA has built in; a declaration is all that g++ needs to know them.
extern "C" {
#define MLC_MATH1(name) float name##f(float) noexcept; double name(double) noexcept;
#define MLC_MATH2(name) float name##f(float, float) noexcept; double name(double, double) noexcept;
MLC_MATH1(exp) MLC_MATH1(exp2) MLC_MATH1(expm1) MLC_MATH1(log) MLC_MATH1(log2) MLC_MATH1(log10) MLC_MATH1(log1p)
MLC_MATH1(sqrt) MLC_MATH1(cbrt) MLC_MATH1(sin) MLC_MATH1(cos) MLC_MATH1(tan) MLC_MATH1(asin) MLC_MATH1(acos)
MLC_MATH1(atan) MLC_MATH1(sinh) MLC_MATH1(cosh) MLC_MATH1(tanh) MLC_MATH1(asinh) MLC_MATH1(acosh) MLC_MATH1(atanh)
MLC_MATH1(erf) MLC_MATH1(erfc) MLC_MATH1(tgamma) MLC_MATH1(lgamma) MLC_MATH1(fabs) MLC_MATH1(floor) MLC_MATH1(ceil)
MLC_MATH1(trunc) MLC_MATH1(round) MLC_MATH1(rint) MLC_MATH1(nearbyint)
MLC_MATH2(pow) MLC_MATH2(fmod) MLC_MATH2(fmax) MLC_MATH2(fmin) MLC_MATH2(atan2) MLC_MATH2(hypot) MLC_MATH2(copysign)
MLC_MATH2(remainder) MLC_MATH2(nextafter)
float fmaf(float, float, float) noexcept;
void* memcpy(void*, const void*, unsigned long) noexcept;
double fma(double, double, double) noexcept;
float ldexpf(float, int) noexcept;
double ldexp(double, int) noexcept;
#undef MLC_MATH1
#undef MLC_MATH2
}
MLC_DEVICE float rsqrtf(float x) { return 1.0f / sqrtf(x); }
MLC_DEVICE double rsqrt(double x) { return 1.0 / sqrt(x); }
MLC_DEVICE float __fdividef(float a, float b) { return a / b; }
MLC_DEVICE float __expf(float x) { return expf(x); }
MLC_DEVICE float __logf(float x) { return logf(x); }
