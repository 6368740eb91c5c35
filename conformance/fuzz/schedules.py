"""Check random legal schedules of a random program's kernels: every stage must be within the derived bounds."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import compiler
from conformance.fuzz import blame
from conformance.fuzz.program import Program
from conformance.judge import ladder
from conformance.judge.subject import Subject
from conformance.rows import Found, Judged

Tell = Callable[[str], None]
Schedules = Mapping[str, compiler.Schedule]

DRAWN = 4  # assignments of schedules to the kernels of each graph
DEEPEST = 300  # number of first members of a space that are drawn from, log-uniformly
STAGES = ("tile", "kernel", "cpp", "cuda")  # stages that depend on schedules


class Wrong(Exception):
    """The compiler failed to make a stage of a graph, or a schedule of a space."""

    def __init__(self, stage: str, said: str) -> None:
        super().__init__(said)
        self.stage = stage


def found(program: Program, options: Mapping[str, Any], tell: Tell) -> Found:
    """Check random schedules of a program, at the first of its sizes."""
    target = compiler.target(options["target"])
    tell("the graphs, in eager")
    try:
        met = blame.recorded(replace(program, points=program.points[:1], varying={}))
        for at, one in enumerate(met):
            made = blame.subject(blame.fitting(one))
            loops = _lowered(made, target)
            rng = random.Random(f"{program.seed}.{program.index}.{at}")
            for chosen in _choices(loops, target, rng):
                _keep(chosen, options)
                bad = _wrong(made, target, chosen, lambda stage, at=at: tell(f"stage {stage} of graph {at}"))  # type: ignore[misc]
                if bad is not None:
                    return _finding(program, options, one, made, chosen, *bad, tell)
    except Wrong as problem:
        return Found(verdict="fail", kind="schedule", first_bad_stage=problem.stage, detail=str(problem))
    except compiler.Unsupported as refusal:
        return Found(verdict="unsupported", detail=str(refusal))
    except torch._dynamo.exc.Unsupported as refusal:  # by Dynamo, for any backend
        return Found(verdict="torch", kind="exception", detail=str(refusal))
    return Found()


def _lowered(made: Subject, target: compiler.Target) -> Any:
    """Lower a graph to Loop IR; an error other than Unsupported becomes Wrong."""
    try:
        return compiler.lower(made.program, target, until="loop").stages["loop"]
    except compiler.Unsupported:
        raise
    except Exception as problem:  # of any pass
        raise Wrong("loop", f"{type(problem).__name__}: {problem}") from problem


def _choices(loops: Any, target: compiler.Target, rng: random.Random) -> list[dict[str, compiler.Schedule]]:
    """Return up to DRAWN distinct assignments of a schedule to each kernel."""
    made = [{k.name: _drawn(loops, k, target, rng) for k in loops.kernels} for _ in range(DRAWN)]
    return [chosen for n, chosen in enumerate(made) if chosen not in made[:n]]


def _drawn(loops: Any, kernel: Any, target: compiler.Target, rng: random.Random) -> compiler.Schedule:
    number = int(math.exp(rng.uniform(0.0, math.log(DEEPEST))))
    try:
        *_, last = itertools.islice(compiler.space(loops, kernel, target), number)
        return last.schedule
    except Exception as problem:  # some steps are derived from the results of earlier ones, which may fail
        said = f"member {number} at most of the space of {kernel.name}: {type(problem).__name__}: {problem}"
        raise Wrong("tile", said) from problem


def _wrong(
    made: Subject, target: compiler.Target, chosen: Schedules, tell: Tell
) -> tuple[ladder.Ladder, Judged] | None:
    """Judge a graph with these schedules; returns its lowering and row if it fails, else None."""
    climbed = ladder.climb(made.program, target, chosen)
    with torch.no_grad():
        row = ladder.judge(made, climbed, {"stages": STAGES}, tell)
    return None if row.verdict == "pass" else (climbed, row)


def _finding(
    program: Program, options: Mapping[str, Any], one: blame.Met, made: Subject, chosen: Schedules,
    climbed: ladder.Ladder, row: Judged, tell: Tell,
) -> Found:  # fmt: skip
    """Return the finding with as few schedules as possible: none if the graph fails anyway, one kernel's, or all."""
    target, least = climbed.lowering.target, chosen
    for fewer in ({}, *({name: schedule} for name, schedule in chosen.items())):
        bad = _wrong(made, target, fewer, lambda stage: tell(f"stage {stage}, of fewer schedules"))
        if bad is not None:
            least, (climbed, row) = fewer, bad
            break
    said = compiler.show_schedules(least) or "the schedules that are chosen by themselves\n"
    bad_row = Found(
        verdict="fail", kind="schedule", first_bad_stage=row.first_bad_stage, first_bad_pass=row.first_bad_pass,
        detail=f"{row.detail}\nwith\n{said}".rstrip(),
    )  # fmt: skip
    _keep(least, options)
    return replace(bad_row, repro=blame.kept(program, options, [one.inputs], [climbed.lowering], bad_row))


def _keep(chosen: Schedules, options: Mapping[str, Any]) -> None:
    """If an earlier process was lost, write the schedules to the repro folder before they are tried."""
    if options.get("dump") and options.get("lost"):
        folder = Path(options["dump"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedules.txt").write_text(compiler.show_schedules(chosen))
