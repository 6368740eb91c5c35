"""Trials of data movement: matrices between shared memory and registers, and asynchronous copies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.checks.instructions.tensor import TILE_ALIGNMENT, for_each_register, identifier, kernel
from compiler.checks.instructions.trial import TYPES, Trial, to_stored
from compiler.interpret import tile as interpreter
from compiler.interpret.scalar import Array, round_bf16, storage
from compiler.ir import dtype as dt
from compiler.ir import tile_text
from compiler.ir.dtype import DType, bf16, i8, i16
from compiler.runtime.launches import Launch, Map
from compiler.targets.layout import registers, swizzle_mask
from compiler.targets.target import Fragments, Transfer


def fragments(row: Fragments, seed: int) -> list[Trial]:
    """Move all elements of the matrices to their places in a tile, or from there."""
    rng = np.random.default_rng(seed)
    (rows, columns), count = row.layout.shape, registers(row.layout)
    values = rng.integers(-(2**15), 2**15, (rows, columns)).astype(np.int16)
    for_all, own_row = f"for (long e = t; e < {rows * columns}; e += 32) ", f"s + t % {rows} * {columns}"
    call = f"{row.function}<{count // 2}>"
    if row.target == "registers":
        body = [f"{for_all}s[e] = x[e];", "mlc_block_barrier();", f"short held[{count}];", f"{call}(held, {own_row});",
                *for_each_register(row.layout, "out[at] = held[r]")]  # fmt: skip
    else:
        body = [f"short held[{count}];", *for_each_register(row.layout, "held[r] = x[at]"), f"{call}({own_row}, held);",
                "mlc_block_barrier();", f"{for_all}out[e] = s[e];"]  # fmt: skip
    name = identifier(row.name)
    text = kernel(name, 32, _params("short", "short"), [f"MLC_SHARED(short, s, {rows * columns}, 16);", *body])
    launch = Launch(name, (1, 1, 1), (32, 1, 1), (0, 1))
    return [Trial(text, ("matrix",), launch, (("x", values),), (("out", i16, values),))]


def transfers(row: Transfer, seed: int) -> list[Trial]:
    """Copies that extend beyond the edges of tensors of random sizes."""
    rng = np.random.default_rng(seed)
    match row.name, row.source:
        case "cp.async", _:
            return [_cp_async(row, piece, rng) for piece in row.pieces]
        case "tma", _:
            types = ("f32", "bf16", "i8", "f16", "i32")
            by_rank = [_tma(row, rank, 0, types[rank - 1], rng) for rank in range(1, row.rank + 1)]
            return by_rank + [_tma(row, 2, s, t, rng) for s in row.swizzles if s for t in ("bf16", "f32")]
        case "dsmem", _:
            return [_dsmem(row, rng)]
    raise ValueError(f"no trial of {row.name}")


def copy_result(
    method: str, tensors: Sequence[tuple[str, DType, tuple[int, ...]]], copy: str, arrays: Sequence[Array]
) -> Array:
    """The result of a Tile IR copy to the second tensor, which has previous contents."""
    declarations = [f"{name}: {t}[{', '.join(map(str, shape))}]" for name, t, shape in tensors]
    head = f'def f({declarations[0]}, *, {declarations[1]}):\n    with kernel("f", [x, y], writes=[y]):\n'
    text = f'{head}        copy({copy}, "{method}")\n'
    program = tile_text.parse(text)
    (result,) = interpreter.run(program.replace(inputs=(*program.inputs, *program.outputs)), arrays)
    return result


def slices(starts: Sequence[int], lengths: Sequence[int]) -> str:
    """
    >>> slices((0, -3), (8, 16))
    '[0: +8, -3: +16]'
    """
    return "[" + ", ".join(f"{start}: +{n}" for start, n in zip(starts, lengths, strict=True)) + "]"


def random_values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> Array:
    if dtype.is_integer:
        return rng.integers(-100, 100, shape).astype(storage(dtype))
    values = rng.standard_normal(shape).astype(storage(dtype))
    return round_bf16(values) if dtype is bf16 else values


def _params(source: str, target: str) -> tuple[str, str]:
    return f"const {source}* __restrict__ x", f"{target}* __restrict__ out"


def _cp_async(row: Transfer, piece: int, rng: np.random.Generator) -> Trial:
    """32 threads copy a piece each; the source ends within one of them."""
    shared_bytes, length = 32 * piece, 32 * piece - int(rng.integers(1, 4 * piece))
    values = random_values(rng, i8, (length,))
    arrays = [values, np.zeros(shared_bytes, np.int8)]
    expected = copy_result(
        row.name,
        (("x", i8, (length,)), ("y", i8, (shared_bytes,))),
        f"y[0: +{shared_bytes}], x[0: +{shared_bytes}]",
        arrays,
    )
    hint = ", 128" if piece == 16 else ""
    body = [
        f"MLC_SHARED(signed char, s, {shared_bytes}, 16);",
        f"const long left = {length} - t * {piece};",
        f"if (left >= {piece})",
        f"    {row.function}<{piece}{hint}>(s + t * {piece}, x + t * {piece});",
        "else",
        f"    {row.function}_zero<{piece}{hint}>(",
        f"        s + t * {piece}, x + (left > 0 ? t * {piece} : 0), left > 0 ? left : 0);",
        f"{row.function}_commit();",
        f"{row.function}_wait<0>();",
        "mlc_block_barrier();",
        f"for (long e = t; e < {shared_bytes}; e += 32) out[e] = s[e];",
    ]
    name = f"cp_async_{piece}"
    text = kernel(name, 32, _params("signed char", "signed char"), body)
    launch = Launch(name, (1, 1, 1), (32, 1, 1), (0, 1))
    return Trial(text, ("async",), launch, (("x", values),), (("out", i8, expected),))


@dataclass(frozen=True)
class _Box:
    """A box of `lengths` at `starts` in a tensor of `dims`, outermost first, as in Tile IR."""

    name: str
    dtype: DType
    dims: tuple[int, ...]
    lengths: tuple[int, ...]
    starts: tuple[int, ...]
    swizzle: int

    @property
    def coordinates(self) -> str:
        return ", ".join(f"{start}l" for start in reversed(self.starts))

    @property
    def bytes(self) -> int:
        return math.prod(self.lengths) * self.dtype.bytes

    @property
    def padded_bytes(self) -> int:
        """Bytes of shared memory for it, rounded up to the alignment of tiles."""
        return -(-self.bytes // TILE_ALIGNMENT) * TILE_ALIGNMENT

    def map(self, buffer: int) -> Map:
        steps = tuple(self.dtype.bytes * math.prod(self.dims[i + 1 :]) for i in range(len(self.dims)))
        return Map(buffer, self.dtype.name, self.dims[::-1], steps[::-1], self.lengths[::-1], self.swizzle)

    def for_each_element(self, statement: str) -> list[str]:
        """A statement for every element: p points to it in shared memory, e is its number in the box."""
        kind, size = TYPES[self.dtype.name], self.dtype.bytes
        return [
            f"for (long e = t; e < {math.prod(self.lengths)}; e += 32) {{",
            f"    const long at = e * {size};",
            f"    {kind}* const p = ({kind}*)(s + (at ^ (at >> 3 & {swizzle_mask(self.swizzle)})));",
            f"    {statement}",
            "}",
        ]


def _tma(row: Transfer, rank: int, swizzle: int, element: str, rng: np.random.Generator) -> Trial:
    """A box that may extend beyond the tensor's edges; only a load may start before an axis."""
    load, dtype = row.target == "shared", dt.DTYPES[element]
    inner, granule = (swizzle or 16 * int(rng.integers(1, 5))) // dtype.bytes, 16 // dtype.bytes
    lengths = (*(int(n) for n in rng.integers(2, 6, rank - 1)), inner)
    dims = (*(int(n) for n in rng.integers(3, 9, rank - 1)), granule * int(rng.integers(1, 5)))
    # In multiples of 16 bytes along the innermost axis.
    units = (*(1,) * (rank - 1), granule)
    starts = tuple(
        u * int(rng.integers(1 - b // u, 0) if load and rng.random() < 0.5 and b > u else rng.integers(d // u + 1))
        for b, d, u in zip(lengths, dims, units, strict=True)
    )
    name = f"tma_{'load' if load else 'store'}_{rank}d_{element}_{swizzle}"
    box = _Box(name, dtype, dims, lengths, starts, swizzle)
    return _tma_load(row, box, rng) if load else _tma_store(row, box, rng)


def _tma_load(row: Transfer, box: _Box, rng: np.random.Generator) -> Trial:
    values = random_values(rng, box.dtype, box.dims)
    before = np.zeros(box.lengths, storage(box.dtype))
    tensors = (("x", box.dtype, box.dims), ("y", box.dtype, box.lengths))
    copy = f"y{slices((0,) * len(box.dims), box.lengths)}, x{slices(box.starts, box.lengths)}"
    expected = copy_result(row.name, tensors, copy, [values, before])
    # The barrier comes last: as a static array before tiles aligned to 1 KB it would take 1 KB.
    body = [
        "MLC_DYNAMIC_SHARED(s);",
        f"unsigned long* const full = (unsigned long*)(s + {box.padded_bytes});",
        "if (t == 0) {",
        "    mlc_mbarrier_init(full, 1);",
        "    mlc_mbarrier_fence_init();",
        "}",
        "mlc_block_barrier();",
        "if (t == 0) {",
        f"    mlc_mbarrier_expect(full, {box.bytes});",
        f"    {row.function}(s, map, full, {box.coordinates});",
        "}",
        "mlc_mbarrier_wait(full, 0);",
        *box.for_each_element("out[e] = *p;"),
    ]
    text = kernel(box.name, 32, ("MLC_TENSOR_MAP(map)", f"{TYPES[box.dtype.name]}* __restrict__ out"), body)
    launch = Launch(box.name, (1, 1, 1), (32, 1, 1), (box.map(0), 1), shared=box.padded_bytes + 8)
    return Trial(text, ("tma",), launch, (("x", to_stored(values, box.dtype)),), (("out", box.dtype, expected),))


def _tma_store(row: Transfer, box: _Box, rng: np.random.Generator) -> Trial:
    """The tensor has previous contents, so that writes outside of the box show."""
    values, before = random_values(rng, box.dtype, box.lengths), random_values(rng, box.dtype, box.dims)
    tensors = (("x", box.dtype, box.lengths), ("y", box.dtype, box.dims))
    copy = f"y{slices(box.starts, box.lengths)}, x{slices((0,) * len(box.dims), box.lengths)}"
    expected = copy_result(row.name, tensors, copy, [values, before])
    body = [
        "MLC_DYNAMIC_SHARED(s);",
        f"for (long e = t; e < {math.prod(box.dims)}; e += 32) out[e] = before[e];",
        *box.for_each_element("*p = x[e];"),
        "mlc_fence_async_all();",
        "mlc_block_barrier();",
        "if (t == 0) {",
        f"    {row.function}(map, s, {box.coordinates});",
        "    mlc_bulk_commit();",
        "    mlc_bulk_wait<0>();",
        "}",
    ]
    c = TYPES[box.dtype.name]
    params = (f"const {c}* __restrict__ x", f"const {c}* __restrict__ before", f"{c}* out", "MLC_TENSOR_MAP(map)")
    text = kernel(box.name, 32, params, body)
    launch = Launch(box.name, (1, 1, 1), (32, 1, 1), (0, 1, 2, box.map(2)), shared=box.padded_bytes)
    inputs = (("x", to_stored(values, box.dtype)), ("before", to_stored(before, box.dtype)))
    return Trial(text, ("tma",), launch, inputs, (("out", box.dtype, expected),))


def _dsmem(row: Transfer, rng: np.random.Generator) -> Trial:
    """Each of two blocks reads the tile of the other."""
    values = random_values(rng, dt.f32, (2, 64))
    tensors = (("x", dt.f32, (2, 64)), ("y", dt.f32, (2, 64)))
    expected = values
    for block in range(2):
        target = np.zeros((2, 64), np.float32) if block == 0 else expected
        copy = f"y{slices((block, 0), (1, 64))}, x{slices((1 - block, 0), (1, 64))}"
        expected = copy_result("plain", tensors, copy, [values, target])
    body = [
        "MLC_SHARED(float, s, 64, 16);",
        "s[t] = x[blockIdx.x * 64 + t];",
        "mlc_cluster_barrier();",
        f"out[blockIdx.x * 64 + t] = {row.function}(s + t, mlc_cluster_rank() ^ 1);",
        "mlc_cluster_leave();",
    ]
    text = kernel("dsmem", 64, _params("float", "float"), body, cluster=2)
    launch = Launch("dsmem", (2, 1, 1), (64, 1, 1), (0, 1), cluster=(2, 1, 1))
    return Trial(text, ("cluster",), launch, (("x", values),), (("out", dt.f32, expected),))
