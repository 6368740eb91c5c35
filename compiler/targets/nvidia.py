"""NVIDIA targets: features and limits by compute capability, and the rows of `instructions.py` that they allow.

Features are those that ptxas 13.0 accepts for each architecture, limits those of the CUDA C++ Programming Guide 13,
"Compute capabilities".
"""

from __future__ import annotations

from compiler.targets import instructions
from compiler.targets.instructions import WARP
from compiler.targets.target import Target

KiB, MiB = 1024, 1024 * 1024

# What each capability adds to those before it; the suffix `a` is for what later ones need not keep.
_FEATURES = {
    80: ("mma.sync", "ldmatrix", "cp.async", "bf16", "tf32", "mma.f64"),
    89: ("mma.f8",),
    90: ("tma", "cluster", "mbarrier", "stmatrix", "pdl", "red.vector", "mma.f64.wide"),
}
_SPECIFIC = {90: ("wgmma", "setmaxnreg"), 120: ("setmaxnreg",)}
# For each capability and those after it: KiB of shared memory that a block may have and of the L1 that it is cut from;
# threads and blocks that a multiprocessor holds.
_LIMITS = {
    80: (163, 192, 2048, 32),
    86: (99, 128, 1536, 16),
    87: (163, 192, 1536, 16),
    89: (99, 128, 1536, 24),
    90: (227, 256, 2048, 32),
    120: (99, 128, 1536, 24),
}
_REGISTERS = 65536
# Multiply-adds that a multiprocessor does in a clock, for each capability and those after it: the first word says by
# which unit ("fma" is the ordinary one), the second the type. From NVIDIA's white papers on GA100, GA102, AD102, GH100
# and GB202; what mma.sync reaches of the tensor cores that wgmma fills is 60 to 65 % on an H100 (Luo et al. 2024,
# arXiv:2402.13499).
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


# Of blocks that fill a multiprocessor each, how many clusters of each size an H200 runs at once: what
# cuOccupancyMaxActiveClusters says there. They do not cross the borders of its processing clusters, whose
# multiprocessors are not all in use.
_CLUSTERS = {90: {2: 66, 4: 30, 8: 15}}
# What is taken to hold for every capability until it is measured there, in clocks of 1755 MHz and bytes a clock for
# each multiprocessor: fitted to times of an H200 as `mlcomp tune --fit` does it (`reports/search/tables`, 27 kernels of
# `reports/search/later`, and 40 races of two schedules), as are those below. Of kernels that no fit had seen then, the
# rank correlation was 0.90 in contractions, 0.93 in convolutions, 0.87 in rows and 0.66 element by element.
_ASSUMED = {
    # Products by single warps, which copy what they multiply.
    "sync.latency": 218.0,  # until a tile that was asked for is there, beside what hides that
    "sync.l2": 36.5, "sync.dram": 17.7, "sync.shared": 137.0,  # bytes from either memory, and from shared memory
    "sync.lanes": 128.0,  # scalar operations
    "sync.reached": 0.835,  # of the multiply-adds that there could be
    "sync.halves": 10.3,  # scalar operations to make two numbers of tf32 of one of f32
    "sync.alone": 0.168,  # of what a block does in a step, what does not overlap where it is alone
    "sync.piece": 17.8,  # a thread asks for a piece of a tile: its address, its guard, and the copy
    "sync.step": 47.4,  # a step of the pipeline that no other work covers: its barrier and its addresses
    "sync.start": 1440.0,  # until the first block computes, and after the last one
    "sync.cluster": 964.0, "sync.ticket": 3910.0,  # parts are passed on in a cluster, or through memory of all blocks
    # What any threads do with a tile at its end, for each element: store it, or join it with another that is loaded,
    # along the result's rows or not; of tiles beyond the result's edge, whose elements are guarded one by one, and
    # those of which parts are added up.
    "store": 28.5, "store.edge": 36.3, "join": 40.1, "join.down": 33.5,
    "join.edge": 133.0, "join.down.edge": 173.0, "sum.edge": 211.0, "sum.join.edge": 350.0,
    "sector": 2.9,  # one of which a warp stores a part only
    "boxes": 481.0,  # more that a block alone on its multiprocessor takes to begin and end, where tiles are boxes
    "launch": 1770.0,  # a second launch
    # Exponents with which what takes nearly as long as the longest adds to it: of products, of those of numbers that
    # are split into two, of those by single warps, and of threads that go over memory.
    "close": 2.6, "close.split": 2.8, "sync.close": 0.924, "threads.close": 1.0,
    # Threads that go over memory: blocks that come in a clock; bytes that memory, L2 and the nearest cache give.
    "blocks": 0.894, "stream": 20.1, "stream.near": 32.8, "nearest": 102.0,
    "begin": 1410.0, "wait": 150.0, "near": 46.9,  # a kernel; what a thread waits for memory, and for what a cache has
    "next": 0.674, "next.kept": 0.392,  # of that for each further turn; of turns that are unrolled
    "warp": 4.15, "serial": 2.0,  # a warp to begin with; its instruction, which those after it wait for
    "barrier": 11.5, "tree": 1.2,  # a warp that combines something with others of its block, and each time that it does
    "level": 12.3, "across": 237.0,  # a level of a tree of threads; all warps of 1024 threads
    # Rows that go across memory, in parts or in order: until what was asked for together is there; a level of a tree.
    "turn": 800.0, "exchange": 30.0,
    "vote": 160.0, "vote.issue": 8.0,  # a warp's test of 32 elements: until it is done, and to issue it
    "vote.voted": 120.0, "vote.voted.issue": 12.0,  # the same of one of several at once, which note what they find
    "update.voted": 400.0,  # an update of those noted, of elements other than the one before
    "update": 1200.0,  # an element of memory that is loaded, changed and stored, each after the one before
    # Products by matrices of small integers that are widened on the way to registers, fitted to 292 times of 18 of them
    # of 1, 4 and 16 rows: within 10 % (rms of the logarithm), what is chosen 2 % slower than the best. Instructions of
    # a warp for an element of a matrix of bytes or of halves, and of the other factor; what it might issue while it
    # waits for each other warp of its block; clocks of an instruction in a warp alone, and how many warps issue in one.
    "widened.bytes": 0.098, "widened.halves": 0.084, "widened.other": 0.034, "widened.meeting": 1.7,
    "widened.alone": 1.73, "widened.together": 2.27,
    "widened.step": 157.0, "widened.latency": 1635.0,  # a step beside; until what was asked for is there
    "widened.wave": 2656.0, "widened.cluster": 2461.0,  # a wave of blocks; parts are passed on in a cluster
}  # fmt: skip
# Products by groups of warps, whose copies have warps of their own.
_COSTS = {
    90: {
        "reached": 1.0, "reached.split": 0.779,  # of the multiply-adds; the latter of numbers split into two
        "beside": 53.0, "beside.split": 46.4,  # a group of warps between the products of two steps
        "prepare": 619.0, "prepare.column": 1.8,  # the warps that split the columns of a tile
        # Bytes of tiles, and of those of blocks that make parts of a sum, as 30 kernels of an H100 have it whose sizes
        # are mostly no multiples of tiles; of memory; until a tile is there.
        "l2": 62.0, "l2.split": 67.7, "l2.parts": 50.0, "dram": 15.4, "latency": 1230.0,
        "start": 969.0, "fill": 1200.0, "fill.split": 1800.0,  # a kernel; a wave of blocks before pipelines are full
        # What a step takes longer where blocks share a multiprocessor; an element more of a tile stored in boxes
        # of 64 or 32 bytes, and for each that its thread stores: from times of 90 products in bf16 on an H100.
        "together": 1.35, "store.64": 6.0, "store.32": 32.0, "store.more": 0.2,
        "cluster": 844.0, "cluster.byte": 0.0761,  # the exchange of parts, and each byte of a block's tile
        # Boxes of pixels whose sums are made in parts: what L2 gives all multiprocessors, and their exchange.
        "l2.boxes": 34.8, "ticket.boxes": 13000.0,
        "ticket": 2950.0, "store.byte": 0.131, "sum.byte": 0.0184,  # the same through memory of all blocks
    },
}  # fmt: skip


def features(number: int, specific: bool) -> tuple[str, ...]:
    """What a compute capability has; `specific` for the targets whose name ends in `a`."""
    has = [f for since, some in _FEATURES.items() if since <= number for f in some]
    return (*has, *(_SPECIFIC.get(number, ()) if specific else ()))


def target(name: str, *, cores: int, l2: int) -> Target:
    """The target `sm_90a`, or any `sm_NN` with an optional `a`, of so many multiprocessors and bytes of L2."""
    number, specific = int(name.removeprefix("sm_").removesuffix("a")), name.endswith("a")
    has = features(number, specific)
    shared, l1, threads, blocks = next(v for since, v in reversed(_LIMITS.items()) if since <= number)
    rates = tuple(next(v for since, v in reversed(_RATES.items()) if since <= number).items())
    rows = tuple(r for r in instructions.TENSOR if r.needs in has)
    transfers = tuple(t for t in instructions.TRANSFERS if t.needs in has)
    fragments = tuple(f for f in instructions.FRAGMENTS if f.needs in has)
    clusters, costs = tuple(_CLUSTERS.get(number, {}).items()), tuple((_ASSUMED | _COSTS.get(number, {})).items())
    return Target(name, "cuda", has, 0, cores, l1 * KiB, l2, 0, rows, transfers, WARP, shared * KiB, fragments,
                  threads, blocks, _REGISTERS, rates, clusters, costs)  # fmt: skip


def strict(full: Target) -> Target:
    """The same target without instructions that round numbers of f32: products of f32 are sums of its own products."""
    rows = tuple(r for r in full.instructions if not r.fraction)
    return full.replace(features=tuple(f for f in full.features if f != "tf32"), instructions=rows)


SM_80 = target("sm_80", cores=108, l2=40 * MiB)  # A100
SM_86 = target("sm_86", cores=84, l2=6 * MiB)  # A40, RTX A6000
SM_89 = target("sm_89", cores=142, l2=96 * MiB)  # L40S
SM_90A = target("sm_90a", cores=132, l2=50 * MiB)  # H100; an H200 has 60 MiB of L2
SM_120 = target("sm_120", cores=170, l2=96 * MiB)  # RTX 5090
TARGETS = (SM_80, SM_86, SM_89, SM_90A, SM_120)
