"""A program of Tile IR and a target with threads in; why the target cannot run it out, before any lowering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass

from compiler.ir import tile
from compiler.ir.expr import Const, const, static
from compiler.ir.index import linear
from compiler.ir.statement import If, Kernel, Program, Stmt
from compiler.ir.tensor import Tensor, memory_order
from compiler.ir.text import show
from compiler.targets.target import Instruction, Target, Transfer, instruction

FARTHEST = 8  # elements between those of a box
MOST_THREADS, WARP = 1024, 32  # of a block, on every target that has them


class NotLegal(ValueError):
    """A statement that the target has no way to do: which, and why."""


def verify(program: Program, target: Target) -> None:
    """Tensor instructions, copies and tiles are such as the target has; raises NotLegal naming kernel and statement."""
    for kernel in program.kernels:
        problem = next(problems(kernel, target), None)
        if problem is not None:
            raise NotLegal(f"{target.name}: kernel {kernel.name}: {problem.reason}")


@dataclass(frozen=True)
class Problem:
    """What the target cannot do, and the loops, tiles and instructions that ask for it."""

    subjects: Set[str]
    reason: str


def problems(kernel: Kernel, target: Target) -> Iterator[Problem]:
    """What a target with threads cannot do of a kernel."""
    statements = list(_statements(kernel.body))
    allocs = [n for n in statements if isinstance(n, tile.Alloc)]
    tiles = {a.tensor.name: a for a in allocs}
    tensors = {p.name: p for p in kernel.params} | {a.tensor.name: a.tensor for a in allocs}

    def space(buffer: str) -> str:
        return tiles[buffer].space if buffer in tiles else "global"

    for n in statements:
        match n:
            case tile.Mma(name):
                about = {name, n.acc.buffer, n.a.buffer, n.b.buffer}
                try:
                    row = instruction(target, name)
                except KeyError as missing:
                    yield Problem({name}, str(missing.args[0]))
                    continue
                known = {x: (tensors[x].dtype.name, space(x)) for x in tensors}
                yield from (Problem(about, reason) for reason in _mma_problems(n, row, known))
            case tile.Copy(to, source, how) if how != "plain":
                about = {to.buffer, source.buffer}
                rows = [t for t in target.transfers if t.name == how]
                fits = [t for t in rows if (t.source, t.target) == (space(source.buffer), space(to.buffer))]
                if not fits:
                    missing_way = f"no {how} copies from {space(source.buffer)} to {space(to.buffer)} memory"
                    yield Problem(about, missing_way)
                else:
                    held = tiles[to.buffer if to.buffer in tiles else source.buffer]
                    there = source if to.buffer in tiles else to
                    reasons = (
                        *_copy_problems(n, fits[0], tensors[source.buffer], held.swizzle),
                        *_even(tensors[there.buffer], fits[0]),
                        *_begins(there, tensors[there.buffer], fits[0]),
                    )
                    yield from (Problem(about, reason) for reason in reasons)
            case tile.For(bind=tile.Bind("lanes" | "columns", args)):
                each = WARP if n.bind.level == "columns" else 1
                of = "warps" if n.bind.level == "columns" else "threads"
                threads = dict(args).get(of, 1) * each
                if not 1 <= threads <= MOST_THREADS:
                    most = f"{of}={MOST_THREADS // each}"
                    reason = f"loop {n.var} takes {threads} threads, a block has at most {MOST_THREADS}: {most}"
                    yield Problem({n.var}, reason)
    for a in allocs:
        if a.space == "cluster":
            yield from (Problem({a.tensor.name}, reason) for reason in _cluster_problems(a, target))
    yield from _too_much_shared(kernel, target)


def _too_much_shared(kernel: Kernel, target: Target) -> Iterator[Problem]:
    """Tiles that a block's memory does not hold; the pipeline that is too deep, where a shallower one would fit."""
    taken = _shared(kernel.body, 1)
    if taken <= target.shared:
        return
    reason = f"its tiles in shared memory take {taken} bytes, a block has {target.shared}"
    for n in _statements(kernel.body):
        match n:
            case tile.For(bind=tile.Bind("pipeline", args), body=inner) if (depth := dict(args).get("depth", 1)) > 1:
                stage = _shared(inner, 1)
                fits = (target.shared - (taken - depth * stage)) // stage if stage else 0
                if fits >= 1:
                    yield Problem({n.var}, f"{reason}: loop {n.var} can be at most depth={fits}")
    yield Problem({n.tensor.name for n in _statements(kernel.body) if isinstance(n, tile.Alloc)}, reason)


def _statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    for s in body:
        yield s
        if isinstance(s, tile.For | If):
            yield from _statements(s.body)


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
