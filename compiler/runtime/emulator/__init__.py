"""CUDA text on the CPU: the emitted kernels, unchanged, compiled by g++ and run on a machine of fibers.

`emulator.py` builds and runs. The C++ beside it is the machine, built once for each mode: `mlc_emulator.h` is what
kernels and the C++ bodies of device functions see of it, `fibers.h`, `barriers.h`, `async.h`, `division.h` and
`launch.h` are how threads, barriers, copies, faults and blocks run. A thread is a fiber; the blocks of one cluster run
together, in turns; kernels that wait for nothing are plain loops. In check mode, `check_*.h` stand in for the
sanitizer's library:

- Order is happens-before by vector clocks, exact to the thread. Barriers, arrivals that are waited for, and atomics
  between fences order; shuffles and votes order nothing, as CUDA documents. Copies into shared memory, products of a
  warp and bulk stores are agents of their own, known to whoever has waited for them; they know what threads have
  written across a proxy fence only (PTX ISA, memory consistency model).
- What is looked at: bounds, alignment, writes to inputs, reads of what nobody wrote (shared memory, outputs,
  temporaries), races within and between blocks, and at the end of a block what it left behind.
- Order of threads, warps and landing copies is forward, backward or random by the seed; unwritten memory reads as NaN.

Kinds of reports: race, race between blocks, uninitialised read, out of bounds, misaligned, write to an input, division
by zero, copy in flight, missing proxy fence, bulk copy, mbarrier, wgmma, named barrier, cluster, distributed shared
memory, launch dependency, barrier divergence, divergent collective, deadlock, foreign local memory, shared memory,
misdeclared kernel, refused by a device function, time limit, out of memory.

Limits: one path of the data is seen, that of the inputs given; memory is sequentially consistent, so weak ordering
shows as a race or not at all; arithmetic is the CPU's. After an access out of bounds, a write to an input, a division
by zero or a deadlock nothing sensible can follow, and the launch ends with its report.
"""
