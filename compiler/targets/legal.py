"""Legality of Tile IR for a target with threads, checked before any lowering."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from compiler.ir import launches, tile
from compiler.ir.expr import Const, const, static
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.multiples import divides, multiple
from compiler.ir.roles import Role
from compiler.ir.statement import If, Kernel, Program, Stmt, within
from compiler.ir.tensor import Tensor, memory_order
from compiler.ir.text import show
from compiler.targets.target import Instruction, Target, Transfer, instruction

MOST_BOX_STRIDE = 8  # elements between those of a box, at most
MOST_THREADS, WARP = 1024, 32  # per block, on every target with threads
WARPGROUP = 4 * WARP  # threads that reallocate registers together
MOST_ROUNDS = 64  # rounds of a loop over lanes that are unrolled at a time, unless tiles in registers require all
MOST_REGISTERS, MOST_CONSUMER_REGISTERS = 255, 240  # per thread; per thread after reallocation


class IllegalProgram(ValueError):
    """A statement that the target cannot execute, with the reason."""


def verify(program: Program, target: Target) -> None:
    """Check that the target supports all instructions, copies and tiles. Raises IllegalProgram, with the kernel."""
    for kernel in program.kernels:
        problem = next(problems(kernel, target), None)
        if problem is not None:
            raise IllegalProgram(f"{target.name}: kernel {kernel.name}: {problem.reason}")


@dataclass(frozen=True)
class Problem:
    """Why the target cannot execute a kernel, and the names of the loops, tiles and instructions concerned."""

    subjects: Set[str]
    reason: str


def problems(kernel: Kernel, target: Target) -> Iterator[Problem]:
    """Why a target with threads cannot execute a kernel."""
    tiles = {a.tensor.name: a for a in within(kernel.body, tile.Alloc)}
    tensors = {p.name: p for p in kernel.params} | {name: a.tensor for name, a in tiles.items()}
    for s in within(kernel.body):
        subjects, reasons = _statement_problems(s, tiles, tensors, target)
        yield from (Problem(subjects, reason) for reason in reasons)
        if isinstance(s, tile.For) and s.bind.level == "cluster":
            yield from _multicast_problems(s, tiles)
    yield from _shared_memory_problems(kernel, target)
    clusters = {f.var for f in within(kernel.body, tile.For) if f.bind.level == "cluster"}
    clusters |= {name for name, a in tiles.items() if a.space == "cluster"}
    if len(clusters) > 1:
        yield Problem(clusters, f"the kernel has several kinds of clusters: {', '.join(sorted(clusters))}")
    over_blocks = [s for s in kernel.body if launches.is_bound(s, "blocks")]
    for launch in (*((s,) for s in over_blocks), tuple(s for s in kernel.body if s not in over_blocks)):
        yield from _division_problems(launch, target)


def _statement_problems(
    s: Stmt, tiles: Mapping[str, tile.Alloc], tensors: Mapping[str, Tensor], target: Target
) -> tuple[set[str], Iterable[str]]:
    """Why a target cannot execute one statement: the names concerned, and the reasons."""
    match s:
        case tile.Mma(name):
            try:
                row = instruction(target, name)
            except KeyError as missing:
                return {name}, (str(missing.args[0]),)
            return {name, s.acc.buffer, s.a.buffer, s.b.buffer}, _mma_problems(s, row, tiles, tensors)
        case tile.Copy(to, source, how) if how != "plain":
            return {to.buffer, source.buffer}, _transfer_problems(s, tiles, tensors, target)
        case tile.For(bind=tile.Bind("cluster")):
            return {s.var}, _cluster_loop_problems(s, target)
        case tile.For(bind=tile.Bind("unroll")):
            return {s.var}, _unroll_problems(s, tiles)
        case tile.For(bind=tile.Bind("lanes" | "columns")):
            return {s.var}, (*_thread_problems(s), *_vector_problems(s), *_round_problems(s, tiles))
        case tile.Alloc(space="cluster"):
            return {s.tensor.name}, _cluster_problems(s, target)
    return set(), ()


def _space(buffer: str, tiles: Mapping[str, tile.Alloc]) -> str:
    return tiles[buffer].space if buffer in tiles else "global"


def _transfer_problems(
    s: tile.Copy, tiles: Mapping[str, tile.Alloc], tensors: Mapping[str, Tensor], target: Target
) -> Iterator[str]:
    """Copies that none of the target's transfers can do."""
    spaces = _space(s.source.buffer, tiles), _space(s.target.buffer, tiles)
    row = next((t for t in target.transfers if t.name == s.how and (t.source, t.target) == spaces), None)
    if row is None:
        yield f"no {s.how} copies from {spaces[0]} to {spaces[1]} memory"
        return
    tile_slice, global_slice = (s.target, s.source) if s.target.buffer in tiles else (s.source, s.target)
    yield from _copy_problems(s, row, tensors[s.source.buffer], tiles[tile_slice.buffer].swizzle)
    yield from _stride_problems(tensors[global_slice.buffer], row)
    yield from _start_problems(global_slice, tensors[global_slice.buffer], row)


def _thread_problems(f: tile.For) -> Iterator[str]:
    """More threads than a block can have."""
    unit, threads_per_unit = ("warps", WARP) if f.bind.level == "columns" else ("threads", 1)
    threads = dict(f.bind.args).get(unit, 1) * threads_per_unit
    if not 1 <= threads <= MOST_THREADS:
        hint = f"{unit}={MOST_THREADS // threads_per_unit}"
        yield f"loop {f.var} takes {threads} threads, a block has at most {MOST_THREADS}: {hint}"


def _unroll_problems(f: tile.For, tiles: Mapping[str, tile.Alloc]) -> Iterator[str]:
    """Loops bound to load operands an iteration ahead that load none; iterations that should share loops."""
    if dict(f.bind.args).get("jam"):
        yield f"loop {f.var}: iterations share loops, jam=1, on a CPU only"
    loads = [s for s in f.body if isinstance(s, tile.Copy) and s.target.buffer in tiles]
    into_registers = any(tiles[s.target.buffer].space == "registers" for s in loads)
    if dict(f.bind.args).get("ahead") and not (into_registers and isinstance(f.extent, Const)):
        yield f"loop {f.var} of {show(f.extent)} iterations copies no operands to registers to be loaded ahead"


def _vector_problems(f: tile.For) -> Iterator[str]:
    """Vector widths that do not divide a loop: guards per element would cost more than wide accesses gain."""
    vector = dict(f.bind.args).get("vector", 1)
    if vector < 1 or vector & (vector - 1):
        yield f"loop {f.var}: vector is a power of two, not {vector}"
    elif not divides(f.extent, vector):
        widest = multiple(f.extent)
        yield f"loop {f.var} of {show(f.extent)} iterations has no multiple of vector={vector}, at most vector={widest}"
    elif vector > 1 and any(launches.is_bound(s, "lanes") for s in f.body):
        yield f"loop {f.var} is around a loop over lanes, whose iterations are neighbours: that takes vector={vector}"


def _round_problems(f: tile.For, tiles: Mapping[str, tile.Alloc]) -> Iterator[str]:
    """Rounds that cannot be unrolled, or that another loop has to state."""
    arguments = dict(f.bind.args)
    threads, extent = arguments.get("threads", 0) * arguments.get("vector", 1), f.extent
    match f.body:
        case (tile.For(var=inner, extent=n, kind=f.kind, bind=tile.Bind("lanes", args)),) if isinstance(n, Const):
            extent = simplify(extent * n, {})
            if "rounds" in dict(args):
                yield f"loop {inner} is shared by threads together with loop {f.var}, which is to say how many rounds"
    local_tiles = {n.tensor.name for n in within(f.body, tile.Alloc)}
    register_tiles = sorted(b for b in tile.buffers((f,)) - local_tiles if b in tiles and tiles[b].space == "registers")
    if "rounds" in arguments and register_tiles:
        yield f"loop {f.var} says rounds, but all over tiles in registers are written out: {', '.join(register_tiles)}"
    elif arguments.get("rounds", 1) < 1 or arguments.get("rounds", 1) > MOST_ROUNDS:
        yield f"loop {f.var}: rounds={arguments['rounds']} is none of 1 to rounds={MOST_ROUNDS}"
    elif "rounds" not in arguments and threads and not register_tiles and isinstance(extent, Const):
        rounds = -(-int(extent.value) // threads)
        if rounds > MOST_ROUNDS:
            yield f"loop {f.var} takes {rounds} rounds, too many to write out: at most rounds={MOST_ROUNDS} at a time"


def _division_problems(body: tuple[Stmt, ...], target: Target) -> Iterator[Problem]:
    """Accumulators and registers that cannot be divided among the threads of a block as the statements say."""
    threads = launches.block_size(body)
    nodes = list(within(body))
    for f in nodes:
        if isinstance(f, tile.For) and {"producer_registers", "consumer_registers"} & dict(f.bind.args).keys():
            yield from (Problem({f.var}, reason) for reason in _register_problems(f, threads, target))
    rows = {r.name: r for r in target.instructions}
    matmuls = [s for s in nodes if isinstance(s, tile.Mma) and s.instruction in rows]
    lanes = [n for n in nodes if launches.is_bound(n, "lanes")]
    needs_whole_rows = bool(matmuls) and any(
        g in f.walk() for f in lanes for g in lanes if g is not f and g.kind == "reduce"
    )
    for s in matmuls:
        row, lengths = rows[s.instruction], tile.lengths(s)
        legal_grids = [
            g
            for g in grids(lengths["m"], lengths["n"], threads // row.threads, row)
            if g[1] == 1 or not needs_whole_rows
        ]
        if s.grid not in legal_grids or s.grid != matmuls[0].grid:
            legal = " or ".join(f"{m} x {n}" for m, n in legal_grids) or "not at all"
            stated = " x ".join(map(str, s.grid)) or "nothing"
            reason = (
                f"{threads} threads share {s.acc.buffer} by {row.name} as {legal}, for all matmuls, not as {stated}"
            )
            yield Problem({s.instruction}, reason)
        if s.neighbours and any((x.acc.buffer, x.neighbours) != (s.acc.buffer, s.neighbours) for x in matmuls):
            reason = "all matmuls of a launch add to one tile and have neighbours along the same axes, or none has any"
            yield Problem({s.instruction}, reason)


def grids(m: int, n: int, groups: int, row: Instruction) -> list[tuple[int, int]]:
    """The grids (down, across) in which `groups` thread groups can share a tile, fewest reads first."""
    candidates = [
        (m // down + n // across, down, across)
        for down in range(1, groups + 1)
        for across in [groups // down]
        if down * across == groups and m % (down * row.m) == 0 and n % (across * row.n) == 0
    ]
    return [(down, across) for _, down, across in sorted(candidates)]


def _register_problems(f: tile.For, threads: int, target: Target) -> Iterator[str]:
    """Registers that are not available: a thread that requests more than others released waits for ever."""
    arguments = dict(f.bind.args)
    producer, consumer = arguments.get("producer_registers", 0), arguments.get("consumer_registers", 0)
    if "setmaxnreg" not in target.features:
        yield f"loop {f.var}: threads keep the registers that they begin with"
    elif threads % WARPGROUP or arguments.get("producers", 0) * WARP > WARPGROUP:
        groups = f"groups of {WARPGROUP} threads"
        yield f"loop {f.var}: registers pass between {groups}, not to {threads}, or from so many warps"
    elif (
        not producer
        or producer % 8
        or consumer % 8
        or not 0 < consumer <= consumer_registers(threads, producer, target)
    ):
        most = consumer_registers(threads, producer, target)
        left = f"multiples of 8 up to consumer_registers={most} are left"
        yield f"loop {f.var}: with producer_registers={producer}, {left}"


def consumer_registers(threads: int, kept: int, target: Target) -> int:
    """Registers per computing thread if one group of producers keeps only `kept` per thread.

    The block redistributes what it was launched with: the same number for all threads, a multiple of 8.
    """
    launched = target.registers // (threads + WARPGROUP) // 8 * 8
    return min((launched * (threads + WARPGROUP) - kept * WARPGROUP) // threads // 8 * 8, MOST_CONSUMER_REGISTERS)


def _shared_memory_problems(kernel: Kernel, target: Target) -> Iterator[Problem]:
    """Tiles that exceed a block's shared memory; names the pipeline, if a shallower one would fit."""
    for body in launches.apart(kernel.body):
        used = _shared_bytes(body, 1)
        if used > target.shared:
            yield from _depth_problems(body, used, target)


def _depth_problems(body: tuple[Stmt, ...], used: int, target: Target) -> Iterator[Problem]:
    reason = f"its tiles in shared memory take {used} bytes, a block has {target.shared}"
    for n in within(body):
        match n:
            case tile.For(bind=tile.Bind("pipeline", args), body=inner) if (depth := dict(args).get("depth", 1)) > 1:
                stage_bytes = _shared_bytes(inner, 1)
                deepest = (target.shared - (used - depth * stage_bytes)) // stage_bytes if stage_bytes else 0
                if deepest >= 1:
                    yield Problem({n.var}, f"{reason}: loop {n.var} can be at most depth={deepest}")
    yield Problem({n.tensor.name for n in within(body, tile.Alloc)}, reason)


MOST_BLOCKS = 8  # per cluster, on every target with clusters
SWIZZLED_ROWS = 8  # rows after which a swizzle's pattern repeats


def _cluster_problems(s: tile.Alloc, target: Target) -> Iterator[str]:
    blocks = static(s.tensor.shape[0])
    if "cluster" not in target.features:
        yield f"tile {s.tensor.name} lies in the blocks of a cluster, of which the target knows nothing"
    elif blocks > MOST_BLOCKS:
        yield f"tile {s.tensor.name} lies in {blocks} blocks, and a cluster has at most {MOST_BLOCKS}"


def _cluster_loop_problems(f: tile.For, target: Target) -> Iterator[str]:
    if "cluster" not in target.features:
        yield f"loop {f.var} runs over the blocks of a cluster, of which the target knows nothing"
    elif not isinstance(f.extent, Const) or not 1 < static(f.extent) <= MOST_BLOCKS:
        yield f"loop {f.var} has {show(f.extent)} iterations, and a cluster has 2 to {MOST_BLOCKS} blocks"
    elif any(n.bind.level == "blocks" for n in within(f.body, tile.For)):
        yield f"loop {f.var} is over the blocks of a cluster, and loops over blocks are outside of it"


def _multicast_problems(f: tile.For, tiles: Mapping[str, tile.Alloc]) -> Iterator[Problem]:
    """Copies that blocks of a cluster cannot divide by rows of the tile."""
    blocks = int(f.extent.value) if isinstance(f.extent, Const) else 1
    for s in within(f.body, tile.Copy):
        name, (rows, *columns) = s.target.buffer, tile.extents(s.target) or [1]
        if s.multicast is None:
            continue
        if s.how != "tma" or _space(name, tiles) != "shared":
            yield Problem({name}, f"a {s.how} copy to {name} reaches one block only; copy to shared memory by tma")
        elif len(columns) != 1 or rows % (SWIZZLED_ROWS * blocks):
            reason = f"{name} has {rows} rows, which {blocks} blocks do not divide into multiples of {SWIZZLED_ROWS}"
            yield Problem({name}, reason)


def _mma_problems(
    s: tile.Mma, row: Instruction, tiles: Mapping[str, tile.Alloc], tensors: Mapping[str, Tensor]
) -> Iterator[str]:
    expected = {
        "acc": (s.acc.buffer, row.acc_type, row.acc_space),
        "a": (s.a.buffer, row.a_type, row.a_space),
        "b": (s.b.buffer, row.b_type, row.b_space),
    }
    for operand, (buffer, dtype, space) in expected.items():
        actual = tensors[buffer].dtype.name, _space(buffer, tiles)
        if actual != (dtype, space):
            yield f"{row.name} takes {operand} as {dtype} in {space}, but {buffer} is {' in '.join(actual)}"
    if s.layout not in row.layouts:
        yield f"{row.name} takes operands that lie as {row.layouts}, not {s.layout}"
    sizes = tile.lengths(s)
    multiple_of = {"m": row.m, "n": row.n, "k": row.k}
    if any(sizes[x] % multiple_of[x] for x in "mnk" if multiple_of[x]):
        yield f"{row.name} does not divide tiles of {sizes['m']} x {sizes['n']} x {sizes['k']}"
    if s.store:
        yield f"{row.name} adds its sums to registers, and does not store them"
    if s.again:
        yield f"{row.name} makes whole blocks only, of which no columns are left over to be made again"
    for x in s.neighbours:
        space, parts = (row.a_space, s.grid[:1]) if x == "m" else (row.b_space, s.grid[1:])
        each = sizes[x] // math.prod(parts)
        if space != "registers":
            yield f"{row.name} takes the operand along {x} from {space} memory: no registers hold neighbours of it"
        elif each & (each - 1):
            yield f"of {each} places along {x} a group has, which are no power of two, no four are taken as neighbours"


def _copy_problems(s: tile.Copy, row: Transfer, source: Tensor, swizzle: int) -> Iterator[str]:
    lengths = tile.extents(s.target)
    row_bytes = (lengths[-1] if lengths else 1) * source.dtype.bytes
    if not any(row_bytes % piece == 0 for piece in row.pieces):
        yield f"{row.name} moves pieces of {row.pieces} bytes; the rows of {s.source.buffer} here have {row_bytes}"
    if row.rank and max(len(s.source.lengths), len(s.target.lengths)) > row.rank:
        yield f"{row.name} knows tensors of at most {row.rank} axes"
    spans = [n * step for x in (s.target, s.source) for n, step in zip(x.lengths, tile.steps(x), strict=True)]
    if row.longest and max(spans, default=0) > row.longest:
        yield f"{row.name} moves at most {row.longest} elements along an axis, not {max(spans)}"
    if row.rank and any(step > MOST_BOX_STRIDE for x in (s.target, s.source) for step in tile.steps(x)):
        yield f"{row.name} takes elements that are at most {MOST_BOX_STRIDE} apart"
    if swizzle not in row.swizzles:
        yield f"{row.name} knows no swizzle of {swizzle} bytes, only {row.swizzles}"
    elif (
        swizzle and row_bytes % swizzle and (row_bytes > swizzle or row.rank)
    ):  # the copy engine leaves gaps after short rows
        yield f"rows of {row_bytes} bytes are no whole panels of {swizzle}, by which {row.name} would swizzle them"


def _stride_problems(t: Tensor, row: Transfer) -> Iterator[str]:
    """Strides of a tensor in global memory at which no piece may start."""
    strides = (t.strides[d] for d in memory_order(t) if t.shape[d] is not const(1))
    steps = [static(step) * t.dtype.bytes for step in strides if isinstance(step, Const)]
    misaligned = [n for n in steps[:-1] if all(n % piece for piece in row.pieces) or (row.rank and not n)]
    if misaligned or (steps and steps[-1] != t.dtype.bytes):
        yield f"{row.name} moves pieces of {row.pieces} bytes, but the axes of {t.name} are {steps} bytes apart"


def _start_problems(s: tile.Slice, t: Tensor, row: Transfer) -> Iterator[str]:
    """Slices in global memory that need not start where a piece may start: the copy engine faults on others."""
    last_axis = memory_order(t)[-1]
    factors, constant = linear(s.starts[last_axis])
    steps = [n * t.dtype.bytes for n in (*factors.values(), constant)]
    if not any(all(n % piece == 0 for n in steps) for piece in row.pieces):
        yield (
            f"{row.name} moves pieces of {row.pieces} bytes, but {show(s.starts[last_axis])} along the last axis of "
            f"{t.name} need not begin one"
        )


def _shared_bytes(body: tuple[Stmt, ...], depth: int) -> int:
    """Bytes of all tiles in shared memory; tiles inside a pipeline count once per stage."""
    total = 0
    for s in body:
        match s:
            case tile.Alloc(t, "shared", slots=slots):
                total += (
                    max(depth, slots) * math.prod(static(n) for n in t.shape if isinstance(n, Const)) * t.dtype.bytes
                )
            case tile.Alloc(t, "cluster"):
                total += math.prod(static(n) for n in t.shape[1:]) * t.dtype.bytes
            case tile.For(bind=tile.Bind("pipeline", args), body=inner):
                total += _shared_bytes(inner, depth * dict(args).get("depth", 1))
            case tile.For(body=inner) | If(body=inner) | Role(body=inner):
                total += _shared_bytes(inner, depth)
    return total
