// Hooks by which the machine notifies check mode of events; empty in fast mode.
#pragma once
#include <cstdio>

#include "machine.h"

namespace mlc::emu {

static void describe_wait(Fiber* f, char* note, size_t room);

namespace hooks {
#ifdef MLC_CHECK
void arm_kernel(bool on);
void flat_thread(Fiber* f);
void begin_cluster();
void begin_fiber(Fiber* f);
void end_fiber(Fiber* f);
void end_cluster();
void join_block(Block* block);                  // a barrier: all threads get the union of their views
void join_warp(Warp* warp, unsigned lanes);
void release(Fiber* f, Sync& to);
void acquire(Fiber* f, Sync& from);
void move(Sync& from, Sync& to);                // what is open becomes complete
void forget(Sync& sync);
unsigned site_of_collective(unsigned site);
bool begin_collective(unsigned site, Fiber* first, unsigned lanes);
void end_collective(bool armed);
void end_of_barrier(MBarrier* barrier);
void passed_cluster_barrier(Fiber* f);
unsigned clock_of(Fiber* f);
void touch_mbarrier(void* address, unsigned site, bool initialised);
void load_issued(Landing& l, unsigned site);
void landed(Landing& l);
void store_issued(Landing& l, unsigned site);
void bulk_commit(Fiber* f);
unsigned bulk_done(Fiber* f, unsigned pending);  // groups that are complete when all but the last `pending` are
void bulk_waited(Fiber* f, unsigned groups, bool read);
void cp_async(void* to, const void* from, unsigned bytes, unsigned valid, unsigned site);
void cp_async_wait(Fiber* f, unsigned pending);
char* windows(unsigned blocks);                  // memory for the blocks' shared memory, if check mode provides it
void new_array(SharedArray* array);
void begin_launch(const Request* r);
void end_launch();
bool strict();                                  // whether errors that the hardware tolerates are findings
#else
inline void arm_kernel(bool) {}
inline void flat_thread(Fiber*) {}
inline void begin_cluster() {}
inline void begin_fiber(Fiber*) {}
inline void end_fiber(Fiber*) {}
inline void end_cluster() {}
inline void join_block(Block*) {}
inline void join_warp(Warp*, unsigned) {}
inline void release(Fiber*, Sync&) {}
inline void acquire(Fiber*, Sync&) {}
inline void move(Sync&, Sync&) {}
inline void forget(Sync&) {}
inline unsigned site_of_collective(unsigned site) { return site; }
inline bool begin_collective(unsigned, Fiber*, unsigned) { return false; }
inline void end_collective(bool) {}
inline void end_of_barrier(MBarrier*) {}
inline void passed_cluster_barrier(Fiber*) {}
inline unsigned clock_of(Fiber*) { return 0; }
inline void touch_mbarrier(void*, unsigned, bool) {}
inline char* windows(unsigned) { return nullptr; }
inline void new_array(SharedArray*) {}
inline void begin_launch(const Request*) {}
inline void end_launch() {}
inline bool strict() { return false; }
#endif
}  // namespace hooks
}  // namespace mlc::emu
