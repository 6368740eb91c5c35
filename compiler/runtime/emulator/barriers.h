// Barriers of blocks, warps, named groups and clusters, and the rendezvous of collectives.
#pragma once
#include "addresses.h"

namespace mlc::emu {

static void not_flat(unsigned site) {
    if (worker->flat) fatal("misdeclared kernel", site, "it waits or exchanges, and its launch says it does not synchronize");
}

// ---- The block's barrier ---------------------------------------------------------------------------------------------

static void open_block_barrier(Block* b) {
    b->arrived = 0;
    hooks::join_block(b);
    wake(b->waiters);
}

void block_barrier(int line, int number) {
    unsigned site = MLC_SITE;
    not_flat(site);
    Fiber* f = me();
    Block* b = f->block_of;
    if (b->arrived && (b->line != line || b->number != number)) {
        char note[160];
        snprintf(note, sizeof note, "threads of one block wait at different __syncthreads, of lines %d and %d", b->line, line);
        fatal("barrier divergence", site, note, b->site);
    }
    if (hooks::strict() && b->exited) report("barrier divergence", site, "threads have exited without reaching it");
    b->line = line;
    b->number = number;
    b->site = site;
    if (++b->arrived == b->alive) {
        open_block_barrier(b);
        return;
    }
    b->waiters.push(f);
    block_fiber("__syncthreads", site, b);
}

// ---- Warps -----------------------------------------------------------------------------------------------------------

static void finish_meeting(Warp* w, Warp::Meeting& m) {
    unsigned lanes = m.arrived;
    m.arrived = 0;
    w->busy &= ~(1u << __builtin_ctz(m.mask));
    if (m.run) {
        if (lanes != m.mask) fatal("divergent collective", m.site, "a lane named in its mask has exited or does not exist");
        bool armed = hooks::begin_collective(m.site, w->fibers, lanes);
        Lanes all{32, lanes, w->in, w->out};
        m.run(m.closure, all);
        hooks::end_collective(armed);
    } else {
        hooks::join_warp(w, lanes);
    }
    wake(m.waiters);
}

static void meet(unsigned mask, const char* name, int line, unsigned site, const void* in, void* out, Compute* run,
                 void* closure) {
    not_flat(site);
    Fiber* f = me();
    Warp* w = f->warp;
    if (!(mask >> f->lane & 1)) fatal("divergent collective", site, "the calling lane is not in its own mask");
    unsigned key = (unsigned)__builtin_ctz(mask);
    Warp::Meeting& m = w->meeting[key];
    for (unsigned busy = w->busy; busy; busy &= busy - 1) {
        Warp::Meeting& other = w->meeting[__builtin_ctz(busy)];
        if (!(other.mask & mask)) continue;
        bool same = other.mask == mask && (other.name == name || !strcmp(other.name, name));
        if (same && (!run || other.line == line)) continue;
        char note[160];
        snprintf(note, sizeof note, "lanes of one warp wait at %s (line %d, mask %08x) and %s (line %d, mask %08x)",
                 other.name, other.line, other.mask, name, line, mask);
        fatal("divergent collective", site, note, other.site);
    }
    m.mask = mask, m.name = name, m.line = line, m.site = site, m.run = run, m.closure = closure;
    w->in[f->lane] = in;
    w->out[f->lane] = out;
    m.arrived |= 1u << f->lane;
    w->busy |= 1u << key;
    if ((m.arrived & mask & w->alive) == (mask & w->alive)) {
        finish_meeting(w, m);
        return;
    }
    m.waiters.push(f);
    block_fiber(name, site, w);
}

void warp_barrier(unsigned mask, int line) { meet(mask, "__syncwarp", line, MLC_SITE, nullptr, nullptr, nullptr, nullptr); }
void warp_rendezvous(unsigned mask, const char* name, int line, const void* in, void* out, Compute* run, void* closure) {
    meet(mask, name, line, MLC_SITE, in, out, run, closure);
}

#ifdef MLC_CHECK
void converged(const char* name, int line) {
    if (!worker->flat) meet(~0u, name, line, MLC_SITE, nullptr, nullptr, [](void*, Lanes&) {}, nullptr);
}
#endif

void group_rendezvous(unsigned first, unsigned warps, const char* name, int line, const void* in, void* out, Compute* run,
                      void* closure) {
    unsigned site = MLC_SITE;
    not_flat(site);
    Fiber* f = me();
    Block* b = f->block_of;
    if (warps > 4 || (first + warps) * 32 > worker->threads) fatal("divergent collective", site, "the group's warps do not exist");
    unsigned at = f->linear - first * 32;
    if (at >= warps * 32) fatal("divergent collective", site, "the calling thread is not of the group");
    Group& g = b->groups[first];
    if (g.arrived && (g.count != warps * 32 || g.line != line || (g.name != name && strcmp(g.name, name)))) {
        char note[160];
        snprintf(note, sizeof note, "threads of one group wait at %s (line %d) and %s (line %d)", g.name, g.line, name, line);
        fatal("divergent collective", site, note, g.site);
    }
    g.count = warps * 32, g.name = name, g.line = line, g.site = site;
    g.in[at] = in;
    g.out[at] = out;
    if (++g.arrived < g.count) {
        g.waiters.push(f);
        block_fiber(name, site, &g);
        return;
    }
    g.arrived = 0;
    bool armed = hooks::begin_collective(site, b->fibers + first * 32, g.count);
    Lanes all{g.count, ~0u, g.in, g.out};
    run(closure, all);
    hooks::end_collective(armed);
    wake(g.waiters);
}

// ---- Named barriers: counted in threads, of which some only arrive -----------------------------------------------------

static bool arrive_named(unsigned id, unsigned threads, unsigned site) {
    not_flat(site);
    if (id == 0) fatal("named barrier", site, "barrier 0 is that of the whole block");
    if (id >= NAMED_BARRIERS || threads % 32 || threads == 0 || threads > worker->threads)
        fatal("named barrier", site, "no such barrier, or not a number of whole warps of this block");
    NamedBarrier& n = me()->block_of->named[id];
    if (n.arrived && n.expected != threads) {
        char note[160];
        snprintf(note, sizeof note, "barrier %u is waited for with %u and with %u threads", id, n.expected, threads);
        fatal("named barrier", site, note);
    }
    n.expected = threads;
    hooks::release(me(), n.open);
    unsigned& lanes = n.of_warp[me()->linear / 32];
    if (lanes >> me()->lane & 1) fatal("named barrier", site, "a thread arrives twice in one phase");
    lanes |= 1u << me()->lane;
    if (++n.arrived < threads) return false;
    n.arrived = 0;
    for (unsigned& warp : n.of_warp) {
        if (warp && ~warp) fatal("named barrier", site, "lanes arrive by themselves; the hardware counts whole warps (.aligned)");
        warp = 0;
    }
    hooks::move(n.open, n.complete);
    for (Fiber* f = n.waiters.head; f; f = f->next) hooks::acquire(f, n.complete);
    wake(n.waiters);
    return true;
}
void named_barrier_arrive(unsigned id, unsigned threads) { arrive_named(id, threads, MLC_SITE); }
void named_barrier_sync(unsigned id, unsigned threads) {
    unsigned site = MLC_SITE;
    NamedBarrier& n = me()->block_of->named[id % NAMED_BARRIERS];
    if (arrive_named(id, threads, site)) {
        hooks::acquire(me(), n.complete);
        return;
    }
    n.waiters.push(me());
    block_fiber("bar.sync", site, &n);
}

// ---- Registers transferred between warpgroups (setmaxnreg) -------------------------------------------------------------

constexpr unsigned MOST_REGISTERS = 65536;  // per multiprocessor

void registers_set(unsigned count) {
    const unsigned site = MLC_SITE;
    Block* b = me()->block_of;
    b->registers[me()->linear / 128] = count;
    b->registers_site = site;
}
static void look_at_registers(const Block* b) {
    unsigned all = 0;
    for (unsigned count : b->registers) all += 128 * count;
    if (all <= MOST_REGISTERS) return;
    char note[160];
    snprintf(note, sizeof note, "the warpgroups of a block ask for %u in the end, and there are %u", all, MOST_REGISTERS);
    report("registers", b->registers_site, note);
}

// ---- Clusters --------------------------------------------------------------------------------------------------------

static void open_cluster_barrier() {
    worker->cluster_arrived = 0;
    worker->cluster_phase++;
    hooks::move(worker->cluster_open, worker->cluster_complete);
    wake(worker->cluster_waiters);
}
void cluster_arrive() {
    not_flat(MLC_SITE);
    if (me()->cluster_arrived) fatal("cluster", MLC_SITE, "the thread arrives twice without waiting");
    me()->cluster_arrived = true;
    me()->cluster_token = worker->cluster_phase;
    hooks::release(me(), worker->cluster_open);
    if (++worker->cluster_arrived == worker->alive) open_cluster_barrier();
}
void cluster_wait() {
    unsigned site = MLC_SITE;
    Fiber* f = me();
    if (!f->cluster_arrived) fatal("cluster", site, "the thread waits without having arrived");
    f->cluster_arrived = false;
    if (f->cluster_token == worker->cluster_phase) {
        worker->cluster_waiters.push(f);
        block_fiber("barrier.cluster.wait", site, worker);
    }
    hooks::acquire(f, worker->cluster_complete);
    hooks::passed_cluster_barrier(f);
}
unsigned cluster_rank() { return me()->block_of->rank; }
unsigned cluster_size() { return worker->blocks; }

// ---- The end of a thread: barriers no longer wait for it ---------------------------------------------------------------

static void leave_block(Fiber* f) {
    hooks::end_fiber(f);
    Block* b = f->block_of;
    if (b->alive == 1 && b->registers_site) look_at_registers(b);
    b->alive--;
    b->exited++;
    f->warp->alive &= ~(1u << f->lane);
    if (b->arrived) {
        if (hooks::strict()) report("barrier divergence", b->site, "a thread has exited without reaching it");
        if (b->arrived == b->alive) open_block_barrier(b);
    }
    for (unsigned busy = f->warp->busy; busy; busy &= busy - 1) {
        Warp::Meeting& m = f->warp->meeting[__builtin_ctz(busy)];
        if ((m.arrived & m.mask & f->warp->alive) == (m.mask & f->warp->alive)) finish_meeting(f->warp, m);
    }
    if (worker->cluster_arrived && worker->cluster_arrived == worker->alive - 1) open_cluster_barrier();
}

static void describe_wait(Fiber* f, char* note, size_t room) {
    const char* what = f->waits;
    if (!strcmp(what, "__syncthreads")) {
        snprintf(note, room, "__syncthreads: %u of %u threads have arrived", f->block_of->arrived, f->block_of->alive);
    } else if (f->waits_on == f->warp) {
        for (unsigned busy = f->warp->busy; busy; busy &= busy - 1) {
            Warp::Meeting& m = f->warp->meeting[__builtin_ctz(busy)];
            if (m.arrived >> f->lane & 1)
                snprintf(note, room, "%s: lanes %08x of %08x have arrived", what, m.arrived, m.mask);
        }
    } else if (!strcmp(what, "mbarrier wait")) {
        const MBarrier* m = (const MBarrier*)f->waits_on;
        snprintf(note, room, "mbarrier at shared address %#x: its phase %u lacks %u arrivals and %d bytes of copies",
                 shared_address(m->address), m->phase, m->pending, m->tx);
    } else if (!strcmp(what, "bar.sync")) {
        const NamedBarrier* n = (const NamedBarrier*)f->waits_on;
        snprintf(note, room, "bar.sync: %u of %u threads have arrived", n->arrived, n->expected);
    } else {
        snprintf(note, room, "%s: not all threads have arrived", what);
    }
}

}  // namespace mlc::emu
