"""Draw random programs that eager runs, with moderate values and exact operands of discontinuous functions.

Calls are tried one after the other. A call that eager refuses, or that is ill-conditioned according to f64, is
discarded and another one is drawn.
"""

from __future__ import annotations

import contextlib
import logging
import random
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.fuzz import asked, literals, operations, recurrent, runs
from conformance.fuzz.drawing import (
    DISCARDING,
    LARGE,
    LARGER_SIZES,
    MOST_ELEMENTS,
    MOST_SCHEDULED,
    SIZES,
    Drawing,
    DrawnCall,
    NotFitting,
    Value,
    is_large,
    overlaps,
    require,
)
from conformance.fuzz.operations import OPERATIONS, Row
from conformance.fuzz.program import Point, Program, call_arguments, function, gradient_flags, hash_seed
from conformance.shapes import inputs

LEAST, MOST_CALLS = 2, 12
ATTEMPTS = 50  # most programs drawn until eager runs one as a whole, which is nearly always the first
TRIES = 12  # draws per wanted call
DTYPES = {"f32": 45, "bf16": 11, "f16": 8, "f64": 10, "i64": 9, "i32": 6, "i16": 3, "i8": 3, "u8": 3, "bool": 2}
LARGEST = {torch.float16: 500.0, torch.bfloat16: 1e4, torch.float32: 1e5, torch.float64: 1e5}
EXACT = {torch.float16: 2**10, torch.bfloat16: 2**7, torch.float32: 2**20, torch.float64: 2**20}
REPEAT_SHARE = 0.15  # share of draws that repeat an earlier call on its own result
# Share of calls one of whose numbers becomes an argument: with fixed sizes, with dynamic ones.
NUMBER_SHARES = (0.02, 0.15)
VARYING_SHARE = 0.4  # share of programs with such numbers and fixed sizes in which the numbers vary from call to call
LARGE_SHARE = 0.015  # share of large programs
# The results of infinite weights in WEIGHTED, and of any infinity in FINITE, are unspecified: compiler/README.md,
# "Numerics".
WEIGHTED = ("F.conv", "F.batch_norm", "F.group_norm", "F.layer_norm", "F.rms_norm")
FINITE = ("F.scaled_dot_product_attention", "F.interpolate", "torch.std_mean", "torch.var_mean")
MOST_ERROR = 0.05  # largest error of eager, relative to the largest element
# Values of dynamic sizes. No fixed size of a program equals a value at the first point, so that these are recognisable.
POINTS = (({"n": 11, "m": 19}, {"n": 6, "m": 33}, {"n": 24, "m": 2}), ({"n": 12, "m": 21}, {"n": 1, "m": 40}))


def program(seed: int, index: int, what: Sequence[str] = asked.DEFAULT) -> Program:
    """Draw the program of this number, deterministically.

    `what` is a subset of `asked.WHAT`; if it contains schedules, sizes are larger.
    """
    for attempt in range(ATTEMPTS):
        with contextlib.suppress(NotFitting), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _draw(seed, index, random.Random(f"{seed}.{index}.{attempt}"), what)
    raise ValueError(f"no program came of seed {seed}, index {index}")


def _draw(seed: int, index: int, rng: random.Random, what: Sequence[str]) -> Program:
    dtype = rng.choices(list(DTYPES), list(DTYPES.values()))[0]
    points: Sequence[Point] = rng.choice(POINTS) if rng.random() < 0.2 else ({},)
    differentiable = rng.random() < 0.4 and "gradient" in what
    d = Drawing(seed, index, rng, dtype, points if "shape" in what else ({},), differentiable, rng.random() < 0.4)
    d.layouts, d.specials = "layout" in what, rng.random() < 0.12
    d.sizes, d.most = (LARGER_SIZES, MOST_SCHEDULED) if "schedule" in what else (SIZES, MOST_ELEMENTS)
    if len(d.points) == 1 and "schedule" not in what and rng.random() < LARGE_SHARE:
        d.most = LARGE[1]
    lines: list[str] = []
    call_count = rng.randint(LEAST, MOST_CALLS)
    d.start()
    d.accept()
    for _ in range(TRIES * call_count):
        if len(lines) < call_count:
            lines += try_call(d, lines)
    return finish(d, lines)


def finish(d: Drawing, lines: Sequence[str]) -> Program:
    """Return the program of these drawn lines; raises NotFitting if eager does not run it as a whole."""
    numbers = tuple(name for name in d.numbers if literals.is_used(lines, name))
    complete = Program(d.seed, d.index, tuple(d.args), tuple(lines), _results(d), tuple(d.gradients), numbers=numbers)
    return _with_varying_sizes(complete, d.points, d)


def try_call(d: Drawing, lines: Sequence[str]) -> list[str]:
    """Draw a call and return its line, or no line if the call is discarded."""
    try:
        row, text = d.repeat_call() if d.chance(REPEAT_SHARE) else draw_call(d)
        text = d.with_number_argument(text) if d.chance(NUMBER_SHARES[len(d.points) > 1]) else text
        return [_add_mutation(d, row, text, lines) if row.mutates else _add_call(d, row, text, len(lines))]
    except DISCARDING:
        return []
    finally:
        d.discard()


def draw_call(d: Drawing) -> tuple[Row, str]:
    """Draw a row and the text of a call of it."""
    row = d.rng.choices(OPERATIONS, [row.weight for row in OPERATIONS])[0]
    return row, row.text(d)


def _add_call(d: Drawing, row: Row, text: str, n: int) -> str:
    """Evaluate a call, add its results to the program, and return its line."""
    eager, shadow = d.scopes()
    if d.is_large:
        _refuse_larger(d, text)
    result = eval(text, eager)
    results = _tensors(result)
    with runs.in_f64():
        references = _tensors(eval(text, shadow))
    names = [f"t{n}"] if len(results) == 1 else [f"t{n}{letter}" for letter in "abc"[: len(results)]]
    require(len(names) == len(results) and _is_specified(d, text))
    values = [_value(name, x, y, row, d) for name, x, y in zip(names, results, references, strict=True)]
    if len(names) == 1 and d.operands:
        d.calls = [m for m in d.calls if m.row is not row or m.result != d.first.name]  # keep the last of a chain
        d.calls.append(DrawnCall(row, text, tuple(v.name for v in d.operands), names[0]))
    d.accept()
    d.values |= {value.name: value for value in values}
    return f"{', '.join(names)}{'' if isinstance(result, Tensor) or len(results) > 1 else ','} = {text}"


def _is_specified(d: Drawing, text: str) -> bool:
    """Return whether the result of a call is specified, given which of its operands are finite."""
    first = 0 if text.startswith(FINITE) else 1 if text.startswith(WEIGHTED) else len(d.operands)
    return all(_is_finite(v) for v in d.operands[first:])


def _is_finite(value: Value) -> bool:
    return not value.eager.is_floating_point() or bool(torch.isfinite(value.eager).all())


def _refuse_larger(d: Drawing, text: str) -> None:
    """Refuse a call whose results are too large, by tracing it without computing them."""
    values = d.all_values()

    def call(*xs: Tensor) -> Any:
        return eval(text, d.constants() | dict(zip([v.name for v in values], xs, strict=True)))

    logging.disable(logging.ERROR)  # torch logs errors about calls that eager refuses as well
    try:
        results = _tensors(inputs.trace_shapes(call, [v.eager.detach() for v in values]))
    finally:
        logging.disable(logging.NOTSET)
    require(not any(x.numel() > d.most for x in results))


def _add_mutation(d: Drawing, row: Row, text: str, lines: Sequence[str]) -> str:
    """Add a mutating statement and return its line; all lines are run anew with it, since it cannot be undone."""
    target = d.first
    require(not overlaps(target.eager))  # PyTorch's results of writing to such a tensor are not even reproducible
    storage = target.eager.untyped_storage().data_ptr()
    flags = _exactness_flags(row, d.operands)
    names = [v.name for v in d.values.values() if v.eager.untyped_storage().data_ptr() == storage]
    eager, shadow = run_lines(d, [*lines, text])
    rewritten = {v.name: replace(v, eager=eager[v.name], wide=shadow[v.name]) for v in d.all_values()}
    for name in names:
        value = rewritten[name]
        exact, integral = flags[0] and value.exact, flags[1] and value.integral
        _require_moderate(value.eager, value.wide, exact, d.most, d.specials)
        rewritten[name] = replace(value, exact=exact, integral=integral)
    d.accept()
    d.values = {name: replace(rewritten[name], used=v.used) for name, v in d.values.items()}
    return text


def run_lines(d: Drawing, lines: Sequence[str]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run these lines on fresh arguments; returns the values of all names in eager and in f64."""
    fresh = {v.name: inputs.tensor(arg, hash_seed(d.seed, d.index, arg.name)) for arg, v in d.arguments()}
    text = "\n".join(lines)
    eager: dict[str, Tensor] = {}
    shadow: dict[str, Tensor] = {}
    for scope, arguments in ((eager, fresh), (shadow, {name: runs.widen(x) for name, x in fresh.items()})):
        for name, x in arguments.items():
            scope[name] = x.requires_grad_() if d.needs_gradient(name) else x
    with recurrent.WeightCheck():
        exec(text, d.constants(), eager)
        with runs.in_f64():
            exec(text, d.constants(), shadow)
    return eager, shadow


def _exactness_flags(row: Row, operands: Sequence[Value]) -> tuple[bool, bool]:
    """Return whether the result of a call on these operands is exact, and whether its elements are integers."""
    exact, integral = all(v.exact for v in operands), all(v.integral for v in operands)
    match row.exactness:
        case operations.JUMP:
            require(exact)
            return True, True
        case operations.WHOLE:
            return exact and integral, exact and integral
        case operations.ROUND:
            return False, False
    return exact, integral


def _value(name: str, eager: Tensor, reference: Tensor, row: Row, d: Drawing) -> Value:
    exact, integral = _exactness_flags(row, d.operands)
    if not eager.is_floating_point():
        exact = integral = True
    if exact and eager.is_floating_point() and not torch.equal(*(x.double().nan_to_num() for x in (eager, reference))):
        exact = integral = False  # rounded by a cast, or an integer that is too large for its dtype
    _require_moderate(eager, reference, exact, d.most, d.specials)
    return Value(name, eager, reference, exact, integral)


def _require_moderate(
    eager: Tensor, reference: Tensor, exact: bool, most: int = MOST_SCHEDULED, specials: bool = False
) -> None:
    """Refuse values for which a correct compiler may differ from eager: large ones, and those that are mostly error.

    NaN and infinities are accepted only with `specials`, and if f64 has the same; so are large integers.
    """
    require(eager.shape == reference.shape and eager.numel() <= most)
    if not eager.numel():
        return
    if not eager.is_floating_point():
        large = not specials and float(eager.double().abs().max()) > 2**24
        require(not large and torch.equal(eager, reference))
        return
    actual, expected = eager.detach().double(), reference.detach().double()
    finite = torch.isfinite(expected)
    require(specials or finite.all())
    require(torch.equal(actual[~finite].nan_to_num(7.0), expected[~finite].nan_to_num(7.0)))
    actual, expected = actual[finite], expected[finite]
    size = float(expected.abs().max()) if expected.numel() else 0.0
    require(torch.isfinite(actual).all() and size <= LARGEST[eager.dtype])
    require(not actual.numel() or float((actual - expected).abs().max()) <= MOST_ERROR * size)
    require(not exact or size <= EXACT[eager.dtype])


def _tensors(result: object) -> list[Tensor]:
    tensors: list[Any] = list(result) if isinstance(result, tuple | list) else [result]
    require(tensors and all(isinstance(x, Tensor) for x in tensors))
    return tensors


def _results(d: Drawing) -> tuple[str, ...]:
    """Return the names of the results: up to four unused values, and sometimes others."""
    values = [v for v in d.values.values() if v.name.startswith("t")] or list(d.values.values())
    unused = [v.name for v in values if not v.used] or [values[-1].name]
    extra = [v.name for v in d.values.values() if v.name not in unused and d.chance(0.12)]
    return tuple(dict.fromkeys([*unused[-4:], *extra[:2]]))


def _with_varying_sizes(complete: Program, points: Sequence[Point], d: Drawing) -> Program:
    """Return the program with dynamic sizes and numbers if it runs at all points, else with fixed ones; and without
    gradients if it only runs without."""
    names = {n: name for name, n in points[0].items()}
    varying = {a.name: {k: names[n] for k, n in enumerate(a.shape) if n in names} for a in complete.args}
    first = {name: d.numbers[name] for name in complete.numbers}
    if first and len(points) == 1 and d.chance(VARYING_SHARE):
        points = (*points, *points)
    if len(points) > 1 and (any(varying.values()) or first):
        others = [{name: literals.later_value(n, call) for name, n in first.items()} for call in range(len(points))]
        for numbers in (others, [first] * len(points)) if first else (others,):
            all_points = tuple({**point, **known} for point, known in zip(points, numbers, strict=True))
            varying_program = replace(complete, points=all_points, varying=varying)
            if all(runs_at(varying_program, point) for point in all_points):
                return varying_program
    for fixed in (replace(complete, points=(first,)), replace(complete, points=(first,), gradients=())):
        if runs_at(fixed, first):
            return fixed
    raise NotFitting


def has_specials(program: Program) -> bool:
    """Return whether arguments contain NaN, infinities or the extreme integers."""
    return any(arg.inputs["kind"] == "choice" for arg in program.args)


def runs_at(program: Program, point: Point) -> bool:
    """Return whether eager runs the program at this point with moderate values, close to those in f64."""
    call, needed = function(program), gradient_flags(program)
    most = LARGE[1] if is_large(program) else MOST_SCHEDULED
    try:
        arguments = call_arguments(program, point)
        with recurrent.WeightCheck():
            eager = runs.call(call, runs.copy_arguments(arguments), needed)
        with runs.in_f64():
            reference = runs.call(call, [runs.widen(x) if isinstance(x, Tensor) else x for x in arguments], needed)
        for x, y in zip((*eager.outputs, *eager.gradients), (*reference.outputs, *reference.gradients), strict=True):
            if x is not None and y is not None:
                _require_moderate(x, y, False, most, has_specials(program))
    except DISCARDING:
        return False
    return True
