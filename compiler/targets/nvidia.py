"""NVIDIA targets: features by compute capability, tensor instructions and asynchronous copies as rows.

Facts are from the PTX ISA 8.x, named by section, and the CUDA programming guide's limits by compute capability.
"""

from __future__ import annotations

from compiler.targets.target import Instruction, Target, Transfer

KiB, MiB = 1024, 1024 * 1024
WARP, WARPGROUP = 32, 128

# What each capability adds to those before it; the suffix `a` is for what later ones need not keep.
_FEATURES = {
    80: ("mma.sync", "ldmatrix", "cp.async", "bf16", "tf32"),
    89: ("fp8",),
    90: ("tma", "cluster", "mbarrier"),
}
_SPECIFIC = {90: ("wgmma", "setmaxnreg")}
# KiB of shared memory that a block may have, and of the L1 that it is cut from.
_SHARED = {80: (163, 192), 86: (99, 128), 87: (163, 192), 89: (99, 128), 90: (227, 256), 120: (99, 128)}

# "Matrix multiply-accumulate using mma": shapes by operand type; all of it in registers.
_MMA = (
    ("bf16", "f32", 16, 8, 16),
    ("f16", "f32", 16, 8, 16),
    ("i8", "i32", 16, 8, 32),
    ("f64", "f64", 8, 8, 4),
)
# "Asynchronous warpgroup-level matrix shapes": m64, k of 32 bytes, and these n.
_WIDE_N = tuple(range(8, 257, 8))
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))
_WGMMA = (
    ("bf16", "f32", 16, _WIDE_N),
    ("f16", "f32", 16, _WIDE_N),
    ("i8", "i32", 32, _INTEGER_N),
)
_PLAIN = (("mk", "kn"), ("mk", "nk"))

_SWIZZLES = (0, 32, 64, 128)
CP_ASYNC = Transfer("cp.async", "cp.async", "global", "shared", (16, 8, 4), 0, 0, _SWIZZLES, True, "mlc_cp_async")
# A box of a tensor map has at most 5 axes of at most 256 elements, its rows are multiples of 16 bytes.
TMA = Transfer("tma", "tma", "global", "shared", (16,), 5, 256, _SWIZZLES, True, "mlc_tma_load")
TMA_STORE = TMA.replace(source="shared", target="global", function="mlc_tma_store")
DSMEM = Transfer("dsmem", "cluster", "cluster", "shared", (16,), 1, 0, _SWIZZLES, False, "mlc_dsmem_load")


def mma_sync(dtype: str, acc: str, m: int, n: int, k: int) -> Instruction:
    """One instruction of a warp; its fragments are loaded to match either layout of b."""
    name = f"mma.m{m}n{n}k{k}.{dtype}"
    types, spaces = (dtype, dtype, acc), ("registers",) * 3
    return Instruction(name, "mma.sync", m, n, k, *types, *spaces, _PLAIN, "mlc_mma_sync", (), WARP)


def wgmma(dtype: str, acc: str, n: int, k: int, a_space: str) -> Instruction:
    """One instruction of a warpgroup: b in shared memory, a there or in registers (`.rs`)."""
    suffix = ".rs" if a_space == "registers" else ""
    # Only the 16-bit types have the bits of the descriptor that transpose an operand in shared memory.
    transposes = dtype in ("bf16", "f16")
    b = ("kn", "nk") if transposes else ("nk",)
    a = ("mk", "km") if transposes and not suffix else ("mk",)
    layouts = tuple((x, y) for x in a for y in b)
    name = f"wgmma.m64n{n}k{k}.{dtype}{suffix}"
    spaces = (a_space, "shared", "registers")
    return Instruction(name, "wgmma", 64, n, k, dtype, dtype, acc, *spaces, layouts, "mlc_wgmma", (), WARPGROUP)


_ROWS = (
    *(mma_sync(*shape) for shape in _MMA),
    *(wgmma(d, acc, n, k, a) for d, acc, k, sizes in _WGMMA for a in ("shared", "registers") for n in sizes),
)


def features(number: int, specific: bool) -> tuple[str, ...]:
    """What a compute capability has; `specific` for the targets whose name ends in `a`."""
    has = [f for since, some in _FEATURES.items() if since <= number for f in some]
    return (*has, *(_SPECIFIC.get(number, ()) if specific else ()))


def target(name: str, *, cores: int, l2: int) -> Target:
    """The target `sm_90a`, or any `sm_NN` with an optional `a`, of so many multiprocessors."""
    number, specific = int(name.removeprefix("sm_").removesuffix("a")), name.endswith("a")
    has = features(number, specific)
    shared, l1 = next(v for since, v in reversed(_SHARED.items()) if since <= number)
    rows = tuple(r for r in _ROWS if r.needs in has)
    transfers = tuple(t for t in (CP_ASYNC, TMA, TMA_STORE, DSMEM) if t.needs in has)
    return Target(name, "cuda", has, 0, cores, l1 * KiB, l2, 0, rows, transfers, WARP, shared * KiB)


SM_80 = target("sm_80", cores=108, l2=40 * MiB)
SM_90A = target("sm_90a", cores=132, l2=50 * MiB)
