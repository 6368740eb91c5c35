// The functions that GCC's instrumentation calls: for each access, and each array index out of bounds.
#pragma once

#define MLC_SANITIZER(bytes)                                                                          \
    void __tsan_read##bytes(void* p) { mlc::emu::access(p, bytes, mlc::emu::READ, MLC_SITE); }        \
    void __tsan_write##bytes(void* p) { mlc::emu::access(p, bytes, mlc::emu::WRITE, MLC_SITE); }      \
    void __tsan_volatile_read##bytes(void* p) { mlc::emu::atomic_at(p, bytes, mlc::emu::READ, MLC_SITE); }   \
    void __tsan_volatile_write##bytes(void* p) { mlc::emu::volatile_store(p, bytes, MLC_SITE); } \
    void __tsan_unaligned_read##bytes(void* p) { mlc::emu::access(p, bytes, mlc::emu::READ, MLC_SITE); } \
    void __tsan_unaligned_write##bytes(void* p) { mlc::emu::access(p, bytes, mlc::emu::WRITE, MLC_SITE); }
#define MLC_SANITIZER_ATOMIC(bits, type)                                                                              \
    type __tsan_atomic##bits##_load(const volatile type* p, int) { return *p; }                                       \
    void __tsan_atomic##bits##_store(volatile type* p, type v, int) { *p = v; }                                       \
    type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) { return __atomic_exchange_n(p, v, 0); }       \
    type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) { return __atomic_fetch_add(p, v, 0); }       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* e, type v, int, int) {                  \
        return __atomic_compare_exchange_n(p, e, v, 0, 0, 0);                                                         \
    }
extern "C" {
MLC_SANITIZER(1)
MLC_SANITIZER(2)
MLC_SANITIZER(4)
MLC_SANITIZER(8)
MLC_SANITIZER(16)
void __tsan_read_range(void* p, size_t n) { mlc::emu::access(p, (unsigned)n, mlc::emu::READ, MLC_SITE); }
void __tsan_write_range(void* p, size_t n) { mlc::emu::access(p, (unsigned)n, mlc::emu::WRITE, MLC_SITE); }
// An array in the text, such as a thread's own, is accessed beyond the bounds in its type.
struct mlc_ubsan_type {
    unsigned short kind, info;
    char name[1];
};
struct mlc_ubsan_index {
    const char* file;
    unsigned line, column;
    const mlc_ubsan_type *array, *index;
};
[[noreturn]] void __ubsan_handle_out_of_bounds_abort(const mlc_ubsan_index* at, uintptr_t index) {
    char note[160];
    snprintf(note, sizeof note, "element %ld of a %s", (long)index, at->array->name);
    mlc::emu::fatal("out of bounds", MLC_SITE, note);
}
// A signed operation overflows, which NVCC assumes not to happen.
struct mlc_ubsan_operation {
    const char* file;
    unsigned line, column;
    const mlc_ubsan_type* type;
};
[[noreturn]] static void mlc_overflow(const mlc_ubsan_operation* at, unsigned site) {
    char note[160];
    snprintf(note, sizeof note, "of %s, which NVCC takes never to happen", at->type->name);
    mlc::emu::fatal("signed overflow", site, note);
}
// Kept as separate functions: if equal ones were folded, the caller's address would not be that of the operation.
#define MLC_SANITIZER_OVERFLOW(NAME, ...) \
    [[noreturn, gnu::no_icf]] void __ubsan_handle_##NAME##_overflow_abort(const mlc_ubsan_operation* at, __VA_ARGS__) { \
        mlc_overflow(at, MLC_SITE); \
    }
MLC_SANITIZER_OVERFLOW(add, uintptr_t, uintptr_t)
MLC_SANITIZER_OVERFLOW(sub, uintptr_t, uintptr_t)
MLC_SANITIZER_OVERFLOW(mul, uintptr_t, uintptr_t)
MLC_SANITIZER_OVERFLOW(negate, uintptr_t)
#undef MLC_SANITIZER_OVERFLOW
[[noreturn]] void __ubsan_handle_divrem_overflow_abort(const mlc_ubsan_operation* at, uintptr_t, uintptr_t) {
    mlc::emu::fatal("division by zero", MLC_SITE, mlc::emu::REFUSED);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_atomic_thread_fence(int) {}
MLC_SANITIZER_ATOMIC(8, unsigned char)
MLC_SANITIZER_ATOMIC(16, unsigned short)
MLC_SANITIZER_ATOMIC(32, unsigned)
MLC_SANITIZER_ATOMIC(64, unsigned long)
}
#undef MLC_SANITIZER
#undef MLC_SANITIZER_ATOMIC
