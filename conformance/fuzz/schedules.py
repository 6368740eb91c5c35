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
from conformance.rows import CaseResult, FuzzResult

Tell = Callable[[str], None]
Schedules = Mapping[str, compiler.Schedule]

DRAWN = 4  # assignments of schedules to the kernels of each graph
DEEPEST = 300  # number of first members of a space that are drawn from, log-uniformly
STAGES = ("tile", "kernel", "cpp", "cuda")  # stages that depend on schedules


class LoweringError(Exception):
    """The compiler failed to make a stage of a graph, or a schedule of a space."""

    def __init__(self, stage: str, message: str) -> None:
        super().__init__(message)
        self.stage = stage


def check_schedules(program: Program, options: Mapping[str, Any], tell: Tell) -> FuzzResult:
    """Check random schedules of a program, at the first of its sizes."""
    target = compiler.target(options["target"])
    tell("the graphs, in eager")
    try:
        graphs = blame.record_graphs(replace(program, points=program.points[:1], varying={}))
        for number, graph in enumerate(graphs):
            prepared = blame.subject_of(blame.specialise_if_needed(graph))
            loops = _lower_to_loops(prepared, target)
            rng = random.Random(f"{program.seed}.{program.index}.{number}")
            for schedules in _draw_assignments(loops, target, rng):
                _save_schedules(schedules, options)
                failure = _judge_schedules(
                    prepared, target, schedules,
                    lambda stage, n=number: tell(f"stage {stage} of graph {n}"),  # type: ignore[misc]
                )  # fmt: skip
                if failure is not None:
                    return _finding(program, options, graph, prepared, schedules, *failure, tell)
    except LoweringError as problem:
        return FuzzResult(verdict="fail", kind="schedule", first_bad_stage=problem.stage, detail=str(problem))
    except compiler.Unsupported as refusal:
        return FuzzResult(verdict="unsupported", detail=str(refusal))
    except torch._dynamo.exc.Unsupported as refusal:  # by Dynamo, for any backend
        return FuzzResult(verdict="torch", kind="exception", detail=str(refusal))
    return FuzzResult()


def _lower_to_loops(prepared: Subject, target: compiler.Target) -> Any:
    """Lower a graph to Loop IR; an error other than Unsupported becomes LoweringError."""
    try:
        return compiler.lower(prepared.program, target, until="loop").stages["loop"]
    except compiler.Unsupported:
        raise
    except Exception as problem:  # of any pass
        raise LoweringError("loop", f"{type(problem).__name__}: {problem}") from problem


def _draw_assignments(loops: Any, target: compiler.Target, rng: random.Random) -> list[dict[str, compiler.Schedule]]:
    """Return up to DRAWN distinct assignments of a schedule to each kernel."""
    assignments = [{k.name: _draw_schedule(loops, k, target, rng) for k in loops.kernels} for _ in range(DRAWN)]
    return [assignment for n, assignment in enumerate(assignments) if assignment not in assignments[:n]]


def _draw_schedule(loops: Any, kernel: Any, target: compiler.Target, rng: random.Random) -> compiler.Schedule:
    number = int(math.exp(rng.uniform(0.0, math.log(DEEPEST))))
    try:
        *_, last = itertools.islice(compiler.space(loops, kernel, target), number)
        return last.schedule
    except Exception as problem:  # some steps are derived from the results of earlier ones, which may fail
        message = f"member {number} at most of the space of {kernel.name}: {type(problem).__name__}: {problem}"
        raise LoweringError("tile", message) from problem


def _judge_schedules(
    prepared: Subject, target: compiler.Target, schedules: Schedules, tell: Tell
) -> tuple[ladder.Ladder, CaseResult] | None:
    """Judge a graph with these schedules; returns its lowering and row if it fails, else None."""
    lowered = ladder.climb(prepared.program, target, schedules)
    with torch.no_grad():
        row = ladder.judge(prepared, lowered, {"stages": STAGES}, tell)
    return None if row.verdict == "pass" else (lowered, row)


def _finding(
    program: Program, options: Mapping[str, Any], graph: blame.RecordedGraph, prepared: Subject, schedules: Schedules,
    lowered: ladder.Ladder, row: CaseResult, tell: Tell,
) -> FuzzResult:  # fmt: skip
    """Return the finding with as few schedules as possible: none if the graph fails anyway, one kernel's, or all."""
    target, fewest = lowered.lowering.target, schedules
    for fewer in ({}, *({name: schedule} for name, schedule in schedules.items())):
        failure = _judge_schedules(prepared, target, fewer, lambda stage: tell(f"stage {stage}, of fewer schedules"))
        if failure is not None:
            fewest, (lowered, row) = fewer, failure
            break
    text = compiler.show_schedules(fewest) or "the schedules that are chosen by themselves\n"
    finding = FuzzResult(
        verdict="fail", kind="schedule", first_bad_stage=row.first_bad_stage, first_bad_pass=row.first_bad_pass,
        detail=f"{row.detail}\nwith\n{text}".rstrip(),
    )  # fmt: skip
    _save_schedules(fewest, options)
    return replace(finding, repro=blame.write_repro(program, options, [graph.inputs], [lowered.lowering], finding))


def _save_schedules(schedules: Schedules, options: Mapping[str, Any]) -> None:
    """If an earlier process was lost, write the schedules to the repro folder before they are tried."""
    if options.get("dump") and options.get("lost"):
        folder = Path(options["dump"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "schedules.txt").write_text(compiler.show_schedules(schedules))
