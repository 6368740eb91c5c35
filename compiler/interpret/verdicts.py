"""Verdicts: whether computed results are right, given bounded values.

A result y is right if |y - v| <= min(e1, LAMBDA * (sqrt(e2) + shared)). Integers and bools are exact unless they come
from comparisons that rounding may turn. NaN and infinities are judged by class. `mlcomp run` and the suite use these
verdicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from compiler.interpret.bounded import LAMBDA, Bounded
from compiler.interpret.scalar import Array

FIRST_ORDER = 1.01  # covers what first-order bounds omit


@dataclass(frozen=True)
class Format:
    """Unit roundoff, least positive and least normal value of a floating type, and where it overflows."""

    unit: float
    least: float
    normal: float
    overflow: float


FORMATS = {
    "f64": Format(2.0**-53, 2.0**-1074, 2.0**-1022, np.inf),
    "f32": Format(2.0**-24, 2.0**-149, 2.0**-126, (2 - 2.0**-24) * 2.0**127),
    "bf16": Format(2.0**-8, 2.0**-133, 2.0**-126, (2 - 2.0**-8) * 2.0**127),
    "f16": Format(2.0**-11, 2.0**-24, 2.0**-14, (2 - 2.0**-11) * 2.0**15),
    "f8e4m3": Format(2.0**-4, 2.0**-9, 2.0**-6, 464.0),
    "f8e5m2": Format(2.0**-3, 2.0**-16, 2.0**-14, (2 - 2.0**-3) * 2.0**15),
}


@dataclass(frozen=True)
class Verdict:
    """`worst` is the index of the element with the largest error over tolerance."""

    ok: bool
    err_over_tol: float
    worst: tuple[int, ...] = ()
    message: str = ""


def tolerance(bounded: Bounded) -> Array:
    """How far from `v` a result may be, without the least step of its type."""
    if bounded.e1 is None or bounded.e2 is None or bounded.shared is None:
        return np.zeros(np.shape(bounded.v))
    usual = LAMBDA * (np.sqrt(bounded.e2) + bounded.shared)
    return np.broadcast_to(np.minimum(bounded.e1 * FIRST_ORDER, usual), np.shape(bounded.v))


def around(value: Array, b: Bounded, factor: float = 1.0) -> Bounded:
    """The same errors, scaled by `factor`, around another value."""
    if b.e1 is None or b.e2 is None or b.shared is None:
        return Bounded(value)
    e1, e2, shared = (np.broadcast_to(e, np.shape(value)) for e in (b.e1, b.e2, b.shared))
    return Bounded(value, e1 * factor, e2 * factor**2, shared * factor)


def shaped(b: Bounded, shape: tuple[int, ...]) -> Bounded:
    """The value with axes of extent 1 where `shape` has them: passes may drop these."""
    if b.v.shape == shape or b.v.size != np.prod(shape, dtype=int):
        return b
    return b.full(b.v.shape).map(lambda x: x.reshape(shape))


def judge(got: Array, bounded: Bounded, dtype: str, *, flush: bool = False) -> Verdict:
    """Whether `got`, of type `dtype`, is within the bound of every element; `flush`: denormal results may be zero."""
    if got.shape != np.shape(bounded.v):
        return Verdict(False, float("inf"), (), f"shape {list(got.shape)}, expected {list(np.shape(bounded.v))}")
    if dtype not in FORMATS and bounded.e1 is None:
        return exact(got, bounded.v)
    with np.errstate(invalid="ignore"):  # a signalling NaN, as guard zones hold
        value, found = bounded.v.astype(np.float64), got.astype(np.float64)
    tol = tolerance(bounded)
    known = FORMATS.get(dtype)
    tiny = 0.5 if known is None else known.normal if flush else known.least
    with np.errstate(all="ignore"):
        ratio = np.abs(found - value) / (tol + tiny)
        ratio = np.where(np.isfinite(found) & np.isfinite(value) & np.isfinite(tol), ratio, 0.0)
        wrong = (ratio > 1) | _wrong_class(found, value, tol, np.inf if known is None else known.overflow)
    ratio = np.where(wrong & ~(ratio > 1), np.inf, ratio)
    return by_ratio(found, value, tol, ratio, wrong)


def _wrong_class(found: Array, value: Array, tol: Array, overflow_at: float) -> Array:
    """Where one is NaN, infinite or finite and the other is not."""
    undecided = np.isinf(tol) | np.isnan(tol)
    overflows = np.abs(value) >= overflow_at
    is_same_class = np.where(
        np.isfinite(value), np.isfinite(found), (found == value) | (np.isnan(found) & np.isnan(value))
    )
    overflow = np.isinf(found) & (np.sign(found) == np.sign(value)) & (np.abs(value) + tol >= overflow_at)
    is_finite = np.isfinite(found) & (np.abs(value) - tol < overflow_at)
    decided = np.where(overflows & np.isfinite(value), overflow | is_finite, is_same_class | overflow)
    # If anything may have happened on the way, only a finite result in place of an overflow is wrong.
    return np.where(undecided, overflows & np.isfinite(value) & np.isfinite(found), ~decided)


def by_ratio(found: Array, value: Array, tol: Array, ratio: Array, wrong: Array) -> Verdict:
    """The verdict on elements of known errors over tolerances, of which some are wrong."""
    if ratio.size == 0:
        return Verdict(True, 0.0)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(ratio)), ratio.shape))
    largest = float(ratio[at])
    if not wrong.any():
        return Verdict(True, largest, at)
    count = int(wrong.sum())
    return Verdict(
        False, largest, at,
        f"element {list(at)} is {found[at]:.9g}, expected {value[at]:.9g} within {tol[at]:.3g}; "
        f"{count} of {wrong.size} elements are wrong",
    )  # fmt: skip


def worst(found: Iterable[Verdict], *, named: bool) -> Verdict:
    """The first verdict that is not ok, with the number of its output if `named`; else the one closest to failing."""
    closest = Verdict(True, 0.0)
    for k, verdict in enumerate(found):
        if not verdict.ok:
            return replace(verdict, message=f"output {k}: {verdict.message}") if named else verdict
        closest = verdict if verdict.err_over_tol >= closest.err_over_tol else closest
    return closest


def exact(got: Array, want: Array) -> Verdict:
    """Whether two results are the same; NaN equals NaN."""
    if got.shape != want.shape:
        return Verdict(False, float("inf"), (), f"shape {list(got.shape)}, expected {list(want.shape)}")
    wrong = (got != want) & ~((got != got) & (want != want))
    if not wrong.any():
        return Verdict(True, 0.0)
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    message = (
        f"element {list(at)} is {got[at]}, expected {want[at]}; {int(wrong.sum())} of {wrong.size} elements are wrong"
    )
    return Verdict(False, float("inf"), at, message)
