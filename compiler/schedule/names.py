"""What planners call the loops and tiles that their steps make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.analysis.online_softmax import Online
from compiler.schedule.endings import suffixed
from compiler.schedule.steps import Collapse, SplitReduction, SplitScan, Step


def pieces(loop: str) -> tuple[str, str]:
    """The loop over pieces of a loop, and the one within a piece."""
    return f"{loop}0", f"{loop}1"


def collapse(loops: Sequence[str], steps: list[Step]) -> str:
    """The name of perfectly nested loops made one, outermost first, by steps that are added; empty for no loops."""
    name = loops[0] if loops else ""
    for inner in loops[1:]:
        steps.append(Collapse(name, inner, name + inner))
        name += inner
    return name


def grid(loops: Sequence[str], steps: list[Step]) -> list[str]:
    """Perfectly nested loops as the axes of a grid, of which there are three: those before the last two are one."""
    return [*loops] if len(loops) <= 3 else [collapse(loops[:-2], steps), *loops[-2:]]


def split_reduction(
    accumulator: str, loop: str, parts: int, rows: tuple[str, ...], space: str, pad: int = 0
) -> SplitReduction:
    """The step with its names after who the parts are passed on between: threads of a block, or blocks."""
    part, tile, after = ("share", "shares", "all") if space == "shared" else ("part", "parts", "sum")
    into = f"{loop}_{part}", f"{loop}_{part}_{after}"
    total = f"{accumulator}_{after}"
    return SplitReduction(
        accumulator, loop, parts, rows, space, f"{accumulator}_{tile}", total, into, suffixed(rows, after), pad
    )


def split_scan(accumulator: str, loop: str, length: int, rows: tuple[str, ...]) -> SplitScan:
    """The step for a running total within `rows`, with its loops named after these."""
    into = f"{loop}_part", f"{loop}_sum", f"{loop}_next", f"{loop}_before"
    return SplitScan(
        accumulator, loop, length, f"{accumulator}_parts", f"{accumulator}_sum", into, suffixed(rows, "sum")
    )


def online(found: Online) -> dict[str, Any]:
    """What names the loops and tiles of the step `Online`, by field."""
    o = found.accumulator.name
    scores = found.scores.name.name if found.scores else f"{o}_scores"
    return {"into": (found.query.var, found.key, found.feature.var), "tiles": (o, scores)}
