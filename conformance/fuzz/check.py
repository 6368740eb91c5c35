"""Check one random program: `torch.compile` against eager and f64, and for a difference the stage to blame.

It runs in the child process, which compiled code may crash.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import compiler
from conformance import rows
from conformance.fuzz import asked, blame, corpus, exported, generate, mutate, products, relations, runs, schedules
from conformance.fuzz.drawing import is_large
from conformance.fuzz.program import Program, bound, described, function, given, line, needs
from conformance.fuzz.relations import relations as relations_of
from conformance.fuzz.runs import Run
from conformance.judge import oracle
from conformance.judge.ladder import threads
from conformance.shapes import inputs
from conformance.shapes.inputs import Function

Tell = Callable[[str], None]

# Tolerance of a result: EAGER times eager's worst error against f64, plus ROUNDINGS roundings of its largest element. A
# wrong element differs by far more, and a larger difference is judged by the bounds of each graph.
EAGER, ROUNDINGS = 8.0, 16.0
BUG = "this is a bug in mlcomp"  # part of the warning that dynamic sizes are compiled one by one due to a bug
COMPILED = ("graph", "relation")  # the checks of `asked.CHECKS` that use `torch.compile`
ROUNDED = frozenset({"value", "order", "slice", "margin"})  # kinds of differences that may be within graphs' bounds
AROUND = frozenset({"stride", "offset", "alias", "reuse"})  # kinds of differences that no graph can cause


@dataclass(frozen=True)
class Difference:
    """What is wrong: its kind as one word, and a message."""

    kind: str
    message: str
    on: Program | None = None  # the program with the altered data that show it, if these are not the drawn ones


class Refused(Exception):
    """The compiler refuses the program as unsupported, or eager cannot run it on the device."""


def fuzz(seed: int, index: int, options: Mapping[str, Any], tell: Tell) -> rows.Fuzz:
    """Draw the program of this number and check it; with a corpus, add it if it passes and reaches a new rule."""
    tell("the program itself")
    program = mutate.drawn(seed, index, options)
    if not options.get("corpus"):
        return checked(program, options, tell)
    with corpus.Reached() as reached:
        row = checked(program, options, tell)
    if row.verdict == "pass":
        corpus.keep(Path(options["corpus"]), program, reached.places())
    return row


def eager(seed: int, index: int, options: Mapping[str, Any], tell: Tell) -> None:
    """Only run the program of this number in eager, as `fuzz` does: whether PyTorch itself loses the process."""
    program = mutate.drawn(seed, index, options)
    device = compiler.tensors_on(compiler.target(options["target"]))
    tell("eager")
    for point in program.points:
        runs.call(function(program), runs.copied(given(program, point), device), needs(program))


def checked(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.Fuzz:
    """Check a program and return its row.

    `options` has target and threads, `dump` (folder for the repro), and `lost` if `torch.compile` crashed the process
    of an earlier try, so that this one begins with the search for the stage to blame.
    """
    known = rows.Fuzz(index=program.index, seed=program.seed, line=line(program), arguments=described(program))
    return replace(known, **vars(_found(program, options, tell)))


def _found(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.Found:
    """Run the requested checks of a program."""
    what = options.get("what", asked.DEFAULT)
    if why := left_out(program, compiler.target(options["target"])):
        return rows.Found(verdict="unsupported", detail=why)
    with threads(options.get("threads", 1)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = _compiled(program, options, tell) if {*COMPILED} & {*what} else rows.Found()
        if "export" in what and _is_open(found, options):
            found = exported.found(program, options, tell, far)
        return schedules.found(program, options, tell) if "schedule" in what and _is_open(found, options) else found


def left_out(program: Program, target: compiler.Target) -> str:
    """Return why a program is not checked on a target; "" if it is."""
    if target.kind == "cuda" and is_large(program) and not compiler.on_gpu(target):
        return "more elements than an emulator is for"
    # The result of these is unspecified: compiler/README.md, "CUDA, with a GPU and without".
    if "tf32" in target.features and generate.special(program) and products.are_infinite(program):
        return "an infinite factor of three products in tf32"
    return ""


def _is_open(found: rows.Found, options: Mapping[str, Any]) -> bool:
    """Return whether nothing is wrong so far, or a process was lost and no graph is to blame."""
    return found.verdict == "pass" or bool(options.get("lost") and found.first_bad_stage == blame.BACKEND)


def _compiled(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.Found:
    """Check a program under `torch.compile`."""
    if options.get("lost"):
        return blame.blamed(program, options, tell)[0]
    tell("torch.compile")
    try:
        wrong = difference(program, options["target"], options.get("what", asked.DEFAULT))
    except Refused as refusal:
        return rows.Found(verdict="unsupported", detail=str(refusal))
    return rows.Found() if wrong is None else _weighed(program, wrong, options, tell)


def _weighed(program: Program, found: Difference, options: Mapping[str, Any], tell: Tell) -> rows.Found:
    """Attribute a difference: to PyTorch, to a stage or the backend of ours, or to rounding within the bounds."""
    theirs = rows.Found(verdict="torch", kind=found.kind, detail=found.message)
    device = compiler.tensors_on(compiler.target(options["target"]))
    tell("aot_eager")
    if found.kind != "value" and same_as_aot(program, found, device):
        return theirs
    if found.kind in AROUND:
        kept = blame.kept(program, options)
        return replace(theirs, verdict="fail", first_bad_stage=blame.BACKEND, repro=kept)
    named, cleared = blame.blamed(found.on or program, options, tell)
    if found.kind in ROUNDED and cleared:
        if found.kind == "value" and same_as_aot(program, found, device):
            return theirs
        return rows.Found(detail=f"within the bounds of each graph: {found.message}")
    return replace(named, kind=found.kind, detail=found.message)


def difference(program: Program, target: str, what: Sequence[str] = asked.DEFAULT) -> Difference | None:
    """Return how `torch.compile(backend="mlcomp")` differs from eager at any size, or from itself; or None."""
    device = compiler.tensors_on(compiler.target(target))
    options = {"fallback": False, "target": None if device == "cuda" else target}
    compiled = fresh_compiled(program, backend="mlcomp", options=options)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = _any_difference(program, compiled, device, what)
    bugs = [str(w.message) for w in said if BUG in str(w.message)]
    return Difference("warning", bugs[0]) if bugs and found is None else found


def _any_difference(program: Program, compiled: Function, device: str, what: Sequence[str]) -> Difference | None:
    found = first_difference(program, compiled, device) if "graph" in what else None
    return first_broken(program, compiled, device) if found is None and "relation" in what else found


def first_broken(program: Program, compiled: Function, device: str) -> Difference | None:
    """Return the first relation between calls on different data that the compiled program violates but eager keeps."""
    before: Run | None = None
    for one in relations_of(program):
        try:
            before = before or relations.run(compiled, program, device)
            after = relations.run(compiled, one.program, device)
        except Exception as error:  # of any part of torch or of the compiler
            refuse(error)
            if relations.holds_in_eager(one, program, device):
                return Difference("exception", f"{one.kind}: {_first_line(error)}", one.program)
            continue
        said = relations.broken(one, before, after)
        allowed = not said or not (one.exact or _is_far(one, program, after, device))
        if not allowed and relations.holds_in_eager(one, program, device):
            return Difference(one.kind, said, one.program)
    return None


def _is_far(one: relations.Relation, program: Program, after: Run, device: str) -> bool:
    """Return whether results on altered data exceed the tolerance derived from eager's errors on the drawn data.

    So does a result of another shape, which has no elements to compare.
    """
    if not all(one.fits(k, x) for k, x in enumerate((*after.outputs, *after.inputs))):
        return True
    taken, eager, needed = given(program, program.points[0]), function(program), needs(program)
    want = runs.call(eager, runs.copied(taken, device), needed)
    with runs.in_f64():
        right = runs.call(eager, [runs.nearby(x) for x in taken], needed)
    every = zip(*((*run.outputs, *run.inputs) for run in (after, want, right)), strict=True)
    return any(far(one.within(k, a), one.follows(k, b), one.follows(k, c)) for k, (a, b, c) in enumerate(every))


def fresh_compiled(program: Program, **options: Any) -> Function:
    """Reset Dynamo and return the program compiled by `torch.compile`."""
    torch._dynamo.reset()
    made: Function = torch.compile(function(program), fullgraph=True, dynamic=program.dynamic, **options)
    return made


def first_difference(program: Program, compiled: Function, device: str) -> Difference | None:
    """Return how a compiled program differs from eager at any size or in a second call on the same data; or None."""
    eager, needed = function(program), needs(program)
    kept: list[tuple[Run, Run]] = []
    for point in program.points:
        taken = given(program, point)
        try:
            want = runs.call(eager, runs.copied(taken, device), needed)
        except (RuntimeError, NotImplementedError) as error:  # programs are drawn with what eager supports on the CPU
            raise Refused(f"eager on {device}: {_first_line(error)}") from error
        with runs.in_f64():  # on the CPU, whose f64 functions are accurate to an ulp
            right = runs.call(eager, [runs.nearby(x) for x in runs.copied(taken)], needed)
        where = "".join(f"{name} = {n}, " for name, n in point.items()) if program.dynamic else ""
        for _ in range(1 if program.dynamic else 2):
            try:
                made = runs.call(compiled, runs.copied(taken, device), needed)
            except Exception as error:  # of any part of torch or of the compiler
                refuse(error)
                return Difference("exception", f"{where}{type(error).__name__}: {_first_line(error)}")
            tensors = runs.copied(taken[: len(program.args)], device)
            promised = partial(inputs.promised, bound(program, point), tensors, dynamic=program.dynamic)
            if wrong := compared(made, want, right, promised):
                return Difference(wrong.kind, where + wrong.message)
            kept.append((made, Run(tuple(x.clone() for x in made.outputs), ())))
    for made, before in kept:
        if any(not _equal(x, y) for x, y in zip(made.outputs, before.outputs, strict=True)):
            return Difference("reuse", "a later call changed what an earlier one had returned")
    return None


def compared(
    made: Run, want: Run, right: Run, promised: Callable[[], list[inputs.Place] | None] = lambda: None
) -> Difference | None:
    """Return the first difference between a call and eager's; `right` is the call in f64.

    `promised` returns the strides and offsets that torch predicts by tracing, which results may have instead.
    """
    for name, a, b, c in _pairs(made, want, right):
        if (a is None) != (b is None):
            return Difference("gradient", f"{name} is {'None' if a is None else 'a tensor'}, in eager not so")
        if a is None or b is None or c is None:
            continue
        if a.dtype != b.dtype:
            return Difference("dtype", f"{name} is {a.dtype}, in eager {b.dtype}")
        if a.shape != b.shape:
            return Difference("shape", f"{name} has shape {list(a.shape)}, in eager {list(b.shape)}")
        if wrong := far(a, b, c):
            return Difference("value", f"{name}: {wrong}")
    for k, (a, b) in enumerate(zip(made.outputs, want.outputs, strict=True)):
        steps, offset = inputs.strides(a), a.storage_offset() if a.numel() else b.storage_offset()
        if (steps, offset) == (inputs.strides(b), b.storage_offset()):
            continue
        if (traced := promised()) is not None and (steps, offset) == traced[k]:
            continue
        if steps != inputs.strides(b) and (traced is None or steps != traced[k][0]):
            return Difference("stride", f"result {k} has strides {list(a.stride())}, in eager {list(b.stride())}")
        if offset != b.storage_offset():
            return Difference("offset", f"result {k} has offset {a.storage_offset()}, in eager {b.storage_offset()}")
    if (ours := _aliases(made)) != (theirs := _aliases(want)):
        return Difference("alias", f"what shares storage differs: {ours}, in eager {theirs}")
    return None


def _pairs(made: Run, want: Run, right: Run) -> Iterator[tuple[str, Tensor | None, Tensor | None, Tensor | None]]:
    for word, a, b, c in (
        ("result", made.outputs, want.outputs, right.outputs),
        ("input", made.inputs, want.inputs, right.inputs),
        ("gradient", made.gradients, want.gradients, right.gradients),
    ):
        for k, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
            yield f"{word} {k}", x, y, z


def far(a: Tensor, b: Tensor, right: Tensor, lost: float = 0.0) -> str:
    """Return how `a` differs from eager's `b` beyond the tolerance around the f64 result `right`; "" if it does not.

    `lost` is added to the tolerance. An element that is NaN or infinite in eager or in f64 must equal one of the two.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)}, in eager {b.dtype}{list(b.shape)}"
    if a.is_complex():
        a, b, right = (torch.view_as_real(x.resolve_conj()) for x in (a, b, right.to(torch.complex128)))
    if not a.is_floating_point():
        return oracle.exact(a, b).message
    got, want, centre = a.double(), b.double(), right.to(a.device).double()
    finite = torch.isfinite(want) & torch.isfinite(centre)
    sizes = torch.where(finite, centre, 0).abs()
    errors = torch.where(finite, want - centre, 0).abs()
    allowed = EAGER * largest(errors) + ROUNDINGS * oracle.UNIT[oracle.NAMES[a.dtype]] * largest(sizes) + lost
    near = finite & ((got - centre).abs() <= allowed)
    rounded = right.to(a.device).to(a.dtype)
    same = [(a == x) | ((a != a) & (x != x)) for x in (b, rounded)]
    bad = ~(near | same[0] | same[1])
    if not bad.any():
        return ""
    at = tuple(int(n) for n in bad.nonzero()[0])
    said = f"element {list(at)} is {got[at]:.9g}, in eager {want[at]:.9g}, in f64 {centre[at]:.9g}"
    return f"{said}; {int(bad.sum())} of {bad.numel()} are wrong"


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _aliases(run: Run) -> list[int]:
    """Return for each result the index of the first input or result that has its storage; -1 if it is empty."""
    every = [x.untyped_storage().data_ptr() if x.numel() else -1 for x in (*run.inputs, *run.outputs)]
    return [every.index(pointer) if pointer != -1 else -1 for pointer in every[len(run.inputs) :]]


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))) if a.is_floating_point() else torch.equal(a, b)


def refuse(error: BaseException) -> None:
    """Raise Refused if the error was caused by the compiler's Unsupported."""
    at: BaseException | None = error
    while at is not None:
        if isinstance(at, compiler.Unsupported):
            raise Refused(str(at)) from error
        at = getattr(at, "inner_exception", None) or at.__cause__


def _first_line(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    word = "" if inner is error else f"{type(inner).__name__}: "
    return word + (str(inner).strip().splitlines() or [""])[0]


def same_as_aot(program: Program, found: Difference, device: str) -> bool:
    """Return whether PyTorch's backend `aot_eager` has the same kind of difference, so that it is a bug of PyTorch."""
    try:
        compiled = fresh_compiled(program, backend="aot_eager")
        theirs = _any_difference(program, compiled, device, ["graph" if found.on is None else "relation"])
    except Refused:
        return False
    return theirs is not None and theirs.kind == found.kind
