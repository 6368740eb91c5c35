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
from compiler.execution.tuning.tune import EFFORTS, Bench, Effort, SearchResult, Tell
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
    """A named effort, overridden by the numbers of trials or seconds that are given; raises ValueError unless these
    are above 0."""
    for option, number in (("budget", seconds), ("trials", trials)):
        if number is not None and not number > 0:
            raise ValueError(f"--{option}: {number:g} is not a number above 0")
    chosen = EFFORTS[effort]
    return Effort(
        trials or (10**9 if seconds else chosen.trials),
        seconds or (math.inf if trials else chosen.seconds),
        max(chosen.candidates, trials or 0),
    )


def tune_expression(code: str, target: str, wish: Wish) -> list[SearchResult]:
    """Search schedules for the kernels of an expression."""
    machine = named.target(target)
    with torch.no_grad():
        _, inputs, captured = expression.capture(code, wish.seed)
    return list(tune([(captured.program, list(captured.inputs(inputs)))], machine, wish))


def tune_missing(captured: frontend.Captured, machine: Target, cache: Path) -> list[SearchResult]:
    """Search quickly for those kernels of a program that have no stored schedule."""
    stored = shelf.stored(cache, machine.name, gpu_programs.device_of(machine))
    kernels = search_of.kernels(captured.program, machine)
    if captured.program.sizes or kernels.keys() <= stored.by_key.keys():
        return []
    random_inputs = trial.draw_inputs(Lowering({"torch": captured.program}, machine, {}), 0, {})
    constants = {name: x.detach().cpu() for name, x in captured.constants.items()}
    inputs = [constants.get(i.name, x) for i, x in zip(captured.program.inputs, random_inputs, strict=True)]
    return list(tune([(captured.program, inputs)], machine, Wish(), stored, cache))


def tune(
    programs: Iterable[tuple[aten.Program, list[torch.Tensor]]], machine: Target, wish: Wish, stored: Stored = NOTHING,
    cache: Path | None = None,
) -> Iterator[SearchResult]:  # fmt: skip
    """Search schedules for the kernels of programs, each kernel once, except those `stored`; store those that pass."""
    cache = cache or detect.default_cache(os.environ)
    done = {*stored.by_key}
    running: set[Future[SearchResult]] = set()
    with search_of.started_bench(machine, cache) as bench, ThreadPoolExecutor(bench.lanes) as threads:
        try:
            for program, inputs in programs:
                for digest, kernel in search_of.kernels(program, machine).items():
                    if digest in done:
                        continue
                    done.add(digest)
                    running.add(threads.submit(_search_and_store, program, inputs, kernel, bench, wish, cache))
                    while len(running) >= bench.lanes:
                        ended, running = wait(running, return_when=FIRST_COMPLETED)
                        yield from (f.result() for f in ended)
        except BaseException as end:  # an interrupt keeps what was found; any other exception ends the search
            bench.stop.set()
            if not isinstance(end, KeyboardInterrupt):
                raise
        yield from (f.result() for f in as_completed(running))


def _search_and_store(
    program: aten.Program, inputs: list[torch.Tensor], kernel: Program, bench: Bench, wish: Wish, cache: Path
) -> SearchResult:
    """Search a kernel of a program, and store the result if it passes."""
    with bench.lane() as lane:
        result = search_of.tune(kernel, lane, wish.effort, wish.strategy, wish.seed, wish.tell, wish.code)
    if result.record is None:
        return result
    with bench.checking:
        refusal = find_problem(program, bench.target, result.record, inputs, cache)
    if refusal:
        return dataclasses.replace(result, record=None, problem=f"what was found is refused: {refusal}")
    shelf.store_records(cache, [result.record])
    return result


def find_problem(
    program: aten.Program, target: Target, record: Record, inputs: list[torch.Tensor], cache: Path | None = None
) -> str:
    """The first stage at which the schedule of a record fails in a program, and why; empty if none does."""
    cache, place = cache or detect.default_cache(os.environ), gpu_programs.place_of(target)
    heuristic: Lowering | None = None
    with torch.no_grad():
        lowering = pipeline.lower(program, target, stored=Stored((record,)))
        if lowering.fallbacks:
            return lowering.fallbacks[0].reason
        try:
            eager = frontend.execute(program, inputs)
        except RuntimeError as problem:  # one program that PyTorch cannot run here does not end the search of others
            return f"stage torch: {problem}"
        is_small = sum(_iteration_count(k.body) for k in lowering.stages["loop"].kernels) <= INTERPRETED
        *before, last = pipeline.stages(target)[1:]
        for stage in (*(before if is_small else ()), last):
            with shelf.device_lock(cache, place) if stage == last else nullcontext():
                ours = executable.execute(lowering, stage, inputs)
            theirs = tuple(e.reshape(o.shape) for o, e in zip(ours, eager, strict=True))
            if difference := measure.describe_difference(ours, theirs, inputs):
                # Eager rounds between its kernels: a difference that the heuristic's schedule also has is no fault.
                heuristic = heuristic or pipeline.lower(program, target, stored=NOTHING)
                if measure.describe_difference(ours, executable.execute(heuristic, stage, inputs), inputs):
                    return f"stage {stage}: {difference}"
    return ""


def _iteration_count(body: tuple[Stmt, ...]) -> int:
    """Number of innermost iterations; a loop of unknown trip count counts as one iteration."""
    return sum(iterations(s) * _iteration_count(s.body) if isinstance(s, loop.For) else 1 for s in body)
