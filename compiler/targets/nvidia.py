"""NVIDIA targets: features and limits by compute capability, and the rows of `instructions.py` that they allow.

Features are those that ptxas 13.0 accepts for each architecture; limits are those of the CUDA C++ Programming Guide 13,
"Compute capabilities".
"""

from __future__ import annotations

from compiler.targets import instructions
from compiler.targets.instructions import WARP
from compiler.targets.target import Target

KiB, MiB = 1024, 1024 * 1024

# Features that each capability adds; those with suffix `a` need not exist in later ones.
_FEATURES = {
    80: ("mma.sync", "ldmatrix", "cp.async", "bf16", "tf32", "mma.f64"),
    89: ("mma.f8",),
    90: ("tma", "cluster", "mbarrier", "stmatrix", "pdl", "red.vector", "mma.f64.wide"),
}
_ARCHITECTURE_FEATURES = {90: ("wgmma", "setmaxnreg"), 120: ("setmaxnreg",)}
# From each capability on: KiB of shared memory per block, and of the L1 that it is part of; threads and blocks per
# multiprocessor.
_LIMITS = {
    80: (163, 192, 2048, 32),
    86: (99, 128, 1536, 16),
    87: (163, 192, 1536, 16),
    89: (99, 128, 1536, 24),
    90: (227, 256, 2048, 32),
    120: (99, 128, 1536, 24),
}
_REGISTERS = 65536
# Multiply-adds per clock of a multiprocessor, from each capability on, by unit ("fma" is the ordinary one) and type.
# From NVIDIA's white papers on GA100, GA102, AD102, GH100 and GB202; mma.sync reaches 60 to 65 % of the tensor cores'
# rate with wgmma on an H100 (Luo et al. 2024, arXiv:2402.13499).
_RATES = {
    80: {"mma.bf16": 1024, "mma.f16": 1024, "mma.tf32": 512, "mma.f64": 64, "fma.f32": 64, "fma.f64": 32},
    86: {"mma.bf16": 512, "mma.f16": 512, "mma.tf32": 256, "mma.f64": 2, "fma.f32": 128, "fma.f64": 2},
    89: {"mma.bf16": 512, "mma.f16": 512, "mma.tf32": 256, "mma.f8e4m3": 1024, "mma.f8e5m2": 1024,
         "mma.f64": 2, "fma.f32": 128, "fma.f64": 2},
    90: {"wgmma.bf16": 2048, "wgmma.f16": 2048, "wgmma.tf32": 1024, "wgmma.f8e4m3": 4096,
         "wgmma.f8e5m2": 4096, "mma.bf16": 1280, "mma.f16": 1280, "mma.tf32": 640, "mma.f8e4m3": 1280,
         "mma.f8e5m2": 1280, "mma.f64": 128, "fma.f32": 128, "fma.f64": 64},
    120: {"mma.bf16": 512, "mma.f16": 512, "mma.tf32": 256, "mma.f8e4m3": 1024, "mma.f8e5m2": 1024,
          "mma.f64": 2, "fma.f32": 128, "fma.f64": 2},
}  # fmt: skip


# Clusters of each size that an H200 runs at once if each block fills a multiprocessor, by cuOccupancyMaxActiveClusters.
# Clusters do not cross the borders of graphics processing clusters, whose multiprocessors are not all in use.
_CLUSTERS = {90: {2: 66, 4: 30, 8: 15}}
# Costs assumed for every capability until measured there, in clocks at 1755 MHz and bytes per clock and multiprocessor.
# These and those below were fitted to times of an H200 with `mlcomp tune --fit` (`reports/search/tables`, 27 kernels of
# `reports/search/later`, and 40 races of two schedules). On kernels that no fit had seen, the rank correlation was 0.90
# for contractions, 0.93 for convolutions, 0.87 for rows and 0.66 for pointwise kernels.
_DEFAULT_COSTS = {
    # Matmuls by single warps, which copy their own operands.
    "sync.latency": 218.0,  # until a requested tile arrives, if nothing hides it
    "sync.l2": 36.5, "sync.dram": 17.7, "sync.shared": 137.0,  # bytes from L2, from memory, and from shared memory
    "sync.lanes": 128.0,  # scalar operations
    "sync.reached": 0.835,  # fraction of the peak multiply-adds
    "sync.halves": 10.3,  # scalar operations to split an f32 number into two of tf32
    "sync.alone": 0.168,  # fraction of a block's work per step that does not overlap if the block is alone
    "sync.piece": 17.8,  # a thread's request for a piece of a tile: address, guard and copy
    "sync.step": 47.4,  # per pipeline step, not covered by other work: barrier and addresses
    "sync.start": 1440.0,  # until the first block computes, and after the last one
    "sync.cluster": 964.0, "sync.ticket": 3910.0,  # exchange of parts in a cluster, or through global memory
    # A thread's epilogue per element: store it, or join it with a loaded operand, with the result contiguous across or
    # down; beyond the result's edge, where elements are predicated one by one; and sums of parts there.
    "store": 28.5, "store.edge": 36.3, "join": 40.1, "join.down": 33.5,
    "join.edge": 133.0, "join.down.edge": 173.0, "sum.edge": 211.0, "sum.join.edge": 350.0,
    "sector": 2.9,  # a memory sector that a warp stores only partly
    "boxes": 481.0,  # extra start and end of a block alone on its multiprocessor, if tiles are boxes
    "launch": 1770.0,  # a second launch
    # Exponents of smooth maxima: of matmuls, of matmuls of split numbers, of matmuls by single warps, and of kernels
    # without matmuls.
    "close": 2.6, "close.split": 2.8, "sync.close": 0.924, "threads.close": 1.0,
    # Kernels without matmuls: blocks launched per clock; bytes from memory, L2 and the nearest cache.
    "blocks": 0.894, "stream": 20.1, "stream.near": 32.8, "nearest": 102.0,
    "begin": 1410.0, "wait": 150.0, "near": 46.9,  # a kernel; latency of memory, and of a cache
    "next": 0.674, "next.kept": 0.392,  # fraction of that per further iteration; for unrolled iterations
    "warp": 4.15, "serial": 2.0,  # start of a warp; latency of an instruction that the next one waits for
    "barrier": 11.5, "tree": 1.2,  # per warp of a block that reduces, and per reduction
    "level": 12.3, "across": 237.0,  # a level of a tree of threads; all warps of 1024 threads
    # Rows across memory, in parts or in order: latency of a group of loads; a level of a tree.
    "turn": 800.0, "exchange": 30.0,
    # Columns that warps share: a warp's iteration of a reduction, and of a loop that stores; a warp's part of a result.
    # Fitted to 15 softmaxes and logsumexps of 64 to 1024 rows by 256 to 8192 columns: the choice is always the best.
    "column.turn": 42.0, "column.store": 354.0, "column.merge": 66.0,
    "vote": 160.0, "vote.issue": 8.0,  # a warp's test of 32 elements: latency, and issue
    # the same for one of several tests at once, which record what they find
    "vote.voted": 120.0, "vote.voted.issue": 12.0,
    "update.voted": 400.0,  # a recorded update, of another element than the one before
    "update": 1200.0,  # load, change and store of an element, each after the previous one
    # Matmuls by matrices of small integers that are widened on the way to registers, fitted to 292 times of 18 of them
    # with 1, 4 and 16 rows: within 10 % (rms of the logarithm); the choice is 2 % slower than the best. Instructions of
    # a warp per element of a matrix of bytes or of half bytes, and of the other factor; instructions lost waiting for
    # each other warp of the block; clocks per instruction of a single warp, and how many warps issue in one clock.
    "widened.bytes": 0.098, "widened.halves": 0.084, "widened.other": 0.034, "widened.meeting": 1.7,
    "widened.alone": 1.73, "widened.together": 2.27,
    "widened.step": 157.0, "widened.latency": 1635.0,  # per step; until requested data arrives
    "widened.wave": 2656.0, "widened.cluster": 2461.0,  # a wave of blocks; exchange of parts in a cluster
}  # fmt: skip
# Matmuls by warpgroups with producer warps.
_COSTS = {
    90: {
        "reached": 1.0, "reached.split": 0.779,  # fraction of the peak multiply-adds; the latter for split numbers
        "beside": 41.6, "beside.split": 46.4,  # a warpgroup between the matmuls of two steps
        "prepare": 619.0, "prepare.column": 1.8,  # the warps that split the columns of a tile
        # The costs of 16-bit matmuls were fitted to 2,278 times of 44 of them on an H200 and an H100; few have sizes
        # that are multiples of tiles. Those of L2 and of shared copies were fitted to 2,310 times of 31 of them and 13
        # of the others on an H200: the schedule with the least estimate takes 1.049 and 1.064 of the best one's time.
        # Bytes per clock of tiles, also for split numbers and for blocks of a split reduction; of all multiprocessors
        # together, each; the part of a further request that counts if rows begin between two cache lines, and how much
        # more if they begin between two sectors; bytes of memory; latency of a tile; exponents of the smooth maxima of
        # a step, and of a kernel and its bytes from L2.
        "l2": 107.0, "l2.split": 67.7, "l2.parts": 80.0, "l2.all": 71.7, "l2.line": 0.88, "l2.sector": 1.7,
        "dram": 13.7, "latency": 1550.0, "close": 3.94, "close.all": 2.7,
        # A kernel whose blocks share copies, and a step of it.
        "share": 1800.0, "share.step": 62.0,
        # a kernel; a wave of blocks before its pipelines are full
        "start": 1230.0, "fill": 1210.0, "fill.split": 1800.0,
        "store": 23.5, "store.edge": 37.4, "join": 40.0, "join.down": 30.3,
        # Slowdown of a step if blocks share a multiprocessor; per element of a tile stored in boxes of 64 or 32 bytes,
        # and growth with a thread's elements.
        "together": 1.01, "store.64": 6.0, "store.32": 32.0, "store.more": 0.137,
        "cluster": 722.0, "cluster.byte": 0.0989,  # the exchange of parts, and per byte of a block's tile
        # Boxes of pixels with split reductions: bytes per clock from L2, and the exchange of parts.
        "l2.boxes": 34.8, "ticket.boxes": 13000.0,
        "ticket": 2950.0, "store.byte": 0.131, "sum.byte": 0.0184,  # the exchange of parts through global memory
    },
}  # fmt: skip


def features(number: int, specific: bool) -> tuple[str, ...]:
    """The features of a compute capability; `specific` for targets whose name ends in `a`."""
    added = [f for first, names in _FEATURES.items() if first <= number for f in names]
    return (*added, *(_ARCHITECTURE_FEATURES.get(number, ()) if specific else ()))


def target(name: str, *, cores: int, l2: int) -> Target:
    """The target `sm_90a`, or any `sm_NN` with an optional `a`, with this number of multiprocessors and bytes of L2."""
    number, specific = int(name.removeprefix("sm_").removesuffix("a")), name.endswith("a")
    supported = features(number, specific)
    shared, l1, threads, blocks = next(v for since, v in reversed(_LIMITS.items()) if since <= number)
    rates = tuple(next(v for since, v in reversed(_RATES.items()) if since <= number).items())
    rows = tuple(r for r in instructions.TENSOR if r.needs in supported)
    transfers = tuple(t for t in instructions.TRANSFERS if t.needs in supported)
    fragments = tuple(f for f in instructions.FRAGMENTS if f.needs in supported)
    clusters, costs = tuple(_CLUSTERS.get(number, {}).items()), tuple((_DEFAULT_COSTS | _COSTS.get(number, {})).items())
    return Target(name, "cuda", supported, 0, cores, l1 * KiB, l2, 0, rows, transfers, WARP, shared * KiB, fragments,
                  threads, blocks, _REGISTERS, rates, clusters, costs)  # fmt: skip


def strict(full: Target) -> Target:
    """The target without instructions that round f32 operands: f32 matmuls then use plain f32 arithmetic."""
    rows = tuple(r for r in full.instructions if not r.fraction)
    return full.replace(features=tuple(f for f in full.features if f != "tf32"), instructions=rows)


SM_80 = target("sm_80", cores=108, l2=40 * MiB)  # A100
SM_86 = target("sm_86", cores=84, l2=6 * MiB)  # A40, RTX A6000
SM_89 = target("sm_89", cores=142, l2=96 * MiB)  # L40S
SM_90A = target("sm_90a", cores=132, l2=50 * MiB)  # H100; an H200 has 60 MiB of L2
SM_120 = target("sm_120", cores=170, l2=96 * MiB)  # RTX 5090
TARGETS = (SM_80, SM_86, SM_89, SM_90A, SM_120)
