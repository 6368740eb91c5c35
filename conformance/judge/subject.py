"""Prepare a case for checking: its inputs, the captured program, the reference, and the error bounds of results.

The reference is the Torch IR evaluated in f64 on the rounded inputs. Error bounds are derived from Tensor IR: for our
results from the program as it is, for eager's with a rounding after every call. Large cases use the GPU for this.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

import compiler
from conformance.judge import oracle
from conformance.judge.oracle import Array, Bounded, Verdict
from conformance.shapes import inputs
from conformance.shapes.cases import Case, Tolerance
from conformance.shapes.expressions import evaluate, formula

Tensors = tuple[torch.Tensor, ...]

# PyTorch's vectorised functions are accurate to a few ulps; ours have declared error bounds.
EAGER_ULPS = 4.0
TINY = 1e-12
LARGE = 1 << 20  # total elements of the inputs from which evaluating the reference on a GPU pays


@dataclass(frozen=True)
class Subject:
    """A case's function, its arguments, and its captured program with the tensors of that program's inputs."""

    case: Case
    function: inputs.Function
    arguments: Tensors
    captured: compiler.Captured
    tensors: Tensors

    @property
    def program(self) -> Any:
        return self.captured.program

    def leaves(self, result: object) -> Tensors:
        """Return the tensors of a result of the function, in the order of the program's outputs."""
        flat = pytree.tree_leaves(result)
        return tuple(torch.as_tensor(leaf) for n, leaf in enumerate(flat) if n not in self.captured.literals)

    @functools.cached_property
    def eager(self) -> Tensors:
        """The results of eager."""
        with torch.no_grad():
            return self.leaves(self.function(*self.arguments))

    @property
    def mutated(self) -> tuple[int, ...]:
        """Positions of the arguments that the case mutates."""
        free = [arg.name for arg in self.case.args if not arg.constant]
        return tuple(free.index(name) for name in self.case.mutates)

    @property
    def original_function(self) -> inputs.Function:
        """The case's function, which may mutate its arguments; `function` mutates copies and returns them as well."""
        inner: inputs.Function = getattr(self.function, "__wrapped__", self.function)
        return inner if self.case.mutates else self.function

    @functools.cached_property
    def layouts(self) -> list[tuple[list[int], frozenset[int]]]:
        """For each result of eager its `inputs.strides`, and the positions of the arguments that it aliases."""
        copies = tuple(map(inputs.clone_storage, self.arguments))
        with torch.no_grad():
            result = self.original_function(*copies)
        leaves = self.leaves((result, [copies[n] for n in self.mutated]) if self.mutated else result)
        addresses = [x.untyped_storage().data_ptr() for x in copies]
        return [
            (
                inputs.strides(y),
                frozenset(n for n, address in enumerate(addresses) if address == y.untyped_storage().data_ptr()),
            )
            for y in leaves
        ]

    @functools.cached_property
    def predicted_strides(self) -> list[list[int]] | None:
        """The `inputs.strides` that torch predicts for each result by tracing; None if it cannot trace the program."""
        predicted = inputs.predicted_layouts(self.function, self.arguments, dynamic=self.case.dynamic is not None)
        return (
            None
            if predicted is None
            else [layout[0] for n, layout in enumerate(predicted) if n not in self.captured.literals]
        )


def prepare(case: Case, seed: int, *, blank: bool = False) -> Subject:
    """Make the inputs (with `blank` uninitialised ones) and capture the function; raises Unsupported."""
    function, arguments = inputs.bind(case, inputs.make(case, seed, blank=blank))
    if isinstance(function, inputs.Gradients):
        count = function.count
        captured = compiler.capture_gradient(
            function.inner, arguments[:count], arguments[count:], function.differentiable
        )
    else:
        captured = compiler.capture(function, arguments, dynamic_shapes=dynamic_shapes(case))
    if not captured.program.outputs:
        raise compiler.CompilerError(f"{case.expr} gives no tensor: there is nothing to check")
    return _subject(case, function, arguments, captured)


def _subject(case: Case, function: inputs.Function, arguments: Tensors, captured: compiler.Captured) -> Subject:
    return Subject(case, function, arguments, captured, captured.inputs(pytree.tree_leaves(arguments)))


def redraw(prepared: Subject, seed: int) -> Subject:
    """Return the subject with other data in new storage and the same weights."""
    drawn = inputs.make(prepared.case, seed)
    return with_arguments(prepared, tuple(x for name, x in drawn.items() if name not in prepared.case.constants))


def with_arguments(prepared: Subject, arguments: Tensors) -> Subject:
    """Return the subject with these arguments."""
    return _subject(prepared.case, prepared.function, arguments, prepared.captured)


def sizes_text(prepared: Subject) -> str:
    """Return the present values of a dynamic case's sizes, as text."""
    assert prepared.case.dynamic is not None
    return ", ".join(f"{name} = {prepared.case.dims[name]}" for name in prepared.case.dynamic.ranges)


def points(prepared: Subject, seed: int) -> Iterator[Subject]:
    """Yield the subject at each of its sizes, with the program that was captured once."""
    case = prepared.case
    if case.dynamic is None:
        yield prepared
        return
    for dims, args in case.dynamic.points:
        point_case = replace(case, args=args, dims={**case.dims, **dims})
        function, arguments = inputs.bind(point_case, inputs.make(point_case, seed))
        yield _subject(point_case, function, arguments, prepared.captured)


def dynamic_shapes(case: Case) -> tuple[dict[int, Any] | None, ...] | None:
    """Return the dynamic axes of the inputs in the format of `torch.export`; None if there are none."""
    if case.dynamic is None:
        return None
    dims = {name: torch.export.Dim(name, min=low, max=high) for name, (low, high) in case.dynamic.ranges.items()}
    scope = {**case.dims, **case.params, **case.consts, **dims}
    return tuple(
        {axis: evaluate(formula(text, scope)[0], scope) for axis, text in enumerate(arg.axes) if text} or None
        for arg in case.args
        if not arg.constant
    )


class Truth:
    """The reference of a subject, and the tolerances of its results."""

    def __init__(
        self, subject: Subject, equations: Any, accuracy: compiler.Accuracy | None = None, on_gpu: bool = False
    ) -> None:
        """Evaluate the reference; with `on_gpu` that of large cases on the GPU, also in f64.

        `equations` is the Tensor IR program made from Torch IR, `accuracy` states the errors of its implementations.
        """
        self.subject, self.equations, self.accuracy = subject, equations, accuracy
        self.tolerance: Tolerance = subject.case.tolerance
        self.dtypes = [oracle.NAMES[leaf.dtype] for leaf in subject.eager]
        self.moments = moments_on_gpu if on_gpu else None
        self.reference = _reference(subject, on_gpu and sum(x.numel() for x in subject.tensors) >= LARGE)

    @functools.cached_property
    def tensor_bounds(self) -> Sequence[Bounded]:
        """The bounds of our results, centred on the values of Tensor IR."""
        return oracle.bounds(self.equations, self.subject.tensors, self.accuracy, self.moments)

    @functools.cached_property
    def our_bounds(self) -> list[Bounded]:
        return self._around_reference(lambda: self.tensor_bounds)

    def loose_share(self, fraction: float) -> float:
        """Return the share of floating-point elements whose tolerance exceeds this fraction of their magnitude.

        The magnitude is at least the mean magnitude of the output, or 1 if that is near zero.
        """
        loose = total = 0
        for b, dtype in zip(self.our_bounds, self.dtypes, strict=True):
            if dtype in oracle.UNIT and b.v.size:
                is_finite = np.abs(b.v) < oracle.OVERFLOW[dtype]  # NaN and infinities are judged by class
                finite = np.abs(b.v[is_finite])
                typical = float(finite.mean()) if finite.size else 0.0
                size = np.maximum(finite, typical if typical > TINY else 1.0)
                loose += int((oracle.tolerance(b)[is_finite] > fraction * size).sum())
                total += b.v.size
        return loose / max(total, 1)

    @functools.cached_property
    def is_sound(self) -> bool:
        """Whether Tensor IR and the reference are the same function of real numbers (compared in f64)."""
        return self.tolerance.mode != "fixed" and self.judge_algebra(self.equations).ok

    @functools.cached_property
    def is_faithful(self) -> bool:
        """Whether the captured gradient and that of eager's kernels are the same function of real numbers (in f64)."""
        if not isinstance(self.subject.function, inputs.Gradients) or not self.is_sound:
            return False
        wide = map(inputs.widen, self.subject.arguments)
        with contextlib.suppress(Exception):  # a program may name dtypes, and eager may refuse to mix them with f64
            return self.judge_algebra(self.equations, self.subject.leaves(self.subject.function.in_f64(*wide))).ok
        return False

    @functools.cached_property
    def eager_bounds(self) -> list[Bounded]:
        def derive() -> Sequence[Bounded]:
            program = compiler.eager_equations(self.subject.program)
            return oracle.bounds(program, self.subject.tensors, moments=self.moments, ulps=_eager_ulps)

        return self._around_reference(derive)

    @functools.cached_property
    def bounds_around_eager(self) -> list[Bounded]:
        """Eager's results with twice eager's bounds: the tolerance of Torch IR, which runs the same kernels."""
        values = map(oracle.to_array, self.subject.eager)
        return [compiler.around(v, b, 2.0) for v, b in zip(values, self.eager_bounds, strict=True)]

    def _around_reference(self, derive: Callable[[], Sequence[Bounded]]) -> list[Bounded]:
        if self.tolerance.mode == "fixed":
            return [self._fixed_bound(oracle.to_array(r)) for r in self.reference]
        centres = map(oracle.to_array, self.reference)
        return [compiler.around(c, b) for c, b in zip(centres, derive(), strict=True)]

    def _fixed_bound(self, value: Array) -> Bounded:
        if value.dtype.kind != "f":
            return Bounded(value)
        with np.errstate(all="ignore"):
            tolerance = (self.tolerance.atol or 0.0) + (self.tolerance.rtol or 0.0) * np.abs(value)
        tolerance = np.where(np.isfinite(value), tolerance, 0.0)
        return Bounded(value, tolerance, np.zeros_like(tolerance), tolerance)

    def judge(self, outputs: Sequence[torch.Tensor]) -> Verdict:
        """Judge our results by our bounds around the reference.

        If they are outside, because a bound is smaller than the reference's own rounding error, they are judged around
        the values of Tensor IR, provided that it agrees with the reference (`sound`).
        """
        verdict = self.judge_within(outputs, self.our_bounds)
        return verdict if verdict.ok or not self.is_sound else self.judge_within(outputs, self.tensor_bounds)

    def judge_within(self, outputs: Sequence[torch.Tensor], bounded: Sequence[Bounded]) -> Verdict:
        """Return the worst verdict over all outputs."""
        if len(outputs) != len(bounded):
            return Verdict(False, np.inf, (), f"{len(outputs)} results, expected {len(bounded)}")
        for k, (y, dtype) in enumerate(zip(outputs, self.dtypes, strict=True)):
            if oracle.NAMES.get(y.dtype) != dtype:
                return Verdict(False, np.inf, (), f"output {k} is {y.dtype}, expected {dtype}")
        verdicts = (self._judge_one(y, b, k) for k, (y, b) in enumerate(zip(outputs, bounded, strict=True)))
        return compiler.worst(verdicts, named=len(outputs) > 1)

    def _judge_one(self, y: torch.Tensor, b: Bounded, k: int) -> Verdict:
        actual: Array = oracle.to_array(y)
        dtype = self.dtypes[k]
        if self.tolerance.specials == "same-class" and actual.shape == np.shape(b.v) and actual.dtype.kind == "f":
            actual = np.where(~np.isfinite(actual) & ~np.isfinite(b.v), b.v, actual)
        if self.tolerance.specials == "any-if-eager-nan" and dtype in oracle.UNIT:
            undefined = np.isnan(oracle.to_array(self.subject.eager[k]))
            actual = np.where(undefined, b.v, actual) if actual.shape == undefined.shape else actual
        return oracle.judge(actual, b, dtype)

    def judge_algebra(self, equations: Any, results: Tensors | None = None) -> Verdict:
        """Judge whether a Tensor IR program, evaluated in f64, is the same function of real numbers as the one that
        computed `results` in f64, by default the reference."""
        if self.tolerance.mode == "fixed":
            return Verdict(True, 0.0)
        outputs = self.reference if results is None else results
        bounded = oracle.bounds(equations, self.subject.tensors, moments=self.moments, algebra=True)
        kinds = ("f64" if r.is_floating_point() else dtype for r, dtype in zip(outputs, self.dtypes, strict=True))
        verdicts = (
            oracle.judge(r, compiler.shaped(b, tuple(r.shape)), kind)
            for r, b, kind in zip(outputs, bounded, kinds, strict=True)
        )
        worst = compiler.worst(verdicts, named=True)
        return worst if worst.ok else replace(worst, message=f"{worst.message}, in f64")


def _reference(subject: Subject, on_gpu: bool) -> Tensors:
    if on_gpu:
        # If the program creates tensors on the CPU, such as masks, this fails and the CPU evaluates the reference.
        with contextlib.suppress(RuntimeError):
            results = compiler.reference(subject.program, [x.cuda() for x in subject.tensors])
            return tuple(x.cpu() for x in results)
    return compiler.reference(subject.program, subject.tensors)


def _eager_ulps(function: str, dtype: str) -> float:
    claimed = float(compiler.Accuracy().ulps(function, dtype))
    return EAGER_ULPS if claimed > 0.5 or function == "sqrt" else claimed  # eager's sqrt is MKL's, within 1 ulp


LEAST_ON_GPU = 1 << 26  # multiplications from which using the GPU pays


def moments_on_gpu(x: Array, y: Array) -> compiler.Moments:
    """Compute `compiler.moments`, of large products on the GPU."""
    if x.size * y.shape[-1] < LEAST_ON_GPU:
        return compiler.moments(x, y)
    moments = compiler.moments(_to_device(x), _to_device(y))
    parts = (moments.total, moments.absolute, moments.squares, moments.partial)
    return compiler.Moments(*(part.cpu().numpy() for part in parts))


def _to_device(x: Array) -> torch.Tensor:
    return torch.from_numpy(x if x.flags.writeable else x.copy()).to("cuda" if torch.cuda.is_available() else "cpu")
