"""A case and a torch.compile backend in; whether several of its calls, each on fresh data, are right, out.

One call proves little: a backend may hand out the same buffer twice, remember its first result, go by the address of a
tensor rather than by what is in it, or write where it should only read. So each call is judged by its values, dtypes,
shapes and strides; inputs and weights must be as they were unless the case says that it writes to them; and every
earlier result is looked at again after the last call. Many more calls must give what the first ones did, and no call
may change the process: its clocks, its settings, its random numbers.
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

PLAIN = (torch.Tensor, torch.nn.Parameter)  # results that are what they are
CALLS = 4  # at least, on fresh data in fresh storage
OFTEN, OFTEN_SECONDS = 128, 0.025  # more calls, as long as they are quick
FORMULA = 2.0  # times the errors of eager's formula that those of another may be
RESULTS = 1 << 21  # elements, at most, that the call on a large row may give
TENSORS = 100  # of these: torch traces tens of thousands of parts for minutes
ENLARGED = 1 << 32  # added to the run's seed for the data of the large row
REFILLED = 1 << 33  # and for those that take the place of the first call's


class Wrong(Exception):
    """A call did something other than eager; carries the verdict."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict


@dataclass(frozen=True)
class Kept:
    """A result as the caller holds it, and a copy of what it was when it came."""

    call: str
    tensors: Tensors
    contents: Tensors


def judge(made: Subject, backend: str, target: str, seed: int) -> rows.Stage:
    """The row of the only stage that another backend has, held to eager's bound."""
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
    """The worst verdict over `CALLS` calls, or one at each size of a dynamic case, and one in storage used before."""
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
        # A size of 1 is one that torch.compile always takes for itself.
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
    """Raise Wrong if one of many calls, on data that take turns, gives another result that is not right either."""
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
    """The subject on fresh data `CALLS` times, at each of its sizes at least once."""
    points = list(subject.points(made, seed))
    for n in range(max(CALLS, len(points))):
        yield subject.redrawn(points[n % len(points)], seed + 1 + n)


def _enlarged(made: Subject, backend: str, seed: int) -> Verdict:
    """One call on the first of the case's enlarged rows that eager takes."""
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
    """Whether the program takes arguments of these sizes, and what it makes of them is not too much to judge."""
    try:
        results = pytree.tree_leaves(inputs.traced(function, arguments))
        if len(results) > TENSORS or sum(y.numel() for y in results if isinstance(y, torch.Tensor)) > RESULTS:
            return False
        with torch.no_grad():
            function(*_copied(arguments))
    except Exception:  # an expression may hold for some sizes only, and then raises anything
        return False
    return True


def _call(built: systems.Built, at: Subject, equations: Any, name: str, kept: list[Kept]) -> Verdict:
    """One call, judged by all that can be seen of it."""
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
    """Whether results are what eager gives, or right.

    Eager may run the program, or the graph that Dynamo makes of it, in which some ops are taken apart.
    """
    found = _held_to(at, equations, outputs, at.eager)
    if found.ok:
        return found
    again = _held_to(at, equations, outputs, _of_graph(at))
    return again if again.ok else found


def _of_graph(at: Subject) -> Tensors:
    """What eager makes of the graph that Dynamo hands to backends."""
    copies = _copied(at.arguments)
    result = systems.handed_over(at.as_written, copies)
    return at.leaves((result, [copies[n] for n in at.written]) if at.written else result)


def _strides(at: Subject, k: int) -> Iterator[Any]:
    """Those that a result may have: eager's of the program, what its trace promises, eager's of Dynamo's graph."""
    yield at.layouts[k][0]
    promised = at.promised_strides
    yield promised and promised[k]
    yield inputs.strides(_of_graph(at)[k])


def _held_to(at: Subject, equations: Any, outputs: Tensors, eager: Tensors) -> Verdict:
    """Whether results are these of eager, or right.

    The bounds round once after each call of the program, and know nothing of the steps inside of one. So errors may be
    twice as large, as those of a mean are that is kept up to date; an element may also be what another formula for the
    same makes of eager's; and where eager is beyond its bounds, twice its own worst error counts, relative to the sizes
    of the element and of the tensor.
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
    """Where elements are eager's but for the rounding of another formula: of its result, and of its steps."""
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
    """With room for twice eager's own worst error."""
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
    """Raise Wrong if the process is no longer what it was."""
    if names := tampering.changed(settings):
        raise Wrong(_refused(f"{name}: {names} changed"))


def _look_again(kept: Sequence[Kept]) -> None:
    """Raise Wrong if a result is no longer what it was when it came."""
    for k in kept:
        for n, (y, was) in enumerate(zip(k.tensors, k.contents, strict=True)):
            if not _identical(y, was):
                raise Wrong(_refused(f"output {n} of {k.call} was changed by a later call"))


def _copied(arguments: Tensors) -> Tensors:
    return tuple(map(inputs.clone_storage, arguments))


def _identical(x: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether two tensors have the same elements, bit by bit: NaN is itself, and -0 is not 0."""
    # A copy, since a tensor of one element counts as contiguous whatever its stride.
    a, b = (t.detach().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8) for t in (x, y))
    return torch.equal(a, b)


def _alike(x: torch.Tensor, y: torch.Tensor) -> bool:
    """As `_identical`, quickly where nothing is NaN, and whatever the sign of a zero."""
    return x.dtype == y.dtype and x.shape == y.shape and (torch.equal(x, y) or _identical(x, y))


def _shares(x: torch.Tensor, y: torch.Tensor) -> bool:
    return x.device == y.device and x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() != 0


def _worse(a: Verdict, b: Verdict) -> Verdict:
    return max((a, b), key=lambda v: v.err_over_tol)


def _refused(message: str) -> Verdict:
    return Verdict(False, float("inf"), (), message)
