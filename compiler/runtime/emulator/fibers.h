// Fibers of one cluster: switching, start and end.
#pragma once
#include <sys/mman.h>
#include <time.h>

#include "hooks.h"
#include "reports.h"

namespace mlc::emu {

__thread Thread* self __attribute__((tls_model("initial-exec")));
__thread Worker* worker __attribute__((tls_model("initial-exec")));
uint3 block_extent, grid_extent;
uintptr_t image;
static double deadline;

// Saves the six callee-saved registers and the stack pointer, and continues where `load` was saved. 25 ns with 256
// fibers, limited by cache misses: their stacks do not fit in L1.
extern "C" void mlc_switch(void** save, void* load);
// Calls a function of `count` (6 or more) integer arguments.
extern "C" void mlc_call(void* function, const long* words, long count);
asm(R"(
.text
.local mlc_switch
.type mlc_switch,@function
mlc_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
.local mlc_call
.type mlc_call,@function
mlc_call:
    pushq %rbp
    movq %rsp, %rbp
    movq %rdi, %r10
    movq %rsi, %r11
    leaq -6(%rdx), %rcx
    leaq 1(%rcx), %rax
    andq $-2, %rax
    shlq $3, %rax
    subq %rax, %rsp
1:  testq %rcx, %rcx
    jz 2f
    movq 40(%r11,%rcx,8), %rax
    movq %rax, -8(%rsp,%rcx,8)
    decq %rcx
    jmp 1b
2:  movq (%r11), %rdi
    movq 8(%r11), %rsi
    movq 16(%r11), %rdx
    movq 24(%r11), %rcx
    movq 32(%r11), %r8
    movq 40(%r11), %r9
    call *%r10
    leave
    ret
)");

static double now_seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

[[noreturn]] void end_launch() {
    stopping = true;
    result->failed = 1;
    void* nowhere;
    mlc_switch(&nowhere, worker->home);
    __builtin_unreachable();
}

static void look_at_clock(unsigned site) {
    if (now_seconds() > deadline) fatal("time limit", site, "the launch did not end in the time it was given");
    if (stopping) end_launch();
}

void wake(FiberList& waiters) {
    worker->progress++;
    if (random_order() && waiters.head != waiters.tail) {
        std::vector<Fiber*>& all = worker->shuffled;
        all.clear();
        while (Fiber* f = waiters.pop()) all.push_back(f);
        for (unsigned i = (unsigned)all.size(); i > 0; i--) {
            unsigned j = random_below(i);
            worker->ready.push(all[j]);
            all[j] = all[i - 1];
        }
        return;
    }
    worker->ready.append(waiters);
}

static void say_deadlock() {
    unsigned said = 0;
    for (unsigned i = 0; i < worker->threads * worker->blocks && said < 8; i++) {
        Fiber* f = &worker->fibers[i];
        if (f->done || !f->waits) continue;
        bool known = false;
        for (unsigned j = 0; j < i && !known; j++)
            known = !worker->fibers[j].done && worker->fibers[j].waits == f->waits &&
                    worker->fibers[j].waits_site == f->waits_site;
        if (known) continue;
        self = f;
        char note[160];
        describe_wait(f, note, sizeof note);
        report("deadlock", f->waits_site, note);
        said++;
    }
    end_launch();
}

static void run_next() {
    Worker* w = worker;
    if (!w->landings.empty() && (w->request->seed == 1 || (random_order() && random_below(4) == 0))) land_one();
    Fiber* next = w->ready.pop();
    while (!next) {
        if (!land_one()) say_deadlock();
        next = w->ready.pop();
    }
    if (Fiber* after = next->next) {
        char* sp = (char*)after->sp;
        __builtin_prefetch(sp);
        __builtin_prefetch(sp + 64);
        __builtin_prefetch(sp + 128);
        if (after->next) __builtin_prefetch(after->next);
    }
    Fiber* from = me();
    if (next == from) return;
    if ((++w->switches & 0xffff) == 0) look_at_clock(from->waits_site);
    self = next;
    mlc_switch(&from->sp, next->sp);
}

void block_fiber(const char* what, unsigned site, const void* on) {
    Fiber* f = me();
    if (worker->flat) fatal("misdeclared kernel", site, "it waits, and its launch says that it does not synchronize");
    f->waits = what;
    f->waits_site = site;
    f->waits_on = on;
    run_next();
    f->waits = nullptr;
}

// For loops that poll memory until another thread has changed it.
void yield_fiber(unsigned site) {
    Fiber* f = me();
    if (f->spins_at != worker->progress) {
        f->spins_at = worker->progress;
        f->spins = 0;
    }
    if (++f->spins > 100000) fatal("deadlock", site, "a loop waits for memory that no thread changes");
    if (worker->flat) return;
    f->waits = "a loop";
    f->waits_site = site;
    land_one();
    worker->ready.push(f);
    run_next();
    f->waits = nullptr;
}
void pause() { yield_fiber(MLC_SITE); }
void fail(const char* why, const char* kind) { fatal(kind, hooks::site_of_collective(MLC_KERNEL_SITE), why); }

unsigned thread_in_block() { return me()->linear; }
#ifdef MLC_CHECK
const Thread& this_thread() { return *self; }
uint3 thread_index() { return self->index; }
uint3 block_index() { return self->block; }
uint3 extent_of_block() { return block_extent; }
uint3 extent_of_grid() { return grid_extent; }
#endif

// ---- Beginning and end -----------------------------------------------------------------------------------------------

static void leave_block(Fiber* f);  // barriers.h

static void call_kernel() {
    const Request* r = worker->request;
    mlc_call(r->kernel, r->words, r->word_count);
}

static void fiber_main() {
    hooks::arm_kernel(true);
    call_kernel();
    Fiber* f = me();
    f->waits_site = 0;
    leave_block(f);
    f->done = true;
    worker->progress++;
    if (--worker->alive == 0) {
        hooks::arm_kernel(false);
        void* nowhere;
        mlc_switch(&nowhere, worker->home);
    }
    run_next();
}

// A kernel without synchronisation: its threads run one after the other, in one fiber.
static void flat_main() {
    Fiber* f = me();
    uint3 e = block_extent;
    hooks::arm_kernel(true);
    f->linear = 0;
    for (unsigned z = 0; z < e.z; z++)
        for (unsigned y = 0; y < e.y; y++)
            for (unsigned x = 0; x < e.x; x++) {
                f->index = {x, y, z};
                f->lane = f->linear & 31;
                hooks::flat_thread(f);
                call_kernel();
                f->linear++;
            }
    hooks::arm_kernel(false);
    void* nowhere;
    mlc_switch(&nowhere, worker->home);
}

static void prepare_stack(Fiber* f, unsigned i, void (*main)()) {
    // Offsets spread the tops of the stacks over the sets of a cache.
    char* top = worker->stacks + (size_t)(i + 1) * STACK - (i * 5 % 60) * 64 - 64;
    void** s = (void**)((uintptr_t)top & ~63ul);
    *--s = nullptr;
    *--s = (void*)main;
    for (int k = 0; k < 6; k++) *--s = nullptr;
    f->sp = s;
}

}  // namespace mlc::emu
