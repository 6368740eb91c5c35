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
    90: {"wgmma.bf16": 2048, "wgmma.f16": 2048, "wgmma.tf32": 1024, "mma.bf16": 1280, "mma.f16": 1280, "mma.tf32": 640,
         "mma.f64": 128, "fma.f32": 128, "fma.f64": 64},
    120: {"mma.bf16": 512, "mma.f16": 512, "mma.tf32": 256, "mma.f64": 2, "fma.f32": 128, "fma.f64": 2},
}  # fmt: skip


# Of blocks that fill a multiprocessor each, how many clusters of each size an H200 runs at once: what
# cuOccupancyMaxActiveClusters says there. They do not cross the borders of its processing clusters, whose
# multiprocessors are not all in use.
_CLUSTERS = {90: {2: 66, 4: 30, 8: 15}}
# What is taken to hold for every capability until it is measured, in clocks and bytes a clock for each multiprocessor.
_ASSUMED = {
    "sync.latency": 800.0,  # from the request of a tile in memory to its arrival (Luo et al. 2024, arXiv:2402.13499)
    "sync.l2": 56.0,  # bytes: what tiles of 128 x 128 need that reach 0.9 of cuBLAS on an H200
    "sync.dram": 20.0,  # bytes: 4.8 TB/s over 132 multiprocessors at 1.75 GHz
    "sync.shared": 128.0,  # bytes: 32 banks of 4
    "sync.lanes": 128.0,  # scalar operations
    "sync.reached": 0.85,  # of the multiply-adds that there could be: the best kernels there are, at the clock they run
    "sync.halves": 6.0,  # scalar operations to load an f32 number, make two of tf32 of it, and add up what they gave
    "sync.step": 60.0,  # a step of the pipeline that no other work covers: its barrier and its addresses
    "sync.start": 1500.0,  # until the first block computes and after the last one has stored
    "sync.cluster": 1000.0,  # in which the blocks of a cluster pass each other what they have
    "boxes": 2500.0,  # more that a block alone on its multiprocessor takes to begin and end, where tiles are boxes
    "exchange": 30.0,  # a level of a tree in which threads combine what they have: a shuffle (Luo et al. 2024)
    "issue": 0.5,  # a warp's access that nothing waits for
    "vote": 160.0,
    "vote.issue": 8.0,  # a warp's test of 32 elements: until it is done, and to issue it
    "update": 1200.0,  # an element of memory that is loaded, changed and stored, each after the one before
    "launch": 3000.0,  # a second launch, or blocks that pass what they have through memory of all: no more than that
}
# What products by wgmma cost beside their multiply-adds, in clocks of 1755 MHz and bytes a clock for each
# multiprocessor. Fitted to 604 times of products of f32 (as three of tf32) and bf16 on an H200, in graphs of up to 20
# launches: 32 to 512 rows, 256 to 18944 columns and squares of 512 to 4096, in tiles of 64 to 256 rows and 8 to 256
# columns, pipelines 3 to 8 deep, sums in 1 to 16 parts. The estimates are within 14 % of these times (rms of the
# logarithm), and of the tiles timed for a product those estimated best took 3 % longer than the best (geometric mean).
_COSTS = {
    90: {
        "reached": 0.97, "reached.split": 0.9,  # of the multiply-adds; the latter of numbers split into two
        "beside": 82.0, "beside.split": 310.0,  # a group of warps between the products of two steps
        "prepare": 490.0, "prepare.column": 4.9,  # the warps that split the columns of a tile
        "l2": 75.0, "dram": 14.0, "latency": 1000.0,  # bytes a clock; clocks until a tile that was asked for is there
        "start": 1310.0, "fill": 1500.0,  # a kernel; each wave of blocks before its pipelines are full
        "cluster": 2230.0, "cluster.byte": 0.076,  # the exchange of parts, and each byte of a block's tile
        "ticket": 1480.0, "store.byte": 0.18, "sum.byte": 0.021,  # the same through memory of all blocks
        "ragged": 1.8,  # times as much for tiles beyond the result's edge
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
