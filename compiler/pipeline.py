"""The one ordered list of passes, each with the invariant that it establishes, and `lower`, which runs them.

Programs, targets and schedules are values; nothing here reads the environment, a file or a clock.
"""

from __future__ import annotations

import difflib
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from compiler.errors import CompilerError, Unsupported
from compiler.ir import alike, aten, kernel, statement, tensor
from compiler.ir.expr import SymbolicError, sizes_in
from compiler.ir.stages import IRS
from compiler.ir.text import show_size
from compiler.passes import equal_kernels
from compiler.passes.applications import Application, Applications, Gate, Trace
from compiler.passes.cpu.tile_to_kernel import tile_to_kernel
from compiler.passes.exact import exact
from compiler.passes.gpu import dependent_launch
from compiler.passes.gpu.assign_stages import assign_stages
from compiler.passes.gpu.barriers import barriers
from compiler.passes.gpu.completed import completed
from compiler.passes.gpu.fragment_prefetch import prefetch_fragments
from compiler.passes.gpu.launches import launches
from compiler.passes.gpu.layouts import layouts
from compiler.passes.gpu.thread_maps import thread_maps
from compiler.passes.gpu.threads import tile_to_threads
from compiler.passes.gpu.vectorize import vectorize
from compiler.passes.gpu.warp_specialisation import warp_roles
from compiler.passes.loop.demote import demote
from compiler.passes.loop.fuse_attention import fuse_attention
from compiler.passes.loop.fuse_rows import fuse_rows
from compiler.passes.loop.merge_axes import merge_axes
from compiler.passes.loop.order_kernels import order_kernels
from compiler.passes.loop.parts import parts
from compiler.passes.loop.recompute import recompute
from compiler.passes.loop.views import views
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.packed import packed
from compiler.passes.requirements import requirements, without_requirements
from compiler.passes.tensor.compose import compose
from compiler.passes.tensor.fuse import fuse
from compiler.passes.tensor.sink import sink
from compiler.passes.tensor_to_loop import tensor_to_loop
from compiler.passes.tile.fresh_names import buffers_of, fresh_names, own_temporaries
from compiler.passes.tile.schedule import apply_schedules
from compiler.passes.tile.symbolic_schedule import symbolic_schedule
from compiler.passes.torch_to_tensor import lower as torch_to_tensor
from compiler.render import cpp, cuda
from compiler.render.mlir import linalg, tosa
from compiler.render.triton import program as triton
from compiler.schedule import files, heuristic
from compiler.schedule import space as schedule_space
from compiler.schedule.records import NOTHING, Record, Stored
from compiler.schedule.space.members import Planned
from compiler.schedule.steps import Schedule, Step
from compiler.schedule.steps import show as show_schedule
from compiler.targets.target import Target

IR_STAGES = tuple(IRS)
TEXTS = {"cpu": "cpp", "cuda": "cuda", "mlir": "mlir", "triton": "triton"}  # what each kind of target ends in
_WAYS = {
    "mlir": ("torch", "tensor"),
    "triton": ("torch", "tensor", "loop", "tile"),
}  # the IRs on the way to a kind of target, where not all


def stages(target: Target) -> tuple[str, ...]:
    """The stages of a program on its way to a target."""
    return (*_WAYS.get(target.kind, IR_STAGES), TEXTS[target.kind])


STAGES = (*IR_STAGES, TEXTS["cpu"])

Schedules = Mapping[str, Schedule]


@dataclass(frozen=True)
class Context:
    """What a pass may ask for besides the program."""

    target: Target
    schedules: Schedules
    applications: Applications = field(default_factory=Applications)


@dataclass(frozen=True)
class Pass:
    """`run(program, context)` takes a program of stage `source` to one of stage `result`.

    An optional pass may be left out (the program stays right without it), which is how a bisect finds the guilty one.
    """

    name: str
    source: str
    result: str
    invariant: str
    run: Callable[[Any, Context], Any]
    optional: bool = False
    kind: str = ""  # of the targets that it is for, where not for all


def _decompose(program: aten.Program, context: Context) -> tensor.Program:
    return torch_to_tensor.lower(program, orders=context.target.kind == "cpu")


def _for(run: Callable[[Any, Target], Any]) -> Callable[[Any, Context], Any]:
    """A pass that asks for the target and nothing else."""
    return lambda program, context: run(program, context.target)


def _fuse(program: tensor.Program, context: Context) -> tensor.Program:
    return fuse(program, context.target.cores if context.target.kind in ("cuda", "triton") else 1)


def _apply_schedules(program: statement.Program, context: Context) -> statement.Program:
    return apply_schedules(program, context.schedules, context.target, context.applications)


def _order(program: statement.Program, context: Context) -> statement.Program:
    return order_kernels(program) if context.target.memory else program


def _render(program: kernel.Program, context: Context) -> str:
    return cpp.render(program, target=context.target.name)


def _render_cuda(program: kernel.Program, context: Context) -> str:
    return cuda.render(program, target=context.target.name)


def _render_mlir(program: tensor.Program, context: Context) -> str:
    return tosa.render(program) if "tosa" in context.target.features else linalg.render(program)


def _to_kernel(program: statement.Program, context: Context) -> kernel.Program:
    return tile_to_kernel(program, context.target, _texts(context))


def _to_threads(program: statement.Program, context: Context) -> kernel.Program:
    return tile_to_threads(program, context.target, _texts(context))


def _requirements(program: kernel.Program, context: Context) -> kernel.Program:
    return requirements(program, context.target.vector) if context.target.checked else without_requirements(program)


def _dependent_launch(program: kernel.Program, context: Context) -> kernel.Program:
    return dependent_launch.dependent_launch(program, context.target)


def _texts(context: Context) -> dict[str, str]:
    return {name: show_schedule(s) for name, s in context.schedules.items()}


# fmt: off
PIPELINE = (
    Pass("decompose", "torch", "tensor", "only equations, one group a call", _decompose),
    Pass("compose", "tensor", "tensor", "no view of a view, no dead equation", lambda p, _: compose(p)),
    Pass("sink", "tensor", "tensor", "what few elements of are read is not stored", lambda p, _: sink(p), True),
    Pass("fuse", "tensor", "tensor", "each group is one kernel", _fuse, optional=True),
    Pass("tensor-to-loop", "tensor", "loop", "one loop nest for each group", lambda p, _: tensor_to_loop(p)),
    Pass("fuse-attention", "loop", "loop", "matmuls around a softmax are in its loop nest", _for(fuse_attention), True),
    Pass("recompute", "loop", "loop", "matmuls around what only they read make it", _for(recompute), True, "cuda"),
    Pass("fuse-rows", "loop", "loop", "what a row hands on stays in its block", _for(fuse_rows), True, "cuda"),
    Pass("demote", "loop", "loop", "what is read rounded is stored rounded", lambda p, _: demote(p), True, "cuda"),
    Pass("parts", "loop", "loop", "what is only put together is made in place", lambda p, _: parts(p), True, "cuda"),
    Pass("views", "loop", "loop", "indices go along axes of their own", lambda p, _: views(p), True, "cuda"),
    Pass("merge-axes", "loop", "loop", "axes contracted as one are one", lambda p, _: merge_axes(p), True, "cuda"),
    Pass("order-kernels", "loop", "loop", "under a memory limit, little is alive at once", _order, optional=True),
    Pass("loop-to-tile", "loop", "tile", "every loop has a binding", lambda p, _: loop_to_tile(p)),
    Pass("schedule", "tile", "tile", "every loop is bound as the schedule says", _apply_schedules, optional=True),
    Pass("tile-to-kernel", "tile", "kernel", "flat buffers, C loops, vectors", _to_kernel, kind="cpu"),
    Pass("launches", "tile", "tile", "each kernel is one launch", lambda p, _: launches(p), kind="cuda triton"),
    Pass("stages", "tile", "tile", "what is copied ahead is in stages", lambda p, _: assign_stages(p), kind="cuda"),
    Pass("layouts", "tile", "tile", "each tile says how its threads share it", _for(layouts), kind="cuda"),
    Pass("thread-maps", "tile", "tile", "loops over lanes say how many rounds at once", _for(thread_maps), kind="cuda"),
    Pass("vectorize", "tile", "tile", "copies have a width, and ask what may lie outside", lambda p, _: vectorize(p),
        kind="cuda"),
    Pass("fragment-prefetch", "tile", "tile", "fragments are loaded ahead", lambda p, _: prefetch_fragments(p),
        kind="cuda"),
    Pass("barriers", "tile", "tile", "threads wait where they touch the same memory", _for(barriers), kind="cuda"),
    Pass("warp-roles", "tile", "tile", "each warp has a role, and they pass slots on", _for(warp_roles), kind="cuda"),
    Pass("tile-to-threads", "tile", "kernel", "a grid of threads", _to_threads, kind="cuda"),
    Pass("requirements", "kernel", "kernel", "each is checked once, as seldom as may be", _requirements, True),
    Pass("exact", "kernel", "kernel", "nothing is rounded that 16 bits hold", lambda p, _: exact(p), optional=True),
    Pass("packed", "kernel", "kernel", "halves of bytes are widened in pairs", lambda p, _: packed(p), True, "cuda"),
    Pass("dependent-launch", "kernel", "kernel", "kernels wait for those before", _dependent_launch, True, "cuda"),
    Pass("render", "kernel", "cpp", "text that compiles without a warning", _render, kind="cpu"),
    Pass("render-cuda", "kernel", "cuda", "text that nvcc and g++ compile", _render_cuda, kind="cuda"),
    Pass("render-mlir", "tensor", "mlir", "text that mlir-opt verifies", _render_mlir, kind="mlir"),
    Pass("render-triton", "tile", "triton", "text that Triton compiles", lambda p, _: triton.render(p), kind="triton"),
)
# fmt: on


@dataclass(frozen=True)
class Fallback:
    """A kernel whose schedule was given up for a plainer one, and why: a defect of the heuristic that chose it."""

    kernel: str
    reason: str


@dataclass(frozen=True)
class Lowering:
    """The program at every stage reached; the last stage is text."""

    stages: Mapping[str, Any]
    target: Target
    schedules: Schedules
    fallbacks: tuple[Fallback, ...] = ()

    def show(self, stage: str) -> str:
        """The text of a stage; raises KeyError for one that was not reached."""
        program = self.stages[stage]
        return program if isinstance(program, str) else IRS[stage].show(program)


def passes_for(target: Target) -> tuple[Pass, ...]:
    """The passes that a program for this target goes through, in order."""
    order = stages(target)
    return tuple(
        p for p in PIPELINE if (not p.kind or target.kind in p.kind.split()) and p.source in order and p.result in order
    )


def from_tiles(program: statement.Program, target: Target) -> kernel.Program:
    """A scheduled program of Tile IR as Kernel IR; optional passes are left out."""
    made: Any = program
    for p in passes_for(target):
        if p.source == "tile" and not p.optional:
            made = p.run(made, Context(target, {}))
    assert isinstance(made, kernel.Program)
    return made


def schedules_for(program: statement.Program, target: Target) -> dict[str, Schedule]:
    """The heuristic's schedule of each kernel."""
    return _chosen(program, target, {})[0]


def read_schedules(text: str, program: Any, target: Target, source: str = "torch") -> dict[str, Schedule]:
    """The schedules that a text has for kernels of a program; raises ValueError naming the line."""
    found = files.parse(text)
    if files.ONLY not in found:
        return found
    reached = _lower(program, target, None, source, "loop", None, None).stages["loop"]
    return files.named(found, (k.name for k in reached.kernels))


def _known(schedules: Schedules, program: statement.Program) -> None:
    """Refuse schedules for kernels that there are none of."""
    names = [k.name for k in program.kernels]
    for name in schedules:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1, 0.0)
            meant = f"; did you mean {near[0]}? " if near else "; "
            raise CompilerError(f"there is no kernel {name} to be scheduled{meant}There are {', '.join(names)}")


def _chosen(
    program: statement.Program,
    target: Target,
    given: Schedules,
    carry_out: Callable[[statement.Program, Schedules], None] | None = None,
    stored: Stored = NOTHING,
) -> tuple[dict[str, Schedule], tuple[Fallback, ...]]:
    """The best schedule of each kernel that has none `given`, and what was given up for plainer ones.

    With `carry_out`, which takes a program of one kernel and its schedule down the passes, one that can be carried out;
    where there is none, what the best one raises is raised.
    """
    made = {k.name: given[k.name] for k in program.kernels if k.name in given}
    taken = buffers_of(program, made.values())
    given_up: list[Fallback] = []
    for k in program.kernels:
        if k.name in given:
            continue
        problems: list[Exception] = []
        found = stored.by_key.get(alike.key(alike.alone(program, k))) if stored.records and not sizes_in(k) else None
        ways = _ways(program, k, target)
        if found is not None:
            ways.insert(0, partial(_as_stored, found, program, k, target))
        for way in ways:
            try:
                schedule = own_temporaries(k, way(), taken)
                if carry_out is not None:
                    carry_out(program.replace(kernels=(k,)), {k.name: schedule})
            except CompilerError:
                raise
            except Exception as problem:
                problems.append(problem)
                continue
            made[k.name] = schedule
            break
        else:
            raise problems[0]
        what = "its stored schedule does not apply, tune it again: " if found is not None else ""
        given_up += [Fallback(k.name, f"{what}{type(x).__name__}: {x}") for x in problems[:1]]
    return made, tuple(given_up)


def _ways(program: statement.Program, kernel: statement.Kernel, target: Target) -> list[Callable[[], Schedule]]:
    """How a kernel may be scheduled, the best way first, then as contractions are no others, then not at all."""
    own = _private(program, kernel)

    def schedule(how: Callable[..., Schedule], kernel: statement.Kernel) -> Schedule:
        return fresh_names(program, kernel, how(kernel, own, target))

    ways = [partial(schedule, how) for how in (heuristic.choose, heuristic.plain)]
    choices = [partial(way, kernel) for way in ways]
    if sizes_in(kernel) and target.kind != "triton":
        best, plain = ways
        choices = [partial(symbolic_schedule, program, kernel, best, plain, partial(from_tiles, target=target))]
    return [*(partial(_hinted, program, kernel, target, way) for way in choices), Schedule]


def _as_stored(found: Record, program: statement.Program, kernel: statement.Kernel, target: Target) -> Schedule:
    """The schedule of a record, under the names of a kernel that is like its own; raises ValueError if it cannot be."""
    return _hinted(program, kernel, target, lambda: equal_kernels.under(found.steps(), found.kernel(), kernel))


def _hinted(
    program: statement.Program, kernel: statement.Kernel, target: Target, way: Callable[[], Schedule]
) -> Schedule:
    return completed(program, kernel, way(), target) if target.kind == "cuda" else way()


def _private(program: statement.Program, kernel: statement.Kernel) -> set[str]:
    """The temporaries of a kernel that no other kernel uses."""
    users = Counter(p.name for k in program.kernels for p in k.params)
    return {t.name for t in program.temps if users[t.name] == 1} & {p.name for p in kernel.params}


def space(program: statement.Program, kernel: statement.Kernel, target: Target) -> Iterator[Planned]:
    """The schedules of a kernel of a Loop IR program, the cheapest by the target's estimates first.

    That one `lower` chooses; none is made before it is asked for. Raises ValueError for a kernel with symbolic sizes.
    """
    if sizes_in(kernel):
        raise ValueError(f"kernel {kernel.name}: its sizes are not known, which estimates of schedules need")

    def steps(chosen: Planned) -> tuple[Step, ...]:
        return _hinted(program, kernel, target, partial(fresh_names, program, kernel, chosen.schedule)).steps

    for x in schedule_space.space(kernel, _private(program, kernel), target):
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
) -> Lowering:
    """Run the passes from stage `source` up to stage `until`, by default to the text.

    `gate(name, application number)` may refuse optional passes and steps of schedules, which are named by their text,
    and may answer with a schedule to apply instead of a step; `trace` sees every application. For kernels that
    `schedules` does not name, what is `stored` for such a kernel is taken, else the heuristic chooses; what of these no
    pass can carry out is given up for something plainer, which the result tells. Raises Unsupported, ScheduleError for
    a step that was given, CompilerError for a kernel that there is not, or ValueError from a verifier.
    """
    with _deep_recursion():
        return _lower(program, target, schedules, source, until or TEXTS[target.kind], gate, trace, stored)


def _lower(
    program: Any, target: Target, schedules: Schedules | None, source: str, until: str, gate: Gate | None,
    trace: Trace | None, stored: Stored = NOTHING,
) -> Lowering:  # fmt: skip
    made = {source: program}
    order = stages(target)
    IRS[source].verify(program)
    first, last = order.index(source), order.index(until)
    left = [p for p in passes_for(target) if order.index(p.source) >= first and order.index(p.result) <= last]
    given = schedules or {}
    schedules = None
    fallbacks: tuple[Fallback, ...] = ()
    applications = Applications(gate, trace)
    unscheduled: list[Pass] = []
    kinds: equal_kernels.Kinds | None = None
    loops: Any = None  # what schedules are chosen for
    while left:
        p, *left = left
        if p.result == "tile" and schedules is None:
            _known(given, program)
            if p.source == "loop":
                unscheduled = [p, *left]
                if not applications.watched:
                    by = (target, tuple(unscheduled), heuristic.choose, heuristic.plain, stored)
                    kinds = equal_kernels.Kinds(program, by, given)
                    program = kinds.program
            loops = program
            schedules, fallbacks = _chosen(program, target, given, None, stored)
        if kinds is not None and p.result not in IRS:
            lowered = _whole(kinds, made, schedules or {}, fallbacks)
            program = made.get("kernel", made["tile"])
        number = applications.number + 1
        if not applications.begins(p.name, p.optional):
            continue
        try:
            before, program = program, _applied(p, program, Context(target, schedules or {}, applications))
        except CompilerError:
            raise
        except Exception as problem:
            problem.add_note(f"in pass {p.name}")
            if applications.changed or p.source not in ("tile", "kernel") or "loop" not in made:
                raise
            plainer, fallbacks = _chosen(loops, target, given, partial(_carry_out, unscheduled, target), stored)
            if plainer == schedules:
                raise
            schedules, left, program = plainer, unscheduled, loops
            continue
        if trace is not None:
            trace(Application(number, p.name, p.result, before, program, p.source == p.result))
        made[p.result] = program
    if kinds is not None:
        if made.keys() & IRS.keys() == made.keys():
            lowered = _whole(kinds, made, schedules or {}, fallbacks)
        kinds.remember()
        schedules = {name: x.schedule for name, x in lowered.items()}
        fallbacks = tuple(Fallback(name, x.given_up) for name, x in lowered.items() if x.given_up)
    return Lowering(made, target, schedules or {}, fallbacks)


def _whole(
    kinds: equal_kernels.Kinds, made: dict[str, Any], schedules: Schedules, fallbacks: Sequence[Fallback]
) -> dict[str, equal_kernels.Lowered]:
    """What became of all kernels, by their names, of which those of one kind went down the passes as one."""
    kinds.note(made["tile"], made.get("kernel"), schedules, {x.kernel: x.reason for x in fallbacks})
    lowered = kinds.everything()
    made["tile"] = equal_kernels.tiles_of(kinds.whole, lowered)
    if "kernel" in made:
        made["kernel"] = equal_kernels.functions_of(made["tile"], lowered)
    return lowered


def _applied(p: Pass, program: Any, context: Context) -> Any:
    """What a pass makes of a program, verified where it is new; raises Unsupported where it needs to know a size."""
    try:
        made = p.run(program, context)
    except SymbolicError as problem:
        raise Unsupported(f"pass {p.name}", [show_size(s) for s in program.sizes], str(problem)) from problem
    if p.result in IRS and made is not program:
        IRS[p.result].verify(made)
    return made


def _carry_out(passes: Sequence[Pass], target: Target, program: Any, schedules: Schedules) -> None:
    """Take a program down the passes for what they raise."""
    for p in passes:
        program = _applied(p, program, Context(target, schedules))


_DEEP = 50_000
_lock = threading.Lock()
_deep: list[int] = []  # the limit that the first of those who need more found, once for each


@contextmanager
def _deep_recursion() -> Iterator[None]:
    """A hundred equations in a row are walked by a recursion deeper than what Python allows by default.

    The limit is one for all threads: it stays until the last of those who lower has done.
    """
    with _lock:
        found = _deep[0] if _deep else sys.getrecursionlimit()
        _deep.append(found)
        sys.setrecursionlimit(max(found, _DEEP))
    try:
        yield
    finally:
        with _lock:
            _deep.pop()
            if not _deep:
                sys.setrecursionlimit(found)


def pass_table() -> str:
    """The passes in order, as a Markdown table."""
    rows = [
        f"| {n} | {p.name} | {p.source} → {p.result} | {p.kind or 'all'} | {p.invariant} |"
        for n, p in enumerate(PIPELINE, 1)
    ]
    return "\n".join(["| | pass | IR | targets | what holds after it |", "|---|---|---|---|---|", *rows])
