"""Search the fastest schedule for each kernel of a program, timed relative to the heuristic's."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from threading import Event, Lock

import torch

from compiler import pipeline
from compiler.errors import CompilerError
from compiler.execution import gpu_programs, named
from compiler.execution.tuning import shelf, tables
from compiler.execution.tuning.processes import Answer, Builders, Process
from compiler.execution.tuning.tables import Table, Trial
from compiler.ir import aten, loop_text
from compiler.ir.expr import sizes_in
from compiler.ir.isomorphism import alone, key
from compiler.ir.statement import Program
from compiler.runtime import detect
from compiler.schedule import search, steps
from compiler.schedule.records import Record
from compiler.schedule.space.members import Planned
from compiler.schedule.steps import CacheHints, Schedule
from compiler.targets.target import Target

LANES = {"cpu": (1, 1), "cuda": (4, 12)}  # fewest and most kernels searched concurrently per device: see `lanes`
BUILD_TIMEOUT, RUN_TIMEOUT = 120.0, 60.0  # timeouts in seconds for building a candidate and for a race
ROUNDS, LAST_ROUNDS = 8, 40
FINALISTS = 3
BATCH, BATCHES = 4, 4  # least candidates per batch, and least number of batches
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Effort:
    """The budget of a search per kernel: trials, seconds, and candidates to choose from."""

    trials: int
    seconds: float
    candidates: int


EFFORTS = {"quick": Effort(16, 10.0, 200), "default": Effort(64, 60.0, 400), "full": Effort(600, 600.0, 600)}


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for a kernel: its record, or why there is none; statistics of the trials."""

    name: str
    record: Record | None
    problem: str = ""
    tried: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    interrupted: bool = False

    def __str__(self) -> str:
        if self.record is None:
            return f"{self.name}: {self.problem}"
        refused = ", ".join(f"{n} {reason}" for reason, n in self.refused.items())
        tried = f"{self.tried} tried" + (f", refused of these: {refused}" if refused else "")
        speedup, low, high = self.record.speedup
        best = f"{speedup:.3f}x [{low:.3f}, {high:.3f}] the heuristic's speed"
        verdict = "the heuristic's schedule is the best" if speedup == 1 else best
        return f"{self.name}: {self.record.seconds * 1e6:.4g} us, {verdict}; {tried}"


@dataclass(frozen=True)
class Bench:
    """The processes and the cache used by searches for a target."""

    target: Target
    device: str
    cache: Path
    builders: Builders
    racer: Process
    idle_racers: SimpleQueue[Process]
    stop: Event = field(default_factory=Event)
    checking: Lock = field(default_factory=Lock)  # held by the check of a record, which runs PyTorch on all cores
    lanes: int = 1  # kernels searched concurrently: as many as `idle_racers` has processes

    @contextmanager
    def lane(self) -> Iterator[Bench]:
        """The same bench with a racing process of its own."""
        racer = self.idle_racers.get()
        try:
            yield replace(self, racer=racer)
        finally:
            self.idle_racers.put(racer)


@contextmanager
def started_bench(target: Target, cache: Path) -> Iterator[Bench]:
    """Start the processes for a target. Raises CompilerError if its code cannot be timed here."""
    device = gpu_programs.device_of(target)
    if not device:
        raise CompilerError(f"no GPU of this machine runs code for {target.name}, and what is emulated is not timed")
    name = next((n for n in ("cpu", "cuda") if named.target(n) == target), target.name)
    builders = Builders(name, cache, detect.usable_cores())
    gpus = gpu_programs.equal_gpus(target) or ("",)
    each = lanes(target.kind, detect.usable_cores(), len(gpus))
    racer, *others = racers = [Process(name, cache), *(Process(name, cache, gpu) for gpu in gpus * each)]
    idle_racers: SimpleQueue[Process] = SimpleQueue()
    for other in others:
        idle_racers.put(other)
    try:
        for process in others:
            process.start()
        builders.start(BUILD_TIMEOUT)
        yield Bench(target, device, cache, builders, racer, idle_racers, lanes=len(others))
    finally:
        builders.close()
        for process in racers:
            process.close()


def lanes(kind: str, cores: int, devices: int) -> int:
    """The number of kernels searched concurrently per device: one is measured while others are built.

    A search keeps about two cores busy, as its batches of builds alternate with races.

    >>> lanes("cuda", 16, 1), lanes("cuda", 32, 4), lanes("cpu", 16, 1)
    (8, 4, 1)
    """
    fewest, most = LANES[kind]
    return min(most, max(fewest, cores // (2 * devices)))


def versions() -> dict[str, str]:
    """The versions, besides the text, that a time depends on."""
    return {"torch": str(torch.__version__), "python": platform.python_version()}


def kernels(program: aten.Program, target: Target) -> dict[str, Program]:
    """The distinct kernels of a program, each as a program, by key; those of symbolic sizes are left out."""
    loops = pipeline.lower(program, target, until="loop").stages["loop"]
    single = [alone(loops, k) for k in loops.kernels if not sizes_in(k)]
    return {key(p): p for p in single}


def tune(
    program: Program,
    bench: Bench,
    effort: Effort,
    strategy: str,
    seed: int = 0,
    tell: Tell = lambda _: None,
    code: str = "",
) -> SearchResult:
    """Search the schedules of a kernel that is a program of its own."""
    (kernel,) = program.kernels
    known = _stored_schedule(program, bench)
    head = _table_head(program, bench, effort, known)
    if isinstance(head, str):
        return SearchResult(kernel.name, None, head)
    name = f"{head.key}-{head.target.replace(':', '_')}-{head.device.replace(' ', '_')}.jsonl"
    path = bench.cache / "tune" / name
    table = tables.begin(path, head)
    (first,) = bench.builders.build(head.program, head.schedules[:1], BUILD_TIMEOUT)
    started = first if "failed" in first else bench.racer.begin(RUN_TIMEOUT, text=first["text"], seed=seed)
    if "failed" in started:
        return SearchResult(kernel.name, None, f"the heuristic's schedule cannot be timed: {started['failed']}")
    texts = {0: str(first["text"])}
    if 0 not in table.trials:
        tables.append(path, table, _race([0], texts, bench))
    old = [n for n, schedule in enumerate(head.schedules) if schedule == known]
    for number in _build([n for n in old if n not in table.trials], table, path, texts, bench):
        tables.append(path, table, _race([number], texts, bench))
    _search(table, path, texts, bench, effort, strategy, seed, tell)
    if bench.stop.is_set():  # the best so far deserves a last race
        tell(f"{kernel.name}: interrupted; the best so far is raced and kept")
    record, refusal = _winner(table, texts, old, bench, code)
    reasons = [t.failed.split(":")[0] for t in table.trials.values() if t.failed]
    refused = {w: reasons.count(w) for w in dict.fromkeys(reasons)}
    return SearchResult(kernel.name, record, refusal, len(table.trials), refused, bench.stop.is_set())


def _stored_schedule(program: Program, bench: Bench) -> str:
    """The schedule that is stored for a kernel, without cache hints; empty if there is none, or none that applies."""
    stored = shelf.stored(bench.cache, bench.target.name, bench.device)
    if key(program) not in stored.by_key:
        return ""
    lowering = pipeline.lower(program, bench.target, source="loop", until="tile", stored=stored)
    (schedule,) = lowering.schedules.values()
    return "" if lowering.fallbacks else steps.show(Schedule(_without_hints(schedule.steps)))


def _table_head(program: Program, bench: Bench, effort: Effort, known: str) -> tables.Head | str:
    """The head of a kernel's table with its candidates, among them the `known` schedule; or why there are none."""
    text = loop_text.show(program)
    answer = bench.builders.ask("candidates", BUILD_TIMEOUT, program=text, count=effort.candidates, known=known)
    if "failed" in answer:  # a planner that fails costs its kernels their search, and is reported
        return f"no candidates: {answer['failed']}"
    return tables.Head(
        key(program), program.kernels[0].name, bench.target.name, bench.device, answer["family"], text, answer["costs"],
        answer["schedules"],
    )  # fmt: skip


def without_hints(program: Program, target: Target) -> Iterator[Planned]:
    """The schedules of a kernel, cheapest first, without cache hints: these depend on the neighbouring kernels and are
    added where a schedule is used."""

    def steps_without_hints(p: Planned) -> tuple[steps.Step, ...]:
        return _without_hints(p.schedule.steps)

    (kernel,) = program.kernels
    for p in pipeline.space(program, kernel, target):
        yield Planned(p.family, p.cost, partial(steps_without_hints, p), p.price)


def _without_hints(given: tuple[steps.Step, ...]) -> tuple[steps.Step, ...]:
    return tuple(s for s in given if not isinstance(s, CacheHints))


def _search(
    table: Table, path: Path, texts: dict[int, str], bench: Bench, effort: Effort, strategy: str, seed: int, tell: Tell
) -> None:
    """Measure the candidates that the strategy chooses, until the effort is spent or none is left."""
    candidates = _candidates(table)
    rng, end = Random(seed), time.monotonic() + effort.seconds
    while len(table.trials) < effort.trials and time.monotonic() < end and not bench.stop.is_set():
        # As many as can be built in parallel; but a strategy learns nothing within a batch.
        batch = max(BATCH, min(detect.usable_cores(), effort.trials // BATCHES))
        count = min(batch, effort.trials - len(table.trials))
        numbers = search.STRATEGIES[strategy](candidates, table.ratios, count, rng)
        if not numbers:
            break
        for number in _build(numbers, table, path, texts, bench):
            tables.append(path, table, _race([number], texts, bench))
        tell(_progress(table, min(effort.trials, len(candidates))))


def _progress(table: Table, limit: int) -> str:
    best = table.best
    if best is None:
        return f"{table.head.name}: {len(table.trials)} of {limit} tried, all of them refused"
    best_text = f"best {best.seconds * 1e6:.4g} us, {1 / best.ratio:.3f}x the heuristic's speed"
    return f"{table.head.name}: {len(table.trials)} of {limit} tried, {best_text}"


def _candidates(table: Table) -> list[search.Candidate]:
    return search.candidates(table.head.costs, [steps.parse(s) for s in table.head.schedules])


def _build(numbers: list[int], table: Table, path: Path, texts: dict[int, str], bench: Bench) -> list[int]:
    """Build candidates and return those to race; failures, and texts equal to one raced before, are recorded."""
    missing = [n for n in numbers if n not in texts]
    answers = bench.builders.build(table.head.program, [table.head.schedules[n] for n in missing], BUILD_TIMEOUT)
    number_of = {text: n for n, text in texts.items()}
    built = []
    for n, answer in zip(missing, answers, strict=True):
        if "failed" in answer:
            tables.append(path, table, [Trial(n, failed=answer["failed"])])
            continue
        first = number_of.setdefault(answer["text"], n)
        texts[n] = answer["text"]
        if first != n and first in table.trials:
            old = table.trials[first]
            tables.append(path, table, [replace(old, number=n)])
        else:
            built.append(n)
    return built


def _race(numbers: list[int], texts: Mapping[int, str], bench: Bench) -> list[Trial]:
    answer = bench.racer.ask("race", RUN_TIMEOUT, texts=[texts[n] for n in numbers], rounds=ROUNDS)
    if "failed" in answer:
        return [Trial(n, failed=str(answer["failed"])) for n in numbers]
    return [
        Trial(n, r["seconds"], r["median"], low=r["low"], high=r["high"])
        for n, r in zip(numbers, answer["ratios"][1:], strict=True)
    ]


def _winner(
    table: Table, texts: dict[int, str], known: Sequence[int], bench: Bench, code: str
) -> tuple[Record | None, str]:
    """Race the best candidates and those `known` again, longer; return the record of the best if it surely beats the
    heuristic's.

    Otherwise return the record of the heuristic's schedule, or None and the problem if the race fails. Among many about
    equally fast candidates, the seemingly fastest was lucky: only the second race counts.
    """
    faster = sorted((t for t in table.trials.values() if not t.failed and t.ratio < 1), key=lambda t: t.ratio)
    best = dict.fromkeys([*(t.number for t in faster[:FINALISTS]), *(n for n in known if not table.trials[n].failed)])
    finalists = [n for n in best if _is_built(n, table, texts, bench)]
    answer = bench.racer.ask("race", RUN_TIMEOUT, texts=[texts[n] for n in finalists], rounds=LAST_ROUNDS)
    if "failed" in answer:
        return None, f"the last race failed: {answer['failed']}"
    ratios = answer["ratios"]
    ranked = sorted(range(len(finalists)), key=lambda i: float(ratios[i + 1]["median"]))
    for i in ranked:
        if ratios[i + 1]["high"] < 1 and "failed" not in bench.racer.ask(
            "guard", RUN_TIMEOUT, text=texts[finalists[i]]
        ):
            return _record(table.head, finalists[i], ratios[i + 1], code), ""
    return _record(table.head, 0, ratios[0], code), ""


def _is_built(number: int, table: Table, texts: dict[int, str], bench: Bench) -> bool:
    if number not in texts:
        (answer,) = bench.builders.build(table.head.program, [table.head.schedules[number]], BUILD_TIMEOUT)
        if "failed" in answer:
            return False
        texts[number] = answer["text"]
    return True


def _record(head: tables.Head, number: int, ratio: Answer, code: str) -> Record:
    speedup = tuple(float(f"{1 / ratio[k]:.4g}") for k in ("median", "high", "low"))
    return Record(
        head.key, head.name, head.target, head.device, head.program, head.schedules[number],
        float(f"{ratio['seconds']:.4g}"), (speedup[0], speedup[1], speedup[2]), versions(), code,
    )  # fmt: skip
