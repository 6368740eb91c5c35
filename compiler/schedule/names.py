"""Naming conventions of planners for the loops and tiles that their steps create."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.analysis.online_softmax import Online
from compiler.schedule.name_suffixes import suffixed
from compiler.schedule.steps import Collapse, SplitReduction, SplitScan, Step


def pieces(loop: str) -> tuple[str, str]:
    """Names for splitting `loop`: the loop over pieces, and the loop within a piece."""
    return f"{loop}0", f"{loop}1"


def collapse(loops: Sequence[str], steps: list[Step]) -> str:
    """Add steps that collapse perfectly nested `loops`, outermost first; return the new name, empty for no loops."""
    name = loops[0] if loops else ""
    for inner in loops[1:]:
        steps.append(Collapse(name, inner, name + inner))
        name += inner
    return name


def grid(loops: Sequence[str], steps: list[Step]) -> list[str]:
    """Names of at most three grid axes for perfectly nested loops; surplus ones are collapsed into the first axis."""
    return [*loops] if len(loops) <= 3 else [collapse(loops[:-2], steps), *loops[-2:]]


def split_reduction(
    accumulator: str, loop: str, parts: int, rows: tuple[str, ...], space: str, pad: int = 0
) -> SplitReduction:
    """The step `SplitReduction`, with names that say whether threads ("shared" memory) or blocks exchange the parts."""
    part, tile, after = ("share", "shares", "all") if space == "shared" else ("part", "parts", "sum")
    into = f"{loop}_{part}", f"{loop}_{part}_{after}"
    total = f"{accumulator}_{after}"
    return SplitReduction(
        accumulator, loop, parts, rows, space, f"{accumulator}_{tile}", total, into, suffixed(rows, after), pad
    )


def split_scan(accumulator: str, loop: str, length: int, rows: tuple[str, ...]) -> SplitScan:
    """The step `SplitScan` for the prefix sum `accumulator` inside loops `rows`, with names derived from these."""
    into = f"{loop}_part", f"{loop}_sum", f"{loop}_next", f"{loop}_before"
    return SplitScan(
        accumulator, loop, length, f"{accumulator}_parts", f"{accumulator}_sum", into, suffixed(rows, "sum")
    )


def online(found: Online) -> dict[str, Any]:
    """The naming fields of the step `Online` for the softmax `found`, as keyword arguments."""
    o = found.accumulator.name
    scores = found.scores.name.name if found.scores else f"{o}_scores"
    return {"into": (found.query.var, found.key, found.feature.var), "tiles": (o, scores)}
