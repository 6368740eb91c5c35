"""A program of Tile IR and a target with threads in; why the target cannot run it out, before any lowering."""

from __future__ import annotations

import math
from collections.abc import Iterator

from compiler.ir import tile
from compiler.ir.expr import Const, const, static
from compiler.ir.index import linear
from compiler.ir.statement import If, Kernel, Program, Stmt
from compiler.ir.tensor import Tensor, memory_order
from compiler.ir.text import show
from compiler.targets.target import Instruction, Target, Transfer, instruction

FARTHEST = 8  # elements between those of a box


class NotLegal(ValueError):
    """A statement that the target has no way to do: which, and why."""


def verify(program: Program, target: Target) -> None:
    """Tensor instructions, copies and tiles are such as the target has; raises NotLegal naming kernel and statement."""
    for kernel in program.kernels:
        problem = next(_problems(kernel, target), "")
        if problem:
            raise NotLegal(f"{target.name}: kernel {kernel.name}: {problem}")


def _problems(kernel: Kernel, target: Target) -> Iterator[str]:
    allocs = [n for s in kernel.body for n in s.walk() if isinstance(n, tile.Alloc)]
    tiles = {a.tensor.name: a for a in allocs}
    tensors = {p.name: p for p in kernel.params} | {a.tensor.name: a.tensor for a in allocs}

    def space(buffer: str) -> str:
        return tiles[buffer].space if buffer in tiles else "global"

    for s in kernel.body:
        for n in s.walk():
            match n:
                case tile.Mma(name):
                    try:
                        row = instruction(target, name)
                    except KeyError as missing:
                        yield str(missing.args[0])
                        continue
                    yield from _mma_problems(n, row, {x: (tensors[x].dtype.name, space(x)) for x in tensors})
                case tile.Copy(to, source, how) if how != "plain":
                    rows = [t for t in target.transfers if t.name == how]
                    fits = [t for t in rows if (t.source, t.target) == (space(source.buffer), space(to.buffer))]
                    if not fits:
                        yield f"no {how} copies from {space(source.buffer)} to {space(to.buffer)} memory"
                    else:
                        held = tiles[to.buffer if to.buffer in tiles else source.buffer]
                        yield from _copy_problems(n, fits[0], tensors[source.buffer], held.swizzle)
                        there = source if to.buffer in tiles else to
                        yield from _even(tensors[there.buffer], fits[0])
                        yield from _begins(there, tensors[there.buffer], fits[0])
    yield from (p for a in allocs if a.space == "cluster" for p in _cluster_problems(a, target))
    shared = _shared(kernel.body, 1)
    if shared > target.shared:
        yield f"its tiles in shared memory take {shared} bytes, a block has {target.shared}"


MOST_BLOCKS = 8  # of a cluster, on every target that has them


def _cluster_problems(s: tile.Alloc, target: Target) -> Iterator[str]:
    blocks = static(s.tensor.shape[0])
    if "cluster" not in target.features:
        yield f"tile {s.tensor.name} lies in the blocks of a cluster, of which the target knows nothing"
    elif blocks > MOST_BLOCKS:
        yield f"tile {s.tensor.name} lies in {blocks} blocks, and a cluster has at most {MOST_BLOCKS}"


def _mma_problems(s: tile.Mma, row: Instruction, known: dict[str, tuple[str, str]]) -> Iterator[str]:
    wanted = {
        "acc": (s.acc.buffer, row.acc_type, row.acc_space),
        "a": (s.a.buffer, row.a_type, row.a_space),
        "b": (s.b.buffer, row.b_type, row.b_space),
    }
    for operand, (buffer, dtype, space) in wanted.items():
        if known[buffer] != (dtype, space):
            has = " in ".join(known[buffer])
            yield f"{row.name} takes {operand} as {dtype} in {space}, but {buffer} is {has}"
    if s.layout not in row.layouts:
        yield f"{row.name} takes operands that lie as {row.layouts}, not {s.layout}"
    sizes = tile.lengths(s)
    unit = {"m": row.m, "n": row.n, "k": row.k}
    if any(sizes[x] % unit[x] for x in "mnk" if unit[x]):
        yield f"{row.name} does not divide tiles of {sizes['m']} x {sizes['n']} x {sizes['k']}"


def _copy_problems(s: tile.Copy, row: Transfer, source: Tensor, swizzle: int) -> Iterator[str]:
    lengths = tile.extents(s.target)
    inner = (lengths[-1] if lengths else 1) * source.dtype.bytes
    if not any(inner % piece == 0 for piece in row.pieces):
        yield f"{row.name} moves pieces of {row.pieces} bytes; the rows of {s.source.buffer} here have {inner}"
    if row.rank and max(len(s.source.lengths), len(s.target.lengths)) > row.rank:
        yield f"{row.name} knows tensors of at most {row.rank} axes"
    reach = [n * step for x in (s.target, s.source) for n, step in zip(x.lengths, tile.steps(x), strict=True)]
    if row.longest and max(reach, default=0) > row.longest:
        yield f"{row.name} moves at most {row.longest} elements along an axis, not {max(reach)}"
    if row.rank and any(step > FARTHEST for x in (s.target, s.source) for step in tile.steps(x)):
        yield f"{row.name} takes elements that are at most {FARTHEST} apart"
    if swizzle not in row.swizzles:
        yield f"{row.name} knows no swizzle of {swizzle} bytes, only {row.swizzles}"
    elif swizzle and inner > swizzle and inner % swizzle:
        yield f"rows of {inner} bytes are no whole panels of {swizzle}, by which they would be swizzled"


def _even(t: Tensor, row: Transfer) -> Iterator[str]:
    """Rows of a tensor in global memory begin where a piece may begin."""
    several = (t.strides[d] for d in memory_order(t) if t.shape[d] is not const(1))
    steps = [static(step) * t.dtype.bytes for step in several if isinstance(step, Const)]
    odd = [n for n in steps[:-1] if all(n % piece for piece in row.pieces)]
    if odd or (steps and steps[-1] != t.dtype.bytes):
        yield f"{row.name} moves pieces of {row.pieces} bytes, but the axes of {t.name} are {steps} bytes apart"


def _begins(s: tile.Slice, t: Tensor, row: Transfer) -> Iterator[str]:
    """A slice in global memory begins where a piece may begin: for others the copy engine faults."""
    last = memory_order(t)[-1]
    factors, constant = linear(s.starts[last])
    steps = [n * t.dtype.bytes for n in (*factors.values(), constant)]
    if not any(all(n % piece == 0 for n in steps) for piece in row.pieces):
        yield (
            f"{row.name} moves pieces of {row.pieces} bytes, but {show(s.starts[last])} along the last axis of "
            f"{t.name} need not begin one"
        )


def _shared(body: tuple[Stmt, ...], depth: int) -> int:
    """Bytes of all tiles in shared memory; a pipeline holds as many of those inside as it is deep."""
    total = 0
    for s in body:
        match s:
            case tile.Alloc(t, "shared"):
                total += depth * math.prod(static(n) for n in t.shape if isinstance(n, Const)) * t.dtype.bytes
            case tile.Alloc(t, "cluster"):
                total += math.prod(static(n) for n in t.shape[1:]) * t.dtype.bytes
            case tile.For(bind=tile.Bind("pipeline", args), body=inner):
                total += _shared(inner, depth * dict(args).get("depth", 1))
            case tile.For(body=inner) | If(body=inner):
                total += _shared(inner, depth)
    return total
