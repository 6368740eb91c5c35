"""Judge results: compare each element with the reference and its error bound.

The bounds are derived from the case's own Tensor IR (`bounds`), so no tolerance is chosen by hand; `mlcomp run` judges
in the same way.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils import _pytree as pytree

import compiler
from conformance import rows

Array = npt.NDArray[Any]

LAMBDA = compiler.LAMBDA  # the largest error in standard deviations: the only tuning parameter
UNIT = {name: known.unit for name, known in compiler.FORMATS.items()}
LEAST = {name: known.least for name, known in compiler.FORMATS.items()}
OVERFLOW = {name: known.overflow for name, known in compiler.FORMATS.items()}
NAMES = {
    torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16", torch.int64: "i64",
    torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
    torch.float8_e4m3fn: "f8e4m3", torch.float8_e5m2: "f8e5m2",
}  # fmt: skip
Bounded = compiler.Bounded
Verdict = compiler.Verdict
tolerance = compiler.tolerance


def row(stage: str, verdict: Verdict, executor: str, start: float) -> rows.Stage:
    """Return the row of a judged stage that began at `start`, a time of `time.perf_counter`."""
    return rows.Stage(
        stage=stage, verdict="pass" if verdict.ok else "fail", err_over_tol=verdict.err_over_tol, executor=executor,
        seconds=round(time.perf_counter() - start, 4), message=verdict.message,
    )  # fmt: skip


def bounds(
    program: Any,
    inputs: Sequence[torch.Tensor | Array | Bounded],
    accuracy: compiler.Accuracy | None = None,
    moments: Callable[[Array, Array], compiler.Moments] | None = None,
    **other: Any,
) -> tuple[Bounded, ...]:
    """Return a bounded value for each output of a Tensor IR program; inputs are exact or bounded themselves.

    `accuracy` states the errors of implementations, by default of the CPU's. `other` replaces fields of it:
    `ulps(function, dtype)`, `series(n)` roundings of a sum of n terms, or `algebra=True` to evaluate in f64. `moments`
    replaces `compiler.moments` for matrix products.
    """
    errors = dataclasses.replace(accuracy or compiler.Accuracy(), **other)
    exact_or_bounded: list[Any] = [to_array(x) if isinstance(x, torch.Tensor | np.ndarray) else x for x in inputs]
    return compiler.bounds(program, exact_or_bounded, errors, moments or compiler.moments)


def judge(y: torch.Tensor | Array, bounded: Bounded, dtype: str, *, flush: bool = False) -> Verdict:
    """Judge whether all elements of `y`, of type `dtype`, are within bounds; `flush`: denormal results may be zero."""
    return compiler.judge(to_array(y), bounded, dtype, flush=flush)


def exact(y: torch.Tensor | Array, reference: torch.Tensor | Array) -> Verdict:
    """Judge whether two results are equal; NaN equals NaN."""
    return compiler.exact(to_array(y), to_array(reference))


def to_array(x: torch.Tensor | Array) -> Array:
    """Return a result in the format of bounds: 16-bit and smaller floats as f32."""
    return compiler.to_array(x) if isinstance(x, torch.Tensor) else np.asarray(x)


# ---- without bounds, for shapes that are too large to derive them

CLOSE_ROUNDINGS = (
    16.0  # unit roundoffs of the root mean square by which a result may differ from eager's without further checks
)
EAGER_ERRORS = 10.0  # tolerance in units of eager's own worst error


def quick_compare(
    ours: object, eager: object, reference: Callable[[], object] | object | None = None
) -> tuple[bool, float, str]:
    """Compare a result with eager's without bounds; returns (ok, error over tolerance, message).

    The tolerance is 4 roundings of the element in its dtype plus 16 f32 roundings of the tensor's root mean square. If
    an element is further from eager's, ours is compared with `reference` (a result in f64 or a function that returns
    it), with ten times eager's worst error added to the tolerance. Integers and bools must equal eager's or else the
    reference's, which decides where torch leaves open which of several equal elements is chosen.
    """
    our_leaves, eager_leaves = _leaves(ours), _leaves(eager)
    if len(our_leaves) != len(eager_leaves):
        return False, float("inf"), f"{len(our_leaves)} results, expected {len(eager_leaves)}"
    references: list[torch.Tensor] | None = None
    largest = 0.0
    for k, (a, b) in enumerate(zip(our_leaves, eager_leaves, strict=True)):
        label = f"result {k}: " if len(our_leaves) > 1 else ""
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return (
                False,
                float("inf"),
                f"{label}{a.dtype} of shape {list(a.shape)}, expected {b.dtype} of {list(b.shape)}",
            )
        verdict = _judge_close(a, b, b, 0.0)
        if not verdict.ok and reference is not None:
            if references is None:
                references = _leaves(reference() if callable(reference) else reference)
            if a.is_floating_point() or a.dtype is references[k].dtype:
                eager_error = float((b.double() - references[k].double()).abs().nan_to_num(0.0, 0.0, 0.0).max())
                verdict = _judge_close(a, references[k], b, EAGER_ERRORS * eager_error)
        if not verdict.ok:
            return False, verdict.err_over_tol, label + verdict.message
        largest = max(largest, verdict.err_over_tol)
    return True, largest, ""


def _leaves(tree: object) -> list[torch.Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _judge_close(y: torch.Tensor, centre: torch.Tensor, classes: torch.Tensor, slack: float) -> Verdict:
    """Judge whether `y` is within tolerance of `centre`, with NaN and infinities exactly where `classes` has them."""
    if not y.is_floating_point():
        return exact(y, centre)
    u = UNIT[NAMES[y.dtype]]
    actual, expected = y.detach().double(), centre.detach().double()
    finite = torch.isfinite(classes)
    size = expected[finite]
    mean = float((size**2).mean().sqrt()) if size.numel() else 0.0
    compute = UNIT["f64"] if y.dtype is torch.float64 else UNIT["f32"]
    tol = 4 * u * expected.abs() + CLOSE_ROUNDINGS * compute * mean + slack + LEAST[NAMES[y.dtype]]
    ratio = torch.where(finite & torch.isfinite(actual), (actual - expected).abs() / tol, 0.0)
    same_class = torch.where(finite, torch.isfinite(actual), (actual == classes) | (actual.isnan() & classes.isnan()))
    ratio = torch.where(same_class, ratio, float("inf"))
    results, value, limit, ratios = (x.cpu().numpy() for x in (actual, expected, tol, ratio))
    return compiler.by_ratio(results, value, limit, ratios, ratios > 1)
