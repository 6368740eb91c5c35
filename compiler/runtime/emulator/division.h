// Integer divisions that trap on the CPU, as findings: by 0, and the least value by -1; a GPU gives arbitrary results.
#pragma once
#include <dlfcn.h>
#include <signal.h>
#include <ucontext.h>

#include "fibers.h"

namespace mlc::emu {

static struct sigaction before_launch;
static const char* const REFUSED = "of integers, or a quotient that their type does not hold";

// Never returns to the kernel: its fiber is abandoned, as after any other finding that ends the launch.
static void refused_division(int, siginfo_t*, void* context) {
    uintptr_t at = (uintptr_t)((ucontext_t*)context)->uc_mcontext.gregs[REG_RIP];
    Dl_info where;
    if (worker && self && dladdr((void*)at, &where) && (uintptr_t)where.dli_fbase == image)
        fatal("division by zero", (unsigned)(at + 1 - image), REFUSED);
    sigaction(SIGFPE, &before_launch, nullptr);  // not a kernel's: the same again, for whoever handled it before
}

static void catch_divisions() {
    struct sigaction ours = {};
    ours.sa_sigaction = refused_division;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler is left by a switch of stacks, so nothing unblocks the signal
    sigaction(SIGFPE, &ours, &before_launch);
}
static void release_divisions() { sigaction(SIGFPE, &before_launch, nullptr); }

}  // namespace mlc::emu
