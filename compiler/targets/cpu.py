"""CPU targets: vectors by feature, caches by detection, blocks of fused multiply-adds as instructions."""

from __future__ import annotations

from compiler.targets.target import Instruction, Target

KiB, MiB = 1024, 1024 * 1024

# Costs of the parts of a kernel, in cycles of a core unless stated otherwise.
COSTS = {
    "latency": 4.0,  # until an accumulator can be added to again (x86 of the last ten years)
    # Instructions in flight in a core: 224 for Skylake, 320 for Zen 4, 512 for Golden Cove (the vendors' manuals).
    "flight": 320.0,
    # Cost of a load beside multiply-adds, as in a dot product; less in a panel, which has few vectors: products of
    # depth 64 to 1024 take 0.62 and 0.52 cycles per vector (Zen 5, AVX-512).
    "load": 0.3, "panel": 0.1,
    # A vector of 64 bytes stored to the last-level cache, or moved from or to memory: 50 and 20 GB/s at 4 GHz.
    "shared": 4.0, "memory": 12.0,
    "near": 0.5, "far": 2.0,  # to load a vector from the first level, and from the second at half its peak
    # A step of 64 bytes along k: a multiplication of tile registers, and the load of one (Emerald Rapids).
    "tile": 1.0, "tile.load": 1.5,
    "lanes": 4.0,  # to add up the lanes of an accumulator and to store the sum
    "copy": 0.1, "transpose": 0.45, "compute": 2.0,  # to pack an element: along its row, transposed, or computed
    "copy.streamed": 0.1,  # along its row, from a matrix that is larger than half of the second-level cache
    # Of a matrix that is not packed: rows of a block that few rows of the other factor read, each a page and a stream
    # to be prefetched, and bytes of a panel's row that are read fast enough several times.
    "in_place.rows": 32.0, "in_place.bytes": 192.0,
    # To start a row of elements that are packed one by one, with guards where they are padding: rows of 3 take 9 cycles
    # per element, rows of 56 take 0.5 (Zen 5, AVX-512).
    "row": 20.0,
    # Per vector of a softmax beside its matmuls: a weight (one cycle more or less does not show), a sum that is
    # rescaled or added to, and a transposed element.
    "weight": 12.0, "sum": 3.0, "turn": 6.0,
    # Exposed latency per vector that a sum reads from memory without prefetch: none if hardware prefetch is in time.
    # Sums, maxima, norms and softmaxes of 1 to 64 MiB take 1.0 to 1.4 times as long with software prefetch, at best 1 %
    # less (Zen 4, AVX-512).
    "exposed": 0.0,
    # Likewise per vector of rows that are read more than once, if nothing prefetches the next row while a row is read
    # again: 16 cycles for softmaxes of 16384 x 512 f32, 2 of 4096 x 2048, 6 for log_softmaxes of 2048 x 8192, 2 for
    # layer norms of 8192 x 1024. Rows in the last-level cache take 0.9 to 1.1 times as long with it (Zen 5, AVX-512).
    "exposed.next": 3.0,
    # Likewise beyond the second-level cache: per vector of such rows while functions are computed of them, and of data
    # that are read and written in order, if what will be written is prefetched too. Known only for Intel.
    "exposed.shared": 0.0, "exposed.stream": 0.0,
    # If a kernel moves more than this share of the last-level cache, little of what it stores would be cached when it
    # is read: stores past the caches then make relu and add 1.2 to 1.5 times as fast; below that they are slower.
    "past": 0.7,
    # A row that vectors of columns go down together, and each of its cache lines: a sum of 512 x 4096 f32 takes 85 us
    # by 8, 124 by 4 and 259 by 1, a softmax 705, 924 and 1620 us (Zen 5, AVX-512).
    "column": 60.0, "column.line": 200.0,
}  # fmt: skip

# What differs from `COSTS`, by vendor.
_COSTS = {
    # Emerald Rapids. Packing 2048 x 256 f32 takes 95 of 320 us. A matmul of 32 rows by 5632 x 2048 or 3584 x 3584 takes
    # 4 to 10 % less with blocks of 64 rows than of 32, and 12 to 50 % more with blocks of 96.
    # With prefetch, sums and maxima of 8 and 16 MiB take 0.96 to 0.99 times as long; softmaxes and log_softmaxes whose
    # rows are in the last-level cache take 0.71 to 0.94 times, layer and RMS norms, which compute too little to wait
    # behind, 0.99 to 1.04 times, and 0.77 to 0.94 if what they store is prefetched as well. With prefetch of what is
    # read and what is written, exp, tanh, sigmoid, silu and gelu of 512 x 4096 and 2048 x 2048 f32 take 0.75 to 0.94
    # times as long, relu and add 0.87 and 0.97.
    "GenuineIntel": {
        "copy.streamed": 0.5,
        "in_place.rows": 64.0,
        "in_place.bytes": 128.0,
        "exposed": 0.5,
        "exposed.shared": 6.0,
        "exposed.stream": 3.0,
    },
}

# Vector bytes by feature, widest first (x86 manuals: SSE 128, AVX2 256, AVX-512 512 bits).
_WIDTHS = (("avx512f", 64), ("avx2", 32), ("sse2", 16))


# Features that vdpbf16ps in vectors of 64 bytes requires, with those that the code for it is compiled with.
PAIRS = ("avx512_bf16", "avx512f", "avx512vl", "avx512dq", "avx512bw")


# Sums of pairs that are stored to a result of bf16, not added to a tile: the most products per sum, which are added one
# after the other, and the most bytes of a panel of B.
LONG, PAIRED = 2048, 256 * KiB
INTERLEAVED_BLOCK = "mlc_interleaved_block"  # loads neighbours as they are: memory has the types of the factors
TILE_BLOCK = "mlc_tile_block"  # in tile registers; loads neighbours as they are, too
GROUPED = (INTERLEAVED_BLOCK, TILE_BLOCK)  # take neighbours along k together
# Features that the tile registers of AMX require, with what rounds and lays out beside them.
TILES = ("amx_tile", "amx_bf16", "amx_int8", *PAIRS)
TILE_SIDE = 32  # rows and columns of sums: four registers of 16 x 16, beside two of each factor
# Features that vpdpbusd requires, by the bytes of a vector.
QUADS = {64: ("avx512_vnni", "avx512f", "avx512vl"), 32: ("avx_vnni", "avx2")}

FAST_GATHER = "fast_gather"  # loads at indices take less than a load for each lane

# Any layout works: the device functions receive every stride, of which those of `contiguous` axes must be 1.
_LAYOUTS = tuple((a, b) for b in ("kn", "nk") for a in ("mk", "km"))
MOST_ROWS, MOST_VECTORS, MOST_COLUMNS = 12, 4, 6


def matmuls(dtype: str, lanes: int, registers: int, feature: str) -> list[Instruction]:
    """The register tiles of one type: accumulators, one row of B and one element of A must fit in the registers.

    The columns of a panel are vectors; those of a dot product are scalars, each summed in a vector of its own.
    """
    out: list[Instruction] = []
    for m in range(1, MOST_ROWS + 1):
        layouts = (*_LAYOUTS, ("k", "kn"), ("k", "nk")) if m == 1 else _LAYOUTS
        most_fitting = (registers - 1) // (m + 1)
        # A single row uses each vector once, directly from memory.
        most_vectors = MOST_VECTORS if m > 1 else 2 * MOST_VECTORS
        for n in (v * lanes for v in range(1, (min(most_fitting, most_vectors) if m > 1 else most_vectors) + 1)):
            out.append(_row(f"panel.{m}x{n}.{dtype}", feature, m, n, dtype, layouts, "mlc_fma_block", ("b.n", "acc.n")))
        for n in range(1, min(most_fitting, MOST_COLUMNS) + 1):
            out.append(_dot(f"dot.{m}x{n}.{dtype}", feature, m, n, dtype, layouts))
    return out


def integer_dots(lanes: int, registers: int, feature: str) -> list[Instruction]:
    """Dot products of int8 in 32 bits; each column also has a sum that corrects an offset of its products."""
    candidates = (r for r in matmuls("i32", lanes, registers, feature) if r.function == "mlc_dot_block")
    rows = (r for r in candidates if r.m * r.n + 2 * r.n + 2 <= registers)
    return [r.replace(name=r.name.replace("i32", "i8"), a_type="i8", b_type="i8") for r in rows]


def quads(lanes: int, registers: int, feature: str) -> list[Instruction]:
    """Products of int8 in 32 bits; each lane takes four neighbours along k at a time, as `pairs` takes two."""
    panels = (r for r in matmuls("i32", lanes, registers, feature) if r.function == "mlc_fma_block" and r.m > 1)
    return [
        r.replace(name=r.name.replace("i32", "i8"), a_type="i8", b_type="i8", function=INTERLEAVED_BLOCK,
                  contiguous=("a.k", "acc.n"))
        for r in panels
    ]  # fmt: skip


def pairs(lanes: int, registers: int) -> list[Instruction]:
    """Products of bf16 in f32; each lane takes two neighbours along k at a time.

    The columns of a panel are packed in such pairs, and its rows are broadcast pair by pair.
    """
    candidates = matmuls("f32", lanes, registers, "avx512_bf16")
    rows = [r for r in candidates if r.function == "mlc_dot_block"]
    panels = [r for r in candidates if r.function == "mlc_fma_block" and r.m > 1]
    rows += [
        r.replace(function=INTERLEAVED_BLOCK, contiguous=("a.k", "acc.n"), stores=min(LONG, PAIRED // (2 * r.n)))
        for r in panels
    ]
    return [r.replace(name=r.name.replace("f32", "bf16"), a_type="bf16", b_type="bf16", flushes=True) for r in rows]


def tiles() -> list[Instruction]:
    """Products of bf16 in f32, and of int8 in 32 bits, in tile registers, as `pairs` and `quads`; any sizes fit."""
    name = f"tile.{TILE_SIDE}x{TILE_SIDE}"
    contiguous = ("a.k", "acc.n")
    floats, bytes_ = (
        _row(f"{name}.{kind}", "amx_tile", TILE_SIDE, TILE_SIDE, total, _LAYOUTS, TILE_BLOCK, contiguous).replace(
            a_type=kind, b_type=kind
        )
        for kind, total in (("bf16", "f32"), ("i8", "i32"))
    )
    return [floats.replace(flushes=True, stores=LONG), bytes_]


def _dot(name: str, feature: str, m: int, n: int, dtype: str, layouts: tuple[tuple[str, str], ...]) -> Instruction:
    return _row(name, feature, m, n, dtype, layouts, "mlc_dot_block", ("a.k", "b.k", "acc.n"))


def _row(name: str, feature: str, m: int, n: int, dtype: str, layouts: tuple[tuple[str, str], ...], function: str,
         contiguous: tuple[str, ...]) -> Instruction:  # fmt: skip
    types, spaces = (dtype, dtype, dtype), ("local", "local", "local")
    return Instruction(name, feature, m, n, 0, *types, *spaces, layouts, function, contiguous)


def target(
    features: tuple[str, ...],
    *,
    cores: int = 1,
    l1: int = 32 * KiB,
    l2: int = 512 * KiB,
    l3: int = 32 * MiB,
    name: str = "cpu",
    vendor: str = "",
) -> Target:
    """A CPU with these features and of this vendor (names as in /proc/cpuinfo)."""
    feature, vector = next(((f, w) for f, w in _WIDTHS if f in features), ("", 16))
    registers = 32 if feature == "avx512f" else 16
    rows = [r for dtype, size in (("f32", 4), ("f64", 8)) for r in matmuls(dtype, vector // size, registers, feature)]
    rows += integer_dots(vector // 4, registers, feature)
    if vector in QUADS and set(QUADS[vector]) <= set(features):
        rows += quads(vector // 4, registers, QUADS[vector][0])
    rows += pairs(vector // 4, registers) if set(PAIRS) <= set(features) else []
    rows += tiles() if set(TILES) <= set(features) else []
    costs = tuple((COSTS | _COSTS.get(vendor, {})).items())
    return Target(name, "cpu", features, vector, cores, l1, l2, l3, tuple(rows), costs=costs)


AVX2 = target(("avx2", "fma", "f16c", "sse2"), name="cpu:avx2")
AVX512 = target(("avx512f", "avx2", "fma", "f16c", "sse2"), name="cpu:avx512")
BASELINE = target(("sse2",), name="cpu:baseline")
