"""Emulation of CUDA on the CPU: the emitted kernels, unchanged, compiled by g++ and run on a machine of fibers.

`emulator.py` builds and runs. The machine is the C++ beside it, built once for each mode: `mlc_emulator.h` is the
interface for kernels and the C++ bodies of device functions; `fibers.h`, `barriers.h`, `async.h`, `division.h` and
`launch.h` implement threads, barriers, copies, faults and blocks. A thread is a fiber. The blocks of a cluster run
together, interleaved. Kernels without synchronization run as plain loops. In check mode, `check_*.h` replace the
sanitizer's library:

- Order is happens-before by vector clocks, exact to the thread. Barriers, awaited arrivals, and atomics between fences
  order accesses; shuffles and votes do not, as CUDA documents. Copies into shared memory, matmuls of a warp and bulk
  stores are agents of their own, ordered before those that have waited for them. They see what threads have written
  only across a proxy fence (PTX ISA, memory consistency model).
- Checked: bounds, alignment, writes to inputs, reads of uninitialised memory (shared memory, outputs, temporaries),
  races within and between blocks, and leftover state at the end of a block.
- Threads, warps and landing copies are ordered forward, backward or at random by the seed; unwritten memory reads as
  NaN.

Kinds of reports: race, race between blocks, uninitialised read, out of bounds, misaligned, write to an input, division
by zero, copy in flight, missing proxy fence, bulk copy, mbarrier, wgmma, named barrier, cluster, distributed shared
memory, launch dependency, barrier divergence, divergent collective, deadlock, foreign local memory, shared memory,
misdeclared kernel, refused by a device function, time limit, out of memory.

Limits: only the path of the given inputs is checked; memory is sequentially consistent, so weak ordering shows as a
race or not at all; arithmetic is the CPU's. An access out of bounds, a write to an input, a division by zero or a
deadlock ends the launch with its report, as nothing sensible can follow.
"""
