"""What planners call the loops and tiles that their steps make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.analysis.online_softmax import Online
from compiler.schedule.steps import Collapse, Distribute, Promote, SplitReduction, SplitScan, SplitTf32, Step


def pieces(loop: str) -> tuple[str, str]:
    """The loop over pieces of a loop, and the one within a piece."""
    return f"{loop}0", f"{loop}1"


def along(stem: str, axes: int) -> tuple[str, ...]:
    """Loops along so many axes of a tile."""
    return (stem,) if axes == 1 else tuple(f"{stem}{n}" for n in range(axes))


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


def suffixed(loops: tuple[str, ...], end: str) -> tuple[str, ...]:
    """Other loops over what these go through."""
    return tuple(f"{x}_{end}" for x in loops)


def distribute(accumulator: str, loops: tuple[str, ...], space: str = "local") -> Distribute:
    """The step with its loops named after those that it takes."""
    return Distribute(accumulator, loops, suffixed(loops, "first"), suffixed(loops, "last"), space)


def promote(accumulator: str, loop: str, tile: str, axes: int = 2) -> Promote:
    """The step with its loops named after the tile."""
    return Promote(accumulator, loop, tile, along(f"{tile}_first", axes), along(f"{tile}_last", axes))


def split_tf32(loops: tuple[str, ...], *tiles: str) -> SplitTf32:
    """The step with its loops named after those that it takes, and parts of tiles of two axes after these."""
    halves = tuple((x, f"{x}_big", f"{x}_small", *along(f"{x}_at", 2)) for x in tiles)
    return SplitTf32(loops, suffixed(loops, "0"), suffixed(loops, "1"), halves)


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
    """What the step `Online` calls the loops and tiles of a sum, by the field that says so."""
    o, q, j, d = found.accumulator.name, found.query.var, found.key, found.feature.var
    nests = {end: (f"{q}_{end}", f"{j}_{end}") for end in ("zero", "score", "edge", "weight")}
    nests |= {end: (f"{q}_{end}", f"{d}_{end}") for end in ("begin", "scale", "last")}
    scores = found.scores.name.name if found.scores else f"{o}_scores"
    return {
        **nests,
        "blocks": (f"{q}0", f"{j}0"),
        "first": (f"{q}_first",),
        "row": (f"{q}_row", f"{j}_max", f"{j}_exp"),
        "value": (f"{q}_value", f"{d}_value", f"{j}_value"),
        "tiles": (f"{o}_scale", f"{o}_weights", scores, f"{o}_rows"),
    }
