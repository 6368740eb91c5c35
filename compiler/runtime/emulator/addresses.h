// Conversion between 32-bit shared memory addresses, as instructions take them, and host pointers.
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
static unsigned own(unsigned address, unsigned site) {
    memory_at(address, site);
    if (address >> RANK_BIT != me()->block_of->rank)
        fatal("shared address", site, "the instruction reaches its own block's memory (shared::cta), not another's");
    return address;
}
static unsigned of_block(unsigned address, unsigned rank, unsigned site) {
    if (rank >= worker->blocks) fatal("cluster", site, "no block of this rank");
    memory_at(address, site);
    return rank << RANK_BIT | (address & OFFSETS);
}
void* shared_pointer(unsigned address) { return memory_at(address, MLC_KERNEL_SITE); }
unsigned own_address(unsigned address) { return own(address, MLC_KERNEL_SITE); }
char* own_window() { return me()->block_of->window; }
unsigned cluster_address(unsigned address, unsigned rank) { return of_block(address, rank, MLC_KERNEL_SITE); }
void* cluster_map(const void* p, unsigned rank) {
    return memory_at(cluster_address(shared_address(p), rank), MLC_KERNEL_SITE);
}

}  // namespace mlc::emu
