"""Control flow, which is unrolled or evaluated on both branches, and sequences of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from compiler.errors import Undetermined, Unsupported
from compiler.onnx.ops.row import Row, axis_of, is_known, row

LONGEST = 4096  # the most iterations that are unrolled
Values = list[Any]


def _if(condition: Any, *, then_branch: Any, else_branch: Any, scope: Any) -> tuple[Any, ...]:
    """The branch of a constant condition; otherwise both branches, with a select of each result."""
    if is_known(condition):
        with _disable_current_modes():
            chosen = then_branch if bool(condition.reshape(()).item()) else else_branch
        return tuple(scope.run(chosen, []))
    results = []
    for a, b in zip(scope.run(then_branch, []), scope.run(else_branch, []), strict=True):
        is_compatible = isinstance(a, Tensor) and isinstance(b, Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
        if not is_compatible:
            raise Undetermined("onnx.If", (), "cond", scope.names[:1])
        results.append(torch.where(condition.reshape(()), a, b))
    return tuple(results)


def _loop(count: Any, condition: Any, *carried: Any, body: Any, scope: Any) -> tuple[Any, ...]:
    """Unroll a loop, whose trip count must be known."""
    state_count = len(carried)
    values, collected, iteration = list(carried), [], 0
    limit = LONGEST + 1 if count is None else _constant_value("M", count, scope.names[:1])
    continues = condition is None or bool(_constant_value("cond", condition, scope.names[1:2]))
    while continues and iteration < limit:
        if iteration == LONGEST:
            raise Unsupported("onnx.Loop", (), f"more than {LONGEST} turns")
        with _disable_current_modes():
            loop_inputs = [torch.tensor(iteration), torch.tensor(True)]
        outputs = scope.run(body, [*loop_inputs, *values])
        values, iteration = outputs[1 : 1 + state_count], iteration + 1
        collected.append(outputs[1 + state_count :])
        continues = bool(_constant_value("cond", outputs[0], ()))
    if not collected and len(body.output) > 1 + state_count:
        raise Unsupported("onnx.Loop", (), "no turn, so the shape of what it collects is unknown")
    return (*values, *(torch.stack(column) for column in zip(*collected, strict=True)))


def _constant_value(what: str, value: Any, names: Sequence[str]) -> int:
    if not is_known(value):
        raise Undetermined("onnx.Loop", (), what, names)
    with _disable_current_modes():
        return int(value.reshape(()).item())


def _scan(
    *inputs: Any, body: Any, num_scan_inputs: int, scan_input_axes: Sequence[int] = (),
    scan_input_directions: Sequence[int] = (), scan_output_axes: Sequence[int] = (),
    scan_output_directions: Sequence[int] = (), scope: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Unroll a scan along its axis."""
    state_count = len(inputs) - num_scan_inputs
    values, scanned = list(inputs[:state_count]), list(inputs[state_count:])
    axes = list(scan_input_axes) or [0] * num_scan_inputs
    backward = list(scan_input_directions) or [0] * num_scan_inputs
    length = scanned[0].shape[axes[0]]
    if length > LONGEST:
        raise Unsupported("onnx.Scan", (), f"more than {LONGEST} turns")
    collected = []
    for iteration in range(length):
        parts = [
            x.select(a, length - 1 - iteration if b else iteration)
            for x, a, b in zip(scanned, axes, backward, strict=True)
        ]
        outputs = scope.run(body, [*values, *parts])
        values = outputs[:state_count]
        collected.append(outputs[state_count:])
    columns = list(zip(*collected, strict=True))
    output_axes = list(scan_output_axes) or [0] * len(columns)
    output_backward = list(scan_output_directions) or [0] * len(columns)
    stacked = [
        torch.stack(c[::-1] if b else c, axis_of(a, c[0].dim() + 1))
        for c, a, b in zip(columns, output_axes, output_backward, strict=True)
    ]
    return (*values, *stacked)


def _scan_8(*inputs: Any) -> Any:
    raise Unsupported("onnx.Scan", (), "version 8, which scans batches; onnx.version_converter makes newer models")


def _split_to_sequence(x: Tensor, sizes: Any, *, axis: int, keepdims: int) -> tuple[Values]:
    parts = list(torch.split(x, 1 if sizes is None else sizes, axis))
    return (parts if keepdims or sizes is not None else [p.squeeze(axis) for p in parts],)


def _concat_from(sequence: Values, *, axis: int, new_axis: int) -> Tensor:
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


def _sequence_at(sequence: Values, position: int) -> Any:
    if not -len(sequence) <= position < len(sequence):
        raise Unsupported("onnx.SequenceAt", (f"of {len(sequence)}", position), "there is no such place")
    return sequence[position]


def _sequence_insert(sequence: Values, x: Tensor, position: int | None) -> tuple[Values]:
    index = len(sequence) if position is None else position
    index = index + len(sequence) if index < 0 else index
    return ([*sequence[:index], x, *sequence[index:]],)


def _sequence_erase(sequence: Values, position: int | None) -> tuple[Values]:
    index = axis_of(-1 if position is None else position, len(sequence))
    return ([*sequence[:index], *sequence[index + 1 :]],)


ROWS: dict[str, Row] = {
    "ConcatFromSequence": row(_concat_from),
    "If": row(_if),
    "Loop": row(_loop),
    "OptionalGetElement": row(lambda x: x),
    "OptionalHasElement": row(lambda x: torch.tensor(x is not None), static=True),
    "Scan": row(_scan),
    "Scan-8": row(_scan_8),
    "SequenceAt": row(_sequence_at, 1),
    "SequenceConstruct": row(lambda *xs: (list(xs),)),
    "SequenceEmpty": row(lambda *, dtype=1: ([],)),
    "SequenceErase": row(_sequence_erase, 1),
    "SequenceInsert": row(_sequence_insert, 2),
    "SequenceLength": row(lambda xs: torch.tensor(len(xs)), static=True),
    "SplitToSequence": row(_split_to_sequence, 1),
}
