// The machine: threads as fibers, warps, blocks, and the worker that runs one cluster of blocks at a time.
#pragma once
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "mlc_emulator.h"

#ifndef __x86_64__
#error "the emulator switches fibers in x86-64 assembly"
#endif

namespace mlc::emu {

constexpr unsigned MOST_THREADS = 1024, WARPS = 32, NAMED_BARRIERS = 16;
constexpr size_t STACK = 256 << 10;  // virtual; a fiber touches a page or two of it

struct Fiber;
struct Block;
struct Worker;

// Fibers in the order in which they will run.
struct FiberList {
    Fiber *head = nullptr, *tail = nullptr;
    inline void push(Fiber* f);
    inline void append(FiberList& other);
    inline Fiber* pop();
};

#ifdef MLC_CHECK
struct View;
// Clocks of the threads of other clusters.
typedef std::shared_ptr<const std::map<unsigned, std::shared_ptr<const std::vector<unsigned>>>> Elsewhere;
struct PendingCopy {  // a cp.async that has not landed
    void* to;
    char data[16];
    unsigned bytes, group, site;
};
struct Registers {  // registers that a wgmma batch may still read or write
    const char *low, *high;
    unsigned batch, site;
    bool written;  // by ordinary code since the last fence
};
// The state of a thread in check mode.
struct Checked {
    unsigned id = 0;   // index in a view
    unsigned now = 1;  // own clock, incremented by every release
    View* view = nullptr;
    Elsewhere foreign;                   // what is known of other clusters
    View* fenced = nullptr;              // the view at the last fence, which atomics release
    bool flag_next = false;              // the last event was a fence: a volatile store may be a flag
    Elsewhere fenced_foreign;
    Elsewhere acquired;                  // what relaxed atomics have read, known after the next fence
    std::vector<PendingCopy> copies;
    unsigned copy_group = 0;
    std::vector<Registers> registers;
    bool registers_fenced = false;
    unsigned wgmma_batch = 0, wgmma_done = 0;  // committed batches; those waited for
    int bulk_slot = -1;
    unsigned bulk_groups = 0, bulk_read_done = 0, bulk_site = 0;
    bool bulk_open = false;
    unsigned cluster_barriers = 0;       // passed
};
struct Sync {  // views that releases deposit for acquires
    View* view = nullptr;
    View* last = nullptr;  // the last one put in
    Elsewhere foreign;
};
#else
struct Sync {};
#endif

struct Warp {
    unsigned alive;  // lanes that have not exited
    struct Meeting {
        unsigned mask, arrived;  // no lane waits while arrived is 0
        const char* name;
        int line;
        unsigned site;
        Compute* run;
        void* closure;
        FiberList waiters;
    } meeting[32];  // by the lowest lane of the mask, so that disjoint masks meet at once
    unsigned busy;  // meetings with lanes that wait
    Fiber* fibers;
    const void* in[32];
    void* out[32];
};

struct Group {  // a collective of up to four warps
    unsigned arrived, count;
    const char* name;
    int line;
    unsigned site;
    Compute* run;
    FiberList waiters;
    const void* in[128];
    void* out[128];
};

struct NamedBarrier {
    unsigned arrived = 0, expected = 0;
    unsigned of_warp[WARPS] = {};  // lanes of each that have arrived
    FiberList waiters;
    Sync open, complete;
};

struct MBarrier {
    void* address;
    unsigned count, pending, phase;
    int tx;
    bool live;
    FiberList waiters;
    Sync open, complete;  // releases of the current phase; of all complete ones
    unsigned slot, site;
    bool visible;  // its initialisation has been made visible to the copy engine
    Fiber* maker;
    unsigned made;  // the maker's clock
};

struct Fiber : Thread {
    void* sp;
    Fiber* next;
    Block* block_of;
    Warp* warp;
    unsigned linear, lane;
    bool done;
    unsigned spins;  // iterations of a polling loop since `spins_at`
    uint64_t spins_at;
    const char* waits;  // what the fiber waits for, while blocked
    unsigned waits_site;
    int waits_line;
    const void* waits_on;
    uint64_t cluster_token;  // the phase in which it last arrived at the cluster's barrier
    bool cluster_arrived;    // and has not waited since
#ifdef MLC_CHECK
    Checked check;
#endif
};

struct Block {
    unsigned rank, alive, exited;
    char* window;
    Fiber* fibers;
    unsigned arrived;
    int line, number;  // of the barrier that threads wait at: its line, and its number in the text
    unsigned site;
    FiberList waiters;
    NamedBarrier named[NAMED_BARRIERS];
    unsigned registers[WARPS / 4];  // for each thread of a warpgroup, as setmaxnreg has set them; 0: never
    unsigned registers_site;
    Warp* warps;
    Group groups[WARPS];
};

struct Landing {  // a copy of the engine in flight
    std::vector<Piece> pieces;
    std::vector<char> own;  // data that the issuer's registers held
    MBarrier* barrier;
    unsigned bytes, clock, slot, group;
    Apply* apply;
    Fiber* issuer;
};

struct Request {  // of one launch; read from Python, so the layout is part of the interface
    void* kernel;
    const long* words;
    int64_t word_count;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t shared;
    uint32_t synchronizes;
    uint32_t threads;   // workers of the machine
    uint32_t overlaps;  // with the launch before, until it waits for its dependencies
    uint64_t seed;      // order of fibers and clusters: 0 forward, 1 backward, else another
    double seconds;     // patience
};

struct Worker {
    const Request* request = nullptr;
    void* home = nullptr;
    FiberList ready;
    unsigned alive = 0, serial = 0;
    unsigned threads = 0, blocks = 0;  // of a block; of a cluster
    Fiber* fibers = nullptr;
    Block* block_array = nullptr;
    Warp* warp_array = nullptr;
    size_t fiber_room = 0, block_room = 0;
    char *stacks = nullptr, *windows = nullptr;
    size_t stack_room = 0, window_room = 0;
    unsigned first[3] = {};  // block index of rank 0
    std::vector<MBarrier*> barriers;
    unsigned barriers_used = 0;
    std::vector<Landing*> landings;
    unsigned cluster_arrived = 0;
    uint64_t cluster_phase = 0;
    FiberList cluster_waiters;
    Sync cluster_open, cluster_complete;
    uint64_t switches = 0, progress = 0, random = 0;
    bool flat = false;
    std::vector<Fiber*> shuffled;
};

extern __thread Thread* self __attribute__((tls_model("initial-exec")));
extern __thread Worker* worker __attribute__((tls_model("initial-exec")));
inline Fiber* me() { return static_cast<Fiber*>(self); }

// The address of the kernel's object; a site is an offset in it.
extern uintptr_t image;
#define MLC_SITE ((unsigned)((uintptr_t)__builtin_return_address(0) - ::mlc::emu::image))

// The site in the kernel itself, for calls from bodies that are not inlined. Check mode keeps frame pointers.
#ifdef MLC_CHECK
extern uintptr_t image_end;
inline __attribute__((always_inline)) unsigned kernel_site() {
    uintptr_t site = (uintptr_t)__builtin_return_address(0);
    const uintptr_t* frame = (const uintptr_t*)__builtin_frame_address(0);
    for (int depth = 0; frame && depth < 32; depth++, frame = (const uintptr_t*)frame[0])
        if (frame[1] >= image && frame[1] < image_end) site = frame[1];
    return (unsigned)(site - image);
}
#define MLC_KERNEL_SITE (::mlc::emu::kernel_site())
#else
#define MLC_KERNEL_SITE MLC_SITE
#endif

// ---- Provided by reports.h, fibers.h and, in check mode, by check_*.h ----------------------------------------------------

void report(const char* kind, unsigned site, const char* note = "", unsigned other_site = 0);
[[noreturn]] void end_launch();  // from a fiber: nothing of this launch runs after it
[[noreturn]] inline void fatal(const char* kind, unsigned site, const char* note = "", unsigned other_site = 0) {
    report(kind, site, note, other_site);
    end_launch();
}
void block_fiber(const char* what, unsigned site, const void* on);  // the caller is on a list of waiters
void yield_fiber(unsigned site);
bool land_one();  // lets one copy of the engine land; false if none is in flight

inline void FiberList::push(Fiber* f) {
    f->next = nullptr;
    if (tail)
        tail->next = f;
    else
        head = f;
    tail = f;
}
inline void FiberList::append(FiberList& other) {
    if (!other.head) return;
    if (tail)
        tail->next = other.head;
    else
        head = other.head;
    tail = other.tail;
    other.head = other.tail = nullptr;
}
inline Fiber* FiberList::pop() {
    Fiber* f = head;
    if (f) {
        head = f->next;
        if (!head) tail = nullptr;
    }
    return f;
}

inline unsigned random_below(unsigned n) {  // xorshift64*
    uint64_t& x = worker->random;
    x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
    return (unsigned)(((x * 0x2545f4914f6cdd1dull) >> 32) * n >> 32);
}
inline bool random_order() { return worker->request->seed > 1; }

// Waiters become runnable, in the launch's order.
void wake(FiberList& waiters);

}  // namespace mlc::emu
