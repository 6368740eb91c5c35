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
    made = []
    for a, b in zip(scope.run(then_branch, []), scope.run(else_branch, []), strict=True):
        alike = isinstance(a, Tensor) and isinstance(b, Tensor) and (a.shape, a.dtype) == (b.shape, b.dtype)
        if not alike:
            raise Undetermined("onnx.If", (), "cond", scope.names[:1])
        made.append(torch.where(condition.reshape(()), a, b))
    return tuple(made)


def _loop(count: Any, condition: Any, *carried: Any, body: Any, scope: Any) -> tuple[Any, ...]:
    """Unroll a loop, whose trip count must be known."""
    kept = len(carried)
    values, rows, turn = list(carried), [], 0
    limit = LONGEST + 1 if count is None else _number("M", count, scope.names[:1])
    goes = condition is None or bool(_number("cond", condition, scope.names[1:2]))
    while goes and turn < limit:
        if turn == LONGEST:
            raise Unsupported("onnx.Loop", (), f"more than {LONGEST} turns")
        with _disable_current_modes():
            given = [torch.tensor(turn), torch.tensor(True)]
        made = scope.run(body, [*given, *values])
        values, turn = made[1 : 1 + kept], turn + 1
        rows.append(made[1 + kept :])
        goes = bool(_number("cond", made[0], ()))
    if not rows and len(body.output) > 1 + kept:
        raise Unsupported("onnx.Loop", (), "no turn, so the shape of what it collects is unknown")
    return (*values, *(torch.stack(column) for column in zip(*rows, strict=True)))


def _number(what: str, value: Any, names: Sequence[str]) -> int:
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
    split = len(inputs) - num_scan_inputs
    values, scanned = list(inputs[:split]), list(inputs[split:])
    axes = list(scan_input_axes) or [0] * num_scan_inputs
    back = list(scan_input_directions) or [0] * num_scan_inputs
    length = scanned[0].shape[axes[0]]
    if length > LONGEST:
        raise Unsupported("onnx.Scan", (), f"more than {LONGEST} turns")
    rows = []
    for turn in range(length):
        parts = [x.select(a, length - 1 - turn if b else turn) for x, a, b in zip(scanned, axes, back, strict=True)]
        made = scope.run(body, [*values, *parts])
        values = made[:split]
        rows.append(made[split:])
    columns = list(zip(*rows, strict=True))
    ends = list(scan_output_axes) or [0] * len(columns)
    turned = list(scan_output_directions) or [0] * len(columns)
    joined = [
        torch.stack(c[::-1] if b else c, axis_of(a, c[0].dim() + 1))
        for c, a, b in zip(columns, ends, turned, strict=True)
    ]
    return (*values, *joined)


def _scan_8(*inputs: Any) -> Any:
    raise Unsupported("onnx.Scan", (), "version 8, which scans batches; onnx.version_converter makes newer models")


def _split_to_sequence(x: Tensor, sizes: Any, *, axis: int, keepdims: int) -> tuple[Values]:
    parts = list(torch.split(x, 1 if sizes is None else sizes, axis))
    return (parts if keepdims or sizes is not None else [p.squeeze(axis) for p in parts],)


def _concat_from(sequence: Values, *, axis: int, new_axis: int) -> Tensor:
    return torch.stack(sequence, axis) if new_axis else torch.cat(sequence, axis)


def _at(sequence: Values, place: int) -> Any:
    if not -len(sequence) <= place < len(sequence):
        raise Unsupported("onnx.SequenceAt", (f"of {len(sequence)}", place), "there is no such place")
    return sequence[place]


def _insert(sequence: Values, x: Tensor, place: int | None) -> tuple[Values]:
    at = len(sequence) if place is None else place
    at = at + len(sequence) if at < 0 else at
    return ([*sequence[:at], x, *sequence[at:]],)


def _erase(sequence: Values, place: int | None) -> tuple[Values]:
    at = axis_of(-1 if place is None else place, len(sequence))
    return ([*sequence[:at], *sequence[at + 1 :]],)


ROWS: dict[str, Row] = {
    "ConcatFromSequence": row(_concat_from),
    "If": row(_if),
    "Loop": row(_loop),
    "OptionalGetElement": row(lambda x: x),
    "OptionalHasElement": row(lambda x: torch.tensor(x is not None), static=True),
    "Scan": row(_scan),
    "Scan-8": row(_scan_8),
    "SequenceAt": row(_at, 1),
    "SequenceConstruct": row(lambda *xs: (list(xs),)),
    "SequenceEmpty": row(lambda *, dtype=1: ([],)),
    "SequenceErase": row(_erase, 1),
    "SequenceInsert": row(_insert, 2),
    "SequenceLength": row(lambda xs: torch.tensor(len(xs)), static=True),
    "SplitToSequence": row(_split_to_sequence, 1),
}
