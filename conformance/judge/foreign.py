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

import compiler
from conformance import rows
from conformance.judge import oracle, subject, systems, tampering
from conformance.judge.oracle import Verdict
from conformance.judge.subject import Subject, Tensors, Truth
from conformance.shapes import inputs
from conformance.shapes.cases import stages_of

PLAIN = (torch.Tensor, torch.nn.Parameter)  # types of results; another subclass could defer its work
CALLS = 4  # fewest calls on fresh data in fresh storage
OFTEN, OFTEN_SECONDS = 128, 0.025  # most further calls, and the time limit of them all
FORMULA = 2.0  # tolerance in units of the error bound of eager's formula, as a backend may use another formula
RESULTS = 1 << 21  # most elements in the results of the call on a large row
TENSORS = 100  # most results of that call: torch traces tens of thousands of parts for minutes
ENLARGED = 1 << 32  # added to the run's seed for the data of the large row
REFILLED = 1 << 33  # added to the run's seed for the new data in the storage of the first call


class Wrong(Exception):
    """A call is wrong; carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass(frozen=True)
class Kept:
    """The results of a call, and copies of them made when it returned."""

    call: str
    tensors: Tensors
    contents: Tensors


def judge(made: Subject, backend: str, target: str, seed: int) -> rows.Stage:
    """Return the row of the backend's only stage, judged by eager's error bound."""
    start = time.perf_counter()
    try:
        found = _worse(_several(made, backend, seed), _enlarged(made, backend, seed))
    except Wrong as wrong:
        found = wrong.verdict
    except Exception as error:  # any backend may fail in its own way
        found = _refused(f"{type(error).__name__}: {error}")
    if names := tampering.replaced():
        found = _refused(f"{names} was replaced by something else")
    return oracle.row(stages_of(target)[-1], found, backend, start)


def _several(made: Subject, backend: str, seed: int) -> Verdict:
    """Return the worst verdict of CALLS calls, at every size of a dynamic case, and of one in storage used before."""
    settings = tampering.settings()
    built = systems.through_torch(backend, made.as_written, _copied(made.arguments), subject.dynamic_shapes(made.case))
    _unchanged(settings, "compiling it")
    equations = compiler.eager_equations(made.program)
    graphs = systems.graphs()
    kept: list[Kept] = []
    worst = Verdict(True, 0.0)
    every = list(_calls(made, seed))
    for n, at in enumerate(every, 1):
        name = f"call {n}" if made.case.dynamic is None else f"call {n} at {subject.sizes(at)}"
        worst = _worse(worst, _call(built, at, equations, name, kept))
        # torch.compile always specialises on a size of 1.
        if made.case.dynamic is not None and systems.graphs() != graphs and 1 not in at.case.dims.values():
            raise Wrong(_refused(f"compiled again at {subject.sizes(at)}"))
        graphs = systems.graphs()
    _look_again(kept)
    _often(built, every[1:], equations, kept[1:])
    first = every[0]
    again = subject.redrawn(first, seed + REFILLED)
    for old, new in zip(first.arguments, again.arguments, strict=True):
        old.untyped_storage().copy_(new.untyped_storage())
    there = subject.called_with(first, first.arguments)
    name = f"call {len(every) + 1}, in the storage of the first with new data in it"
    worst = _worse(worst, _call(built, there, equations, name, kept[:0]))
    _look_again([k for k in kept if not any(_shares(x, y) for x in k.tensors for y in first.arguments)])
    return worst


def _often(built: systems.Built, every: Sequence[Subject], equations: Any, kept: Sequence[Kept]) -> None:
    """Call many times on the data of earlier calls; raise Wrong if a result differs from the earlier one and is bad."""
    if every[0].written:
        return
    until = time.thread_time() + OFTEN_SECONDS
    for n in range(OFTEN):
        at, then = every[n % len(every)], kept[n % len(every)]
        with torch.no_grad():
            outputs = at.leaves(built.call(*at.arguments))
        alike = len(outputs) == len(then.contents) and all(map(_alike, outputs, then.contents))
        if not alike and not (found := _judged(at, equations, outputs)).ok:
            raise Wrong(replace(found, message=f"call {CALLS + n + 1}, on the data of {then.call}: {found.message}"))
        if time.thread_time() > until:
            return


def _calls(made: Subject, seed: int) -> Iterator[Subject]:
    """Yield the subject on fresh data at least CALLS times, at each of its sizes at least once."""
    points = list(subject.points(made, seed))
    for n in range(max(CALLS, len(points))):
        yield subject.redrawn(points[n % len(points)], seed + 1 + n)


def _enlarged(made: Subject, backend: str, seed: int) -> Verdict:
    """Judge one call on the first of the case's enlarged rows that eager accepts."""
    for values, args in made.case.enlarged:
        dims, params = ({k: values.get(k, v) for k, v in old.items()} for old in (made.case.dims, made.case.params))
        case = replace(made.case, dims=dims, params=params, args=args, enlarged=())
        function, arguments = inputs.bind(case, inputs.make(case, seed + ENLARGED))
        if not _small_results(function, arguments):
            continue
        large = subject.prepare(case, seed + ENLARGED)
        built = systems.through_torch(backend, large.as_written, _copied(large.arguments))
        where = f"call at {', '.join(f'{name} = {n}' for name, n in values.items())}"
        return _call(built, large, compiler.eager_equations(large.program), where, [])
    return Verdict(True, 0.0)


def _small_results(function: inputs.Function, arguments: Tensors) -> bool:
    """Return whether eager accepts arguments of these sizes and the results are small enough to judge."""
    try:
        results = pytree.tree_leaves(inputs.traced(function, arguments))
        if len(results) > TENSORS or sum(y.numel() for y in results if isinstance(y, torch.Tensor)) > RESULTS:
            return False
        with torch.no_grad():
            function(*_copied(arguments))
    except Exception:  # an expression may be valid for some sizes only, and raise anything for others
        return False
    return True


def _call(built: systems.Built, at: Subject, equations: Any, name: str, kept: list[Kept]) -> Verdict:
    """Judge one call: values, strides, aliasing, writes to inputs and weights, and changed settings; raises Wrong."""
    weights = tuple(at.captured.constants.values())
    before = _copied((*at.arguments, *weights))
    untouched = subject.called_with(at, before[: len(at.arguments)])
    settings = tampering.settings()
    with torch.no_grad():
        result = built.call(*at.arguments)
    _unchanged(settings, name)
    outputs = at.leaves((result, [at.arguments[n] for n in at.written]) if at.written else result)
    for n, y in enumerate(outputs):
        if type(y) not in PLAIN:
            raise Wrong(_refused(f"{name}: output {n} is a {type(y).__name__}, which may put off its work"))
    for n, (x, was) in enumerate(zip((*at.arguments, *weights), before, strict=True)):
        if n not in at.written and not _identical(x, was):
            what = f"argument {n}" if n < len(at.arguments) else f"weight {n - len(at.arguments)}"
            raise Wrong(_refused(f"{name}: {what} was written to"))
    found = _judged(untouched, equations, outputs)
    if not found.ok:
        raise Wrong(replace(found, message=f"{name}: {found.message}"))
    for k, (y, (strides, shares)) in enumerate(zip(outputs, untouched.layouts, strict=True)):
        if not any(inputs.strides(y) == right for right in _strides(untouched, k)):
            raise Wrong(_refused(f"{name}: output {k} has strides {inputs.strides(y)}, eager's {strides}"))
        for n, x in enumerate(at.arguments):
            if n not in shares and y.numel() and _shares(x, y):
                raise Wrong(_refused(f"{name}: output {k} lies in the memory of argument {n}, eager's does not"))
    owned = outputs[: len(outputs) - len(at.written)]
    kept.append(Kept(name, owned, tuple(y.clone() for y in owned)))
    return found


def _judged(at: Subject, equations: Any, outputs: Tensors) -> Verdict:
    """Judge results against eager: of the program, or of the graph that Dynamo makes of it, with decomposed ops."""
    found = _held_to(at, equations, outputs, at.eager)
    if found.ok:
        return found
    again = _held_to(at, equations, outputs, _of_graph(at))
    return again if again.ok else found


def _of_graph(at: Subject) -> Tensors:
    """Return eager's results of the graph that Dynamo passes to backends."""
    copies = _copied(at.arguments)
    result = systems.handed_over(at.as_written, copies)
    return at.leaves((result, [copies[n] for n in at.written]) if at.written else result)


def _strides(at: Subject, k: int) -> Iterator[Any]:
    """Yield the strides that output k may have: eager's, those predicted by tracing, and eager's of Dynamo's graph."""
    yield at.layouts[k][0]
    promised = at.promised_strides
    yield promised and promised[k]
    yield inputs.strides(_of_graph(at)[k])


def _held_to(at: Subject, equations: Any, outputs: Tensors, eager: Tensors) -> Verdict:
    """Judge results: they must equal eager's, or be within tolerance.

    The bounds assume one rounding after each call of the program, and do not cover the steps within a call. So errors
    may be twice as large, as those of a running mean are. An element may also differ from eager's by the rounding of
    another formula. If eager exceeds its bounds, twice its own worst error, relative to the sizes of the element and of
    the tensor, is added to them.
    """
    alike = [(y.shape, y.dtype) == (e.shape, e.dtype) for y, e in zip(outputs, eager, strict=False)]
    if len(outputs) == len(eager) and all(alike) and all(map(_identical, outputs, eager)):
        return Verdict(True, 0.0)
    truth = Truth(at, equations)
    if len(outputs) != len(eager) or not all(alike):
        return truth.within(outputs, truth.eagers)
    bounded = [compiler.around(np.asarray(b.v), b, FORMULA) for b in truth.eagers]
    if not truth.within(eager, truth.eagers).ok:
        bounded = list(map(_widened, eager, bounded))
    settled = [
        torch.where(_as_eager(y, e), torch.from_numpy(np.array(b.v)).to(y.dtype), y)
        for y, e, b in zip(outputs, eager, bounded, strict=True)
    ]
    return truth.within(settled, bounded)


def _as_eager(y: torch.Tensor, eager: torch.Tensor) -> torch.Tensor:
    """Return where elements equal eager's up to the rounding of another formula: of its result and of its steps."""
    same = (y == eager) | ((y != y) & (eager != eager))
    if not y.is_floating_point():
        return same
    a, e = y.double(), eager.double()
    usual = float(e[torch.isfinite(e)].square().mean().nan_to_num(0.0).sqrt())
    of_steps = oracle.UNIT["f64" if y.dtype is torch.float64 else "f32"]
    return same | torch.isfinite(e) & (
        (a - e).abs() <= 2 * oracle.UNIT[oracle.NAMES[y.dtype]] * e.abs() + oracle.CLOSE * of_steps * usual
    )


def _widened(eager: torch.Tensor, b: oracle.Bounded) -> oracle.Bounded:
    """Return the bound widened by twice eager's own worst error."""
    value, found = np.asarray(b.v, np.float64), np.asarray(oracle.to_array(eager), np.float64)
    if b.e1 is None or b.e2 is None or b.shared is None or value.shape != found.shape or not value.size:
        return b
    finite = np.isfinite(value) & np.isfinite(found)
    size = np.where(finite, np.abs(value), 0.0)
    size = size + size.mean()
    off = np.where(finite, np.abs(found - np.where(finite, value, 0.0)), 0.0)
    slack = 2 * float(np.max(off / np.where(size > 0, size, 1.0))) * size
    return compiler.Bounded(b.v, b.e1 + slack, b.e2, b.shared + slack / oracle.LAMBDA)


def _unchanged(settings: dict[str, object], name: str) -> None:
    """Raise Wrong if settings of the process have changed."""
    if names := tampering.changed(settings):
        raise Wrong(_refused(f"{name}: {names} changed"))


def _look_again(kept: Sequence[Kept]) -> None:
    """Raise Wrong if a result has changed since its call returned."""
    for k in kept:
        for n, (y, was) in enumerate(zip(k.tensors, k.contents, strict=True)):
            if not _identical(y, was):
                raise Wrong(_refused(f"output {n} of {k.call} was changed by a later call"))


def _copied(arguments: Tensors) -> Tensors:
    return tuple(map(inputs.clone_storage, arguments))


def _identical(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Return whether two tensors are bitwise equal: NaN equals itself, and -0 differs from 0."""
    # clone() instead of contiguous(), since a tensor of one element counts as contiguous whatever its stride.
    a, b = (t.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for t in (x, y))
    return torch.equal(a, b)


def _alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Like `_identical`, but ignores the signs of zeros, and is fast if there is no NaN."""
    return x.dtype == y.dtype and x.shape == y.shape and (torch.equal(x, y) or _identical(x, y))


def _shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.device == y.device and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() != 0


def _worse(a: Verdict, b: Verdict) -> Verdict:
    return max((a, b), key=lambda v: v.err_over_tol)


def _refused(message: str) -> Verdict:
    return Verdict(False, float("inf"), (), message)
