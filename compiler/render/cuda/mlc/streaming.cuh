// Loads and stores of global memory with advice to the caches: BYTES (1, 2, 4, 8 or 16) at a multiple of BYTES.
//
// `once`: nobody reads it again in this kernel; `keep`: it will be read again soon, so others go first. Loads are of
// memory that nobody writes while the kernel runs, unless they are not CONSTANT. Those that are made once ask for nothing
// more than that: to leave L1 out and fetch 128 bytes took 5 to 10 % longer on an H200.
#pragma once
#include "memory.cuh"

#ifdef __CUDACC__

#define MLC_LOAD(BYTES_, suffix, constraint, type)                                                                \
    if constexpr (BYTES == BYTES_) {                                                                              \
        type word;                                                                                                \
        if constexpr (KEEP)                                                                                       \
            asm volatile(                                                                                         \
                "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"                 \
                "ld.global.nc.L2::cache_hint." suffix " %0, [%1], policy;\n}\n"                                   \
                : "=" constraint(word)                                                                            \
                : "l"(from));                                                                                     \
        else                                                                                                      \
            asm volatile("ld.global.nc." suffix " %0, [%1];" : "=" constraint(word) : "l"(from));                 \
        memcpy(to, &word, BYTES);                                                                       \
    }
template <int BYTES, bool KEEP>
MLC_DEVICE void mlc_load_advised(void* to, const void* from) {
    static_assert(BYTES == 1 || BYTES == 2 || BYTES == 4 || BYTES == 8 || BYTES == 16, "1, 2, 4, 8 or 16 bytes");
    MLC_LOAD(1, "u8", "h", unsigned short)
    MLC_LOAD(2, "u16", "h", unsigned short)
    MLC_LOAD(4, "u32", "r", unsigned)
    MLC_LOAD(8, "u64", "l", unsigned long)
    if constexpr (BYTES == 16) {
        unsigned w[4];
        if constexpr (KEEP)
            asm volatile(
                "{\n.reg .b64 policy;\ncreatepolicy.fractional.L2::evict_last.b64 policy, 1.0;\n"
                "ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], policy;\n}\n"
                : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                : "l"(from));
        else
            asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                         : "l"(from));
        memcpy(to, w, BYTES);
    }
}
#undef MLC_LOAD

template <int BYTES, bool CONSTANT = true>
MLC_DEVICE void mlc_load_once(void* to, const void* from) {
    if constexpr (CONSTANT) {
        mlc_load_advised<BYTES, false>(to, from);
    } else {
        const auto word = *(const typename mlc_piece<BYTES>::type*)from;
        memcpy(to, &word, BYTES);
    }
}
template <int BYTES>
MLC_DEVICE void mlc_load_keep(void* to, const void* from) {
    mlc_load_advised<BYTES, true>(to, from);
}
template <int BYTES>
MLC_DEVICE void mlc_store_once(void* to, const void* from) {
    typename mlc_piece<BYTES>::type word;
    memcpy(&word, from, BYTES);
    __stcs((decltype(word)*)to, word);
}

#else

namespace mlc::emu {
template <int BYTES>
MLC_UNCHECKED __noinline__ void move(void* to, const void* from) {
    __builtin_memcpy(to, from, BYTES);
}
}  // namespace mlc::emu

template <int BYTES, bool CONSTANT = true>
MLC_DEVICE void mlc_load_once(void* to, const void* from) {
    if ((unsigned long)from % BYTES) mlc::emu::fail("a load is not at a multiple of its size");
    if constexpr (CONSTANT)
        mlc::emu::read_constant(from, BYTES);
    else
        mlc::emu::read(from, BYTES);
    mlc::emu::move<BYTES>(to, from);
}
template <int BYTES>
MLC_DEVICE void mlc_load_keep(void* to, const void* from) {
    mlc_load_once<BYTES>(to, from);
}
template <int BYTES>
MLC_DEVICE void mlc_store_once(void* to, const void* from) {
    if ((unsigned long)to % BYTES) mlc::emu::fail("a store is not at a multiple of its size");
    mlc::emu::write(to, BYTES);
    mlc::emu::move<BYTES>(to, from);
}

#endif
