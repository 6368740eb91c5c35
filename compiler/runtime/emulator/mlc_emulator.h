// CUDA text as host C++: the vocabulary of kernel texts, and the interface for the C++ bodies of device functions.
//
// There are two builds of this interface. Fast: no checks. Check (MLC_CHECK, with -fsanitize=thread and the runtime in
// place of libtsan): every access of instrumented code is checked; a body declares what it accesses on behalf of its
// thread by read(), write() and the asynchronous calls below.
//
// Rules for bodies
//   - Everything in a header is MLC_DEVICE, thus inlined into the kernel: an access is reported at the kernel's line.
//   - The function of a collective runs once, on the last lane to arrive, for all lanes. Its accesses are not checked: each
//     lane calls read()/write() before it. Mark the lambda MLC_UNCHECKED, or it runs instrumented, 20 times slower:
//       emu::warp_collective(mask, "shfl", &in, &out, [](emu::Lanes& l) MLC_UNCHECKED { ... l.in[i], l.out[i] ... });
//   - No standard header: <math.h> alone costs 250 ms per kernel. Use __builtin_ functions.
#pragma once

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __restrict__ __restrict
#define __grid_constant__

#define MLC_DEVICE static __forceinline__
#define MLC_UNCHECKED __attribute__((no_sanitize("thread")))

struct uint3 {
    unsigned x, y, z;
};
#define MLC_VECTOR2(name, type)                               \
    struct __attribute__((aligned(2 * sizeof(type)))) name {  \
        type x, y;                                            \
    };                                                        \
    MLC_DEVICE name make_##name(type x, type y) { return {x, y}; }
#define MLC_VECTOR4(name, type)                                                    \
    struct __attribute__((aligned(sizeof(type) > 4 ? 16 : 4 * sizeof(type)))) name { \
        type x, y, z, w;                                                           \
    };                                                                             \
    MLC_DEVICE name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
MLC_VECTOR2(char2, signed char)
MLC_VECTOR2(uchar2, unsigned char)
MLC_VECTOR2(short2, short)
MLC_VECTOR2(ushort2, unsigned short)
MLC_VECTOR2(int2, int)
MLC_VECTOR2(uint2, unsigned)
MLC_VECTOR2(long2, long)
MLC_VECTOR2(ulong2, unsigned long)
MLC_VECTOR2(longlong2, long long)
MLC_VECTOR2(ulonglong2, unsigned long long)
MLC_VECTOR2(float2, float)
MLC_VECTOR2(double2, double)
MLC_VECTOR4(char4, signed char)
MLC_VECTOR4(uchar4, unsigned char)
MLC_VECTOR4(short4, short)
MLC_VECTOR4(ushort4, unsigned short)
MLC_VECTOR4(int4, int)
MLC_VECTOR4(uint4, unsigned)
MLC_VECTOR4(float4, float)
#undef MLC_VECTOR2
#undef MLC_VECTOR4

// A tensor map as the runtime builds it from launches.Map: innermost dimension first.
struct mlc_tensor_map {
    const char* base;
    unsigned rank;
    unsigned element;     // bytes
    unsigned swizzle;     // 0, 32, 64 or 128 bytes
    unsigned box[5];      // elements
    unsigned steps[5];    // elements of the tensor from one of a box to the next
    long dims[5];         // elements
    long strides[5];      // bytes
};
#define MLC_TENSOR_MAP(name) const mlc_tensor_map& name

namespace mlc::emu {

// ---- Indices of threads and blocks -----------------------------------------------------------------------------------

struct Thread {
    uint3 index, block;
};
extern uint3 block_extent, grid_extent;
#ifdef MLC_CHECK  // plain reads of the runtime's memory would count as accesses
const Thread& this_thread() __attribute__((const));
uint3 thread_index() __attribute__((const));
uint3 block_index() __attribute__((const));
uint3 extent_of_block() __attribute__((const));
uint3 extent_of_grid() __attribute__((const));
#define threadIdx (::mlc::emu::thread_index())
#define blockIdx (::mlc::emu::block_index())
#define blockDim (::mlc::emu::extent_of_block())
#define gridDim (::mlc::emu::extent_of_grid())
#else
extern __thread Thread* self __attribute__((tls_model("initial-exec")));
#define threadIdx (::mlc::emu::self->index)
#define blockIdx (::mlc::emu::self->block)
#define blockDim (::mlc::emu::block_extent)
#define gridDim (::mlc::emu::grid_extent)
#endif
#define warpSize 32

// ---- Shared memory: a window of 256 KB per block, so that an offset in it has the 18 bits of a wgmma descriptor ------

struct SharedArray {
    const char* name;
    unsigned bytes, align;
    unsigned launch, offset;  // the runtime's: where the array lies in this launch
};
void* shared_array(SharedArray* array);
char* dynamic_shared();
#define MLC_SHARED(type, name, count, align)                                                                  \
    static ::mlc::emu::SharedArray name##_array = {#name, (unsigned)(sizeof(type) * (count)), (align), 0, 0}; \
    type(&name)[count] = *(type(*)[count])::mlc::emu::shared_array(&name##_array)
#define MLC_DYNAMIC_SHARED(name) char* const name = ::mlc::emu::dynamic_shared()

constexpr unsigned long WINDOW = 1ul << 18;
// Addresses of shared memory as instructions take them: as on sm_90, the block's rank in its cluster from bit 24 on, and
// below it the offset in the block's window.
constexpr unsigned RANK_BIT = 24, NO_ADDRESS = ~0u;
unsigned shared_address(const void* p) __attribute__((const));  // cvta.to.shared; NO_ADDRESS for what is not shared
void* shared_pointer(unsigned address);                         // back, wherever in the cluster
unsigned own_address(unsigned address);                         // itself; reports one outside of the thread's own block
char* own_window();
// The same place in the shared memory of another block of the cluster (mapa).
unsigned cluster_address(unsigned address, unsigned rank);
void* cluster_map(const void* p, unsigned rank);
unsigned cluster_rank();
unsigned cluster_size();

// ---- Accesses by bodies ----------------------------------------------------------------------------------------------

#ifdef MLC_CHECK
void wait_dependencies();                   // until preceding launches have ended (griddepcontrol.wait)
void launch_dependents();                   // the next launch may start (griddepcontrol.launch_dependents)
void read(const void* p, unsigned bytes);   // generic proxy, by the calling thread
void read_constant(const void* p, unsigned bytes);  // ld.global.nc: of memory that nobody writes while the kernel runs
void global(const void* p);                 // the operand of an instruction for global memory only
void write(const void* p, unsigned bytes);
// An atomic operation on p, which reads and, if it `writes`, writes: call it before performing the operation itself.
enum Order { RELAXED = 0, ACQUIRE = 1, RELEASE = 2, ACQUIRE_RELEASE = 3 };
void atomic(const void* p, unsigned bytes, bool writes, Order order = RELAXED);
void atomic_store(const void* p, unsigned bytes, Order order = RELAXED);  // one that only writes
void fence();        // __threadfence and weaker ones
bool arm(bool on);   // whether accesses are checked; returns the former state
#else
enum Order { RELAXED = 0, ACQUIRE = 1, RELEASE = 2, ACQUIRE_RELEASE = 3 };
MLC_DEVICE void wait_dependencies() {}
MLC_DEVICE void launch_dependents() {}
MLC_DEVICE void read(const void*, unsigned) {}
MLC_DEVICE void read_constant(const void*, unsigned) {}
MLC_DEVICE void global(const void*) {}
MLC_DEVICE void write(const void*, unsigned) {}
MLC_DEVICE void atomic(const void*, unsigned, bool, Order = RELAXED) {}
MLC_DEVICE void atomic_store(const void*, unsigned, Order = RELAXED) {}
MLC_DEVICE void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
MLC_DEVICE bool arm(bool) { return false; }
#endif
void pause();  // in a loop that waits for another thread by reading memory: lets others run
// Ends the launch with a report at the kernel's line.
[[noreturn]] void fail(const char* why, const char* kind = "refused by a device function");

// ---- Collectives: every lane leaves pointers to its operands, the last to arrive computes for all ---------------------

struct Lanes {
    unsigned count;     // 32, or 32 per warp of a group
    unsigned mask;      // lanes that take part (warp collectives)
    const void** in;    // by lane
    void** out;
};
typedef void Compute(void* closure, Lanes& lanes);
void warp_rendezvous(unsigned mask, const char* name, int line, const void* in, void* out, Compute* run, void* closure);
void group_rendezvous(unsigned first, unsigned warps, const char* name, int line, const void* in, void* out, Compute* run,
                      void* closure);

template <class F>
struct Computation {
    MLC_UNCHECKED static void run(void* closure, Lanes& lanes) { (*(F*)closure)(lanes); }
};

// All lanes of `mask` call it; a different name or line in one of them is a report. Orders no memory, as shuffles do not.
template <class F>
__forceinline__ void warp_collective(unsigned mask, const char* name, const void* in, void* out, F f,
                                     int line = __builtin_LINE()) {
    warp_rendezvous(mask, name, line, in, out, &Computation<F>::run, &f);
}
// All lanes of `warps` warps (at most 4, whole ones) beginning with warp `first` of the block.
template <class F>
__forceinline__ void group_collective(unsigned first, unsigned warps, const char* name, const void* in, void* out, F f,
                                      int line = __builtin_LINE()) {
    group_rendezvous(first, warps, name, line, in, out, &Computation<F>::run, &f);
}
unsigned thread_in_block();  // linear
MLC_DEVICE unsigned lane() { return thread_in_block() & 31; }
MLC_DEVICE unsigned warp() { return thread_in_block() >> 5; }

// ---- Barriers --------------------------------------------------------------------------------------------------------

// An operation of a whole warp (.aligned): its lanes must arrive together.
#ifdef MLC_CHECK
void converged(const char* name, int line);
#else
MLC_DEVICE void converged(const char*, int) {}
#endif
void registers_set(unsigned count);
// setmaxnreg: all threads of a warpgroup.
MLC_DEVICE void hand_over(unsigned count, int line) {
    group_collective(warp() & ~3u, 4, "setmaxnreg", nullptr, nullptr, [](Lanes&) MLC_UNCHECKED {}, line);
    registers_set(count);
}
void block_barrier(int line, int number);
void warp_barrier(unsigned mask, int line);
void named_barrier_sync(unsigned id, unsigned threads);    // bar.sync id, threads
void named_barrier_arrive(unsigned id, unsigned threads);  // bar.arrive
void cluster_arrive();                                     // barrier.cluster.arrive.release
void cluster_wait();                                       // barrier.cluster.wait.acquire

// mbarrier: 8 bytes at an address of the block's own shared memory.
void mbarrier_init(unsigned barrier, unsigned count);
void mbarrier_arrive(unsigned barrier);
void mbarrier_arrive_cluster(unsigned barrier, unsigned rank);     // at the same place in another block of the cluster
void mbarrier_arrive_expect_tx(unsigned barrier, unsigned bytes);
void mbarrier_wait(unsigned barrier, unsigned parity);             // until the phase of this parity is complete
void fence_mbarrier_init();
void fence_proxy_async(bool global);  // of shared memory, or of global as well

// ---- Asynchronous copies ---------------------------------------------------------------------------------------------

// cp.async of 4, 8 or 16 bytes to shared memory; what lies beyond `valid` source bytes is filled with zeros.
void cp_async(unsigned to, const void* from, unsigned bytes, unsigned valid);
void cp_async_commit();
void cp_async_wait(unsigned pending);                              // all but the last `pending` groups have landed
void cp_async_mbarrier_arrive(unsigned barrier);                   // arrives (.noinc) once this thread's copies have landed

struct Piece {
    void* to;
    const void* from;  // null: zeros
    unsigned bytes;
};
// A copy by the engine (TMA, cp.async.bulk) into shared memory: issued by one thread; complete_tx(bytes) on `barrier`
// when all has landed. With a tensor map, `bytes` is that of the whole box, what lies outside of the tensor included.
void async_load(const Piece* pieces, unsigned count, unsigned barrier, unsigned bytes);
// A copy out of shared memory, part of the issuing thread's current bulk group; `apply` replaces plain copying (reductions).
typedef void Apply(void* to, const void* from, unsigned bytes);
void async_store(const Piece* pieces, unsigned count, Apply* apply = nullptr);
void bulk_commit();
void bulk_wait(unsigned pending, bool read);  // read: sources may be overwritten; else the writes are done as well
// st.async: bytes of the caller's registers to the shared memory of a block in the cluster.
void store_async(unsigned to, const void* from, unsigned bytes, unsigned barrier);

// ---- wgmma: call all of these in every thread of the warpgroup -------------------------------------------------------

void wgmma_fence();
void wgmma_commit();
void wgmma_wait(unsigned pending);
void wgmma_idle();  // states that none are in flight
#ifdef MLC_CHECK
void wgmma_registers(const void* p, unsigned bytes);  // accumulators or register operands now in flight, by each thread
void wgmma_read(const void* p, unsigned bytes);       // shared operand; inside the collective's function, for the group
#else
MLC_DEVICE void wgmma_registers(const void*, unsigned) {}
MLC_DEVICE void wgmma_read(const void*, unsigned) {}
#endif

}  // namespace mlc::emu

#include "mlc_vocabulary.h"
