"""Check a torch.compile backend: several calls of a case, each on fresh data, must be right.

One call proves little: a backend may return the same buffer twice, cache its first result, identify tensors by address
instead of contents, or write to memory that it may only read. So each call is judged by its values, dtypes, shapes and
strides. Inputs and weights must be unchanged unless the case mutates them. All earlier results are checked again after
the last call. Many more calls must repeat the results of the first ones, and no call may change the process: its
clocks, its settings, its random state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import compiler
from conformance import rows
from conformance.judge import oracle, subject, systems, tampering
from conformance.judge.oracle import Verdict
from conformance.judge.subject import Subject, Tensors, Truth
from conformance.shapes import inputs
from conformance.shapes.cases import stages_of

RESULT_TYPES = (torch.Tensor, torch.nn.Parameter)  # types of results; another subclass could defer its work
LEAST_CALLS = 4  # fewest calls on fresh data in fresh storage
MOST_REPEATS, REPEAT_SECONDS = 128, 0.025  # most further calls, and the time limit of them all
FORMULA_TOLERANCE = (
    2.0  # tolerance in units of the error bound of eager's formula, as a backend may use another formula
)
MOST_RESULT_ELEMENTS = 1 << 21  # most elements in the results of the call on a large row
MOST_VALUE_ELEMENTS = 1 << 26  # most elements of any value in between, such as all pairs of the elements of a row
MOST_RESULTS = 100  # most results of that call: torch traces tens of thousands of parts for minutes
LARGE_ROW_SEED = 1 << 32  # added to the run's seed for the data of the large row
REFILL_SEED = 1 << 33  # added to the run's seed for the new data in the storage of the first call


class WrongCall(Exception):
    """A call is wrong; carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass(frozen=True)
class CallResults:
    """The results of a call, and copies of them made when it returned."""

    call: str
    tensors: Tensors
    contents: Tensors


def judge(prepared: Subject, backend: str, target: str, seed: int) -> rows.Stage:
    """Return the row of the backend's only stage, judged by eager's error bound."""
    start = time.perf_counter()
    try:
        verdict = _worse_verdict(_judge_calls(prepared, backend, seed), _judge_large_row(prepared, backend, seed))
    except WrongCall as wrong:
        verdict = wrong.verdict
    except Exception as error:  # any backend may fail in its own way
        verdict = _failure(f"{type(error).__name__}: {error}")
    if names := tampering.restore_functions():
        verdict = _failure(f"{names} was replaced by something else")
    return oracle.row(stages_of(target)[-1], verdict, backend, start)


def _judge_calls(prepared: Subject, backend: str, seed: int) -> Verdict:
    """Return the worst verdict of LEAST_CALLS calls, at every size of a dynamic case, and of one in used storage."""
    settings = tampering.current_settings()
    tensors = (*_copy_tensors(prepared.arguments), *prepared.captured.constants.values())
    copies, arguments = _copy_tensors(tensors), tensors[: len(prepared.arguments)]
    built = systems.build_through_torch(
        backend, prepared.original_function, arguments, subject.dynamic_shapes(prepared.case)
    )
    _require_unwritten(prepared, tensors, copies, "compiling it")
    _require_settings(settings, "compiling it")
    equations = compiler.eager_equations(prepared.program)
    graphs = systems.graph_count()
    earlier: list[CallResults] = []
    worst = Verdict(True, 0.0)
    points = list(_redrawn_points(prepared, seed))
    for n, point in enumerate(points, 1):
        name = f"call {n}" if prepared.case.dynamic is None else f"call {n} at {subject.sizes_text(point)}"
        worst = _worse_verdict(worst, _judge_call(built, point, equations, name, earlier))
        # torch.compile always specialises on a size of 1.
        if prepared.case.dynamic is not None and systems.graph_count() != graphs and 1 not in point.case.dims.values():
            raise WrongCall(_failure(f"compiled again at {subject.sizes_text(point)}"))
        graphs = systems.graph_count()
    _check_earlier_results(earlier)
    _judge_repeats(built, points[1:], equations, earlier[1:])
    first = points[0]
    refilled = subject.redraw(first, seed + REFILL_SEED)
    for old, new in zip(first.arguments, refilled.arguments, strict=True):
        old.untyped_storage().copy_(new.untyped_storage())
    reused = subject.with_arguments(first, first.arguments)
    name = f"call {len(points) + 1}, in the storage of the first with new data in it"
    worst = _worse_verdict(worst, _judge_call(built, reused, equations, name, earlier[:0]))
    _check_earlier_results(
        [k for k in earlier if not any(_shares_storage(x, y) for x in k.tensors for y in first.arguments)]
    )
    return worst


def _judge_repeats(
    built: systems.BuiltFunction, points: Sequence[Subject], equations: Any, earlier_calls: Sequence[CallResults]
) -> None:
    """Call many times on the data of earlier calls; raise WrongCall if a result is bad and not the earlier one."""
    if points[0].mutated:
        return
    deadline = time.thread_time() + REPEAT_SECONDS
    for n in range(MOST_REPEATS):
        point, earlier = points[n % len(points)], earlier_calls[n % len(points)]
        with torch.no_grad():
            outputs = point.leaves(built.call(*point.arguments))
        is_same = len(outputs) == len(earlier.contents) and all(map(_has_equal_values, outputs, earlier.contents))
        if not is_same and not (verdict := _judge_outputs(point, equations, outputs)).ok:
            raise WrongCall(
                replace(
                    verdict, message=f"call {LEAST_CALLS + n + 1}, on the data of {earlier.call}: {verdict.message}"
                )
            )
        if time.thread_time() > deadline:
            return


def _redrawn_points(prepared: Subject, seed: int) -> Iterator[Subject]:
    """Yield the subject on fresh data at least LEAST_CALLS times, at each of its sizes at least once."""
    points = list(subject.points(prepared, seed))
    for n in range(max(LEAST_CALLS, len(points))):
        yield subject.redraw(points[n % len(points)], seed + 1 + n)


def _judge_large_row(prepared: Subject, backend: str, seed: int) -> Verdict:
    """Judge one call on the first of the case's enlarged rows that eager accepts."""
    for values, args in prepared.case.enlarged:
        dims, params = (
            {k: values.get(k, v) for k, v in old.items()} for old in (prepared.case.dims, prepared.case.params)
        )
        case = replace(prepared.case, dims=dims, params=params, args=args, enlarged=())
        function, arguments = inputs.bind(case, inputs.make(case, seed + LARGE_ROW_SEED))
        if not _is_small(function, arguments):
            continue
        large = subject.prepare(case, seed + LARGE_ROW_SEED)
        built = systems.build_through_torch(backend, large.original_function, _copy_tensors(large.arguments))
        label = f"call at {', '.join(f'{name} = {n}' for name, n in values.items())}"
        return _judge_call(built, large, compiler.eager_equations(large.program), label, [])
    return Verdict(True, 0.0)


class _LargestValue(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the most elements of any result of a call."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in pytree.tree_leaves(made) if torch.is_tensor(x))])
        return made


def _is_small(function: inputs.Function, arguments: Tensors) -> bool:
    """Return whether eager accepts arguments of these sizes and all values are small enough to judge."""
    largest = _LargestValue()  # type: ignore[no-untyped-call]

    def measured(*args: torch.Tensor) -> Any:
        with largest:
            return function(*args)

    try:
        results = pytree.tree_leaves(inputs.trace_shapes(measured, arguments))
        elements = sum(y.numel() for y in results if isinstance(y, torch.Tensor))
        if len(results) > MOST_RESULTS or elements > MOST_RESULT_ELEMENTS or largest.elements > MOST_VALUE_ELEMENTS:
            return False
        with torch.no_grad():
            function(*_copy_tensors(arguments))
    except Exception:  # an expression may be valid for some sizes only, and raise anything for others
        return False
    return True


def _judge_call(
    built: systems.BuiltFunction, point: Subject, equations: Any, name: str, earlier: list[CallResults]
) -> Verdict:
    """Judge one call: values, strides, aliasing, writes to inputs and weights, changed settings; raises WrongCall."""
    weights = tuple(point.captured.constants.values())
    copies = _copy_tensors((*point.arguments, *weights))
    unmodified = subject.with_arguments(point, copies[: len(point.arguments)])
    settings = tampering.current_settings()
    with torch.no_grad():
        result = built.call(*point.arguments)
    _require_settings(settings, name)
    outputs = point.leaves((result, [point.arguments[n] for n in point.mutated]) if point.mutated else result)
    for n, y in enumerate(outputs):
        if type(y) not in RESULT_TYPES:
            raise WrongCall(_failure(f"{name}: output {n} is a {type(y).__name__}, which may put off its work"))
    _require_unwritten(point, (*point.arguments, *weights), copies, name)
    verdict = _judge_outputs(unmodified, equations, outputs)
    if not verdict.ok:
        raise WrongCall(replace(verdict, message=f"{name}: {verdict.message}"))
    for k, (y, (strides, shares)) in enumerate(zip(outputs, unmodified.layouts, strict=True)):
        if not any(inputs.strides(y) == allowed for allowed in _allowed_strides(unmodified, k)):
            raise WrongCall(_failure(f"{name}: output {k} has strides {inputs.strides(y)}, eager's {strides}"))
        for n, x in enumerate(point.arguments):
            if n not in shares and y.numel() and _shares_storage(x, y):
                raise WrongCall(_failure(f"{name}: output {k} lies in the memory of argument {n}, eager's does not"))
    owned = outputs[: len(outputs) - len(point.mutated)]
    earlier.append(CallResults(name, owned, tuple(y.clone() for y in owned)))
    return verdict


def _require_unwritten(point: Subject, tensors: Tensors, copies: Tensors, name: str) -> None:
    """Raise WrongCall if an argument that the case does not mutate, or a weight, differs from its copy."""
    for n, (x, copy) in enumerate(zip(tensors, copies, strict=True)):
        if n not in point.mutated and not _is_identical(x, copy):
            tensor_name = f"argument {n}" if n < len(point.arguments) else f"weight {n - len(point.arguments)}"
            raise WrongCall(_failure(f"{name}: {tensor_name} was written to"))


def _judge_outputs(point: Subject, equations: Any, outputs: Tensors) -> Verdict:
    """Judge results against eager: of the program, or of the graph that Dynamo makes of it, with decomposed ops."""
    verdict = _judge_against(point, equations, outputs, point.eager)
    if verdict.ok:
        return verdict
    graph_verdict = _judge_against(point, equations, outputs, _dynamo_graph_results(point))
    return graph_verdict if graph_verdict.ok else verdict


def _dynamo_graph_results(point: Subject) -> Tensors:
    """Return eager's results of the graph that Dynamo passes to backends."""
    copies = _copy_tensors(point.arguments)
    result = systems.run_dynamo_graph(point.original_function, copies)
    return point.leaves((result, [copies[n] for n in point.mutated]) if point.mutated else result)


def _allowed_strides(point: Subject, k: int) -> Iterator[Any]:
    """Yield the strides that output k may have: eager's, those predicted by tracing, and eager's of Dynamo's graph."""
    yield point.layouts[k][0]
    predicted = point.predicted_strides
    yield predicted and predicted[k]
    yield inputs.strides(_dynamo_graph_results(point)[k])


def _judge_against(point: Subject, equations: Any, outputs: Tensors, eager: Tensors) -> Verdict:
    """Judge results: they must equal eager's, or be within tolerance.

    The bounds assume one rounding after each call of the program, and do not cover the steps within a call. So errors
    may be twice as large, as those of a running mean are. An element may also differ from eager's by the rounding of
    another formula. If eager exceeds its bounds, twice its own worst error, relative to the sizes of the element and of
    the tensor, is added to them.
    """
    same_types = [(y.shape, y.dtype) == (e.shape, e.dtype) for y, e in zip(outputs, eager, strict=False)]
    if len(outputs) == len(eager) and all(same_types) and all(map(_is_identical, outputs, eager)):
        return Verdict(True, 0.0)
    truth = Truth(point, equations)
    if len(outputs) != len(eager) or not all(same_types):
        return truth.judge_within(outputs, truth.eager_bounds)
    bounds = [compiler.around(np.asarray(b.v), b, FORMULA_TOLERANCE) for b in truth.eager_bounds]
    if not truth.judge_within(eager, truth.eager_bounds).ok:
        bounds = list(map(_widen_by_eager_error, eager, bounds))
    adjusted = [
        torch.where(_equals_eager(y, e), torch.from_numpy(np.array(b.v)).to(y.dtype), y)
        for y, e, b in zip(outputs, eager, bounds, strict=True)
    ]
    return truth.judge_within(adjusted, bounds)


def _equals_eager(y: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Return where elements equal eager's up to the rounding of another formula: of its result and of its steps."""
    same = (y == eager) | ((y != y) & (eager != eager))
    if not y.is_floating_point():
        return same
    a, e = y.double(), eager.double()
    typical_size = float(e[torch.isfinite(e)].square().mean().nan_to_num(0.0).sqrt())
    step_unit = oracle.UNIT["f64" if y.dtype is torch.float64 else "f32"]
    return same | torch.isfinite(e) & (
        (a - e).abs()
        <= 2 * oracle.UNIT[oracle.NAMES[y.dtype]] * e.abs() + oracle.CLOSE_ROUNDINGS * step_unit * typical_size
    )


def _widen_by_eager_error(eager: torch.Tensor, b: oracle.Bounded) -> oracle.Bounded:
    """Return the bound widened by twice eager's own worst error."""
    value, result = np.asarray(b.v, np.float64), np.asarray(oracle.to_array(eager), np.float64)
    if b.e1 is None or b.e2 is None or b.shared is None or value.shape != result.shape or not value.size:
        return b
    finite = np.isfinite(value) & np.isfinite(result)
    size = np.where(finite, np.abs(value), 0.0)
    size = size + size.mean()
    error = np.where(finite, np.abs(result - np.where(finite, value, 0.0)), 0.0)
    slack = 2 * float(np.max(error / np.where(size > 0, size, 1.0))) * size
    return compiler.Bounded(b.v, b.e1 + slack, b.e2, b.shared + slack / oracle.LAMBDA)


def _require_settings(settings: dict[str, object], name: str) -> None:
    """Raise WrongCall if settings of the process have changed."""
    if names := tampering.restore_settings(settings):
        raise WrongCall(_failure(f"{name}: {names} changed"))


def _check_earlier_results(earlier: Sequence[CallResults]) -> None:
    """Raise WrongCall if a result has changed since its call returned."""
    for k in earlier:
        for n, (y, copy) in enumerate(zip(k.tensors, k.contents, strict=True)):
            if not _is_identical(y, copy):
                raise WrongCall(_failure(f"output {n} of {k.call} was changed by a later call"))


def _copy_tensors(arguments: Tensors) -> Tensors:
    return tuple(map(inputs.clone_storage, arguments))


def _is_identical(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether two tensors are bitwise equal: NaN equals itself, and -0 differs from 0."""
    # clone() instead of contiguous(), since a tensor of one element counts as contiguous whatever its stride.
    a, b = (t.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for t in (x, y))
    return torch.equal(a, b)


def _has_equal_values(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Like `_is_identical`, but ignores the signs of zeros, and is fast if there is no NaN."""
    return x.dtype == y.dtype and x.shape == y.shape and (torch.equal(x, y) or _is_identical(x, y))


def _shares_storage(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.device == y.device and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() != 0


def _worse_verdict(a: Verdict, b: Verdict) -> Verdict:
    return max((a, b), key=lambda v: v.err_over_tol)


def _failure(message: str) -> Verdict:
    return Verdict(False, float("inf"), (), message)
