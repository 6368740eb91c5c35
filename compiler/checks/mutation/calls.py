"""Mutations of Torch IR: the places where arguments of a call can be changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from compiler.checks.mutation.tree import Change
from compiler.ir import aten
from compiler.ir.aten import Call, Program, Ref, Type

Edit = tuple[str, Call]
# Calls with the same arguments.
_SWAPS = {
    "aten.add.Tensor": "aten.sub.Tensor", "aten.sub.Tensor": "aten.add.Tensor", "aten.mul.Tensor": "aten.div.Tensor",
    "aten.amax.default": "aten.amin.default", "aten.amin.default": "aten.amax.default",
    "aten.argmax.default": "aten.argmin.default", "aten.cumsum.default": "aten.cumprod.default",
    "aten.relu.default": "aten.abs.default", "aten.exp.default": "aten.exp2.default",
    "aten.maximum.default": "aten.minimum.default", "aten.lt.Tensor": "aten.le.Tensor",
    "aten.scatter_add.default": "aten.scatter.src", "aten.mean.dim": "aten.sum.dim_IntList",
}  # fmt: skip


def changes(program: Program) -> list[Change]:
    types = aten.types(program)
    out = []
    for k, call in enumerate(program.calls):
        for place, edits in _edits_by_place(call, types):
            builds = tuple((description, _builder(program, k, new)) for description, new in edits)
            out += [Change(f"{call.op} {place}", builds)] if builds else []
    return out


def _builder(program: Program, k: int, new: Call) -> Callable[[], Program]:
    return lambda: program.replace(calls=(*program.calls[:k], new, *program.calls[k + 1 :]))


def _edits_by_place(call: Call, types: dict[str, Type]) -> Iterator[tuple[str, list[Edit]]]:
    if call.op in _SWAPS:
        yield "", [(f"{_SWAPS[call.op]} instead", call.replace(op=_SWAPS[call.op]))]
    for n, value in enumerate(call.args):
        edits = [(description, _with_argument(call, n, new)) for description, new in _other_arguments(value, types)]
        if n and n == len(call.args) - 1 and not isinstance(value, Ref):
            edits.append(("argument dropped", call.replace(args=call.args[:-1])))
        yield f"argument {n}", edits
    yield "", [("tensors exchanged", c) for c in _exchange_tensors(call, types)]
    for n, (key, value) in enumerate(call.kwargs):
        rest = (*call.kwargs[:n], *call.kwargs[n + 1 :])
        edits = [
            (description, call.replace(kwargs=(*rest, (key, new))))
            for description, new in _other_arguments(value, types)
        ]
        yield key, [*edits, ("argument dropped", call.replace(kwargs=rest))]


def _with_argument(call: Call, n: int, new: Any) -> Call:
    return call.replace(args=(*call.args[:n], new, *call.args[n + 1 :]))


def _exchange_tensors(call: Call, types: dict[str, Type]) -> Iterator[Call]:
    tensors = [(n, a) for n, a in enumerate(call.args) if isinstance(a, Ref)]
    for (a, x), (b, y) in itertools.combinations(tensors, 2):
        if x is not y and types[x.name].dtype is types[y.name].dtype:
            yield _with_argument(_with_argument(call, a, y), b, x)


def _other_arguments(value: object, types: dict[str, Type]) -> Iterator[tuple[str, object]]:
    match value:
        case bool():
            yield "flag flipped", not value
        case int():
            yield from (("number changed", value + by) for by in (1, -1))
        case float():
            yield from (("number changed", v) for v in ((1.0,) if value == 0 else (value * 1.25, -value)))
        case Ref(name):
            alike = (n for n, t in types.items() if n != name and t is types[name])
            yield from (("another tensor", Ref(n)) for n in alike)
        case tuple():
            for k, item in enumerate(value):
                yield from (
                    (description, (*value[:k], new, *value[k + 1 :]))
                    for description, new in _other_arguments(item, types)
                )
            if len(value) > 1:
                yield "order reversed", tuple(reversed(value))
