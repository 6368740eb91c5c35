"""Trials of tensor instructions: load operands from global memory to their layouts, run one instruction, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.checks.instructions.trial import TYPES, Trial, stored
from compiler.interpret import tile as interpreter
from compiler.interpret.scalar import Array, rounded, storage
from compiler.ir import dtype as dt
from compiler.ir import tile_text
from compiler.ir.expr import dim
from compiler.ir.statement import Program
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.text import show
from compiler.runtime.launches import Launch
from compiler.targets.layout import Digits, Layout, registers, swizzle_mask
from compiler.targets.target import Instruction

SPANS = (128, 64, 32, 0)
TILE_ALIGNMENT = 1024


@dataclass(frozen=True)
class Use:
    """One use of a row: the operands' axes; the swizzles of those in shared memory, and the byte offset at which their
    rows are entered; whether the accumulator is added to; whether operands have bits that the instruction truncates;
    and how many blocks of a cluster do the same, each in its own shared memory, at addresses that include the block's
    rank."""

    axes: tuple[str, str]
    spans: tuple[int, int] = (128, 128)
    enter: tuple[int, int] = (0, 0)
    accumulate: bool = True
    long_fractions: bool = False
    cluster: int = 1


def uses(row: Instruction, thorough: bool) -> list[Use]:
    """Every order of axes; operands in shared memory with one swizzle each, or if `thorough` with all."""
    shared = "shared" in (row.a_space, row.b_space)
    out = []
    for i, axes in enumerate(row.layouts if shared else row.layouts[:1]):
        turn = i + row.n // 8
        for j in range(len(SPANS)) if thorough and shared else (turn,):
            a, b = SPANS[j % len(SPANS)], SPANS[(j + j // len(SPANS) + i) % len(SPANS)]
            enter = tuple(
                32 * (turn % (s // 32)) if s and x in ("mk", "nk") else 0 for s, x in zip((a, b), axes, strict=True)
            )
            use = Use(axes, (a, b), (enter[0], enter[1]), not shared or (i + j) % 2 == 0)
            out.append(replace(use, cluster=2) if _strides(row, use) else use)
    if row.fraction:
        out.append(Use(row.layouts[0], long_fractions=True))
    return out


def _strides(row: Instruction, use: Use) -> bool:
    """Whether an operand has several panels, whose stride is in its descriptor beside the address. Only wgmma reads
    operands from shared memory, and targets with wgmma have clusters."""
    return any(
        space == "shared" and (not span or (axes in ("km", "kn") and rows * dt.DTYPES[row.a_type].bytes > span))
        for space, axes, span, rows in zip((row.a_space, row.b_space), use.axes, use.spans, (row.m, row.n), strict=True)
    )


def trials(row: Instruction, seed: int, thorough: bool = False) -> list[Trial]:
    """The kernels of a row, with random inputs whose products and sums are exact, whatever the order of summation."""
    rng = np.random.default_rng(seed)
    return [_trial(row, use, f"{identifier(row.name)}_{n}", rng) for n, use in enumerate(uses(row, thorough))]


def said(row: Instruction) -> Program:
    """The row's Tile IR as a program that adds to its input acc."""
    acc, a, b = _tensors(row)
    words = {t.name: f"{t.name}: {t.dtype}[{', '.join(show(n) for n in t.shape)}]" for t in (acc, a, b)}
    head = f'def f({words["a"]}, {words["b"]}, *, {words["acc"]}):\n    with kernel("f", [a, b, acc], writes=[acc]):\n'
    text = head + "".join(" " * 8 + line + "\n" for line in row.semantics.splitlines())
    return tile_text.parse(text).replace(inputs=(acc, a, b))


def meaning(row: Instruction, acc: Array, a: Array, b: Array) -> Array:
    """acc[m, n] + a[m, k] . b[k, n], computed by the row's Tile IR."""
    left, right = row.layouts[0]
    (made,) = interpreter.run(said(row), [acc, a if left == "mk" else a.T.copy(), b if right == "kn" else b.T.copy()])
    return made


def cut(values: Array, fraction: int) -> Array:
    """Truncate the fractions of f32 values to their leading bits."""
    return (values.view(np.uint32) & np.uint32(0xFFFFFFFF << (23 - fraction) & 0xFFFFFFFF)).view(np.float32)


def _tensors(row: Instruction) -> tuple[Tensor, ...]:
    sizes = {"m": row.m, "n": row.n, "k": row.k}
    kinds = (("acc", "mn", row.acc_type), ("a", row.layouts[0][0], row.a_type), ("b", row.layouts[0][1], row.b_type))
    shapes = [(name, tuple(dim(sizes[x]) for x in axes), dt.DTYPES[dtype]) for name, axes, dtype in kinds]
    return tuple(Tensor(name, dtype, shape, row_major(shape)) for name, shape, dtype in shapes)


def identifier(name: str) -> str:
    """A row's name as an identifier for its kernel."""
    return name.replace(".", "_")


def _trial(row: Instruction, use: Use, name: str, rng: np.random.Generator) -> Trial:
    a_type, acc_type = dt.DTYPES[row.a_type], dt.DTYPES[row.acc_type]
    if use.long_fractions:
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((row.m, row.k), (row.k, row.n)))
        acc = rng.standard_normal((row.m, row.n)).astype(np.float32)
        cut_a, cut_b = cut(a, row.fraction), cut(b, row.fraction)
        wanted = meaning(row, acc, cut_a, cut_b)
        # Far below the effect of rounding instead of truncation, far above that of the order of summation.
        tolerance = 2.0**-18 * (np.abs(acc) + np.abs(cut_a) @ np.abs(cut_b))
    else:
        # Multiples of 1/16 up to 4 (fewer bits after rounding): a product has 14 bits, the sum of 32 of them 19.
        # Tensor cores keep 13 bits of a sum of 8-bit floats: for multiples of 1/2 up to 2 it has 12, from 1/16 on.
        scale = 1 if acc_type.is_integer else 16
        most, parts = (4, 2) if a_type in dt.EIGHTHS else (64, scale)
        a, b, acc = (
            (rng.integers(-most, most + 1, s) / parts).astype(storage(t))
            for s, t, most, parts in (
                ((row.m, row.k), a_type, most, parts),
                ((row.k, row.n), a_type, most, parts),
                ((row.m, row.n), acc_type, 64, scale),
            )
        )
        a, b = rounded(a, a_type), rounded(b, a_type)
        wanted = meaning(row, acc if use.accumulate else np.zeros_like(acc), a, b)
        tolerance = np.zeros(())
    text, includes, bytes_shared = _text(row, use, name)
    blocks = (use.cluster, 1, 1)
    launch = Launch(name, blocks, (row.threads, 1, 1), (0, 1, 2, 3), shared=bytes_shared, cluster=blocks)
    inputs = (("a", stored(a, a_type)), ("b", stored(b, a_type)), ("c", stored(acc, acc_type)))
    every = np.broadcast_to(wanted, (use.cluster, *wanted.shape))
    return Trial(text, includes, launch, inputs, (("out", acc_type, np.ascontiguousarray(every)),), tolerance)


def _text(row: Instruction, use: Use, name: str) -> tuple[str, tuple[str, ...], int]:
    """The kernel, the headers that it needs, and its bytes of dynamic shared memory."""
    operand, total = TYPES[row.a_type], TYPES[row.acc_type]
    assert row.acc_layout is not None
    count = registers(row.acc_layout)
    body: list[str] = []
    at: dict[str, str] = {}
    panels: dict[str, int] = {}
    base = 0
    for i, (x, layout) in enumerate((("a", row.a_layout), ("b", row.b_layout))):
        if layout is not None:
            body += [f"{operand} {x}_held[{registers(layout)}];", *each(layout, f"{x}_held[r] = {x}[at]")]
            at[x] = f"{x}_held"
        else:
            lines, size, panels[x] = _placed(row, x, use.axes[i], use.spans[i], use.enter[i], base)
            body += lines
            at[x] = f"shared + {base + use.enter[i]}"
            base += -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT
    body += [f"{total} acc[{count}];", *each(row.acc_layout, "acc[r] = c[at]")]
    if row.function == "mlc_mma_sync":
        body.append(f"mlc_mma_sync<{row.m}, {row.n}, {row.k}>(acc, {at['a']}, {at['b']});")
    else:
        b_code = f"mlc_{use.axes[1]}, {use.spans[1]}"
        tail = f"{at['b']}, {panels['b']}, {int(use.accumulate)});"
        if row.a_space == "registers":
            call = f"mlc_wgmma_rs<{row.n}, {b_code}>(acc, {at['a']}, {tail}"
        else:
            a_code = f"mlc_{use.axes[0]}, {use.spans[0]}"
            call = f"mlc_wgmma<{row.n}, {operand}, {a_code}, {b_code}>(acc, {at['a']}, {panels['a']}, {tail}"
        body += ["mlc_fence_async();", "mlc_block_barrier();", f"mlc_wgmma_fence<{count}>(acc);", call,
                 "mlc_wgmma_commit();", "mlc_wgmma_wait<0>();", f"mlc_wgmma_hold<{count}>(acc);"]  # fmt: skip
    block = f"blockIdx.x * {row.m * row.n} + " if use.cluster > 1 else ""
    body += each(row.acc_layout, f"out[{block}at] = acc[r]")
    if base:
        body.insert(0, "MLC_DYNAMIC_SHARED(shared);")
    includes = (*(("wgmma", "mbarrier") if base else ("matrix",)), *(("cluster",) if use.cluster > 1 else ()))
    params = (f"const {operand}* __restrict__ a", f"const {operand}* __restrict__ b", f"const {total}* __restrict__ c",
              f"{total}* __restrict__ out")  # fmt: skip
    return kernel(name, row.threads, params, body, use.cluster), includes, base


def kernel(name: str, threads: int, params: Sequence[str], body: Sequence[str], cluster: int = 1) -> str:
    """A kernel; in its body, t is the thread's index."""
    blocks = f"MLC_CLUSTER({cluster}, 1, 1) " if cluster > 1 else ""
    head = f'extern "C" __global__ void {blocks}__launch_bounds__({threads}, 1) {name}(\n    {", ".join(params)}) {{'
    return "\n".join([head, "    const long t = threadIdx.x;", *(f"    {line}" for line in body), "}", ""])


def each(layout: Layout, statement: str) -> list[str]:
    """A statement for every register r of thread t, at offset `at` in the tile."""
    return [
        "#pragma unroll",
        f"for (int r = 0; r < {registers(layout)}; r++) {{",
        f"    const long at = {offset(layout.threads, 't')} + {offset(layout.registers, 'r')};",
        f"    {statement};",
        "}",
    ]


def offset(digits: Digits, number: str) -> str:
    """The contribution of the digits of a number to the offset, in C."""
    terms, below = [], 1
    for extent, stride in digits:
        digit = f"{number} / {below} % {extent}" if below > 1 else f"{number} % {extent}"
        terms.append(f"{digit} * {stride}")
        below *= extent
    return " + ".join(terms) or "0"


def _placed(row: Instruction, x: str, axes: str, span: int, enter: int, base: int) -> tuple[list[str], int, int]:
    """Statements that store an operand to panels in shared memory; bytes of all panels; bytes of one panel."""
    size, width, depth = dt.DTYPES[row.a_type].bytes, span or 16, row.k
    rows, along_k = (row.m, axes == "mk") if x == "a" else (row.n, axes == "nk")
    place = f"i = e / {depth}, l = e % {depth}" if x == "a" else f"l = e / {rows}, i = e % {rows}"
    line, byte = ("i", f"l * {size} + {enter}") if along_k else ("l", f"i * {size}")
    lines, across = (rows, depth * size + enter) if along_k else (depth, rows * size)
    panel = lines * width
    return (
        [
            f"for (long e = t; e < {rows * depth}; e += {row.threads}) {{",
            f"    const long {place}, byte = {byte};",
            f"    const long at = byte / {width} * {panel} + {line} * {width} + byte % {width};",
            f"    *({TYPES[row.a_type]}*)(shared + {base} + (at ^ (at >> 3 & {swizzle_mask(span)}))) = {x}[e];",
            "}",
        ],
        panel * -(-across // width),
        panel,
    )
