"""Kernels without matmuls on a GPU: by how long rows are, what is in them and which way memory is contiguous."""

from __future__ import annotations

from collections.abc import Iterator

from compiler.analysis.nests import iterations, paths_of, rows_of
from compiler.ir import loop
from compiler.ir.expr import Const
from compiler.ir.statement import Stmt
from compiler.schedule.space.gpu import pointwise, reductions, row_loops, scans, scatters, transposes
from compiler.schedule.space.gpu.plan import THREADS, WARP, Plan
from compiler.schedule.space.members import Member, above, both, either, fixed, ranked

SHORT_ROW = 8  # a row that a thread goes through alone
LEAST_COLUMN = 64  # elements of a column that warps share


def space(plan: Plan) -> tuple[str, Iterator[Member]]:
    """The family of a kernel, and its members."""
    body = plan.kernel.body
    if not all(isinstance(s, loop.For) for s in body):
        return "scans" if scans.running_total(body) else "rows", _alone(plan)
    found = [_nest(plan, s) for s in body if isinstance(s, loop.For)]
    if len(found) == 1:
        return found[0]
    return next(iter({name for name, _ in found})), both(*(members for _, members in found))


def _alone(plan: Plan) -> Iterator[Member]:
    """A kernel whose statements share scalars: one block does it all."""
    body = plan.kernel.body
    paths = paths_of(body)
    if scans.running_total(body):
        return scans.along(plan, [], body, paths[0][0], 1)
    if not paths or any(g.kind == "scan" for path in paths for g in path):
        return fixed(1.0)
    split = _split_rows(plan, [], body, paths)
    return split if split is not None else row_loops.alone(plan, paths, max(iterations(*path) for path in paths))


def _split_rows(
    plan: Plan, around: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]]
) -> Iterator[Member] | None:
    """Long rows that are few, of one reduction, in parts; None for others."""
    reduction, leaf = reductions.only(around, inside), paths[0][-1]
    if reduction is None:
        return None
    found = list(reductions.split_rows(reduction, plan.neighbours(leaf, leaf.body), plan.target))
    return ranked(found) if found else None


def _nest(plan: Plan, f: loop.For) -> tuple[str, Iterator[Member]]:
    around, inside = rows_of(f)
    if any(not isinstance(r.extent, Const) for r in around):
        raise ValueError(f"kernel {plan.kernel.name}: its sizes are not known, which the heuristic needs")
    paths = paths_of(inside)
    if not paths:
        tiled = list(transposes.space(around, inside, plan.tensors))
        flat = pointwise.space(plan, around, inside)
        if not tiled:
            return "pointwise", flat
        return "transposes", either(ranked(tiled), above(transposes.untiled(around), flat))
    found = scatters.updates(around, inside)
    if found is not None:
        return "scatters", scatters.space(plan, around, found)
    kinds = {g.kind for path in paths for g in path}
    return "scans" if "scan" in kinds else "rows", _rows(plan, around, inside, paths, "scan" in kinds)


def _rows(
    plan: Plan, around: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]], scanned: bool
) -> Iterator[Member]:
    """Rows with loops inside."""
    cores = plan.target.cores
    count = iterations(*around)
    longest = max(iterations(*path) for path in paths)
    reduction = None if scanned else reductions.only(around, inside)
    if reduction is not None and around and longest > SHORT_ROW and plan.across(around, inside, paths):
        return ranked(reductions.columns(reduction, plan.neighbours(around[-1], inside), plan.target))
    split = _split_rows(plan, around, inside, paths) if reduction is not None else None
    if split is not None:
        return split
    if scanned and around and scans.running_total(inside):
        how = scans.across if plan.across(around, inside, paths) else scans.along
        return how(plan, around, inside, paths[0][0], count)
    few = around and not scanned and longest >= LEAST_COLUMN and row_loops.few_columns(plan, count)
    if few and plan.across(around, inside, paths):
        return row_loops.columns(plan, around, paths, count)
    if around and (scanned or longest <= SHORT_ROW or (count >= WARP and plan.across(around, inside, paths))):
        return pointwise.space(plan, around, inside)
    near = around and longest <= row_loops.LONGEST_WINDOW and count >= THREADS * cores
    if near and row_loops.windows(plan, around, inside):
        return pointwise.space(plan, around, inside)
    if scanned:
        return fixed(1.0)
    return row_loops.space(plan, around, paths, count)
