"""Rules for loops bound to CPU vectors: why a loop cannot be vectorised, and how wide vectors may be.

Planners follow these rules, and schedules are checked against them; no pass narrows vectors.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.analysis.access import not_vectorizable
from compiler.analysis.nests import accumulated, overwrites_only
from compiler.ir import tile
from compiler.ir.dtype import DType, i32, i64
from compiler.ir.expr import Const, Expr, Var, const, names
from compiler.ir.index import simplify
from compiler.ir.multiples import ceildiv
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, Let, Stmt, Store, within
from compiler.ir.tensor import Tensor
from compiler.ir.value_ranges import value_range

NARROWEST = 4  # fewer lanes do not pay
MARKS = ("past", "rolled", "owned")  # mutually exclusive ways to emit a loop over vectors
IDEMPOTENT = ("max", "min", "and", "or")  # reductions that may see an element twice
MASKS: dict[int, DType] = {32: i32, 64: i64}  # by bits per lane: the type to compare so that the mask is as wide


def fitting_width(width: int, extent: Expr) -> int:
    """The widest vectors, `width` halved repeatedly, that are no longer than the loop; 1 for none."""
    while isinstance(extent, Const) and width > max(extent.value, 1):
        width //= 2
    return width if width >= NARROWEST else 1


def fitting_unroll(extent: Expr, width: int, unroll: int) -> int:
    """The unroll factor, or 1 if the loop has fewer vectors."""
    return 1 if isinstance(extent, Const) and unroll * width > int(extent.value) else unroll


def most_unroll(length: int, width: int, again: bool) -> int:
    """The most vectors that a loop may have at a time: all of them, with `again` an overlapping last one included."""
    return ceildiv(length, width) if again else length // width


def even_unroll(extent: Expr, width: int, most: int) -> int:
    """The unroll factor for a sum: `most`, or one less if two iterations of that leave no vector over.

    Left-over vectors need code of their own, here as much as an iteration, and use a single accumulator.
    """
    fewer = most - 1
    even = fewer > 1 and isinstance(extent, Const) and int(extent.value) // width == 2 * fewer
    return fewer if even else most


def whole(extent: Expr, step: int) -> Expr:
    """The largest multiple of `step` that is at most `extent`."""
    return simplify(extent // const(step) * step, {}, index=True)


def scalars(body: tuple[Stmt, ...]) -> dict[str, DType]:
    """The types of the accumulators of a kernel."""
    return {n.name: n.value.dtype for n in within(body, Init)}


def again_problem(f: tile.For, extent: Expr, types: Mapping[str, DType], ranges: Mapping[str, Range]) -> str:
    """Why the iterations left over by whole vectors cannot run in an overlapping last vector, which repeats some
    iterations; empty if they can. `types` are those of accumulators."""
    width, sums = dict(f.bind.args).get("width", 1), accumulated(f.body)
    if whole(extent, width) is extent:
        return f"vectors of {width} leave nothing of loop {f.var} over to run again"
    if not overwrites_only(f.body):
        return f"loop {f.var} reads or adds to what it stores, so that no iteration can run again"
    counted = [n for n, how in sums.items() if how not in IDEMPOTENT and types[n].bits not in MASKS]
    if counted:
        return f"there is no mask for lanes of {types[counted[0]].bits} bits that {counted[0]} has counted already"
    if isinstance(extent, Const):
        together = sums and dict(f.bind.args).get("unroll", 1) * width > extent.value
        return f"{', '.join(sums)} would count twice where unrolled vectors overlap" if together else ""
    if sums:
        return f"how many lanes {', '.join(sums)} would count again is not known when compiling"
    most = value_range(extent, ranges)[1]
    return f"loop {f.var} has fewer iterations than the {width} lanes of a vector" if (most or width) < width else ""


def vector_problem(
    f: tile.For, extent: Expr, tensors: Mapping[str, Tensor], ranges: Mapping[str, Range], types: Mapping[str, DType]
) -> str:
    """Why a loop of this extent cannot run with the vectors that it is bound to; empty if it can."""
    given = dict(f.bind.args)
    width, unroll = given.get("width", 1), given.get("unroll", 1)
    fits, marks = fitting_width(width, extent), [f"{m}=1" for m in MARKS if given.get(m)]
    if width < NARROWEST or width & (width - 1):
        return f"vectors have {NARROWEST} lanes or twice as many, and so on, not {width}"
    if fits == 1:
        return f"loop {f.var} of {_number(extent)} iterations is too short for vectors, leave it serial"
    if fits < width:
        return f"loop {f.var} has {_number(extent)} iterations, at most width={fits} fits"
    again = bool(given.get("again"))
    most = most_unroll(int(extent.value), width, again) if isinstance(extent, Const) else max(1, unroll)
    if not 1 <= unroll <= most:
        return f"loop {f.var} of {_number(extent)} iterations takes 1 to unroll={most} vectors of {width}, not {unroll}"
    if len(marks) > 1:
        return f"loop {f.var} is written in one way, {' or '.join(marks)}"
    if given.get("owned") and not given.get("ahead"):
        return f"loop {f.var} takes owned=1 only with ahead, which says how far its stores prefetch"
    problem = not_vectorizable(f.body, Var(f.var), tensors, ranges, bool(given.get("masked")))
    if problem:
        return f"loop {f.var} cannot run in lanes: {problem}; leave it serial"
    return again_problem(f, extent, types, ranges) if again else ""


def jam_problem(f: tile.For) -> str:
    """Why the iterations of an unrolled loop cannot share the loops inside; empty if they can."""
    if not isinstance(f.extent, Const):
        return f"jam=1 writes each iteration of loop {f.var} out, whose number is not known when compiling"
    if f.kind != "parallel":
        return f"loop {f.var} is a {f.kind} loop, whose iterations come one after the other"
    own = {f.var}  # names whose values differ from iteration to iteration
    for s in within(f.body, Stmt):
        match s:
            case Let(name, value) if names(value) & own:
                own.add(name)
            case Init(name):
                own.add(name)
            case tile.For(var, extent) if names(extent) & own:
                return f"iterations of loop {f.var} take different numbers of iterations of loop {var} inside"
            case tile.For(var, bind=tile.Bind(level="vector" | "blocks" as level)):
                return f"loop {var}, bound to {level}, stands inside loop {f.var}"
            case tile.For() | Let() | Accum() | Store() | If():
                pass
            case _:
                return f"loop {f.var} has a {type(s).__name__.lower()} inside, which its iterations cannot share"
    return ""


def _number(extent: Expr) -> str:
    return str(extent.value) if isinstance(extent, Const) else "so many"
