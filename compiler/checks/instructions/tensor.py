"""Trials of tensor instructions: load operands from global memory to their layouts, run one instruction, store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from compiler.checks.instructions.trial import TYPES, Trial, to_stored
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

SWIZZLES = (128, 64, 32, 0)
TILE_ALIGNMENT = 1024


@dataclass(frozen=True)
class Use:
    """One use of a row: the operands' axes; the swizzles of those in shared memory, and the byte offset at which their
    rows are entered; whether the accumulator is added to; whether operands have bits that the instruction truncates;
    and how many blocks of a cluster do the same, each in its own shared memory, at addresses that include the block's
    rank."""

    axes: tuple[str, str]
    swizzles: tuple[int, int] = (128, 128)
    entry_offsets: tuple[int, int] = (0, 0)
    accumulate: bool = True
    long_fractions: bool = False
    cluster: int = 1


def uses(row: Instruction, thorough: bool) -> list[Use]:
    """Every order of axes; operands in shared memory with one swizzle each, or if `thorough` with all."""
    shared = "shared" in (row.a_space, row.b_space)
    out = []
    for i, axes in enumerate(row.layouts if shared else row.layouts[:1]):
        phase = i + row.n // 8
        for j in range(len(SWIZZLES)) if thorough and shared else (phase,):
            a, b = SWIZZLES[j % len(SWIZZLES)], SWIZZLES[(j + j // len(SWIZZLES) + i) % len(SWIZZLES)]
            entry_offsets = tuple(
                32 * (phase % (s // 32)) if s and x in ("mk", "nk") else 0 for s, x in zip((a, b), axes, strict=True)
            )
            use = Use(axes, (a, b), (entry_offsets[0], entry_offsets[1]), not shared or (i + j) % 2 == 0)
            out.append(replace(use, cluster=2) if _has_panels(row, use) else use)
    if row.fraction:
        out.append(Use(row.layouts[0], long_fractions=True))
    return out


def _has_panels(row: Instruction, use: Use) -> bool:
    """Whether an operand has several panels, whose stride is in its descriptor beside the address. Only wgmma reads
    operands from shared memory, and targets with wgmma have clusters."""
    return any(
        space == "shared" and (not span or (axes in ("km", "kn") and rows * dt.DTYPES[row.a_type].bytes > span))
        for space, axes, span, rows in zip(
            (row.a_space, row.b_space), use.axes, use.swizzles, (row.m, row.n), strict=True
        )
    )


def trials(row: Instruction, seed: int, thorough: bool = False) -> list[Trial]:
    """The kernels of a row, with random inputs whose products and sums are exact, whatever the order of summation."""
    rng = np.random.default_rng(seed)
    return [_trial(row, use, f"{identifier(row.name)}_{n}", rng) for n, use in enumerate(uses(row, thorough))]


def semantics_program(row: Instruction) -> Program:
    """The row's Tile IR as a program that adds to its input acc."""
    acc, a, b = _tensors(row)
    declarations = {t.name: f"{t.name}: {t.dtype}[{', '.join(show(n) for n in t.shape)}]" for t in (acc, a, b)}
    head = f"def f({declarations['a']}, {declarations['b']}, *, {declarations['acc']}):\n"
    head += '    with kernel("f", [a, b, acc], writes=[acc]):\n'
    text = head + "".join(" " * 8 + line + "\n" for line in row.semantics.splitlines())
    return tile_text.parse(text).replace(inputs=(acc, a, b))


def evaluate(row: Instruction, acc: Array, a: Array, b: Array) -> Array:
    """acc[m, n] + a[m, k] . b[k, n], computed by the row's Tile IR."""
    left, right = row.layouts[0]
    (result,) = interpreter.run(
        semantics_program(row), [acc, a if left == "mk" else a.T.copy(), b if right == "kn" else b.T.copy()]
    )
    return result


def truncate(values: Array, fraction: int) -> Array:
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
        truncated_a, truncated_b = truncate(a, row.fraction), truncate(b, row.fraction)
        expected = evaluate(row, acc, truncated_a, truncated_b)
        # Far below the effect of rounding instead of truncation, far above that of the order of summation.
        tolerance = 2.0**-18 * (np.abs(acc) + np.abs(truncated_a) @ np.abs(truncated_b))
    else:
        # Multiples of 1/16 up to 4 (fewer bits after rounding): a product has 14 bits, the sum of 32 of them 19.
        # Tensor cores keep 13 bits of a sum of 8-bit floats: for multiples of 1/2 up to 2 it has 12, from 1/16 on.
        scale = 1 if acc_type.is_integer else 16
        limit, denominator = (4, 2) if a_type in dt.EIGHTHS else (64, scale)
        a, b, acc = (
            (rng.integers(-limit, limit + 1, s) / denominator).astype(storage(t))
            for s, t, limit, denominator in (
                ((row.m, row.k), a_type, limit, denominator),
                ((row.k, row.n), a_type, limit, denominator),
                ((row.m, row.n), acc_type, 64, scale),
            )
        )
        a, b = rounded(a, a_type), rounded(b, a_type)
        expected = evaluate(row, acc if use.accumulate else np.zeros_like(acc), a, b)
        tolerance = np.zeros(())
    text, includes, bytes_shared = _text(row, use, name)
    blocks = (use.cluster, 1, 1)
    launch = Launch(name, blocks, (row.threads, 1, 1), (0, 1, 2, 3), shared=bytes_shared, cluster=blocks)
    inputs = (("a", to_stored(a, a_type)), ("b", to_stored(b, a_type)), ("c", to_stored(acc, acc_type)))
    expected_blocks = np.broadcast_to(expected, (use.cluster, *expected.shape))
    return Trial(text, includes, launch, inputs, (("out", acc_type, np.ascontiguousarray(expected_blocks)),), tolerance)


def _text(row: Instruction, use: Use, name: str) -> tuple[str, tuple[str, ...], int]:
    """The kernel, the headers that it needs, and its bytes of dynamic shared memory."""
    operand, accumulator = TYPES[row.a_type], TYPES[row.acc_type]
    assert row.acc_layout is not None
    count = registers(row.acc_layout)
    body: list[str] = []
    operand_text: dict[str, str] = {}
    panels: dict[str, int] = {}
    base = 0
    for i, (x, layout) in enumerate((("a", row.a_layout), ("b", row.b_layout))):
        if layout is not None:
            body += [f"{operand} {x}_held[{registers(layout)}];", *for_each_register(layout, f"{x}_held[r] = {x}[at]")]
            operand_text[x] = f"{x}_held"
        else:
            lines, size, panels[x] = _store_to_panels(row, x, use.axes[i], use.swizzles[i], use.entry_offsets[i], base)
            body += lines
            operand_text[x] = f"shared + {base + use.entry_offsets[i]}"
            base += -(-size // TILE_ALIGNMENT) * TILE_ALIGNMENT
    body += [f"{accumulator} acc[{count}];", *for_each_register(row.acc_layout, "acc[r] = c[at]")]
    if row.function == "mlc_mma_sync":
        body.append(f"mlc_mma_sync<{row.m}, {row.n}, {row.k}>(acc, {operand_text['a']}, {operand_text['b']});")
    else:
        b_code = f"mlc_{use.axes[1]}, {use.swizzles[1]}"
        tail = f"{operand_text['b']}, {panels['b']}, {int(use.accumulate)});"
        if row.a_space == "registers":
            call = f"mlc_wgmma_rs<{row.n}, {b_code}>(acc, {operand_text['a']}, {tail}"
        else:
            a_code = f"mlc_{use.axes[0]}, {use.swizzles[0]}"
            call = f"mlc_wgmma<{row.n}, {operand}, {a_code}, {b_code}>(acc, {operand_text['a']}, {panels['a']}, {tail}"
        body += ["mlc_fence_async();", "mlc_block_barrier();", f"mlc_wgmma_fence<{count}>(acc);", call,
                 "mlc_wgmma_commit();", "mlc_wgmma_wait<0>();", f"mlc_wgmma_hold<{count}>(acc);"]  # fmt: skip
    block = f"blockIdx.x * {row.m * row.n} + " if use.cluster > 1 else ""
    body += for_each_register(row.acc_layout, f"out[{block}at] = acc[r]")
    if base:
        body.insert(0, "MLC_DYNAMIC_SHARED(shared);")
    includes = (*(("wgmma", "mbarrier") if base else ("matrix",)), *(("cluster",) if use.cluster > 1 else ()))
    params = (f"const {operand}* __restrict__ a", f"const {operand}* __restrict__ b",
              f"const {accumulator}* __restrict__ c", f"{accumulator}* __restrict__ out")  # fmt: skip
    return kernel(name, row.threads, params, body, use.cluster), includes, base


def kernel(name: str, threads: int, params: Sequence[str], body: Sequence[str], cluster: int = 1) -> str:
    """A kernel; in its body, t is the thread's index."""
    blocks = f"MLC_CLUSTER({cluster}, 1, 1) " if cluster > 1 else ""
    head = f'extern "C" __global__ void {blocks}__launch_bounds__({threads}, 1) {name}(\n    {", ".join(params)}) {{'
    return "\n".join([head, "    const long t = threadIdx.x;", *(f"    {line}" for line in body), "}", ""])


def for_each_register(layout: Layout, statement: str) -> list[str]:
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
    terms, divisor = [], 1
    for extent, stride in digits:
        digit = f"{number} / {divisor} % {extent}" if divisor > 1 else f"{number} % {extent}"
        terms.append(f"{digit} * {stride}")
        divisor *= extent
    return " + ".join(terms) or "0"


def _store_to_panels(
    row: Instruction, x: str, axes: str, swizzle: int, entry_offset: int, base: int
) -> tuple[list[str], int, int]:
    """Statements that store an operand to panels in shared memory; bytes of all panels; bytes of one panel."""
    size, width, depth = dt.DTYPES[row.a_type].bytes, swizzle or 16, row.k
    rows, along_k = (row.m, axes == "mk") if x == "a" else (row.n, axes == "nk")
    indices = f"i = e / {depth}, l = e % {depth}" if x == "a" else f"l = e / {rows}, i = e % {rows}"
    line, byte = ("i", f"l * {size} + {entry_offset}") if along_k else ("l", f"i * {size}")
    lines, row_bytes = (rows, depth * size + entry_offset) if along_k else (depth, rows * size)
    panel = lines * width
    return (
        [
            f"for (long e = t; e < {rows * depth}; e += {row.threads}) {{",
            f"    const long {indices}, byte = {byte};",
            f"    const long at = byte / {width} * {panel} + {line} * {width} + byte % {width};",
            f"    *({TYPES[row.a_type]}*)(shared + {base} + (at ^ (at >> 3 & {swizzle_mask(swizzle)}))) = {x}[e];",
            "}",
        ],
        panel * -(-row_bytes // width),
        panel,
    )
