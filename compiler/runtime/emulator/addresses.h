// Addresses of shared memory as instructions take them, and the memory behind them.
#pragma once
#include "fibers.h"

namespace mlc::emu {

constexpr unsigned OFFSETS = (1u << RANK_BIT) - 1;

unsigned shared_address(const void* p) {
    const size_t at = (size_t)((const char*)p - worker->windows);
    if (at >= worker->blocks * WINDOW) return NO_ADDRESS;
    return (unsigned)(at / WINDOW << RANK_BIT | at % WINDOW);
}
static char* memory_at(unsigned address, unsigned site) {
    const unsigned rank = address >> RANK_BIT, offset = address & OFFSETS;
    if (rank >= worker->blocks || offset >= WINDOW) {
        char note[160];
        snprintf(note, sizeof note, "%#x is the address of no shared memory", address);
        fatal("shared address", site, note);
    }
    return worker->windows + rank * WINDOW + offset;
}
void* shared_pointer(unsigned address) { return memory_at(address, MLC_KERNEL_SITE); }
unsigned own_address(unsigned address) {
    memory_at(address, MLC_KERNEL_SITE);
    if (address >> RANK_BIT != me()->block_of->rank)
        fatal("shared address", MLC_KERNEL_SITE, "the instruction reaches its own block's memory (shared::cta), not another's");
    return address;
}
char* own_window() { return me()->block_of->window; }
unsigned cluster_address(unsigned address, unsigned rank) {
    if (rank >= worker->blocks) fatal("cluster", MLC_KERNEL_SITE, "no block of this rank");
    memory_at(address, MLC_KERNEL_SITE);
    return rank << RANK_BIT | (address & OFFSETS);
}
void* cluster_map(const void* p, unsigned rank) {
    return memory_at(cluster_address(shared_address(p), rank), MLC_KERNEL_SITE);
}

}  // namespace mlc::emu
