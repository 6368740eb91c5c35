"""NVIDIA's instructions beyond plain C, as rows: tensor instructions, asynchronous copies, matrix loads and stores.

Shapes and fragment layouts are those of the PTX ISA 9.0, chapters "Warp Level Matrix Instructions" (mma, ldmatrix,
stmatrix) and "Asynchronous Warpgroup Level Matrix Instructions" (wgmma); copies are those of "Data Movement".
"""

from __future__ import annotations

from typing import NamedTuple

from compiler.targets.layout import Digits, Layout
from compiler.targets.target import Fragments, Instruction, Transfer

WARP, WARPGROUP = 32, 128


class _Types(NamedTuple):
    """Operand and accumulator types, significant fraction bits (0: all), required feature, and opcodes."""

    name: str
    operand: str
    acc: str
    fraction: int
    needs: str
    opcode: str


# Shapes are (m, n, k). For sm_90, ptxas turns an mma.sync of 8-bit floats into conversions and an HMMA.
_MMA = {
    _Types("bf16", "bf16", "f32", 0, "mma.sync", "HMMA"): ((16, 8, 8), (16, 8, 16)),
    _Types("f16", "f16", "f32", 0, "mma.sync", "HMMA"): ((16, 8, 8), (16, 8, 16)),
    _Types("tf32", "f32", "f32", 10, "tf32", "HMMA"): ((16, 8, 4), (16, 8, 8)),
    _Types("i8", "i8", "i32", 0, "mma.sync", "IMMA"): ((16, 8, 16), (16, 8, 32)),
    _Types("f8e4m3", "f8e4m3", "f32", 0, "mma.f8", "QMMA HMMA"): ((16, 8, 32),),
    _Types("f8e5m2", "f8e5m2", "f32", 0, "mma.f8", "QMMA HMMA"): ((16, 8, 32),),
    _Types("f64", "f64", "f64", 0, "mma.f64", "DMMA"): ((8, 8, 4),),
    _Types("f64", "f64", "f64", 0, "mma.f64.wide", "DMMA"): ((16, 8, 4), (16, 8, 8), (16, 8, 16)),
}
# "Asynchronous warpgroup-level matrix shapes": m is 64, k takes 32 bytes, and n is one of these.
_WIDE_N = tuple(range(8, 257, 8))
_INTEGER_N = (8, 16, 24, *range(32, 257, 16))
_WGMMA = {
    _Types("bf16", "bf16", "f32", 0, "wgmma", "HGMMA"): _WIDE_N,
    _Types("f16", "f16", "f32", 0, "wgmma", "HGMMA"): _WIDE_N,
    _Types("tf32", "f32", "f32", 10, "wgmma", "HGMMA"): _WIDE_N,
    _Types("i8", "i8", "i32", 0, "wgmma", "IGMMA"): _INTEGER_N,
    _Types("f8e4m3", "f8e4m3", "f32", 0, "wgmma", "QGMMA"): _WIDE_N,
    _Types("f8e5m2", "f8e5m2", "f32", 0, "wgmma", "QGMMA"): _WIDE_N,
}
_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "i8": 1, "f8e4m3": 1, "f8e5m2": 1, "f64": 8}
# An H100 adds products with 13 bits below the largest (DeepSeek-V3 Technical Report, section 3.3.2).
COARSE = ("f8e4m3", "f8e5m2")
# Fragments can be loaded for any layout: ldmatrix transposes 16-bit elements.
_ALL_LAYOUTS = (("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("km", "nk"))

_SWIZZLES = (0, 32, 64, 128)
_CP_ASYNC = Transfer("cp.async", "cp.async", "global", "shared", (16, 8, 4), 0, 0, _SWIZZLES, "mlc_cp_async",
                     "LDGSTS")  # fmt: skip
# A box of a tensor map has at most 5 axes of at most 256 elements; its rows are multiples of 16 bytes.
_TMA = Transfer("tma", "tma", "global", "shared", (16,), 5, 256, _SWIZZLES, "mlc_tma_load", "UTMALDG")
_TMA_STORE = _TMA.replace(source="shared", target="global", function="mlc_tma_store", opcode="UTMASTG")
_DSMEM = Transfer("dsmem", "cluster", "cluster", "shared", (16,), 1, 0, _SWIZZLES, "mlc_cluster_load", "LD")


def _a_layout(m: int, k: int, size: int) -> Layout:
    """The left operand of one warp: eight rows of four threads, each with adjacent elements that fill 32 bits.

    Next are the rows 8 below, then the columns beyond 16 bytes (for f64, beyond 32).
    """
    pack = max(1, 4 // size)
    rows: Digits = ((2, 8 * k),) if m == 16 else ()
    columns: Digits = ((k // (4 * pack), 4 * pack),)
    return _without_unit_digits(Layout((m, k), ((4, pack), (8, k)), ((pack, 1), *rows, *columns)))


def _b_layout(n: int, k: int, size: int) -> Layout:
    """The right operand: the left one's layout with rows and columns exchanged, eight columns."""
    pack = max(1, 4 // size)
    return _without_unit_digits(Layout((k, n), ((4, pack * n), (8, 1)), ((pack, n), (k // (4 * pack), 4 * pack * n))))


def _acc_layout(m: int, n: int) -> Layout:
    """Two adjacent elements per thread, then the row 8 below, then, if n > 8, the next eight columns."""
    rows: Digits = ((2, 8 * n),) if m >= 16 else ()
    warps: Digits = ((m // 16, 16 * n),) if m > 16 else ()
    return _without_unit_digits(Layout((m, n), ((4, 2), (8, n), *warps), ((2, 1), *rows, (n // 8, 8))))


def _without_unit_digits(layout: Layout) -> Layout:
    """The layout without digits of extent 1."""
    kept = (tuple(d for d in digits if d[0] > 1) for digits in (layout.threads, layout.registers))
    return Layout(layout.shape, *kept)


def _mma_sync(types: _Types, shape: tuple[int, int, int]) -> Instruction:
    """An instruction of one warp; its fragments can be loaded for any layout of a and b."""
    m, n, k = shape
    size = _BYTES[types.operand]
    return Instruction(
        f"mma.m{m}n{n}k{k}.{types.name}", types.needs, m, n, k,
        types.operand, types.operand, types.acc, "registers", "registers", "registers",
        _ALL_LAYOUTS, "mlc_mma_sync", (), WARP,
        _acc_layout(m, n), _a_layout(m, k, size), _b_layout(n, k, size), types.fraction, types.opcode,
        types.operand in COARSE,
    )  # fmt: skip


def _wgmma(types: _Types, n: int, a_space: str) -> Instruction:
    """An instruction of a warpgroup: b in shared memory, a in shared memory or registers (`.rs`)."""
    registers, k = a_space == "registers", 32 // _BYTES[types.operand]
    # Only 16-bit types have the instruction's bits that transpose an operand in shared memory.
    transposes = types.operand in ("bf16", "f16")
    b = ("kn", "nk") if transposes else ("nk",)
    a = ("mk", "km") if transposes or registers else ("mk",)
    warp = _a_layout(16, k, _BYTES[types.operand])
    a_layout = Layout((64, k), (*warp.threads, (4, 16 * k)), warp.registers) if registers else None
    return Instruction(
        f"wgmma.m64n{n}k{k}.{types.name}{'.rs' if registers else ''}", types.needs, 64, n, k,
        types.operand, types.operand, types.acc, a_space, "shared", "registers",
        tuple((x, y) for x in a for y in b), "mlc_wgmma_rs" if registers else "mlc_wgmma", (), WARPGROUP,
        _acc_layout(64, n), a_layout, None, types.fraction, types.opcode,
        types.operand in COARSE,
    )  # fmt: skip


def _matrices(count: int, transposed: bool, store: bool) -> Fragments:
    """ldmatrix or stmatrix of `count` matrices; with .trans, threads hold adjacent elements of a column."""
    row, column = (1, 8) if transposed else (8, 1)
    layout = _without_unit_digits(Layout((8 * count, 8), ((4, 2 * column), (8, row)), ((2, column), (count, 64))))
    word, needs, opcode = ("stmatrix", "stmatrix", "STSM") if store else ("ldmatrix", "ldmatrix", "LDSM")
    spaces = ("registers", "shared") if store else ("shared", "registers")
    trans = ".trans" if transposed else ""
    function = f"mlc_{word}{'_transposed' if transposed else ''}"
    return Fragments(f"{word}.x{count}{trans}", needs, *spaces, layout, function, opcode)


TENSOR = (
    *(_mma_sync(types, shape) for types, shapes in _MMA.items() for shape in shapes),
    *(_wgmma(types, n, a) for types, sizes in _WGMMA.items() for a in ("shared", "registers") for n in sizes),
)
TRANSFERS = (_CP_ASYNC, _TMA, _TMA_STORE, _DSMEM)
FRAGMENTS = tuple(
    _matrices(count, transposed, store)
    for store in (False, True)
    for transposed in (False, True)
    for count in (1, 2, 4)
)
