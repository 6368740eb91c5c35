"""Kernels without matmuls on a GPU, classified by length of rows, loops inside them, and direction of memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from compiler.analysis.nests import in_memory_order, iterations, loop_ranges, paths_of, perfect, rows_of, wrap
from compiler.ir import loop
from compiler.ir.expr import Const
from compiler.ir.ranges import Range
from compiler.ir.statement import Stmt
from compiler.ir.tensor import Tensor
from compiler.schedule.space.gpu import column_tiles, pointwise, reductions, row_loops, scans, scatters, transposes
from compiler.schedule.space.gpu.plan import THREADS, WARP, Plan
from compiler.schedule.space.members import Member, above, after, both, either, fixed, ranked
from compiler.schedule.steps import Reorder, Step

SHORT_ROW = 8  # row that one thread runs through
LEAST_COLUMN = 64  # elements of a column that several warps share


def space(plan: Plan) -> tuple[str, Iterator[Member]]:
    """The family of a kernel and its members. Their first steps reorder loops into memory order, so that adjacent
    threads access adjacent elements."""
    found = [_reorder_loops(s, plan.tensors, {}) for s in plan.kernel.body]
    steps = [step for _, own in found for step in own]
    if not steps:
        return _family(plan)
    name, members = _family(replace(plan, kernel=plan.kernel.replace(body=tuple(s for s, _ in found))))
    return name, after(members, *steps)


def _reorder_loops(s: Stmt, tensors: Mapping[str, Tensor], around: Mapping[str, Range]) -> tuple[Stmt, list[Step]]:
    """The statement with its loops, nested ones included, in memory order, and the steps that reorder them."""
    if not isinstance(s, loop.For):
        return s, []
    nest, body = perfect(loop.For, (s,), (s.kind,))
    ranges = {**around, **loop_ranges(nest)}
    found = [_reorder_loops(x, tensors, ranges) for x in body]
    body = tuple(x for x, _ in found)
    order = in_memory_order(nest, body, tensors, ranges) if s.kind != "scan" else nest
    steps: list[Step] = [Reorder(tuple(f.var for f in order))] if order != nest else []
    steps += (step for _, own in found for step in own)
    return (wrap(order, body)[0], steps) if steps else (s, [])


def _family(plan: Plan) -> tuple[str, Iterator[Member]]:
    body = plan.kernel.body
    if not all(isinstance(s, loop.For) for s in body):
        return "scans" if scans.running_total(body) else "rows", _single_block(plan)
    nests = [_nest_family(plan, s) for s in body if isinstance(s, loop.For)]
    if len(nests) == 1:
        return nests[0]
    return next(iter({name for name, _ in nests})), both(*(members for _, members in nests))


def _single_block(plan: Plan) -> Iterator[Member]:
    """A kernel whose statements share scalars: one block runs all of it."""
    body = plan.kernel.body
    paths = paths_of(body)
    if scans.running_total(body):
        return scans.along_rows(plan, [], body, paths[0][0], 1)
    if not paths or any(g.kind == "scan" for path in paths for g in path):
        return fixed(1.0)
    split = _split_rows(plan, [], body, paths)
    return split if split is not None else row_loops.single_block(plan, paths, max(iterations(*path) for path in paths))


def _split_rows(
    plan: Plan, around: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]]
) -> Iterator[Member] | None:
    """Few long rows of a single reduction, split over blocks; None for others."""
    reduction, leaf = reductions.single_reduction(around, inside), paths[0][-1]
    if reduction is None:
        return None
    found = list(reductions.split_rows(reduction, plan.vector_width(leaf, leaf.body), plan.target))
    return ranked(found) if found else None


def _nest_family(plan: Plan, f: loop.For) -> tuple[str, Iterator[Member]]:
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
    return "scans" if "scan" in kinds else "rows", _row_members(plan, around, inside, paths, "scan" in kinds)


def _row_members(
    plan: Plan, around: list[loop.For], inside: tuple[Stmt, ...], paths: list[list[loop.For]], scanned: bool
) -> Iterator[Member]:
    """Rows with loops inside."""
    cores = plan.target.cores
    count = iterations(*around)
    longest = max(iterations(*path) for path in paths)
    reduction = None if scanned else reductions.single_reduction(around, inside)
    if reduction is not None and around and longest > SHORT_ROW and plan.is_contiguous_across(around, inside, paths):
        vector = plan.vector_width(around[-1], inside)
        tiles = column_tiles.space(plan, around, inside, reduction, vector)
        return ranked([*reductions.columns(reduction, vector, plan.target), *tiles])
    split = _split_rows(plan, around, inside, paths) if reduction is not None else None
    if split is not None:
        return split
    if scanned and around and scans.running_total(inside):
        how = scans.down_columns if plan.is_contiguous_across(around, inside, paths) else scans.along_rows
        return how(plan, around, inside, paths[0][0], count)
    has_few_columns = around and not scanned and longest >= LEAST_COLUMN and row_loops.has_few_columns(plan, count)
    if has_few_columns and plan.is_contiguous_across(around, inside, paths):
        return row_loops.columns(plan, around, paths, count)
    if around and (
        scanned or longest <= SHORT_ROW or (count >= WARP and plan.is_contiguous_across(around, inside, paths))
    ):
        return pointwise.space(plan, around, inside)
    rows_are_short = around and longest <= row_loops.LONGEST_WINDOW and count >= THREADS * cores
    if rows_are_short and row_loops.reads_windows(plan, around, inside):
        return pointwise.space(plan, around, inside)
    if scanned:
        return fixed(1.0)
    return row_loops.space(plan, around, paths, count)
