// Check mode: happens-before by vector clocks, with one clock per thread.
//
// A view has, for every thread of the cluster and every asynchronous agent (copy engine, wgmma of a warpgroup, bulk
// stores of a thread), the clocks up to which its accesses are known: `seen` for ordinary accesses by the view's owner,
// `proxy` (shared memory) and `proxy_global` for agents that read on its behalf, which see ordinary writes only across a
// fence.proxy.async (PTX 8.7, "proxy-preserved base causality order"). Views are copy-on-write; most threads of a warp
// share one.
#pragma once
#include <cstdlib>
#include <map>
#include <memory>
#include <unordered_map>

#include "hooks.h"

namespace mlc::emu {

struct View {
    unsigned refs;
    unsigned* seen;
    unsigned* proxy;
    unsigned* proxy_global;
};

constexpr size_t CLOCKS = 3 * sizeof(unsigned);  // bytes of a view for each thread and agent
static unsigned view_size;                 // a multiple of 8
static std::vector<View*> views, free_views;  // of this cluster
static View* nothing;                      // the initial view of a thread

static View* new_view() {
    if (free_views.empty()) {
        View* v = (View*)aligned_alloc(64, (sizeof(View) + 63) / 64 * 64 + view_size * CLOCKS);
        v->seen = (unsigned*)((char*)v + (sizeof(View) + 63) / 64 * 64);
        v->proxy = v->seen + view_size;
        v->proxy_global = v->proxy + view_size;
        views.push_back(v);
        free_views.push_back(v);
    }
    View* v = free_views.back();
    free_views.pop_back();
    v->refs = 1;
    return v;
}
static View* keep(View* v) {
    v->refs++;
    return v;
}
static void drop(View* v) {
    if (v && --v->refs == 0) free_views.push_back(v);
}
static void set(View*& to, View* v) {  // takes over v's reference
    drop(to);
    to = v;
}
static View* copy(const View* v) {
    View* c = new_view();
    memcpy(c->seen, v->seen, view_size * CLOCKS);
    return c;
}
static void raise(unsigned* to, const unsigned* from, unsigned n) {
    for (unsigned i = 0; i < n; i++) to[i] = to[i] < from[i] ? from[i] : to[i];
}
static void raise(View* to, const View* from) { raise(to->seen, from->seen, 3 * view_size); }

// All views of the last cluster are dead; every holder gets a new one.
static void reset_views(unsigned size) {
    if (size != view_size) {
        for (View* v : views) free(v);
        views.clear();
        view_size = size;
    }
    free_views = views;
    nothing = new_view();
    memset(nothing->seen, 0, view_size * CLOCKS);
}

// The union of two views, memoized: the threads of a warp request the same one in turn.
static View *union_a, *union_b, *union_is;
static View* joined(View* a, View* b) {
    if (a == b || b == nothing) return keep(a);
    if (a == nothing) return keep(b);
    if (a == union_a && b == union_b) return keep(union_is);
    View* v = copy(a);
    raise(v, b);
    drop(union_a), drop(union_b), drop(union_is);
    union_a = keep(a), union_b = keep(b), union_is = keep(v);
    return v;
}

// A view with one clock raised, memoized too.
static View *raised_from, *raised_is;
static unsigned raised_id, raised_clock;
static View* with_clock(View* v, unsigned id, unsigned clock) {
    if (v->seen[id] >= clock) return keep(v);
    if (v == raised_from && id == raised_id && clock == raised_clock) return keep(raised_is);
    View* r = copy(v);
    r->seen[id] = r->proxy[id] = r->proxy_global[id] = clock;
    drop(raised_from), drop(raised_is);
    raised_from = keep(v), raised_is = keep(r), raised_id = id, raised_clock = clock;
    return r;
}

static void forget_unions() { union_a = union_b = union_is = raised_from = raised_is = nullptr; }

// ---- Knowledge of other clusters, by way of atomics and fences ---------------------------------------------------------

typedef std::shared_ptr<const std::vector<unsigned>> Snapshot;
typedef std::map<unsigned, Snapshot> Snapshots;  // by cluster

static void merge(std::shared_ptr<const Snapshots>& to, const std::shared_ptr<const Snapshots>& from) {
    if (!from || from == to) return;
    if (!to) {
        to = from;
        return;
    }
    auto all = std::make_shared<Snapshots>(*to);
    for (const auto& [cluster, snapshot] : *from) {
        Snapshot& mine = (*all)[cluster];
        if (!mine) {
            mine = snapshot;
        } else if (mine != snapshot) {
            auto both = std::make_shared<std::vector<unsigned>>(*mine);
            raise(both->data(), snapshot->data(), view_size);
            mine = both;
        }
    }
    to = all;
}

static std::unordered_map<uintptr_t, std::shared_ptr<const Snapshots>> atomics;  // what was released at an address

static View* with_self(Fiber* f) {
    View* v = copy(f->check.view);
    v->seen[f->check.id] = f->check.now;
    return v;
}

static void take_in(Fiber* f) {  // acquire what relaxed atomics have read
    Checked& c = f->check;
    if (!c.acquired) return;
    auto own = c.acquired->find(worker->serial);
    if (own != c.acquired->end()) {
        View* v = copy(c.view);
        raise(v->seen, own->second->data(), view_size);
        set(c.view, v);
    }
    merge(c.foreign, c.acquired);
    c.acquired = nullptr;
}
static void prepare_release(Fiber* f) {
    Checked& c = f->check;
    if (c.fenced) drop(c.fenced);
    c.fenced = with_self(f);
    c.fenced_foreign = c.foreign;
    c.now++;
}
void fence() {
    take_in(me());
    prepare_release(me());
    me()->check.flag_next = true;
}
static void order_atomic(const void* p, bool writes, Order order) {
    Fiber* f = me();
    Checked& c = f->check;
    auto at = atomics.find((uintptr_t)p);
    if (at != atomics.end()) merge(c.acquired, at->second);
    if (order & ACQUIRE) take_in(f);
    if (!writes) return;
    if (order & RELEASE) prepare_release(f);
    if (!c.fenced) return;
    std::shared_ptr<const Snapshots>& here = atomics[(uintptr_t)p];
    auto own = std::make_shared<Snapshots>();
    (*own)[worker->serial] = std::make_shared<std::vector<unsigned>>(c.fenced->seen, c.fenced->seen + view_size);
    merge(here, own);
    merge(here, c.fenced_foreign);
}

// ---- Barriers --------------------------------------------------------------------------------------------------------

namespace hooks {

static void join_fibers(Fiber* first, unsigned count, unsigned lanes) {
    View *all = nullptr, *last = nullptr;
    Elsewhere foreign;
    unsigned latest = 0;
    for (unsigned i = 0; i < count; i++) {
        Fiber* f = first + i;
        if (f->done || !(lanes >> (i & 31) & 1)) continue;
        if (!all)
            all = copy(f->check.view);
        else if (f->check.view != last)
            raise(all, f->check.view);
        last = f->check.view;
        merge(foreign, f->check.foreign);
    }
    for (unsigned i = 0; i < count; i++) {
        Fiber* f = first + i;
        if (f->done || !(lanes >> (i & 31) & 1)) continue;
        all->seen[f->check.id] = f->check.now;
        if (f->check.now > latest) latest = f->check.now;
    }
    for (unsigned i = 0; i < count; i++) {
        Fiber* f = first + i;
        if (f->done || !(lanes >> (i & 31) & 1)) continue;
        set(f->check.view, keep(all));
        f->check.foreign = foreign;
        f->check.now = latest + 1;  // in step, so that the reads of a warp share an entry
    }
    drop(all);
}
void join_block(Block* b) { join_fibers(b->fibers, worker->threads, ~0u); }
void join_warp(Warp* w, unsigned lanes) {
    unsigned left = worker->threads - w->fibers->linear;
    join_fibers(w->fibers, left < 32 ? left : 32, lanes);
}

void release(Fiber* f, Sync& to) {
    if (!to.view) {
        to.view = copy(f->check.view);
    } else {
        if (to.view->refs > 1) {
            View* own = copy(to.view);
            set(to.view, own);
        }
        if (to.last != f->check.view) raise(to.view, f->check.view);
    }
    if (to.last != f->check.view) set(to.last, keep(f->check.view));
    merge(to.foreign, f->check.foreign);
    to.view->seen[f->check.id] = f->check.now++;
}
void acquire(Fiber* f, Sync& from) {
    if (from.view && from.view != f->check.view) set(f->check.view, joined(f->check.view, from.view));
    merge(f->check.foreign, from.foreign);
}
void move(Sync& from, Sync& to) {
    if (from.view) set(to.view, to.view ? joined(to.view, from.view) : keep(from.view));
    merge(to.foreign, from.foreign);
    if (from.view) drop(from.view);
    if (from.last) drop(from.last);
    from = Sync();
}
void forget(Sync& sync) { sync = Sync(); }

}  // namespace hooks
}  // namespace mlc::emu
