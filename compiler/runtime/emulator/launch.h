// One launch: distributes its clusters over the workers, each of which runs one cluster at a time.
#pragma once
#include <dlfcn.h>

#include "async.h"
#include "division.h"

namespace mlc::emu {

constexpr unsigned FIRST_DYNAMIC = 1024, GAP = 512;
constexpr unsigned MOST_STATIC = 48 << 10, MOST_SHARED = 227 << 10;
static unsigned launch_serial, statics_end, statics_bytes;
static const Request* current;
static pthread_mutex_t launch_lock = PTHREAD_MUTEX_INITIALIZER, statics_lock = PTHREAD_MUTEX_INITIALIZER;

// ---- Shared memory ---------------------------------------------------------------------------------------------------

// Dynamic memory is first in a window; a static array is allocated when a thread first reaches its declaration.
static void place_array(SharedArray* a, unsigned site) {
    pthread_mutex_lock(&statics_lock);
    if (a->launch != launch_serial) {
        unsigned align = a->align < GAP ? GAP : a->align;
        a->offset = (statics_end + align - 1) / align * align;
        statics_end = a->offset + (a->bytes + GAP - 1) / GAP * GAP + GAP;
        statics_bytes = (statics_bytes + a->align - 1) / a->align * a->align + a->bytes;
        // Dynamic memory comes behind them, at a multiple of 1024 bytes.
        unsigned all = current->shared ? (statics_bytes + 1023) / 1024 * 1024 + current->shared : statics_bytes;
        if (statics_bytes > MOST_STATIC || all > MOST_SHARED || statics_end > WINDOW) {
            pthread_mutex_unlock(&statics_lock);
            char note[160];
            snprintf(note, sizeof note, "static arrays take %u bytes and dynamic memory %u: more than %u, or than %u together",
                     statics_bytes, current->shared, MOST_STATIC, MOST_SHARED);
            fatal("shared memory", site, note);
        }
        hooks::new_array(a);
        __atomic_store_n(&a->launch, launch_serial, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&statics_lock);
}
void* shared_array(SharedArray* a) {
    if (__atomic_load_n(&a->launch, __ATOMIC_ACQUIRE) != launch_serial) place_array(a, MLC_SITE);
    return me()->block_of->window + a->offset;
}
char* dynamic_shared() { return me()->block_of->window + FIRST_DYNAMIC; }

// ---- Workers ---------------------------------------------------------------------------------------------------------

static char* reserve(size_t bytes, size_t align) {
    char* p = (char*)mmap(nullptr, bytes + align, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    return (char*)(((uintptr_t)p + align - 1) & ~(align - 1));
}

static bool make_room(Worker* w) {
    size_t fibers = (size_t)w->threads * w->blocks;
    if (fibers > w->fiber_room) {
        delete[] w->fibers;
        delete[] w->warp_array;
        if (w->stacks) munmap(w->stacks, w->fiber_room * STACK);
        w->fibers = new Fiber[fibers]();
        w->stacks = reserve(fibers * STACK, 4096);
        w->fiber_room = fibers;
        w->warp_array = new Warp[fibers + 32]();
    }
    char* given = hooks::windows(w->blocks);
    if (w->blocks > w->block_room) {
        delete[] w->block_array;
        w->block_array = new Block[w->blocks]();
        if (!given) w->windows = reserve(w->blocks * WINDOW, WINDOW);
        w->block_room = w->blocks;
    }
    if (given) w->windows = given;
    return w->stacks && w->windows;
}

static void begin_thread(Worker* w, Block* b, unsigned i) {
    const uint32_t* e = w->request->block;
    Fiber* f = &b->fibers[i];
    f->linear = i;
    f->lane = i & 31;
    f->index = {i % e[0], i / e[0] % e[1], i / (e[0] * e[1])};
    f->block_of = b;
    f->warp = &b->warps[i >> 5];
    f->done = false;
    f->spins = 0;
    f->waits = nullptr;
    f->waits_site = 0;
    f->cluster_arrived = false;
    const uint32_t* c = w->request->cluster;
    f->block = {w->first[0] + b->rank % c[0], w->first[1] + b->rank / c[0] % c[1], w->first[2] + b->rank / (c[0] * c[1])};
    prepare_stack(f, (unsigned)(f - w->fibers), w->flat ? flat_main : fiber_main);
    hooks::begin_fiber(f);
}

static void begin_block(Worker* w, unsigned rank) {
    Block* b = &w->block_array[rank];
    unsigned warps = (w->threads + 31) / 32;
    b->rank = rank;
    b->alive = w->threads;
    b->exited = b->arrived = 0;
    b->window = w->windows + rank * WINDOW;
    memset(b->registers, 0, sizeof b->registers);
    b->registers_site = 0;
    b->fibers = w->fibers + (size_t)rank * w->threads;
    b->warps = w->warp_array + (size_t)rank * warps;
    b->waiters = FiberList();
    for (NamedBarrier& n : b->named) {
        n.arrived = 0;
        memset(n.of_warp, 0, sizeof n.of_warp);
        n.waiters = FiberList();
        hooks::forget(n.open);
        hooks::forget(n.complete);
    }
    for (unsigned i = 0; i < warps; i++) {
        Warp& warp = b->warps[i];
        unsigned left = w->threads - i * 32;
        warp.alive = left >= 32 ? ~0u : (1u << left) - 1;
        warp.busy = 0;
        warp.fibers = b->fibers + i * 32;
        for (Warp::Meeting& m : warp.meeting) {
            m.arrived = 0;
            m.waiters = FiberList();
        }
        b->groups[i].arrived = 0;
        b->groups[i].waiters = FiberList();
    }
}

static void run_cluster(Worker* w, uint64_t number) {
    const Request* r = w->request;
    uint32_t across[2] = {r->grid[0] / r->cluster[0], r->grid[1] / r->cluster[1]};
    w->first[0] = (uint32_t)(number % across[0]) * r->cluster[0];
    w->first[1] = (uint32_t)(number / across[0] % across[1]) * r->cluster[1];
    w->first[2] = (uint32_t)(number / ((uint64_t)across[0] * across[1])) * r->cluster[2];
    w->serial = (unsigned)number + 1;
    w->random = (r->seed * 0x9e3779b97f4a7c15ull) ^ ((number + 1) * 0xbf58476d1ce4e5b9ull) ^ 1;
    w->ready = FiberList();
    for (Landing* l : w->landings) delete l;  // of a launch that a finding has ended
    w->landings.clear();
    w->barriers_used = 0;
    w->cluster_arrived = 0;
    w->cluster_phase = 0;
    w->cluster_waiters = FiberList();
    hooks::forget(w->cluster_open);
    hooks::forget(w->cluster_complete);
    hooks::begin_cluster();
    if (w->flat) {
        Block* b = &w->block_array[0];
        b->rank = 0;
        b->window = w->windows;
        b->fibers = w->fibers;
        b->warps = w->warp_array;
        begin_thread(w, b, 0);
        self = w->fibers;
        mlc_switch(&w->home, w->fibers[0].sp);
        self = nullptr;
        hooks::end_cluster();
        return;
    }
    unsigned all = w->threads * w->blocks;
    w->alive = all;
    for (unsigned rank = 0; rank < w->blocks; rank++) {
        begin_block(w, rank);
        for (unsigned i = 0; i < w->threads; i++) begin_thread(w, &w->block_array[rank], i);
    }
    if (r->seed == 1) {
        for (unsigned i = all; i > 0; i--) w->ready.push(&w->fibers[i - 1]);
    } else {
        FiberList list;
        for (unsigned i = 0; i < all; i++) list.push(&w->fibers[i]);
        wake(list);
    }
    Fiber* first = w->ready.pop();
    self = first;
    mlc_switch(&w->home, first->sp);
    self = nullptr;
    if (!stopping) hooks::end_cluster();
}

static std::vector<Worker*> idle_workers;
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_cluster, all_clusters;

// The cluster that runs as the n-th: forward, backward, or by a stride that visits every cluster.
static uint64_t in_order(uint64_t n, uint64_t seed) {
    uint64_t all = all_clusters, stride = all > 4 ? 2 + seed % (all - 3) : 1;
    if (seed < 2) return seed ? all - 1 - n : n;
    auto common = [](uint64_t a, uint64_t b) {
        while (b) {
            uint64_t rest = a % b;
            a = b, b = rest;
        }
        return a;
    };
    while (common(stride, all) != 1) stride++;
    return (uint64_t)(((unsigned __int128)n * stride + seed) % all);
}

static void* work(void*) {
    pthread_mutex_lock(&idle_lock);
    Worker* w = idle_workers.empty() ? nullptr : idle_workers.back();
    if (w) idle_workers.pop_back();
    pthread_mutex_unlock(&idle_lock);
    if (!w) w = new Worker();
    worker = w;
    const Request* r = current;
    w->request = r;
    w->threads = r->block[0] * r->block[1] * r->block[2];
    w->blocks = r->cluster[0] * r->cluster[1] * r->cluster[2];
    w->flat = !r->synchronizes && w->blocks == 1;
    w->switches = 0;
    if (make_room(w)) {
        while (!stopping) {
            uint64_t number = __atomic_fetch_add(&next_cluster, 1, __ATOMIC_RELAXED);
            if (number >= all_clusters) break;
            run_cluster(w, in_order(number, r->seed));
            if (w->flat && (number & 63) == 63 && now_seconds() > deadline) {
                report("time limit", 0, "the launch did not end in the time it was given");
                stopping = true;
                result->failed = 1;
            }
        }
    } else {
        report("out of memory", 0, "no room for the stacks of the threads");
        result->failed = 1;
    }
    __atomic_fetch_add(&result->switches, w->switches, __ATOMIC_RELAXED);
    worker = nullptr;
    pthread_mutex_lock(&idle_lock);
    idle_workers.push_back(w);
    pthread_mutex_unlock(&idle_lock);
    return nullptr;
}

// Runs a launch to its end, or to the first finding that ends it.
extern "C" __attribute__((visibility("default"))) void mlc_launch(const Request* r, Result* out) {
    pthread_mutex_lock(&launch_lock);
    result = out;
    memset((void*)out, 0, sizeof *out);
    current = r;
    stopping = false;
    deadline = now_seconds() + r->seconds;
    block_extent = {r->block[0], r->block[1], r->block[2]};
    grid_extent = {r->grid[0], r->grid[1], r->grid[2]};
    launch_serial++;
    statics_bytes = 0;
    statics_end = FIRST_DYNAMIC + (r->shared + GAP - 1) / GAP * GAP + GAP;
    Dl_info where;
    image = dladdr(r->kernel, &where) ? (uintptr_t)where.dli_fbase : 0;
    next_cluster = 0;
    all_clusters = (uint64_t)(r->grid[0] / r->cluster[0]) * (r->grid[1] / r->cluster[1]) * (r->grid[2] / r->cluster[2]);
    hooks::begin_launch(r);
    catch_divisions();
    unsigned helpers = r->threads > 1 && all_clusters > 1 ? r->threads - 1 : 0;
    if (helpers >= all_clusters) helpers = (unsigned)all_clusters - 1;
    std::vector<pthread_t> others;
    for (unsigned i = 0; i < helpers; i++) {
        pthread_t t;
        if (pthread_create(&t, nullptr, work, nullptr) == 0) others.push_back(t);
    }
    work(nullptr);
    for (pthread_t t : others) pthread_join(t, nullptr);
    release_divisions();
    hooks::end_launch();
    result = nullptr;
    pthread_mutex_unlock(&launch_lock);
}

}  // namespace mlc::emu
