// mbarriers and asynchronous copies.
#pragma once
#include "barriers.h"

namespace mlc::emu {

// ---- mbarrier: the word in shared memory names an object of the worker -------------------------------------------------

constexpr unsigned MBARRIER_MARK = 0x4d42a55au;
struct MBarrierWord {
    unsigned mark, index;
};

static MBarrier* find_mbarrier(unsigned at, unsigned site) {
    not_flat(site);
    char* const address = memory_at(at, site);
    hooks::touch_mbarrier(address, site, true);
    MBarrierWord word;
    if ((uintptr_t)address & 7) fatal("misaligned", site, "an mbarrier needs 8 bytes of alignment");
    memcpy(&word, address, 8);
    if (word.mark != MBARRIER_MARK || word.index >= worker->barriers_used || !worker->barriers[word.index]->live ||
        worker->barriers[word.index]->address != address)
        fatal("mbarrier", site, "used before mbarrier_init, or overwritten");
    return worker->barriers[word.index];
}

void mbarrier_init(unsigned at, unsigned count) {
    unsigned site = MLC_SITE;
    not_flat(site);
    char* const address = memory_at(own(at, site), site);
    if ((uintptr_t)address & 7) fatal("misaligned", site, "an mbarrier needs 8 bytes of alignment");
    if (count == 0 || count >= 1u << 20) fatal("mbarrier", site, "its count must be 1 to 2^20 - 1");
    hooks::touch_mbarrier(address, site, false);
    for (unsigned i = 0; i < worker->barriers_used; i++)
        if (worker->barriers[i]->address == address) worker->barriers[i]->live = false;
    if (worker->barriers_used == worker->barriers.size()) worker->barriers.push_back(new MBarrier());
    unsigned index = worker->barriers_used++;
    MBarrier* m = worker->barriers[index];
    m->address = address;
    m->count = m->pending = count;
    m->phase = 0;
    m->tx = 0;
    m->live = true;
    m->waiters = FiberList();
    m->slot = index;
    m->site = site;
    m->visible = false;
    m->maker = me();
    m->made = hooks::clock_of(m->maker);
    hooks::forget(m->open);
    hooks::forget(m->complete);
    MBarrierWord word{MBARRIER_MARK, index};
    memcpy(address, &word, 8);
}

static void complete_phase(MBarrier* m) {
    if (m->pending || m->tx) return;
    m->phase++;
    m->pending = m->count;
    hooks::move(m->open, m->complete);
    wake(m->waiters);
}

static void arrive(MBarrier* m, unsigned count, unsigned site) {
    if (count == 0 || m->pending < count) {
        char note[160];
        snprintf(note, sizeof note, "more arrivals than the %u of its phase (initialised with %u)", m->count, m->count);
        fatal("mbarrier", site, note);
    }
    hooks::release(me(), m->open);
    m->pending -= count;
    complete_phase(m);
}

static void expect(MBarrier* m, unsigned bytes, unsigned site) {
    m->tx += (int)bytes;
    if (m->tx >= 1 << 20) fatal("mbarrier", site, "more than 2^20 - 1 bytes expected in one phase");
}

void mbarrier_arrive(unsigned at) { arrive(find_mbarrier(own(at, MLC_SITE), MLC_SITE), 1, MLC_SITE); }
void mbarrier_arrive_cluster(unsigned at, unsigned rank) {
    arrive(find_mbarrier(of_block(at, rank, MLC_SITE), MLC_SITE), 1, MLC_SITE);
}
void mbarrier_arrive_expect_tx(unsigned at, unsigned bytes) {
    MBarrier* m = find_mbarrier(own(at, MLC_SITE), MLC_SITE);
    expect(m, bytes, MLC_SITE);
    arrive(m, 1, MLC_SITE);
}

void mbarrier_wait(unsigned at, unsigned parity) {
    unsigned site = MLC_SITE;
    MBarrier* m = find_mbarrier(own(at, site), site);
    if (parity > 1) fatal("mbarrier", site, "a parity is 0 or 1");
    if ((m->phase & 1) == parity) {
        m->waiters.push(me());
        block_fiber("mbarrier wait", site, m);
    }
    hooks::acquire(me(), m->complete);
}

// ---- The copy engine -------------------------------------------------------------------------------------------------

static void move_pieces(const Piece* pieces, unsigned count, Apply* apply) {
    for (unsigned i = 0; i < count; i++) {
        const Piece& p = pieces[i];
        if (!p.from)
            memset(p.to, 0, p.bytes);
        else if (apply)
            apply(p.to, p.from, p.bytes);
        else
            memcpy(p.to, p.from, p.bytes);
    }
}

static void complete_copy(MBarrier* m, unsigned bytes) {
    m->tx -= (int)bytes;
    if (m->tx <= -(1 << 20)) fatal("mbarrier", m->site, "more than 2^20 - 1 bytes have come before they were expected");
    complete_phase(m);
}

#ifdef MLC_CHECK

static void land(Landing* l) {
    move_pieces(l->pieces.data(), (unsigned)l->pieces.size(), l->apply);
    worker->progress++;
    if (l->barrier) {
        hooks::landed(*l);
        complete_copy(l->barrier, l->bytes);
    }
    delete l;
}

bool land_one() {
    std::vector<Landing*>& all = worker->landings;
    if (all.empty()) return false;
    size_t i = random_order() ? random_below((unsigned)all.size()) : 0;
    Landing* l = all[i];
    all.erase(all.begin() + (long)i);
    land(l);
    return true;
}

void async_load(const Piece* pieces, unsigned count, unsigned barrier, unsigned bytes) {
    unsigned site = MLC_KERNEL_SITE;
    MBarrier* m = find_mbarrier(barrier, site);
    Landing* l = new Landing{{pieces, pieces + count}, {}, m, bytes, 0, 0, 0, nullptr, me()};
    hooks::load_issued(*l, site);
    worker->landings.push_back(l);
}

void store_async(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    unsigned site = MLC_KERNEL_SITE;
    MBarrier* m = find_mbarrier(barrier, site);
    Landing* l = new Landing{{}, {(const char*)from, (const char*)from + bytes}, m, bytes, 0, 0, 0, nullptr, me()};
    l->pieces.push_back({memory_at(to, site), l->own.data(), bytes});
    hooks::load_issued(*l, site);
    worker->landings.push_back(l);
}

void async_store(const Piece* pieces, unsigned count, Apply* apply) {
    not_flat(MLC_KERNEL_SITE);
    Landing* l = new Landing{{pieces, pieces + count}, {}, nullptr, 0, 0, 0, 0, apply, me()};
    hooks::store_issued(*l, MLC_KERNEL_SITE);
    worker->landings.push_back(l);
}

void bulk_commit() { hooks::bulk_commit(me()); }

void bulk_wait(unsigned pending, bool read) {
    unsigned done = hooks::bulk_done(me(), pending);
    for (size_t i = 0; i < worker->landings.size();) {
        Landing* l = worker->landings[i];
        if (l->barrier || l->issuer != me() || l->group >= done) {
            i++;
            continue;
        }
        worker->landings.erase(worker->landings.begin() + (long)i);
        land(l);
    }
    hooks::bulk_waited(me(), done, read);
}

void cp_async(unsigned to, const void* from, unsigned bytes, unsigned valid) {
    hooks::cp_async(memory_at(own(to, MLC_SITE), MLC_SITE), from, bytes, valid, MLC_SITE);
}
void cp_async_commit() { me()->check.copy_group++; }
void cp_async_wait(unsigned pending) { hooks::cp_async_wait(me(), pending); }
void cp_async_mbarrier_arrive(unsigned barrier) {
    unsigned site = MLC_SITE;
    MBarrier* m = find_mbarrier(own(barrier, site), site);
    me()->check.copy_group++;
    hooks::cp_async_wait(me(), 0);
    arrive(m, 1, site);
}

#else  // copies land as they are issued

bool land_one() { return false; }
void async_load(const Piece* pieces, unsigned count, unsigned barrier, unsigned bytes) {
    move_pieces(pieces, count, nullptr);
    complete_copy(find_mbarrier(barrier, MLC_SITE), bytes);
}
void store_async(unsigned to, const void* from, unsigned bytes, unsigned barrier) {
    memcpy(memory_at(to, MLC_SITE), from, bytes);
    complete_copy(find_mbarrier(barrier, MLC_SITE), bytes);
}
void async_store(const Piece* pieces, unsigned count, Apply* apply) { move_pieces(pieces, count, apply); }
void bulk_commit() {}
void bulk_wait(unsigned, bool) {}
void cp_async(unsigned at, const void* from, unsigned bytes, unsigned valid) {
    char* const to = memory_at(own(at, MLC_SITE), MLC_SITE);
    memcpy(to, from, valid);
    memset(to + valid, 0, bytes - valid);
}
void cp_async_commit() {}
void cp_async_wait(unsigned) {}
void cp_async_mbarrier_arrive(unsigned barrier) { mbarrier_arrive(barrier); }
void fence_mbarrier_init() {}
void fence_proxy_async(bool) {}
void wgmma_fence() {}
void wgmma_commit() {}
void wgmma_wait(unsigned) {}
void wgmma_idle() {}

#endif

}  // namespace mlc::emu
