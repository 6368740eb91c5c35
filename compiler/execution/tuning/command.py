"""Search schedules for the kernels of programs, check them against eager at every stage, and store them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import nullcontext
from pathlib import Path

import torch

from compiler import frontend, pipeline
from compiler.analysis.nests import iterations
from compiler.execution import executable, expression, gpu_programs, named, trial
from compiler.execution.tuning import measure, shelf
from compiler.execution.tuning import tune as search_of
from compiler.execution.tuning.tune import EFFORTS, Bench, Effort, Found, Tell
from compiler.ir import aten, loop
from compiler.ir.statement import Program, Stmt
from compiler.pipeline import Lowering
from compiler.runtime import detect
from compiler.schedule import search
from compiler.schedule.records import NOTHING, Record, Stored
from compiler.targets.target import Target

STRATEGY = search.DEFAULT
INTERPRETED = 1 << 19  # a program of at most so many innermost iterations is also interpreted


@dataclasses.dataclass(frozen=True)
class Wish:
    """How to search: effort per kernel, strategy, seed, progress callback, and the expression, if any."""

    effort: Effort = EFFORTS["quick"]
    strategy: str = STRATEGY
    seed: int = 0
    tell: Tell = lambda _: None
    code: str = ""


def limits(effort: str, seconds: float | None, trials: int | None) -> Effort:
    """A named effort, overridden by the numbers of trials or seconds that are given."""
    chosen = EFFORTS[effort]
    return Effort(
        trials or (10**9 if seconds else chosen.trials),
        seconds or (math.inf if trials else chosen.seconds),
        max(chosen.candidates, trials or 0),
    )


def tune_expression(code: str, target: str, wish: Wish) -> list[Found]:
    """Search schedules for the kernels of an expression."""
    machine = named.target(target)
    with torch.no_grad():
        _, inputs, captured = expression.capture(code, wish.seed)
    return list(tune([(captured.program, list(captured.inputs(inputs)))], machine, wish))


def tune_missing(captured: frontend.Captured, machine: Target, cache: Path) -> list[Found]:
    """Search quickly for those kernels of a program that have no stored schedule."""
    known = shelf.stored(cache, machine.name, gpu_programs.device_of(machine))
    kernels = search_of.kernels(captured.program, machine)
    if captured.program.sizes or kernels.keys() <= known.by_key.keys():
        return []
    drawn = trial.draw(Lowering({"torch": captured.program}, machine, {}), 0, {})
    held = {name: x.detach().cpu() for name, x in captured.constants.items()}
    given = [held.get(i.name, x) for i, x in zip(captured.program.inputs, drawn, strict=True)]
    return list(tune([(captured.program, given)], machine, Wish(), known, cache))


def tune(
    programs: Iterable[tuple[aten.Program, list[torch.Tensor]]], machine: Target, wish: Wish, known: Stored = NOTHING,
    cache: Path | None = None,
) -> Iterator[Found]:  # fmt: skip
    """Search schedules for the kernels of programs, each kernel once, except those `known`; store those that pass."""
    cache = cache or detect.default_cache(os.environ)
    done = {*known.by_key}
    running: set[Future[Found]] = set()
    with search_of.bench(machine, cache) as at, ThreadPoolExecutor(at.lanes) as threads:
        try:
            for program, inputs in programs:
                for digest, one in search_of.kernels(program, machine).items():
                    if digest in done:
                        continue
                    done.add(digest)
                    running.add(threads.submit(_kept, program, inputs, one, at, wish, cache))
                    while len(running) >= at.lanes:
                        ended, running = wait(running, return_when=FIRST_COMPLETED)
                        yield from (f.result() for f in ended)
        except BaseException as end:  # an interrupt keeps what was found; any other exception ends the search
            at.stop.set()
            if not isinstance(end, KeyboardInterrupt):
                raise
        yield from (f.result() for f in as_completed(running))


def _kept(
    program: aten.Program, inputs: list[torch.Tensor], kernel: Program, at: Bench, wish: Wish, cache: Path
) -> Found:
    """Search a kernel of a program, and store the result if it passes."""
    with at.lane() as lane:
        found = search_of.tune(kernel, lane, wish.effort, wish.strategy, wish.seed, wish.tell, wish.code)
    if found.record is not None and (wrong := problem(program, at.target, found.record, inputs, cache)):
        found = dataclasses.replace(found, record=None, problem=f"what was found is refused: {wrong}")
    if found.record is not None:
        shelf.keep(cache, [found.record])
    return found


def problem(
    program: aten.Program, target: Target, record: Record, inputs: list[torch.Tensor], cache: Path | None = None
) -> str:
    """The first stage at which the schedule of a record fails in a program, and why; empty if none does."""
    cache, place = cache or detect.default_cache(os.environ), gpu_programs.place_of(target)
    usual: Lowering | None = None
    with torch.no_grad():
        lowering = pipeline.lower(program, target, stored=Stored((record,)))
        if lowering.fallbacks:
            return lowering.fallbacks[0].reason
        eager = frontend.execute(program, inputs)
        small = sum(_work(k.body) for k in lowering.stages["loop"].kernels) <= INTERPRETED
        *before, last = pipeline.stages(target)[1:]
        for stage in (*(before if small else ()), last):
            with shelf.turn(cache, place) if stage == last else nullcontext():
                ours = executable.execute(lowering, stage, inputs)
            theirs = tuple(e.reshape(o.shape) for o, e in zip(ours, eager, strict=True))
            if wrong := measure.differs(ours, theirs, inputs):
                # Eager rounds between its kernels: a difference that the heuristic's schedule also has is no fault.
                usual = usual or pipeline.lower(program, target, stored=NOTHING)
                if measure.differs(ours, executable.execute(usual, stage, inputs), inputs):
                    return f"stage {stage}: {wrong}"
    return ""


def _work(body: tuple[Stmt, ...]) -> int:
    """Number of innermost iterations; a loop of unknown trip count counts as one iteration."""
    return sum(iterations(s) * _work(s.body) if isinstance(s, loop.For) else 1 for s in body)
