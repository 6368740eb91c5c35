"""Shared helpers of schedule steps on contractions: find, measure, copy and replace nests of Tile IR loops."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from compiler.ir import tile
from compiler.ir.dtype import DType
from compiler.ir.expr import Const, Expr, Op, Var, dim, loads, names, op, substitute
from compiler.ir.linear import from_linear, linear
from compiler.ir.ranges import Range
from compiler.ir.rewrite import replaced
from compiler.ir.statement import If, Kernel, Stmt, Store, within
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.value_ranges import extent_range, value_range
from compiler.schedule.steps import ScheduleError, Step

SERIAL = tile.Bind("serial")
Body = tuple[Stmt, ...]
Loops = tuple[tile.For, ...]


def find_nest(kernel: Kernel, step: Step, loops: Sequence[str]) -> tuple[Loops, Loops]:
    """Return the loops around, and the perfectly nested loops of these names, both outermost first."""
    for around, f in loops_in(kernel.body):
        if f.var == loops[0]:
            nest = [f]
            for var in loops[1:]:
                match nest[-1].body:
                    case (tile.For() as inner,) if inner.var == var:
                        nest.append(inner)
                    case _:
                        raise ScheduleError(step, f"{var} is not the only statement of {nest[-1].var}")
            return around, tuple(nest)
    raise ScheduleError(
        step,
        f"kernel {kernel.name} has no loop {loops[0]}; it has {', '.join(f.var for _, f in loops_in(kernel.body))}",
    )


def find_input(kernel: Kernel, step: Step, name: str) -> Tensor:
    """The buffer of that name, which the kernel must read and not write."""
    buffer = next((p for p in kernel.params if p.name == name), None)
    if buffer is None or name in kernel.writes:
        raise ScheduleError(step, f"kernel {kernel.name} does not read {name}, or writes it too")
    return buffer


def constant_lengths(step: Step, loops: Loops, ranges: dict[str, Range]) -> dict[str, int]:
    """The lengths of loops; raises ScheduleError if one is cut short at the end."""
    long = {f.var: max_length(step, f, ranges) for f in loops}
    if any(names(f.extent) for f in loops):
        raise ScheduleError(step, f"{', '.join(f.var for f in loops)} are cut short, pad them first")
    return long


def tile_along(name: str, dtype: DType, order: Sequence[str], long: Mapping[str, int]) -> tuple[Tensor, tile.Slice]:
    """A tile whose axes are these loops, and a slice of all of it."""
    lengths = tuple(long[v] for v in order)
    shape = tuple(map(dim, lengths))
    return Tensor(name, dtype, shape, row_major(shape)), tile.Slice(name, (dim(0),) * len(order), lengths)


def loops_in(body: Body, around: Loops = ()) -> Iterator[tuple[Loops, tile.For]]:
    """Every loop with the loops around it, in program order."""
    for s in body:
        match s:
            case tile.For(body=inner):
                yield around, s
                yield from loops_in(inner, (*around, s))
            case If(body=inner):
                yield from loops_in(inner, around)


def replaced_in_loop(kernel: Kernel, loop: tile.For, old: Stmt, new: Body, begin: Body) -> Kernel:
    """The kernel with a statement of a loop replaced, and with statements at the beginning of the loop."""
    body = (*begin, *replaced(loop.body, old, new))
    return kernel.replace(body=replaced(kernel.body, loop, (loop.replace(body=body),)))


def contractions_in(body: Body) -> Iterator[tuple[Loops, Store]]:
    """Every contraction that accumulates into a tile, with the loops around it."""
    for around, f in loops_in(body):
        for s in f.body:
            if isinstance(s, Store) and s.op == "sum" and factors(s.value):
                yield (*around, f), s


def factors(value: Expr) -> list[tuple[Expr, Expr]]:
    """Each factor of a product with the other one; empty for other values."""
    match value:
        case Op("mul", (a, b)):
            return [(a, b), (b, a)]
    return []


def factors_from(kernel: Kernel, buffer: str, loops: Sequence[str]) -> list[tuple[Loops, Store, Expr, Expr]]:
    """The factors that load `buffer` in contractions within `loops`: loops around, store, factor and other factor.

    If both factors load it, the one that depends on more of the loops comes first. A factor need not depend on all: a
    broadcast one repeats its elements along the others.
    """
    found = [
        (around, total, factor, other)
        for around, total in contractions_in(kernel.body)
        if set(loops) <= {f.var for f in around}
        for factor, other in factors(total.value)
        if buffer in {n.buffer for n in loads(factor)}
    ]
    return sorted(found, key=lambda x: -len(set(loops) & names(x[2])))


def ranges_of(loops: Loops) -> dict[str, Range]:
    ranges: dict[str, Range] = {}
    for f in loops:
        high = value_range(f.extent, ranges)[1]
        known = isinstance(f.extent, Const)
        ranges[f.var] = extent_range(f.extent) if known else (0, None if high is None else high - 1)
    return ranges


def ranges_within(f: tile.For) -> dict[str, Range]:
    """The ranges of the loops inside a loop, each by itself."""
    return {v: r for n in within(f.body, tile.For) for v, r in ranges_of((n,)).items()}


def ranges_around(kernel: Kernel, target: tile.For) -> dict[str, Range]:
    """The ranges of a loop and of the loops around it."""
    return next(ranges_of((*around, f)) for around, f in loops_in(kernel.body) if f is target)


def max_length(step: Step, f: tile.For, ranges: dict[str, Range]) -> int:
    high = ranges[f.var][1]
    if high is None:
        raise ScheduleError(step, f"how long {f.var} is must be known when compiling")
    return high + 1


def pieces(extent: Expr, length: int, piece: Var) -> tuple[Expr, Expr]:
    """The number of pieces of this length in a loop, and the iterations of a piece: the last may be shorter."""
    piece_length = Const(length, piece.dtype)
    is_exact = isinstance(extent, Const) and int(extent.value) % length == 0
    return (extent + (length - 1)) // piece_length, piece_length if is_exact else op(
        "min", piece_length, extent - piece * piece_length
    )


def loop_variables(step: Step, called: Sequence[str], count: int) -> tuple[Var, ...]:
    """The variables for the loops that a step creates; raises ScheduleError if it names more or fewer than `count`."""
    if len(called) != count:
        raise ScheduleError(step, f"it makes {count} loops here, and names {', '.join(called) or 'none'}")
    return tuple(map(Var, called))


def loops_along(loops: Sequence[Var], extents: Sequence[Expr], *body: Stmt) -> Body:
    """Statements within parallel loops of these extents, outermost first."""
    for v, n in zip(reversed(loops), reversed(extents), strict=True):
        body = (tile.For(v.name, n, "parallel", SERIAL, body),)
    return body


def copy_nest(nest: Loops, loops: Sequence[Var], body: Body) -> Body:
    """A copy of a nest with parallel loops of these names around another body; nothing for an empty body."""
    if not body:
        return ()
    renamed = {Var(f.var): v for f, v in zip(nest, loops, strict=True)}
    body = substitute(body, renamed)
    for f in reversed(nest):
        var = renamed[Var(f.var)].name
        body = (tile.For(var, substitute(f.extent, renamed), "parallel", SERIAL, body),)
    return body


def match_slice(index: Sequence[Expr], long: dict[str, int]) -> tuple[list[str], tile.Slice] | None:
    """The loop of `long` that moves each axis by one, and the slice that they cover.

    None if an index depends on them in another way, or two axes on the same loop.
    """
    starts: list[Expr] = []
    lengths: list[int] = []
    axes: list[str] = []
    for e in index:
        terms, rest = linear(e)
        loop_vars = [v for v in terms if isinstance(v, Var) and v.name in long]
        if (
            names(e) & set(long) != {v.name for v in loop_vars}
            or len(loop_vars) > 1
            or any(terms[v] != 1 for v in loop_vars)
        ):
            return None
        starts.append(from_linear(({v: c for v, c in terms.items() if v not in loop_vars}, rest)))
        lengths.append(long[loop_vars[0].name] if loop_vars else 0)
        axes += [v.name for v in loop_vars]
    return (axes, tile.Slice("", tuple(starts), tuple(lengths))) if len(set(axes)) == len(axes) else None


def padded_strides(shape: tuple[Expr, ...], pad: int) -> tuple[Expr, ...]:
    """Row-major strides of a tile whose rows are followed by `pad` unused elements."""
    return row_major((*shape[:-1], shape[-1] + pad)) if pad and len(shape) > 1 else row_major(shape)


def vector_loops_filling(kernel: Kernel, tile_name: str) -> list[tuple[Loops, tile.For]]:
    """The vector loops that fill a tile, with the loops around them."""
    return [
        (around, f) for around, f in loops_in(kernel.body)
        if f.bind.level == "vector" and any(s.buffer == tile_name for s in within(f.body, Store))
    ]  # fmt: skip


def fill_width_of(kernel: Kernel, tile_name: str) -> int:
    """The width of the vectors that fill a tile; 1 if none do."""
    return max((dict(f.bind.args).get("width", 1) for _, f in vector_loops_filling(kernel, tile_name)), default=1)
