"""The schedule step `owners`: spread updates in a fixed order over owners of the updated elements.

Also the check that lanes may vote in a loop of tests.
"""

from __future__ import annotations

from compiler.ir import rewrite, tile
from compiler.ir.expr import Expr, Load, Op, dim, names, op
from compiler.ir.statement import If, Kernel, Store
from compiler.passes.tile.nests import SERIAL, loop_variables
from compiler.schedule.steps import Bind, Owners, ScheduleError


def owners(kernel: Kernel, step: Owners) -> Kernel:
    """`owners("r", 4, into="r_owner")`

    before:
        for j in serial(8):
            for r in serial(100, scan):
                y[r // 7, j] = x[r, j]
    after:
        for r_owner in serial(4):
            for j in serial(8):
                for r in serial(100, scan):
                    if r // 7 % 4 == r_owner:
                        y[r // 7, j] = x[r, j]
    """
    if step.parts < 2:
        raise ScheduleError(step, "there must be at least 2 owners")
    (owner,) = loop_variables(step, (step.into,), 1)
    sequential: set[str] = set()
    scan, body = None, kernel.body
    while len(body) == 1 and isinstance(body[0], tile.For):
        scan, sequential = (body[0], sequential | {body[0].var}) if body[0].kind == "scan" else (scan, sequential)
        body = body[0].body
    match body:
        case (Store() as update,) | (If(body=(Store() as update,)),) if scan is not None and step.loop in sequential:
            pass
        case _:
            raise ScheduleError(step, f"{step.loop} is not all of kernel {kernel.name}, or makes more than one update")
    if any(isinstance(n, Load) and n.buffer == update.buffer for s in body for n in s.walk()):
        raise ScheduleError(step, f"updates of {update.buffer} read what others have written to it")
    tensor = next(p for p in kernel.params if p.name == update.buffer)
    place: Expr = dim(0)
    for index, extent in zip(update.index, tensor.shape, strict=True):
        if sequential & set(names(index)):
            place = place * extent + _without_requirements(index)
    mine = scan.replace(body=(If(op("eq", place % step.parts, owner), scan.body),))
    body = rewrite.replaced(kernel.body, scan, mine)
    return kernel.replace(body=(tile.For(owner.name, dim(step.parts), "parallel", SERIAL, body),))


def _without_requirements(index: Expr) -> Expr:
    """An index, with 0 in place of each value that fails its requirement, as the update then is at 0."""

    def rule(n: Expr) -> Expr | None:
        return op("where", n.args[0], n.args[1], 0) if isinstance(n, Op) and n.name == "require" else None

    return rewrite.nodes(index, rule)


def check_votes(step: Bind, f: tile.For) -> None:
    """Raise ScheduleError unless lanes may test many iterations before the first of them runs.

    The loop must be one condition around one update, which reads nothing that it changes. Each lane must update the
    same elements in all iterations: it moves along other axes than those that the iteration selects.
    """
    match f.body:
        case (If(_, (tile.For(kind="parallel", var=lane, body=inner),)),):
            pass
        case (If(_, inner),):
            lane = ""
        case _:
            raise ScheduleError(step, f"{f.var} is not all one condition")
    match inner:
        case (Store() as update,):
            pass
        case (If(also, (Store() as update,)),) if lane not in names(also):
            pass
        case _:
            raise ScheduleError(step, f"{f.var} makes more than one update, or not for all lanes alike")
    if any(isinstance(n, Load) and n.buffer == update.buffer for s in f.body for n in s.walk()):
        raise ScheduleError(step, f"what {f.var} does changes what it reads")
    if any({f.var, lane} <= names(i) for i in update.index):
        raise ScheduleError(step, f"the elements of a lane differ from one iteration of {f.var} to another")
