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
from conformance.fuzz.program import (
    Program,
    as_line,
    bind_numbers,
    call_arguments,
    describe_arguments,
    function,
    gradient_flags,
)
from conformance.fuzz.relations import relations as relations_of
from conformance.fuzz.runs import Run
from conformance.judge import oracle
from conformance.judge.ladder import threads
from conformance.shapes import inputs
from conformance.shapes.inputs import Function

Tell = Callable[[str], None]

# Tolerance of a result: EAGER_ERRORS times eager's worst error against f64, plus ROUNDINGS roundings of its largest
# element. A wrong element differs by far more, and a larger difference is judged by the bounds of each graph.
EAGER_ERRORS, ROUNDINGS = 8.0, 16.0
BUG = "this is a bug in mlcomp"  # part of the warning that dynamic sizes are compiled one by one due to a bug
COMPILED_CHECKS = ("graph", "relation")  # the checks of `asked.CHECKS` that use `torch.compile`
# Kinds of differences that may be within graphs' bounds.
KINDS_WITHIN_BOUNDS = frozenset({"value", "order", "slice", "margin"})
# A gradient of zeros where eager has none: AOTAutograd makes a graph one node, which connects all inputs and results.
ZEROS = "zeros"
BACKEND_KINDS = frozenset({"stride", "offset", "alias", "reuse"})  # kinds of differences that no graph can cause


@dataclass(frozen=True)
class Difference:
    """What is wrong: its kind as one word, and a message."""

    kind: str
    message: str
    altered_program: Program | None = None  # with the altered data that show it, if these are not the drawn ones
    tensor: str = ""  # the one that differs, such as "result 0", if it is one


class RefusedProgram(Exception):
    """The compiler refuses the program as unsupported, or eager cannot run it on the device."""


def fuzz(seed: int, index: int, options: Mapping[str, Any], tell: Tell) -> rows.Fuzz:
    """Draw the program of this number and check it; with a corpus, add it if it passes and reaches a new rule."""
    tell("the program itself")
    program = mutate.draw(seed, index, options)
    if not options.get("corpus"):
        return check_program(program, options, tell)
    with corpus.Coverage() as reached:
        row = check_program(program, options, tell)
    if row.verdict == "pass":
        corpus.add(Path(options["corpus"]), program, reached.places())
    return row


def eager(seed: int, index: int, options: Mapping[str, Any], tell: Tell) -> rows.Fuzz:
    """Only run the program of this number in eager, as `fuzz` does: whether PyTorch itself loses the process.

    Returns the program's unchecked row, for the report of a program that loses the process when it is compiled.
    """
    program = mutate.draw(seed, index, options)
    device = compiler.tensors_on(compiler.target(options["target"]))
    tell("eager")
    for point in program.points:
        runs.call(
            function(program), runs.copy_arguments(call_arguments(program, point), device), gradient_flags(program)
        )
    return _unchecked_row(program)


def check_program(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.Fuzz:
    """Check a program and return its row.

    `options` has target and threads, `dump` (folder for the repro), and `lost` if `torch.compile` crashed the process
    of an earlier try, so that this one begins with the search for the stage to blame.
    """
    return replace(_unchecked_row(program), **vars(_run_checks(program, options, tell)))


def _unchecked_row(program: Program) -> rows.Fuzz:
    return rows.Fuzz(
        index=program.index, seed=program.seed, line=as_line(program), arguments=describe_arguments(program)
    )


def _run_checks(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.FuzzResult:
    """Run the requested checks of a program."""
    what = options.get("what", asked.DEFAULT)
    if why := reason_to_skip(program, compiler.target(options["target"])):
        return rows.FuzzResult(verdict="unsupported", detail=why)
    with threads(options.get("threads", 1)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        finding = _check_compiled(program, options, tell) if {*COMPILED_CHECKS} & {*what} else rows.FuzzResult()
        if "export" in what and _may_continue(finding, options):
            finding = exported.check_exported(program, options, tell, value_difference)
        return (
            schedules.check_schedules(program, options, tell)
            if "schedule" in what and _may_continue(finding, options)
            else finding
        )


def reason_to_skip(program: Program, target: compiler.Target) -> str:
    """Return why a program is not checked on a target; "" if it is."""
    if target.kind == "cuda" and is_large(program) and not compiler.on_gpu(target):
        return "more elements than an emulator is for"
    # The result of these is unspecified: compiler/README.md, "CUDA, with a GPU and without".
    if "tf32" in target.features and generate.has_specials(program) and products.has_infinite_operands(program):
        return "an infinite factor of three products in tf32"
    return ""


def _may_continue(finding: rows.FuzzResult, options: Mapping[str, Any]) -> bool:
    """Return whether nothing is wrong so far, or a process was lost and no graph is to blame."""
    return finding.verdict == "pass" or bool(options.get("lost") and finding.first_bad_stage == blame.BACKEND)


def _check_compiled(program: Program, options: Mapping[str, Any], tell: Tell) -> rows.FuzzResult:
    """Check a program under `torch.compile`."""
    if options.get("lost"):
        return blame.blame_program(program, options, tell)[0]
    tell("torch.compile")
    try:
        wrong = find_difference(program, options["target"], options.get("what", asked.DEFAULT))
    except RefusedProgram as refusal:
        return rows.FuzzResult(verdict="unsupported", detail=str(refusal))
    return rows.FuzzResult() if wrong is None else _attribute(program, wrong, options, tell)


def _attribute(program: Program, difference: Difference, options: Mapping[str, Any], tell: Tell) -> rows.FuzzResult:
    """Attribute a difference: to PyTorch, to a stage or the backend of ours, or to rounding within the bounds."""
    torch_finding = rows.FuzzResult(verdict="torch", kind=difference.kind, detail=difference.message)
    device = compiler.tensors_on(compiler.target(options["target"]))
    tell("aot_eager")
    if difference.kind != "value" and same_as_aot(program, difference, device):
        return torch_finding
    if difference.kind in BACKEND_KINDS:
        repro = blame.write_repro(program, options)
        return replace(torch_finding, verdict="fail", first_bad_stage=blame.BACKEND, repro=repro)
    blamed, cleared = blame.blame_program(difference.altered_program or program, options, tell)
    if difference.kind in KINDS_WITHIN_BOUNDS and cleared:
        if difference.kind == "value" and same_as_aot(program, difference, device):
            return torch_finding
        return rows.FuzzResult(detail=f"within the bounds of each graph: {difference.message}")
    if blamed.verdict == "unsupported":
        return blamed
    return replace(blamed, kind=difference.kind, detail=difference.message)


def find_difference(program: Program, target: str, what: Sequence[str] = asked.DEFAULT) -> Difference | None:
    """Return how `torch.compile(backend="mlcomp")` differs from eager at any size, or from itself; or None."""
    device = compiler.tensors_on(compiler.target(target))
    options = {"fallback": False, "target": None if device == "cuda" else target}
    compiled = fresh_compiled(program, backend="mlcomp", options=options)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        difference = _any_difference(program, compiled, device, what)
    bugs = [str(w.message) for w in caught if BUG in str(w.message)]
    return Difference("warning", bugs[0]) if bugs and difference is None else difference


def _any_difference(program: Program, compiled: Function, device: str, what: Sequence[str]) -> Difference | None:
    difference = next(differences(program, compiled, device), None) if "graph" in what else None
    return first_broken_relation(program, compiled, device) if difference is None and "relation" in what else difference


def first_broken_relation(program: Program, compiled: Function, device: str) -> Difference | None:
    """Return the first relation between calls on different data that the compiled program violates but eager keeps."""
    first_run: Run | None = None
    for relation in relations_of(program):
        try:
            first_run = first_run or relations.run(compiled, program, device)
            second_run = relations.run(compiled, relation.program, device)
        except Exception as error:  # of any part of torch or of the compiler
            raise_if_unsupported(error)
            if relations.holds_in_eager(relation, program, device):
                return Difference("exception", f"{relation.kind}: {_first_line(error)}", relation.program)
            continue
        violation = relations.violation(relation, first_run, second_run)
        is_allowed = not violation or not (relation.exact or _is_far(relation, program, second_run, device))
        if not is_allowed and relations.holds_in_eager(relation, program, device):
            return Difference(relation.kind, violation, relation.program)
    return None


def _is_far(relation: relations.Relation, program: Program, after: Run, device: str) -> bool:
    """Return whether results on altered data exceed the tolerance derived from eager's errors on the drawn data.

    So does a result of another shape, which has no elements to compare.
    """
    if not all(relation.has_altered_length(k, x) for k, x in enumerate((*after.outputs, *after.inputs))):
        return True
    arguments, eager, needed = call_arguments(program, program.points[0]), function(program), gradient_flags(program)
    expected = runs.call(eager, runs.copy_arguments(arguments, device), needed)
    with runs.in_f64():
        reference = runs.call(eager, [runs.perturb(x) for x in arguments], needed)
    tensors = zip(*((*run.outputs, *run.inputs) for run in (after, expected, reference)), strict=True)
    return any(
        value_difference(relation.without_margins(k, a), relation.expected(k, b), relation.expected(k, c))
        for k, (a, b, c) in enumerate(tensors)
    )


def fresh_compiled(program: Program, **options: Any) -> Function:
    """Reset Dynamo and return the program compiled by `torch.compile`."""
    torch._dynamo.reset()
    compiled: Function = torch.compile(function(program), fullgraph=True, dynamic=program.dynamic, **options)
    return compiled


def differences(program: Program, compiled: Function, device: str) -> Iterator[Difference]:
    """Yield how a compiled program differs from eager at any size or in a second call on the same data."""
    eager, needed = function(program), gradient_flags(program)
    earlier: list[tuple[Run, Run]] = []
    for point in program.points:
        arguments = call_arguments(program, point)
        try:
            expected = runs.call(eager, runs.copy_arguments(arguments, device), needed)
        except (RuntimeError, NotImplementedError) as error:  # programs are drawn with what eager supports on the CPU
            raise RefusedProgram(f"eager on {device}: {_first_line(error)}") from error
        with runs.in_f64():  # on the CPU, whose f64 functions are accurate to an ulp
            reference = runs.call(eager, [runs.perturb(x) for x in runs.copy_arguments(arguments)], needed)
        label = "".join(f"{name} = {n}, " for name, n in point.items()) if program.dynamic else ""
        for _ in range(1 if program.dynamic else 2):
            try:
                result = runs.call(compiled, runs.copy_arguments(arguments, device), needed)
            except Exception as error:  # of any part of torch or of the compiler
                raise_if_unsupported(error)
                yield Difference("exception", f"{label}{type(error).__name__}: {_first_line(error)}")
                return
            tensors = runs.copy_arguments(arguments[: len(program.args)], device)
            predicted_layouts = partial(
                inputs.predicted_layouts, bind_numbers(program, point), tensors, dynamic=program.dynamic
            )
            for wrong in differences_of_runs(result, expected, reference, predicted_layouts):
                yield replace(wrong, message=label + wrong.message)
            earlier.append((result, Run(tuple(x.clone() for x in result.outputs), ())))
    for result, copy in earlier:
        if any(not _equal(x, y) for x, y in zip(result.outputs, copy.outputs, strict=True)):
            yield Difference("reuse", "a later call changed what an earlier one had returned")


def differences_of_runs(
    result: Run,
    expected: Run,
    reference: Run,
    predicted_layouts: Callable[[], list[inputs.StridesAndOffset] | None] = lambda: None,
) -> Iterator[Difference]:
    """Yield the differences between a call and eager's, at most one per tensor; `reference` is the call in f64.

    `predicted_layouts` returns the strides and offsets that torch predicts by tracing, which results may have instead.
    """
    for name, a, b, c in _named_tensors(result, expected, reference):
        if (a is None) != (b is None):
            what = "None" if a is None else "a tensor" if bool(a.any()) else "zeros"
            kind = ZEROS if what == "zeros" else "gradient"
            yield Difference(kind, f"{name} is {what}, in eager {'None' if b is None else 'a tensor'}", tensor=name)
        elif a is None or b is None or c is None:
            continue
        elif a.dtype != b.dtype:
            yield Difference("dtype", f"{name} is {a.dtype}, in eager {b.dtype}", tensor=name)
        elif a.shape != b.shape:
            yield Difference("shape", f"{name} has shape {list(a.shape)}, in eager {list(b.shape)}", tensor=name)
        elif wrong := value_difference(a, b, c):
            yield Difference("value", f"{name}: {wrong}", tensor=name)
    for k, (a, b) in enumerate(zip(result.outputs, expected.outputs, strict=True)):
        steps, offset = inputs.strides(a), a.storage_offset() if a.numel() else b.storage_offset()
        if (steps, offset) == (inputs.strides(b), b.storage_offset()):
            continue
        if (layouts := predicted_layouts()) is not None and (steps, offset) == layouts[k]:
            continue
        if steps != inputs.strides(b) and (layouts is None or steps != layouts[k][0]):
            yield Difference("stride", f"result {k} has strides {list(a.stride())}, in eager {list(b.stride())}")
        elif offset != b.storage_offset():
            yield Difference("offset", f"result {k} has offset {a.storage_offset()}, in eager {b.storage_offset()}")
    if (aliases := _aliases(result)) != (expected_aliases := _aliases(expected)):
        yield Difference("alias", f"what shares storage differs: {aliases}, in eager {expected_aliases}")


def _named_tensors(
    result: Run, expected: Run, reference: Run
) -> Iterator[tuple[str, Tensor | None, Tensor | None, Tensor | None]]:
    for word, a, b, c in (
        ("result", result.outputs, expected.outputs, reference.outputs),
        ("input", result.inputs, expected.inputs, reference.inputs),
        ("gradient", result.gradients, expected.gradients, reference.gradients),
    ):
        for k, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
            yield f"{word} {k}", x, y, z


def value_difference(a: Tensor, b: Tensor, reference: Tensor, slack: float = 0.0) -> str:
    """Return how `a` differs from eager's `b` beyond the tolerance around the f64 result `reference`, or "" if not.

    `slack` is added to the tolerance. An element that is NaN or infinite in eager or in f64 must equal one of the two.
    """
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)}, in eager {b.dtype}{list(b.shape)}"
    if a.is_complex():
        a, b, reference = (torch.view_as_real(x.resolve_conj()) for x in (a, b, reference.to(torch.complex128)))
    if not a.is_floating_point():
        return oracle.exact(a, b).message
    actual, expected, centre = a.double(), b.double(), reference.to(a.device).double()
    finite = torch.isfinite(expected) & torch.isfinite(centre)
    sizes = torch.where(finite, centre, 0).abs()
    errors = torch.where(finite, expected - centre, 0).abs()
    allowed = EAGER_ERRORS * largest(errors) + ROUNDINGS * oracle.UNIT[oracle.NAMES[a.dtype]] * largest(sizes) + slack
    is_near = finite & ((actual - centre).abs() <= allowed)
    rounded = reference.to(a.device).to(a.dtype)
    equal = [(a == x) | ((a != a) & (x != x)) for x in (b, rounded)]
    wrong = ~(is_near | equal[0] | equal[1])
    if not wrong.any():
        return ""
    position = tuple(int(n) for n in wrong.nonzero()[0])
    at = list(position)
    digits = 17 if a.dtype is torch.float64 else 9  # enough to tell any two numbers apart
    shown, in_eager, in_f64 = (f"{x[position]:.{digits}g}" for x in (actual, expected, centre))
    message = f"element {at} is {shown}, in eager {in_eager}, in f64 {in_f64}"
    return f"{message}; {int(wrong.sum())} of {wrong.numel()} are wrong"


def largest(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() else 0.0


def _aliases(run: Run) -> list[int]:
    """Return for each result the index of the first input or result that has its storage; -1 if it is empty."""
    pointers = [x.untyped_storage().data_ptr() if x.numel() else -1 for x in (*run.inputs, *run.outputs)]
    return [pointers.index(pointer) if pointer != -1 else -1 for pointer in pointers[len(run.inputs) :]]


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))) if a.is_floating_point() else torch.equal(a, b)


def raise_if_unsupported(error: BaseException) -> None:
    """Raise RefusedProgram if the error was caused by the compiler's Unsupported."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, compiler.Unsupported):
            raise RefusedProgram(str(cause)) from error
        cause = getattr(cause, "inner_exception", None) or cause.__cause__


def _first_line(error: BaseException) -> str:
    inner = getattr(error, "inner_exception", None) or error
    word = "" if inner is error else f"{type(inner).__name__}: "
    return word + (str(inner).strip().splitlines() or [""])[0]


def same_as_aot(program: Program, difference: Difference, device: str) -> bool:
    """Return whether PyTorch's backend `aot_eager` has the same kind of difference, of the same tensor if it is of one,
    so that it is a bug of PyTorch. Zeros in place of no gradient are one also if it fails, as it does if a saved tensor
    is changed later."""
    try:
        compiled = fresh_compiled(program, backend="aot_eager")
        if difference.altered_program is None:
            sought = {(difference.kind, difference.tensor)}
            if difference.kind == ZEROS:
                sought.add(("exception", ""))
            return any((d.kind, d.tensor) in sought for d in differences(program, compiled, device))
        broken = first_broken_relation(program, compiled, device)
    except RefusedProgram:
        return False
    return broken is not None and broken.kind == difference.kind
