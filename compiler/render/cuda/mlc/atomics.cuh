// Read-modify-write of memory that many threads combine into, and the fences that order it. All return what was there.
//
// T is float, double, int, unsigned, long, short, signed char, unsigned char, mlc_bf16 or mlc_f16; NaN wins in max and
// min.
#pragma once
#include "combine.cuh"
#include "convert.cuh"

// 16-bit floats are combined as float.
template <typename OP, typename T>
MLC_DEVICE T mlc_combine(T a, T b) {
    return OP::of(a, b);
}
template <typename OP>
MLC_DEVICE mlc_bf16 mlc_combine(mlc_bf16 a, mlc_bf16 b) {
    return {mlc_to_bf16(OP::of(mlc_from_bf16(a.bits), mlc_from_bf16(b.bits)))};
}
template <typename OP>
MLC_DEVICE mlc_f16 mlc_combine(mlc_f16 a, mlc_f16 b) {
    return {mlc_to_f16(OP::of(mlc_from_f16(a.bits), mlc_from_f16(b.bits)))};
}

#ifdef __CUDACC__

// By compare-and-swap: of the 32-bit word that holds a narrower element.
template <typename OP, typename T>
MLC_DEVICE T mlc_atomic(T* p, T value) {
    if constexpr (sizeof(T) == 8) {
        unsigned long long *const word = (unsigned long long*)p, old = *word, seen;
        T held, next;
        do {
            seen = old;
            memcpy(&held, &seen, 8);
            next = mlc_combine<OP>(held, value);
            unsigned long long bits;
            memcpy(&bits, &next, 8);
            old = atomicCAS(word, seen, bits);
        } while (old != seen);
        return held;
    } else {
        const unsigned shift = (unsigned)((unsigned long)p % 4 * 8), mask = 0xffffffffu >> (32 - 8 * sizeof(T))
                                                                                               << shift;
        unsigned *const word = (unsigned*)((unsigned long)p & ~3ul), old = *word, seen;
        T held, next;
        do {
            seen = old;
            const unsigned mine = (seen & mask) >> shift;
            memcpy(&held, &mine, sizeof(T));
            next = mlc_combine<OP>(held, value);
            unsigned bits = 0;
            memcpy(&bits, &next, sizeof(T));
            old = atomicCAS(word, seen, (seen & ~mask) | bits << shift);
        } while (old != seen);
        return held;
    }
}

template <typename T>
MLC_DEVICE T mlc_atomic_add(T* p, T value) {
    return mlc_atomic<mlc_sum>(p, value);
}
MLC_DEVICE float mlc_atomic_add(float* p, float value) {
    return atomicAdd(p, value);
}
MLC_DEVICE double mlc_atomic_add(double* p, double value) {
    return atomicAdd(p, value);
}
MLC_DEVICE int mlc_atomic_add(int* p, int value) {
    return atomicAdd(p, value);
}
MLC_DEVICE unsigned mlc_atomic_add(unsigned* p, unsigned value) {
    return atomicAdd(p, value);
}
MLC_DEVICE long mlc_atomic_add(long* p, long value) {
    return (long)atomicAdd((unsigned long long*)p, (unsigned long long)value);
}
MLC_DEVICE mlc_f16 mlc_atomic_add(mlc_f16* p, mlc_f16 value) {
    mlc_f16 old;
    asm volatile("atom.add.noftz.f16 %0, [%1], %2;" : "=h"(old.bits) : "l"(p), "h"(value.bits) : "memory");
    return old;
}
#if __CUDA_ARCH__ >= 900
MLC_DEVICE mlc_bf16 mlc_atomic_add(mlc_bf16* p, mlc_bf16 value) {
    mlc_bf16 old;
    asm volatile("atom.add.noftz.bf16 %0, [%1], %2;" : "=h"(old.bits) : "l"(p), "h"(value.bits) : "memory");
    return old;
}
#endif
template <typename T>
MLC_DEVICE T mlc_atomic_max(T* p, T value) {
    return mlc_atomic<mlc_maximum>(p, value);
}
template <typename T>
MLC_DEVICE T mlc_atomic_min(T* p, T value) {
    return mlc_atomic<mlc_minimum>(p, value);
}
MLC_DEVICE int mlc_atomic_max(int* p, int value) {
    return atomicMax(p, value);
}
MLC_DEVICE int mlc_atomic_min(int* p, int value) {
    return atomicMin(p, value);
}
MLC_DEVICE unsigned mlc_atomic_max(unsigned* p, unsigned value) {
    return atomicMax(p, value);
}
MLC_DEVICE unsigned mlc_atomic_min(unsigned* p, unsigned value) {
    return atomicMin(p, value);
}
MLC_DEVICE long mlc_atomic_max(long* p, long value) {
    return (long)atomicMax((long long*)p, (long long)value);
}
MLC_DEVICE long mlc_atomic_min(long* p, long value) {
    return (long)atomicMin((long long*)p, (long long)value);
}

// Adds four neighbouring floats of global memory, at a multiple of 16 bytes: each by itself atomic (sm_90).
MLC_DEVICE void mlc_red_add4(float* p, const float* values) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(p), "f"(values[0]), "f"(values[1]),
                 "f"(values[2]), "f"(values[3])
                 : "memory");
}
// Adds two neighbours of a 16-bit type, at a multiple of 4 bytes.
MLC_DEVICE void mlc_red_add2(mlc_f16* p, const mlc_f16* values) {
    unsigned both;
    memcpy(&both, values, 4);
    asm volatile("red.global.add.noftz.f16x2 [%0], %1;" ::"l"(p), "r"(both) : "memory");
}
#if __CUDA_ARCH__ >= 900
MLC_DEVICE void mlc_red_add2(mlc_bf16* p, const mlc_bf16* values) {
    unsigned both;
    memcpy(&both, values, 4);
    asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" ::"l"(p), "r"(both) : "memory");
}
#endif

#else

namespace mlc::emu {
template <typename OP, typename T>
MLC_DEVICE T combine_at(T* p, T value) {
    if constexpr (sizeof(T) == 1) {
        atomic(p, 1, true);
        const bool was = arm(false);
        T old = __atomic_load_n(p, __ATOMIC_RELAXED);
        while (!__atomic_compare_exchange_n(p, &old, mlc_combine<OP>(old, value), false, __ATOMIC_SEQ_CST,
                                            __ATOMIC_RELAXED)) {
        }
        arm(was);
        return old;
    } else {
        return update(p, [=](T old) { return mlc_combine<OP>(old, value); });
    }
}
}  // namespace mlc::emu

template <typename OP, typename T>
MLC_DEVICE T mlc_atomic(T* p, T value) {
    return mlc::emu::combine_at<OP>(p, value);
}
template <typename T>
MLC_DEVICE T mlc_atomic_add(T* p, T value) {
    return mlc_atomic<mlc_sum>(p, value);
}
template <typename T>
MLC_DEVICE T mlc_atomic_max(T* p, T value) {
    return mlc_atomic<mlc_maximum>(p, value);
}
template <typename T>
MLC_DEVICE T mlc_atomic_min(T* p, T value) {
    return mlc_atomic<mlc_minimum>(p, value);
}
MLC_DEVICE void mlc_red_add4(float* p, const float* values) {
    if ((unsigned long)p % 16) mlc::emu::fail("four floats are added at a multiple of 16 bytes");
    for (int i = 0; i < 4; i++) mlc_atomic_add(p + i, values[i]);
}
template <typename T>
MLC_DEVICE void mlc_red_add2(T* p, const T* values) {
    static_assert(sizeof(T) == 2, "two neighbours of a 16-bit type");
    if ((unsigned long)p % 4) mlc::emu::fail("two elements are added at a multiple of 4 bytes");
    for (int i = 0; i < 2; i++) mlc_atomic_add(p + i, values[i]);
}

#endif

template <typename T>
MLC_DEVICE T mlc_atomic_mul(T* p, T value) {
    return mlc_atomic<mlc_prod>(p, value);
}
// Orders this thread's earlier writes before its later ones, as seen in the block or on the whole GPU. Neither is
// sequentially consistent, as __threadfence is, which takes longer.
MLC_DEVICE void mlc_fence_block() {
#ifdef __CUDACC__
    asm volatile("fence.acq_rel.cta;" ::: "memory");
#else
    __threadfence_block();
#endif
}
MLC_DEVICE void mlc_fence_device() {
#ifdef __CUDACC__
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
#else
    __threadfence();
#endif
}
// Each of `count` blocks calls it once, after a fence: `last` is 1 in the block that calls last, which after its next
// fence sees what all others wrote before theirs. The tickets begin and end with zero.
MLC_DEVICE void mlc_take_ticket(int* last, int* tickets, long count) {
    *last = atomicInc((unsigned*)tickets, (unsigned)count - 1) == (unsigned)count - 1;
}
