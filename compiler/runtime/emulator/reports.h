// Findings as values, and the counters of a launch.
#pragma once
#include <pthread.h>

#include <cstdio>

#include "machine.h"

namespace mlc::emu {

struct Report {  // read from Python
    char kind[64], note[160], buffer[48];
    int64_t offset, bytes;           // in the buffer; -1 where there is none
    uint32_t site, other_site;       // 0 where unknown
    int32_t block[3], thread, other_thread, other_block;
    uint32_t times;
};
constexpr unsigned MOST_REPORTS = 64;

struct Result {  // read from Python
    uint64_t switches, accesses;
    uint32_t failed, count;
    Report reports[MOST_REPORTS];
};
static Result* result;
static pthread_mutex_t result_lock = PTHREAD_MUTEX_INITIALIZER;
static volatile bool stopping;

static void copy_text(char* to, size_t room, const char* text) { snprintf(to, room, "%s", text); }

// One entry for each (kind, site, buffer); repetitions are counted.
static Report* find_report(const char* kind, unsigned site, const char* buffer) {
    for (unsigned i = 0; i < result->count; i++) {
        Report& r = result->reports[i];
        if (r.site == site && !strncmp(r.kind, kind, sizeof r.kind - 1) && !strncmp(r.buffer, buffer, sizeof r.buffer - 1)) {
            r.times++;
            return nullptr;
        }
    }
    if (result->count == MOST_REPORTS) return nullptr;
    Report& r = result->reports[result->count++];
    memset((void*)&r, 0, sizeof r);
    copy_text(r.kind, sizeof r.kind, kind);
    copy_text(r.buffer, sizeof r.buffer, buffer);
    r.site = site;
    r.offset = -1;
    r.other_thread = r.other_block = r.thread = -1;
    r.times = 1;
    if (Fiber* f = me()) {
        r.thread = (int)f->linear;
        r.block[0] = (int)f->block.x, r.block[1] = (int)f->block.y, r.block[2] = (int)f->block.z;
    }
    return &r;
}

void report(const char* kind, unsigned site, const char* note, unsigned other_site) {
    pthread_mutex_lock(&result_lock);
    if (Report* r = find_report(kind, site, "")) {
        copy_text(r->note, sizeof r->note, note);
        r->other_site = other_site;
    }
    pthread_mutex_unlock(&result_lock);
}

}  // namespace mlc::emu
