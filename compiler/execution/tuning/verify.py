"""Time stored schedules again, relative to the heuristic's, and report those that fail."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from compiler.execution import expression, gpu_programs, named
from compiler.execution.tuning import shelf
from compiler.execution.tuning import tune as search_of
from compiler.execution.tuning.tune import BUILD_TIMEOUT, LAST_ROUNDS, RUN_TIMEOUT, Bench
from compiler.ir import loop_text
from compiler.ir.isomorphism import key
from compiler.runtime import detect
from compiler.schedule import steps
from compiler.schedule.records import Record


@dataclass(frozen=True)
class Verified:
    """A record with its speedup now (median and interval) over the heuristic's schedule, or its problem."""

    record: Record
    speedup: tuple[float, float, float] = (0.0, 0.0, 0.0)
    problem: str = ""


def verify(target: str) -> Iterator[Verified]:
    """Verify every record for a target on this machine's device."""
    machine, cache = named.target(target), detect.default_cache(os.environ)
    with search_of.started_bench(machine, cache) as bench:
        for record in shelf.stored(cache, machine.name, gpu_programs.device_of(machine)).records:
            yield _verify_record(record, bench)


def _verify_record(record: Record, bench: Bench) -> Verified:
    try:
        program = loop_text.parse(record.program)
        record.steps()
    except ValueError as problem:
        return Verified(record, problem=f"this version cannot read it: {problem}")
    if key(program) != record.key:
        return Verified(record, problem="its digest is not that of its kernel: the line was changed")
    if record.code:
        with torch.no_grad():
            captured = expression.capture(record.code, 0)[2]
        if record.key not in search_of.kernels(captured.program, bench.target):
            return Verified(record, problem=f"{record.code} has no such kernel any more")
    first = steps.show(next(search_of.without_hints(program, bench.target)).schedule)
    texts = bench.builders.build(record.program, [first, record.schedule], BUILD_TIMEOUT)
    for description, built in zip(("the heuristic's schedule", "its schedule"), texts, strict=True):
        if "failed" in built:
            return Verified(record, problem=f"{description} does not apply: {built['failed']}")
    started = bench.racer.begin(RUN_TIMEOUT, text=texts[0]["text"], seed=0)
    answer = started or bench.racer.ask("race", RUN_TIMEOUT, texts=[texts[1]["text"]], rounds=LAST_ROUNDS)
    if "failed" in answer:
        return Verified(record, problem=str(answer["failed"]))
    ratio = answer["ratios"][1]
    return Verified(record, (1 / ratio["median"], 1 / ratio["high"], 1 / ratio["low"]))
