// Check mode: checks each access against shadow memory for bounds, alignment, initialisation, and order.
#pragma once
#include <link.h>
#include <sys/mman.h>

#include <deque>

#include "check_views.h"
#include "reports.h"

namespace mlc::emu {

enum Kind { INPUT, OUTPUT, TEMPORARY, ARGUMENT, ZERO, SHARED };  // ZERO: a temporary that is zero before the launches
enum State : unsigned char { UNWRITTEN, WRITTEN, IN_FLIGHT };  // in flight: destination of a cp.async before its wait
enum Access : unsigned { READ = 0, WRITE = 1, ATOMIC = 2 };

struct Region {
    char *low, *high;
    char name[48];
    Kind kind;
    unsigned rank;  // of the block whose shared memory it is
};

struct Reader {  // lanes of one warp that read at the same clock
    unsigned cluster, clock, mask, site;
    unsigned short warp;
    bool atomic;
};
struct Cell {
    unsigned epoch;  // the launch, or for shared memory the cluster, that the entries are of
    unsigned cluster, clock, site;  // last writer; clock 0: none
    unsigned short writer;
    State state;
    bool atomic, asynchronous;  // how it was written
    Reader readers[2];
    std::vector<Reader>* more;
};
constexpr unsigned PAGE_BITS = 9;
struct Page {  // 512 bytes of one region, in cells of the size of the smallest access so far
    Region* region;
    unsigned shift;
    std::vector<Cell> cells;
};

// The origin of an access: a thread, or an agent with the view of the thread that started it.
struct Actor {
    unsigned id, clock;
    const View* view;
    bool asynchronous;
    int issuer;          // the id of the agent's thread; -1: of many
    unsigned count;      // of agents with ids from `id`, within one multiple of 32
};

// An agent for the preceding launches, known to have ended by threads that have waited for them.
static unsigned launches_before() { return view_size - 1; }

static char *arena, *arena_end, *next_place;
static std::vector<Page*> pages;
static std::deque<Region> regions;
static size_t regions_of_buffers;
static unsigned largest_cluster, launch_epoch, epoch_before, cluster_epoch, epochs;
static bool armed;
static uint64_t accesses;
uintptr_t image_end;


// The last accesses by others to a block's shared memory, by id: the block must not end before it knows of them.
struct Visits {
    std::vector<unsigned> clock, site;
};
static std::vector<Visits> visits;  // by rank

static void describe(Report& r, const Region* region, const void* p, unsigned bytes) {
    r.offset = region ? (const char*)p - region->low : -1;
    r.bytes = bytes;
}
static void memory_report(const char* kind, const Region* region, const void* p, unsigned bytes, unsigned site,
                          const char* note = "", int other = -1, unsigned other_site = 0, int other_block = -1) {
    Report* r = find_report(kind, site, region ? region->name : "");
    if (!r) return;
    describe(*r, region, p, bytes);
    copy_text(r->note, sizeof r->note, note);
    r->other_thread = other;
    r->other_site = other_site;
    r->other_block = other_block;
}

// ---- Order -----------------------------------------------------------------------------------------------------------

static inline bool known(const Actor& a, unsigned id, unsigned clock) {
    if (a.asynchronous ? (int)id == a.issuer : id == a.id) return true;
    return a.view->seen[id] >= clock;
}
static bool known_elsewhere(unsigned cluster, unsigned id, unsigned clock) {
    const auto& foreign = me()->check.foreign;
    if (!foreign) return false;
    auto at = foreign->find(cluster);
    return at != foreign->end() && (*at->second)[id] >= clock;
}
// The thread behind an id, in its block; -1 for an agent.
static int thread_of(unsigned id) {
    unsigned padded = (worker->threads + 31) / 32 * 32;
    return id < padded * worker->blocks ? (int)(id % padded) : -1;
}

static void race(const char* what, const Actor& a, const Region* region, const void* p, unsigned bytes, unsigned site,
                 unsigned id, unsigned other_site, unsigned cluster) {
    (void)a;
    char note[160];
    int thread = thread_of(id);
    const char* by = thread >= 0 ? "" : ", the other being an asynchronous copy or product";
    if (cluster != worker->serial) {
        snprintf(note, sizeof note, "%s, without an atomic and fences between the blocks%s", what, by);
        memory_report("race between blocks", region, p, bytes, site, note, thread, other_site, (int)cluster - 1);
        return;
    }
    snprintf(note, sizeof note, "%s%s", what, by);
    memory_report("race", region, p, bytes, site, note, thread, other_site);
}

static void look_at_writer(Cell& c, const Actor& a, const Region* region, const void* p, unsigned bytes, unsigned access,
                           unsigned site) {
    if (!c.clock || (c.atomic && access & ATOMIC)) return;
    bool ordered = c.cluster == worker->serial ? known(a, c.writer, c.clock) : known_elsewhere(c.cluster, c.writer, c.clock);
    if (!ordered) {
        race(access & WRITE ? "write after write" : "read after write", a, region, p, bytes, site, c.writer, c.site, c.cluster);
    } else if (a.asynchronous && !c.asynchronous && c.cluster == worker->serial &&
               (region->kind == SHARED ? a.view->proxy : a.view->proxy_global)[c.writer] < c.clock) {
        memory_report("missing proxy fence", region, p, bytes, site,
                      region->kind == SHARED
                          ? "written by threads, then accessed by an asynchronous copy or product without fence.proxy.async"
                          : "written by threads, then by a copy without fence.proxy.async (that of shared::cta does not do)",
                      thread_of(c.writer), c.site);
    }
}

static void look_at_reader(const Reader& r, const Actor& a, const Region* region, const void* p, unsigned bytes,
                           unsigned access, unsigned site) {
    if (!r.mask || (r.atomic && access & ATOMIC)) return;
    for (unsigned lanes = r.mask; lanes; lanes &= lanes - 1) {
        unsigned id = r.warp * 32u + (unsigned)__builtin_ctz(lanes);
        if (r.cluster == worker->serial ? known(a, id, r.clock) : known_elsewhere(r.cluster, id, r.clock)) continue;
        race("write after read", a, region, p, bytes, site, id, r.site, r.cluster);
        return;
    }
}

static bool obsolete(const Reader& r, const Actor& a) {
    if (r.cluster != worker->serial) return false;
    for (unsigned lanes = r.mask; lanes; lanes &= lanes - 1)
        if (!known(a, r.warp * 32u + (unsigned)__builtin_ctz(lanes), r.clock)) return false;
    return true;
}

static void note_read(Cell& c, const Actor& a, bool atomic, unsigned site) {
    unsigned warp = a.id >> 5, bits = ((1u << a.count) - 1) << (a.id & 31), elsewhere = 0;
    size_t others = c.more ? c.more->size() : 0;
    auto at = [&](size_t i) -> Reader& { return i < 2 ? c.readers[i] : (*c.more)[i - 2]; };
    size_t free = ~(size_t)0;
    for (size_t i = 0; i < 2 + others; i++) {
        Reader& r = at(i);
        if (r.mask && r.warp == warp && r.clock == a.clock && r.cluster == worker->serial && r.atomic == atomic) {
            r.mask |= bits;
            return;
        }
        if (r.mask && r.cluster != worker->serial) elsewhere++;
        if (free == ~(size_t)0 && (!r.mask || obsolete(r, a))) free = i;
    }
    Reader r{worker->serial, a.clock, bits, site, (unsigned short)warp, atomic};
    if (free != ~(size_t)0) {
        at(free) = r;
        return;
    }
    if (elsewhere >= 8) return;  // some readers of other clusters are enough
    if (!c.more) c.more = new std::vector<Reader>();
    c.more->push_back(r);
}

static void forget_reads(Cell& c) {
    c.readers[0].mask = c.readers[1].mask = 0;
    if (c.more) c.more->clear();
}

// ---- Cells -----------------------------------------------------------------------------------------------------------

static void drop_page(Page* page) {
    if (!page) return;
    for (Cell& c : page->cells) delete c.more;
    delete page;
}

static void refine(Page* page, unsigned shift) {
    if (page->cells.empty()) {
        page->shift = shift;
        page->cells.resize((1u << PAGE_BITS) >> shift);
        for (Cell& c : page->cells) memset((void*)&c, 0, sizeof c);
        return;
    }
    unsigned times = page->shift - shift;
    std::vector<Cell> finer((1u << PAGE_BITS) >> shift);
    for (size_t i = 0; i < finer.size(); i++) {
        finer[i] = page->cells[i >> times];
        if (finer[i].more && (i & ((1u << times) - 1))) finer[i].more = new std::vector<Reader>(*finer[i].more);
    }
    page->cells.swap(finer);
    page->shift = shift;
}

static inline unsigned granule(uintptr_t p, unsigned bytes) {  // log2 of the largest cell that both ends fall on
    unsigned shift = (unsigned)__builtin_ctzl(p | bytes | 16);
    return shift;
}

static inline Cell& fresh(Cell& c, const Region* region) {
    unsigned epoch = region->kind == SHARED ? cluster_epoch : launch_epoch;
    if (c.epoch != epoch) {
        c.epoch = epoch;
        c.clock = 0;
        forget_reads(c);
        if (region->kind == SHARED) c.state = UNWRITTEN;  // global memory stays written
    }
    return c;
}

static void touch(Cell& c, const Actor& a, const Region* region, const void* p, unsigned bytes, unsigned access, unsigned site) {
    fresh(c, region);
    if (c.state == IN_FLIGHT) {
        memory_report("copy in flight", region, p, bytes, site,
                      access & WRITE ? "written before cp.async.wait_group" : "read before cp.async.wait_group",
                      thread_of(c.writer), c.site);
    } else {
        if (c.state == UNWRITTEN && access != WRITE && region->kind != ZERO) {
            memory_report("uninitialised read", region, p, bytes, site);
            c.state = WRITTEN;  // report only once
        }
        look_at_writer(c, a, region, p, bytes, access, site);
    }
    if (!(access & WRITE)) {
        note_read(c, a, access & ATOMIC, site);
        return;
    }
    look_at_reader(c.readers[0], a, region, p, bytes, access, site);
    look_at_reader(c.readers[1], a, region, p, bytes, access, site);
    if (c.more)
        for (const Reader& r : *c.more) look_at_reader(r, a, region, p, bytes, access, site);
    forget_reads(c);
    c.cluster = worker->serial;
    c.clock = a.clock;
    c.writer = (unsigned short)a.id;
    c.site = site;
    c.state = WRITTEN;
    c.atomic = access & ATOMIC;
    c.asynchronous = a.asynchronous;
}

// ---- Places ----------------------------------------------------------------------------------------------------------

[[noreturn]] static void out_of_bounds(const void* p, unsigned bytes, unsigned access, unsigned site) {
    const Region* near = nullptr;
    long best = 1 << 16;
    for (const Region& r : regions) {
        long away = (const char*)p < r.low ? r.low - (const char*)p : (const char*)p - r.high;
        if (away < best) best = away, near = &r;
    }
    char note[160];
    if (near)
        snprintf(note, sizeof note, "%s %ld bytes %s", access & WRITE ? "write" : "read",
                 (const char*)p < near->low ? near->low - (const char*)p : (const char*)p + bytes - near->high,
                 (const char*)p < near->low ? "before its beginning" : "beyond its end");
    else
        snprintf(note, sizeof note, "%s at %p, which is near no buffer", access & WRITE ? "write" : "read", p);
    memory_report("out of bounds", near, p, bytes, site, note);
    end_launch();
}

// Registers of this thread that are in use by a wgmma in flight; they are in its local memory.
static void touch_registers(Fiber* f, const char* p, unsigned bytes, bool writes, unsigned site);

static void touch_elsewhere(const void* address, unsigned bytes, unsigned access, unsigned site) {
    Fiber* f = me();
    const char* p = (const char*)address;
    const char* stack = worker->stacks + (size_t)(f - worker->fibers) * STACK;
    if (p >= stack && p < stack + STACK) {
        if (!f->check.registers.empty()) touch_registers(f, p, bytes, access & WRITE, site);
        return;
    }
    if (p >= worker->stacks && p < worker->stacks + worker->fiber_room * STACK) {
        memory_report("foreign local memory", nullptr, p, bytes, site, "a variable of another thread is accessed");
        return;
    }
    if ((uintptr_t)p >= image && (uintptr_t)p < image_end && !(access & WRITE)) return;  // constants of the text
    out_of_bounds(p, bytes, access, site);
}

static void access_as(const Actor& a, const void* address, unsigned bytes, unsigned access, unsigned site) {
    const char* p = (const char*)address;
    if (p < arena || p >= arena_end) {
        touch_elsewhere(address, bytes, access, site);
        return;
    }
    Page* page = pages[(size_t)(p - arena) >> PAGE_BITS];
    if (!page || p < page->region->low || p + bytes > page->region->high) out_of_bounds(p, bytes, access, site);
    Region* region = page->region;
    if ((uintptr_t)p & (bytes - 1) && !(bytes & (bytes - 1)) && bytes <= 16)
        memory_report("misaligned", region, p, bytes, site, "an address must be a multiple of the access's size");
    // Inputs too: a launch before the program may have written them.
    if (region->kind != SHARED && region->kind != ARGUMENT && worker->request->overlaps && !a.view->seen[launches_before()])
        memory_report("launch dependency", region, p, bytes, site, "accessed before the launches before this one have been waited for");
    if (region->kind == INPUT || region->kind == ARGUMENT) {
        if (access & WRITE) {
            memory_report("write to an input", region, p, bytes, site);
            end_launch();
        }
        return;
    }
    if (region->kind == SHARED && region->rank != me()->block_of->rank) {
        if (me()->check.cluster_barriers == 0)
            memory_report("distributed shared memory", region, p, bytes, site, "accessed before a cluster barrier has been passed");
        else if (worker->block_array[region->rank].alive == 0)
            memory_report("distributed shared memory", region, p, bytes, site, "accessed after its block has ended");
        visits[region->rank].clock[a.id] = a.clock;
        visits[region->rank].site[a.id] = site;
    }
    unsigned shift = granule((uintptr_t)p, bytes);
    while (bytes) {
        page = pages[(size_t)(p - arena) >> PAGE_BITS];
        if (page->cells.empty() || page->shift > shift) refine(page, shift);
        unsigned inside = (unsigned)((size_t)(p - arena) & ((1u << PAGE_BITS) - 1));
        unsigned here = (1u << PAGE_BITS) - inside < bytes ? (1u << PAGE_BITS) - inside : bytes;
        for (unsigned i = inside >> page->shift; i <= (inside + here - 1) >> page->shift; i++)
            touch(page->cells[i], a, region, p, bytes, access, site);
        p += here;
        bytes -= here;
    }
}

static inline Actor thread_actor(Fiber* f) { return {f->check.id, f->check.now, f->check.view, false, -1, 1}; }

static inline void access(const void* p, unsigned bytes, unsigned kind, unsigned site) {
    if (!armed) return;
    if ((++accesses & 0xfffff) == 0) look_at_clock(site);
    access_as(thread_actor(me()), p, bytes, kind, site);
}

// ---- Functions that bodies and the instrumented text call --------------------------------------------------------------

bool arm(bool on) {
    bool was = armed;
    armed = on;
    return was;
}
void read(const void* p, unsigned bytes) { access(p, bytes, READ, MLC_SITE); }
static void look_global(const void* p, unsigned site) {
    if (armed && shared_address(p) != NO_ADDRESS)
        fatal("shared address", site, "an instruction for global memory is given shared memory");
}
void global(const void* p) { look_global(p, MLC_SITE); }
static const Cell* cell_at(const void* p) {  // of global memory, if any of the page's has been touched
    if ((const char*)p < arena || (const char*)p >= arena_end) return nullptr;
    size_t at = (size_t)((const char*)p - arena);
    const Page* page = pages[at >> PAGE_BITS];
    return page && !page->cells.empty() ? &page->cells[(at & ((1u << PAGE_BITS) - 1)) >> page->shift] : nullptr;
}
void read_constant(const void* p, unsigned bytes) {
    unsigned site = MLC_SITE;
    if (!armed) return;
    look_global(p, site);
    const Cell* before = cell_at(p);  // as the launches before left it, unless this one has touched it
    if (before && worker->request->overlaps && before->epoch == epoch_before && before->clock)
        memory_report("constant written", pages[(size_t)((const char*)p - arena) >> PAGE_BITS]->region, p, bytes, site,
                      "ld.global.nc may read what was there before the launch before this one wrote it");
    access(p, bytes, READ, site);
    const Cell* c = cell_at(p);
    if (c && c->epoch == launch_epoch && c->clock)
        memory_report("constant written", pages[(size_t)((const char*)p - arena) >> PAGE_BITS]->region, p, bytes, site,
                      "ld.global.nc may read what was there before this kernel wrote it", thread_of(c->writer), c->site);
}
void write(const void* p, unsigned bytes) { access(p, bytes, WRITE, MLC_SITE); }
void atomic(const void* p, unsigned bytes, bool writes, Order order) {
    if (!armed) return;
    access(p, bytes, ATOMIC | (writes ? WRITE : READ), MLC_SITE);
    order_atomic(p, writes, order);
}
static void written(const void* p, unsigned bytes) {  // a write without a read
    if ((const char*)p < arena || (const char*)p + bytes > arena_end) return;
    size_t at = (size_t)((const char*)p - arena);
    Page* page = pages[at >> PAGE_BITS];
    if (!page || page->region->kind == INPUT) return;
    unsigned shift = granule((uintptr_t)p, bytes);
    if (page->cells.empty() || page->shift > shift) refine(page, shift);
    for (unsigned i = 0; i < bytes; i += 1u << page->shift)
        fresh(page->cells[((at & 511) + i) >> page->shift], page->region).state = WRITTEN;
}
// Volatile loads count as relaxed atomics.
static void atomic_at(const void* p, unsigned bytes, unsigned kind, unsigned site, Order order = RELAXED) {
    if (!armed) return;
    if (kind == WRITE) written(p, bytes);
    access(p, bytes, ATOMIC | kind, site);
    order_atomic(p, kind == WRITE, order);
}
void atomic_store(const void* p, unsigned bytes, Order order) { atomic_at(p, bytes, WRITE, MLC_SITE, order); }
// So do volatile stores, but in shared memory only those right after a fence, as for flags. Others pass values between
// threads without synchronisation, as was possible in a warp while its threads ran in lockstep.
static void volatile_store(const void* p, unsigned bytes, unsigned site) {
    if (!armed) return;
    bool flag = me()->check.flag_next || shared_address(p) == NO_ADDRESS;
    me()->check.flag_next = false;
    if (flag)
        atomic_at(p, bytes, WRITE, site);
    else
        access(p, bytes, WRITE, site);
}

}  // namespace mlc::emu

#include "check_instrumented.h"
