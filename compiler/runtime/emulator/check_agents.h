// Check mode: asynchronous agents (copies of the engine, cp.async, bulk stores, wgmma) and their fences.
#pragma once
#include "check_shadow.h"

namespace mlc::emu {

// The ids of agents follow those of threads. Copies into shared memory have one id per mbarrier, shared if there are
// many; wgmma has one per warp, which may run ahead of the others of its warpgroup; bulk stores have two per issuing
// thread, for their reads and writes.
constexpr unsigned LOAD_AGENTS = 32, STORING_THREADS = 8;
static unsigned agent_clock[LOAD_AGENTS], load_site[LOAD_AGENTS];
static unsigned storing_threads;

static unsigned padded_threads() { return (worker->threads + 31) / 32 * 32; }
static unsigned first_agent() { return padded_threads() * worker->blocks; }
static unsigned load_agent(unsigned slot) { return first_agent() + slot % LOAD_AGENTS; }
static unsigned wgmma_agent(const Fiber* f) {
    return first_agent() + LOAD_AGENTS + f->block_of->rank * WARPS + f->linear / 32;
}
static unsigned store_agent(unsigned which) {
    return first_agent() + LOAD_AGENTS + worker->blocks * WARPS + which % (STORING_THREADS * worker->blocks) * 2;
}

static void poison(const Piece& p) { memset(p.to, 0xff, p.bytes); }

// The computation of a collective runs for all its lanes: its reports are at their line, its view is what all know.
static struct {
    unsigned site, count;
    Fiber* first;
    View* all_know;
} collective;

void fence_mbarrier_init() {
    for (unsigned i = 0; i < worker->barriers_used; i++)
        if (worker->barriers[i]->maker == me()) worker->barriers[i]->visible = true;
}
void fence_proxy_async(bool global) {
    Checked& c = me()->check;
    for (unsigned i = 0; i < worker->barriers_used; i++) {
        MBarrier* m = worker->barriers[i];
        if (m->live && (m->maker == me() || m->made <= c.view->seen[m->maker->check.id])) m->visible = true;
    }
    View* v = copy(c.view);
    raise(v->proxy, v->seen, view_size);
    v->proxy[c.id] = c.now;
    if (global) {
        raise(v->proxy_global, v->seen, view_size);
        v->proxy_global[c.id] = c.now;
    }
    c.now++;
    set(c.view, v);
}

void wait_dependencies() {
    Checked& c = me()->check;
    set(c.view, with_clock(c.view, launches_before(), 1));
}

void launch_dependents() {
    if (worker->request->overlaps && !me()->check.view->seen[launches_before()])
        report("launch dependency", MLC_SITE, "the next launch may begin before the launches before this one have ended");
}

namespace hooks {

bool strict() { return true; }
void arm_kernel(bool on) { armed = on; }
unsigned site_of_collective(unsigned site) { return collective.first ? collective.site : site; }
bool begin_collective(unsigned site, Fiber* first, unsigned count) {
    collective = {site, count, first, nullptr};
    return arm(false);
}
void end_collective(bool was) {
    if (collective.all_know) drop(collective.all_know);
    collective = {};
    armed = was;
}

unsigned clock_of(Fiber* f) { return f->check.now; }
void passed_cluster_barrier(Fiber* f) { f->check.cluster_barriers++; }

void touch_mbarrier(void* address, unsigned site, bool initialised) {
    if (initialised) {
        access(address, 8, ATOMIC | WRITE, site);
        return;
    }
    access(address, 8, WRITE, site);
}

// ---- Copies ----------------------------------------------------------------------------------------------------------

void load_issued(Landing& l, unsigned site) {
    Fiber* f = me();
    if (!l.barrier->visible)
        report("missing proxy fence", site, "the mbarrier's initialisation was not followed by fence.mbarrier_init or fence.proxy.async");
    unsigned slot = l.barrier->slot % LOAD_AGENTS;
    l.slot = load_agent(slot);
    l.clock = ++agent_clock[slot];
    load_site[slot] = site;
    Actor a{l.slot, l.clock, f->check.view, true, (int)f->check.id, 1};
    bool own = !l.own.empty();
    for (const Piece& p : l.pieces) {
        if (p.from && !own) access_as(a, p.from, p.bytes, READ, site);
        access_as(a, p.to, p.bytes, WRITE, site);
        poison(p);
    }
}

void landed(Landing& l) {
    Sync& s = l.barrier->open;
    View* v = s.view ? copy(s.view) : copy(nothing);
    if (v->seen[l.slot] < l.clock) v->seen[l.slot] = v->proxy[l.slot] = v->proxy_global[l.slot] = l.clock;
    set(s.view, v);
}

void store_issued(Landing& l, unsigned site) {
    Fiber* f = me();
    Checked& c = f->check;
    if (c.bulk_slot < 0) c.bulk_slot = (int)store_agent(storing_threads++);
    c.bulk_site = site;
    c.bulk_open = true;
    l.group = c.bulk_groups;
    Actor reads{(unsigned)c.bulk_slot, c.bulk_groups + 1, c.view, true, (int)c.id, 1};
    Actor writes{(unsigned)c.bulk_slot + 1, c.bulk_groups + 1, c.view, true, (int)c.id, 1};
    for (const Piece& p : l.pieces) {
        if (p.from) access_as(reads, p.from, p.bytes, READ, site);
        access_as(writes, p.to, p.bytes, l.apply ? WRITE | ATOMIC : WRITE, site);
    }
}
void bulk_commit(Fiber* f) {
    f->check.bulk_groups++;
    f->check.bulk_open = false;
}
unsigned bulk_done(Fiber* f, unsigned pending) {
    return f->check.bulk_groups > pending ? f->check.bulk_groups - pending : 0;
}
void bulk_waited(Fiber* f, unsigned groups, bool read) {
    Checked& c = f->check;
    if (groups > c.bulk_read_done) c.bulk_read_done = groups;
    if (c.bulk_slot < 0) return;
    set(c.view, with_clock(c.view, (unsigned)c.bulk_slot, groups));
    if (!read) set(c.view, with_clock(c.view, (unsigned)c.bulk_slot + 1, groups));
}

void cp_async(void* to, const void* from, unsigned bytes, unsigned valid, unsigned site) {
    Fiber* f = me();
    if (valid > bytes) fatal("cp.async", site, "more bytes are to be read than the copy has");
    if (valid) look_global(from, site);
    if (((uintptr_t)to | (valid ? (uintptr_t)from : 0)) & (bytes - 1))
        fatal("misaligned", site, "cp.async needs both addresses at multiples of its size");
    if (valid) access(from, valid, READ, site);
    access(to, bytes, WRITE, site);
    PendingCopy copy{to, {}, bytes, f->check.copy_group, site};
    memcpy(copy.data, from, valid);
    f->check.copies.push_back(copy);
    memset(to, 0xff, bytes);
    for (unsigned i = 0; i < bytes; i += 4) {
        Page* page = pages[(size_t)((char*)to + i - arena) >> PAGE_BITS];
        page->cells[((size_t)((char*)to + i - arena) & 511) >> page->shift].state = IN_FLIGHT;
        if (page->shift < 2)
            for (unsigned j = 0; j < 4; j++) page->cells[((size_t)((char*)to + i + j - arena) & 511) >> page->shift].state = IN_FLIGHT;
    }
}

void cp_async_wait(Fiber* f, unsigned pending) {
    Checked& c = f->check;
    std::vector<PendingCopy> left;
    for (const PendingCopy& p : c.copies) {
        if (p.group + pending >= c.copy_group) {
            left.push_back(p);
            continue;
        }
        memcpy(p.to, p.data, p.bytes);
        for (unsigned i = 0; i < p.bytes; i++) {
            size_t at = (size_t)((char*)p.to + i - arena);
            Page* page = pages[at >> PAGE_BITS];
            Cell& cell = page->cells[(at & 511) >> page->shift];
            cell.state = WRITTEN;
            cell.clock = c.now;
        }
    }
    c.copies.swap(left);
}

// ---- The life of threads, clusters and launches ------------------------------------------------------------------------

void begin_fiber(Fiber* f) {
    Checked& c = f->check;
    c = Checked();
    c.id = f->block_of->rank * padded_threads() + f->linear;
    c.view = keep(nothing);
}
void flat_thread(Fiber* f) {
    f->check.id = f->linear;
    set(f->check.view, keep(nothing));
    f->check.foreign = nullptr;
    f->check.acquired = nullptr;
    f->check.fenced = nullptr;
}
// The end of a block's last thread: accesses to its shared memory by others must be ordered before one of its threads.
static void look_at_visits(const Block* b) {
    const Visits& v = visits[b->rank];
    for (unsigned id = 0; id < view_size; id++) {
        if (!v.clock[id]) continue;
        bool told = false;
        for (unsigned i = 0; i < worker->threads && !told; i++) told = b->fibers[i].check.view->seen[id] >= v.clock[id];
        if (!told) report("distributed shared memory", v.site[id], "its block may end before this access: no barrier follows");
    }
}
void end_fiber(Fiber* f) {
    Checked& c = f->check;
    if (worker->blocks > 1 && f->block_of->alive == 1) look_at_visits(f->block_of);
    if (c.bulk_open || c.bulk_read_done < c.bulk_groups)
        report("bulk copy", c.bulk_site, "the thread ends without waiting for its copy to have read shared memory");
    for (const Registers& r : c.registers)
        if (r.batch >= c.wgmma_done) report("wgmma", r.site, "the thread ends without wgmma.wait_group for it");
    if (!c.copies.empty()) report("copy in flight", c.copies[0].site, "the thread ends without waiting for its cp.async");
}

static void poison_shared(const Region& r) { memset(r.low, 0xff, (size_t)(r.high - r.low)); }

void begin_cluster() {
    cluster_epoch = ++epochs;
    unsigned size = first_agent() + LOAD_AGENTS + worker->blocks * (WARPS + 2 * STORING_THREADS);
    forget_unions();
    reset_views((size + 8) / 8 * 8);
    memset(agent_clock, 0, sizeof agent_clock);
    storing_threads = 0;
    collective = {};
    if (worker->blocks > 1)
        visits.assign(worker->blocks, {std::vector<unsigned>(view_size), std::vector<unsigned>(view_size)});
    for (size_t i = regions_of_buffers; i < regions.size(); i++) poison_shared(regions[i]);
}

void end_cluster() {
    for (unsigned i = 0; i < LOAD_AGENTS && !worker->flat; i++) {
        if (!agent_clock[i]) continue;
        unsigned known_to = 0, id = load_agent(i);
        for (unsigned j = 0; j < worker->threads * worker->blocks; j++) {
            unsigned c = worker->fibers[j].check.view->seen[id];
            if (c > known_to) known_to = c;
        }
        if (known_to < agent_clock[i])
            report("mbarrier", load_site[i], "the block ends without waiting for this copy into its shared memory");
    }
    while (land_one());
    for (unsigned i = 0; i < worker->barriers_used; i++) {
        MBarrier* m = worker->barriers[i];
        if (!m->live || m->tx == 0) continue;
        char note[160];
        snprintf(note, sizeof note, "at the end of the block its transaction count is %d bytes off", -m->tx);
        report("mbarrier", m->site, note);
    }
}

static void add_region(char* low, size_t bytes, const char* name, Kind kind, unsigned rank) {
    regions.push_back(Region{low, low + bytes, {}, kind, rank});
    Region& r = regions.back();
    snprintf(r.name, sizeof r.name, "%s", name);
    for (size_t i = (size_t)(low - arena) >> PAGE_BITS; bytes && i <= (size_t)(low + bytes - 1 - arena) >> PAGE_BITS; i++) {
        drop_page(pages[i]);
        pages[i] = new Page{&r, 0, {}};
    }
}

char* windows(unsigned blocks) { return blocks <= largest_cluster ? arena : nullptr; }

void new_array(SharedArray* a) {
    for (unsigned rank = 0; rank < worker->blocks; rank++) {
        add_region(arena + rank * WINDOW + a->offset, a->bytes, a->name, SHARED, rank);
        poison_shared(regions.back());
    }
}

static int find_image(dl_phdr_info* info, size_t, void*) {
    if (info->dlpi_addr != image) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& h = info->dlpi_phdr[i];
        if (h.p_type == PT_LOAD && image + h.p_vaddr + h.p_memsz > image_end) image_end = image + h.p_vaddr + h.p_memsz;
    }
    return 1;
}

void begin_launch(const Request* r) {
    epoch_before = launch_epoch;
    launch_epoch = ++epochs;
    atomics.clear();
    accesses = 0;
    image_end = 0;
    dl_iterate_phdr(find_image, nullptr);
    regions.resize(regions_of_buffers);
    for (size_t i = 0; i < largest_cluster * (WINDOW >> PAGE_BITS); i++) {
        drop_page(pages[i]);
        pages[i] = nullptr;
    }
    for (unsigned rank = 0; r->shared && rank < r->cluster[0] * r->cluster[1] * r->cluster[2]; rank++)
        add_region(arena + rank * WINDOW + FIRST_DYNAMIC, r->shared, "dynamic shared memory", SHARED, rank);
}

void end_launch() {
    armed = false;
    result->accesses = accesses;
}

}  // namespace hooks

// ---- wgmma -----------------------------------------------------------------------------------------------------------

void wgmma_fence() {
    Checked& c = me()->check;
    c.registers_fenced = true;
    for (Registers& r : c.registers) r.written = false;
}
void wgmma_commit() { me()->check.wgmma_batch++; }
void wgmma_wait(unsigned pending) {
    Fiber* f = me();
    Checked& c = f->check;
    unsigned done = c.wgmma_batch > pending ? c.wgmma_batch - pending : 0;
    if (done <= c.wgmma_done) return;
    c.wgmma_done = done;
    set(c.view, with_clock(c.view, wgmma_agent(f), done));
}

void wgmma_idle() {
    const Checked& c = me()->check;
    for (const Registers& r : c.registers)
        if (r.batch >= c.wgmma_done) return report("wgmma", MLC_SITE, "some are under way where none may be");
}

void wgmma_registers(const void* p, unsigned bytes) {
    Checked& c = me()->check;
    const char* low = (const char*)p;
    Registers* known = nullptr;
    for (Registers& r : c.registers)
        if (r.low == low && r.high == low + bytes) known = &r;
    if (!c.registers_fenced || (known && known->written))
        report("wgmma", MLC_SITE, "its registers were written, or never fenced, since the last wgmma.fence");
    c.registers_fenced = true;  // report only once
    if (known)
        *known = {low, low + bytes, c.wgmma_batch, MLC_SITE, false};
    else
        c.registers.push_back({low, low + bytes, c.wgmma_batch, MLC_SITE, false});
}

static void touch_registers(Fiber* f, const char* p, unsigned bytes, bool writes, unsigned site) {
    for (Registers& r : f->check.registers) {
        if (p >= r.high || p + bytes <= r.low) continue;
        if (r.batch >= f->check.wgmma_done)
            report("wgmma", site, "registers of a wgmma are accessed before wgmma.wait_group");
        else if (writes)
            r.written = true;  // other variables may use this memory later, when these are out of scope
    }
}

// What every thread of the collective knows: the minimum of their views.
static View* known_to_all() {
    if (collective.all_know) return collective.all_know;
    View* all = copy(collective.first->check.view);
    const Fiber* end = collective.first + collective.count;
    for (const Fiber* f = collective.first; f < end; f++) {
        const View* v = f->check.view;
        if (v == collective.first->check.view && f != collective.first && f[-1].check.view == v) continue;
        for (unsigned i = 0; i < 3 * view_size; i++)
            if (v->seen[i] < all->seen[i]) all->seen[i] = v->seen[i];
    }
    // A thread's own accesses are known to the others only if their views say so.
    for (const Fiber* f = collective.first; f < end; f++) {
        unsigned id = f->check.id, seen = ~0u;
        for (const Fiber* g = collective.first; g < end; g++)
            if (g != f && g->check.view->seen[id] < seen) seen = g->check.view->seen[id];
        all->seen[id] = seen;
    }
    collective.all_know = all;
    return all;
}

void wgmma_read(const void* p, unsigned bytes) {
    if (!collective.first) fail("wgmma_read outside of a collective");
    const Fiber* f = collective.first;
    Actor a{wgmma_agent(f), f->check.wgmma_batch + 1, known_to_all(), true, -1, collective.count / 32};
    access_as(a, p, bytes, READ, collective.site);
}

}  // namespace mlc::emu

// Begin a set of buffers: windows for clusters of up to `blocks`, `room` bytes for guarded buffers. Not 0: no memory.
extern "C" __attribute__((visibility("default"))) int mlc_check_begin(size_t room, size_t blocks) {
    using namespace mlc::emu;
    static char* mapped;
    static size_t mapped_bytes;
    for (Page* page : pages) drop_page(page);
    pages.clear();
    regions.clear();
    regions_of_buffers = 0;
    if (mapped) munmap(mapped, mapped_bytes);
    size_t bytes = blocks * WINDOW + room;
    mapped_bytes = bytes + WINDOW;
    mapped = (char*)mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED) {
        mapped = nullptr;
        return 1;
    }
    arena = (char*)(((uintptr_t)mapped + WINDOW - 1) & ~(WINDOW - 1));
    arena_end = arena + bytes;
    next_place = arena + blocks * WINDOW + 8192;
    largest_cluster = (unsigned)blocks;
    pages.assign((bytes >> PAGE_BITS) + 1, nullptr);
    return 0;
}

// The address of a buffer for kernels: a guarded copy; for outputs and temporaries, uninitialised.
extern "C" __attribute__((visibility("default"))) void* mlc_check_buffer(const char* name, const void* from, size_t bytes, int kind) {
    using namespace mlc::emu;
    char* place = (char*)(((uintptr_t)next_place + 4095) & ~(uintptr_t)4095) + (uintptr_t)from % 256;
    next_place = place + bytes + 4096;
    if (kind == OUTPUT || kind == TEMPORARY)
        memset(place, 0xff, bytes);
    else
        memcpy(place, from, bytes);
    hooks::add_region(place, bytes, name, (Kind)kind, 0);
    regions_of_buffers = regions.size();
    return place;
}
