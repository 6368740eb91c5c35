"""Lower programs: run the passes of `pass_order` for a target and schedules, and keep the program at every stage.

Programs, targets and schedules are immutable values. Nothing here reads the environment, a file or a clock.
"""

from __future__ import annotations

import difflib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from compiler.errors import CompilerError, Unsupported
from compiler.ir import isomorphism, kernel, statement
from compiler.ir.expr import SymbolicError, sizes_in
from compiler.ir.stages import IRS
from compiler.ir.text import show_size
from compiler.pass_order import IR_STAGES as IR_STAGES
from compiler.pass_order import PIPELINE as PIPELINE
from compiler.pass_order import STAGES as STAGES
from compiler.pass_order import TEXTS as TEXTS
from compiler.pass_order import Context as Context
from compiler.pass_order import Pass as Pass
from compiler.pass_order import Schedules as Schedules
from compiler.pass_order import stages as stages
from compiler.passes import equal_kernels
from compiler.passes.applications import Application, Applications, Gate, Trace
from compiler.passes.complete_schedules import completed
from compiler.passes.tile.fresh_names import buffers_of, fresh_names, own_temporaries
from compiler.passes.tile.symbolic_schedule import symbolic_schedule
from compiler.schedule import files, heuristic
from compiler.schedule import space as schedule_space
from compiler.schedule.records import NOTHING, Record, Stored
from compiler.schedule.space.members import Planned
from compiler.schedule.steps import Schedule, Step
from compiler.targets.target import Target

T = TypeVar("T")
R = TypeVar("R")
CarryOut = Callable[[statement.Program, Schedules], None]  # raises if a program of one kernel cannot be lowered


class Each(Protocol):
    """Calls a function on each task and returns the results in the order of the tasks; may use other processes."""

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T], /) -> Sequence[R]: ...


def in_order(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """The sequential `Each`."""
    return list(map(function, tasks))


def passes_for(target: Target) -> tuple[Pass, ...]:
    """The passes that run for this target, in order."""
    order = stages(target)
    return tuple(
        p for p in PIPELINE if (not p.kind or target.kind in p.kind.split()) and p.source in order and p.result in order
    )


@dataclass(frozen=True)
class Fallback:
    """A kernel whose chosen schedule could not be applied and was replaced by a simpler one: a heuristic's defect."""

    kernel: str
    reason: str


@dataclass(frozen=True)
class Lowering:
    """The program at every stage reached, by name of the stage; the last stage is text.

    `schedules` has the schedule of each kernel, by its name. `fallbacks` lists the kernels whose chosen schedule was
    replaced by a simpler one, with the reason.
    """

    stages: Mapping[str, Any]
    target: Target
    schedules: Schedules
    fallbacks: tuple[Fallback, ...] = ()

    def show(self, stage: str) -> str:
        """The text of a stage; raises KeyError if the stage was not reached."""
        program = self.stages[stage]
        return program if isinstance(program, str) else IRS[stage].show(program)


def from_tiles(program: statement.Program, target: Target) -> kernel.Program:
    """Lower a scheduled Tile IR program to Kernel IR, without optional passes."""
    lowered: Any = program
    for p in passes_for(target):
        if p.source == "tile" and not p.optional:
            lowered = p.run(lowered, Context(target, {}))
    assert isinstance(lowered, kernel.Program)
    return lowered


def schedules_for(program: statement.Program, target: Target) -> dict[str, Schedule]:
    """The heuristic's schedule of each kernel of a Loop IR program, by the kernel's name."""
    return _choose_schedules(program, target, {})[0]


def read_schedules(text: str, program: Any, target: Target, source: str = "torch") -> dict[str, Schedule]:
    """Parse schedules for the kernels of a program, by the kernel's name.

    A text without `with kernel(...)` blocks is the schedule of the only kernel; for that the program of stage `source`
    is lowered to Loop IR. Raises ValueError, with the line, for text that is not a schedule.
    """
    parsed = files.parse(text)
    if files.ONLY not in parsed:
        return parsed
    loops = _lower(program, target, {}, source, "loop", None, None).stages["loop"]
    return files.named(parsed, (k.name for k in loops.kernels))


def _check_names(schedules: Schedules, program: statement.Program) -> None:
    """Raise CompilerError if a schedule names a kernel that the program does not have."""
    names = [k.name for k in program.kernels]
    for name in schedules:
        if name not in names:
            similar = difflib.get_close_matches(name, names, 1, 0.0)
            hint = f"; did you mean {similar[0]}? " if similar else "; "
            raise CompilerError(f"there is no kernel {name} to schedule{hint}There are {', '.join(names)}")


def _choose_schedules(
    program: statement.Program,
    target: Target,
    given: Schedules,
    carry_out: CarryOut | None = None,
    stored: Stored = NOTHING,
) -> tuple[dict[str, Schedule], tuple[Fallback, ...]]:
    """Choose a schedule for each kernel that has none `given`; return all schedules and the fallbacks.

    With `carry_out`, which lowers a program of one kernel with its schedule, the first schedule that can be lowered is
    chosen. If there is none, the exception of the best one is raised.
    """
    schedules = {k.name: given[k.name] for k in program.kernels if k.name in given}
    taken_names = buffers_of(program, schedules.values())
    fallbacks: list[Fallback] = []
    for k in program.kernels:
        if k.name in given:
            continue
        problems: list[Exception] = []
        record = (
            stored.by_key.get(isomorphism.key(isomorphism.alone(program, k)))
            if stored.records and not sizes_in(k)
            else None
        )
        choices = _schedule_choices(program, k, target)
        if record is not None:
            choices.insert(0, partial(_stored_schedule, record, program, k, target))
        for choose in choices:
            try:
                schedule = own_temporaries(k, choose(), taken_names)
                if carry_out is not None:
                    carry_out(program.replace(kernels=(k,)), {k.name: schedule})
            except CompilerError:
                raise
            except Exception as problem:
                problems.append(problem)
                continue
            schedules[k.name] = schedule
            break
        else:
            raise problems[0]
        prefix = "its stored schedule does not apply, tune it again: " if record is not None else ""
        fallbacks += [Fallback(k.name, f"{prefix}{type(x).__name__}: {x}") for x in problems[:1]]
    return schedules, tuple(fallbacks)


def _schedule_choices(
    program: statement.Program, kernel: statement.Kernel, target: Target
) -> list[Callable[[], Schedule]]:
    """Ways to schedule a kernel, best first: the heuristic's choice, its plain schedule, then an empty schedule."""
    private = _private_temporaries(program, kernel)

    def schedule(plan: Callable[..., Schedule], kernel: statement.Kernel) -> Schedule:
        return fresh_names(program, kernel, plan(kernel, private, target))

    def every_schedule(kernel: statement.Kernel) -> Iterator[Schedule]:
        return (fresh_names(program, kernel, candidate) for candidate in heuristic.every(kernel, private, target))

    heuristics = [partial(schedule, plan) for plan in (heuristic.choose, heuristic.plain)]
    choices = [partial(choose, kernel) for choose in heuristics]
    if sizes_in(kernel) and target.kind != "triton":
        lowered = partial(from_tiles, target=target)
        choices = [partial(symbolic_schedule, program, kernel, every_schedule, heuristics[1], lowered)]
    return [*(partial(_completed_schedule, program, kernel, target, choose) for choose in choices), Schedule]


def _stored_schedule(record: Record, program: statement.Program, kernel: statement.Kernel, target: Target) -> Schedule:
    """A stored schedule, renamed for an equal kernel with other names; raises ValueError if that is impossible."""
    return _completed_schedule(
        program, kernel, target, lambda: equal_kernels.under(record.steps(), record.kernel(), kernel)
    )


def _completed_schedule(
    program: statement.Program, kernel: statement.Kernel, target: Target, choose: Callable[[], Schedule]
) -> Schedule:
    return completed(program, kernel, choose(), target)


def _private_temporaries(program: statement.Program, kernel: statement.Kernel) -> set[str]:
    """The temporaries of a kernel that no other kernel uses."""
    users = Counter(p.name for k in program.kernels for p in k.params)
    return {t.name for t in program.temps if users[t.name] == 1} & {p.name for p in kernel.params}


def space(program: statement.Program, kernel: statement.Kernel, target: Target) -> Iterator[Planned]:
    """Enumerate the legal schedules of a kernel of a Loop IR program lazily, cheapest first by the cost model.

    `lower` chooses the first one. Raises ValueError for a kernel with symbolic sizes.
    """
    if sizes_in(kernel):
        raise ValueError(f"kernel {kernel.name} has symbolic sizes; the cost model needs fixed ones")

    def steps(chosen: Planned) -> tuple[Step, ...]:
        return _completed_schedule(
            program, kernel, target, partial(fresh_names, program, kernel, chosen.schedule)
        ).steps

    for x in schedule_space.space(kernel, _private_temporaries(program, kernel), target):
        yield Planned(x.family, x.cost, partial(steps, x), x.price)


def lower(
    program: Any,
    target: Target,
    schedules: Schedules | None = None,
    *,
    source: str = "torch",
    until: str = "",
    gate: Gate | None = None,
    trace: Trace | None = None,
    stored: Stored = NOTHING,
    each: Each = in_order,
) -> Lowering:
    """Lower a program from stage `source` to stage `until`, by default to text.

    `schedules` maps names of kernels to schedules. Any other kernel gets the schedule that `stored` has for an equal
    kernel, or else the heuristic's. If a chosen schedule turns out not to be applicable, a simpler one is used and
    reported in `Lowering.fallbacks`; a schedule from `schedules` is never replaced.

    `gate(name, number)` is called before each application of a pass or schedule step; steps are named by their text. It
    returns False to skip an optional pass or a step, or a Schedule to apply in place of a step. `trace` is called with
    an Application after each one.

    Without a gate and a trace, each distinct kernel is lowered once, by itself. `each` runs these tasks, possibly in
    other processes; the function that it is given is module-level.

    Raises Unsupported for an op or a size that the passes cannot lower, ScheduleError for an illegal step in
    `schedules`, CompilerError for the name of a kernel that does not exist, and ValueError from the verifiers.
    """
    with _deep_recursion():
        return _lower(program, target, schedules or {}, source, until or TEXTS[target.kind], gate, trace, stored, each)


def _lower(
    program: Any, target: Target, given: Schedules, source: str, until: str, gate: Gate | None, trace: Trace | None,
    stored: Stored = NOTHING, each: Each = in_order,
) -> Lowering:  # fmt: skip
    IRS[source].verify(program)
    passes, applications = _passes_between(target, source, until), Applications(gate, trace)
    loop_passes, tile_passes = _split_at_tiles(passes)
    run = _Run(target, given, stored, applications, {source: program}, program)
    if applications.watched or not tile_passes:
        run.run_all(passes)
        return Lowering(run.reached, target, run.schedules or {}, run.fallbacks)
    run.run_all(loop_passes)
    _check_names(given, run.program)
    return _lower_by_kinds(run, tile_passes, until, each)


def _passes_between(target: Target, source: str, until: str) -> list[Pass]:
    """The passes of this target from stage `source` to stage `until`."""
    order = stages(target)
    first, last = order.index(source), order.index(until)
    return [p for p in passes_for(target) if order.index(p.source) >= first and order.index(p.result) <= last]


def _split_at_tiles(passes: list[Pass]) -> tuple[list[Pass], list[Pass]]:
    """Split the passes in front of the one that lowers Loop IR to Tile IR."""
    at = next((n for n, p in enumerate(passes) if p.source == "loop" and p.result == "tile"), len(passes))
    return passes[:at], passes[at:]


@dataclass
class _Run:
    """State of a run of passes: the current program, the program at each stage reached, and the chosen schedules."""

    target: Target
    given_schedules: Schedules
    stored: Stored
    applications: Applications
    reached: dict[str, Any]
    program: Any
    schedules: Schedules | None = None
    fallbacks: tuple[Fallback, ...] = ()

    def run_all(self, passes: Sequence[Pass], checked: Sequence[Pass] = ()) -> None:
        """Run passes. If one of them cannot carry out a chosen schedule, restart from Loop IR with simpler schedules.

        With `checked`, the initial choice is already restricted to schedules that these passes can carry out.
        """
        remaining, loops, tile_passes = list(passes), None, list(passes)
        while remaining:
            p, *remaining = remaining
            if p.result == "tile" and self.schedules is None:
                _check_names(self.given_schedules, self.program)
                loops, tile_passes = self.program, [p, *remaining]
                carry_out = partial(_carry_out, checked, self.target) if checked else None
                self._choose(loops, carry_out)
            try:
                self._apply(p)
            except CompilerError:
                raise
            except Exception as problem:
                problem.add_note(f"in pass {p.name}")
                if self.applications.changed or p.source not in ("tile", "kernel") or loops is None or checked:
                    raise
                before = self.schedules
                self._choose(loops, partial(_carry_out, tile_passes, self.target))
                if self.schedules == before:
                    raise
                remaining, self.program = tile_passes, loops

    def _choose(self, loops: statement.Program, carry_out: CarryOut | None) -> None:
        self.schedules, self.fallbacks = _choose_schedules(
            loops, self.target, self.given_schedules, carry_out, self.stored
        )

    def _apply(self, p: Pass) -> None:
        number = self.applications.number + 1
        if not self.applications.begins(p.name, p.optional):
            return
        before = self.program
        self.program = _apply_pass(p, before, Context(self.target, self.schedules or {}, self.applications))
        if self.applications.trace is not None:
            application = Application(number, p.name, p.result, before, self.program, p.source == p.result)
            self.applications.trace(application)
        self.reached[p.result] = self.program


# ---- each kind of kernel by itself


@dataclass(frozen=True)
class Kind:
    """A task: lower a program of one kernel towards `until`, up to the first pass that needs to see all kernels.

    `checked` asks for a schedule that all passes can carry out.
    """

    program: statement.Program
    target: Target
    given_schedules: Schedules
    stored: Stored
    until: str
    checked: bool


@dataclass(frozen=True)
class LoweredKind:
    """The result of a `Kind`. `given_up` is the reason of a fallback, or empty."""

    tiles: statement.Program
    kernels: kernel.Program | None
    schedule: Schedule
    given_up: str


def lowered_kind(kind: Kind) -> LoweredKind:
    """Lower a program of one kernel. At module level, so that another process can be given it."""
    separate, joint = _split_at_joint(_split_at_tiles(_passes_between(kind.target, "loop", kind.until))[1])
    run = _Run(kind.target, kind.given_schedules, kind.stored, Applications(), {"loop": kind.program}, kind.program)
    with _deep_recursion():
        run.run_all(separate, [*separate, *joint] if kind.checked else ())
    ((name, schedule),) = (run.schedules or {}).items()
    given_up = "".join(x.reason for x in run.fallbacks if x.kernel == name)
    return LoweredKind(run.reached["tile"], run.reached.get("kernel"), schedule, given_up)


def _split_at_joint(passes: Sequence[Pass]) -> tuple[list[Pass], list[Pass]]:
    """Split the passes in front of the first one that needs to see all kernels."""
    at = next((n for n, p in enumerate(passes) if p.together or p.result not in IRS), len(passes))
    return list(passes[:at]), list(passes[at:])


def _lower_by_kinds(run: _Run, passes: list[Pass], until: str, each: Each) -> Lowering:
    """Lower each group of kernels that are equal except for names once; then run the other passes on all kernels."""
    program, target, given, stored = run.program, run.target, run.given_schedules, run.stored
    context_key = (target, tuple(passes), heuristic.choose, heuristic.plain, stored)
    kinds = equal_kernels.Kinds(program, context_key, given)
    separate, joint = _split_at_joint(passes)
    for checked in (False, True):
        tasks = [
            Kind(kinds.alone(x), target, {x.name: given[x.name]} if x.name in given else {}, stored, until, checked)
            for x in kinds.firsts.values()
        ]
        for kind, result in zip(kinds.firsts, each(lowered_kind, tasks), strict=True):
            kinds.note(kind, result.tiles, result.kernels, result.schedule, result.given_up)
        lowered = kinds.everything()
        schedules = {name: x.schedule for name, x in lowered.items()}
        reached = {**run.reached, "tile": equal_kernels.tiles_of(program, lowered)}
        if any(p.result == "kernel" for p in separate):
            reached["kernel"] = equal_kernels.functions_of(reached["tile"], lowered)
        rest = _Run(target, given, stored, run.applications, reached, list(reached.values())[-1], schedules)
        try:
            rest.run_all(joint)
        except CompilerError:
            raise
        except Exception:
            if checked or not kinds.firsts:
                raise
            continue
        break
    kinds.remember()
    fallbacks = tuple(Fallback(name, x.given_up) for name, x in lowered.items() if x.given_up)
    return Lowering(rest.reached, target, schedules, fallbacks)


def _apply_pass(p: Pass, program: Any, context: Context) -> Any:
    """Run a pass and verify its result if it changed; raises Unsupported if the pass needs to know a symbolic size."""
    try:
        lowered = p.run(program, context)
    except SymbolicError as problem:
        raise Unsupported(f"pass {p.name}", [show_size(s) for s in program.sizes], str(problem)) from problem
    if p.result in IRS and lowered is not program:
        IRS[p.result].verify(lowered)
    return lowered


def _carry_out(passes: Sequence[Pass], target: Target, program: Any, schedules: Schedules) -> None:
    """Run passes on a program only to see whether they raise."""
    for p in passes:
        program = _apply_pass(p, program, Context(target, schedules))


_RECURSION_LIMIT = 50_000
_lock = threading.Lock()
_original_limits: list[int] = []  # the original limit, once per call of `lower` in progress


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raise Python's recursion limit: a chain of a hundred equations exceeds the default.

    The limit is global, so it is restored when the last thread in `lower` has finished.
    """
    with _lock:
        original = _original_limits[0] if _original_limits else sys.getrecursionlimit()
        _original_limits.append(original)
        sys.setrecursionlimit(max(original, _RECURSION_LIMIT))
    try:
        yield
    finally:
        with _lock:
            _original_limits.pop()
            if not _original_limits:
                sys.setrecursionlimit(original)


def pass_table() -> str:
    """The passes in order, as a Markdown table."""
    rows = [
        f"| {n} | {p.name} | {p.source} → {p.result} | {p.kind or 'all'} | {p.invariant} |"
        for n, p in enumerate(PIPELINE, 1)
    ]
    return "\n".join(["| | pass | IR | targets | what holds after it |", "|---|---|---|---|---|", *rows])
