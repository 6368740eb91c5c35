"""The tables of distributions, with their options and the dtypes that they apply to, and of memory layouts."""

import math
import re
from collections.abc import Mapping

from conformance.shapes.cases import FLOATS, Value

# The options of each kind with their defaults; None marks a required option.
OPTIONS: Mapping[str, Mapping[str, Value]] = {
    "normal": {"mean": 0.0, "std": 1.0},
    "uniform": {"low": -1.0, "high": 1.0},
    "integers": {"low": -3, "high": 3},
    "zeros": {},
    "ones": {},
    "positive": {},
    "unit": {},
    "prob": {},
    "simplex": {},
    "big_offset": {"offset": 1000.0},
    "sorted": {"descending": False},
    "one_hot": {},
    "denormal": {},
    "huge": {},
    "specials": {},
    "extremes": {},
    "index": {"below": None, "unique_along": "no", "negative": False},
    "invalid_index": {"below": None, "wraps": False},
    "bool": {"p": 0.5},
    "choice": {"values": None},
}
WHOLE, FLAGS = frozenset({"below", "unique_along"}), frozenset({"descending", "negative", "wraps"})  # kinds of options
FLOAT_ONLY = frozenset({"unit", "prob", "simplex", "big_offset", "denormal", "huge"})
INDICES = frozenset({"index", "invalid_index"})
_EVERY_TYPE = frozenset({"zeros", "ones", "one_hot", "choice", "bool"})


def fault(inputs: Mapping[str, Value]) -> tuple[str, str] | None:
    """Return the option of a distribution that is wrong, and why; None if all are right or still formulas.

    >>> fault({"kind": "uniform", "low": 2}), fault({"kind": "uniform", "low": "-N", "high": -2})
    (('low', '2 is above `high`, which is 1.0'), None)
    """
    options = {**OPTIONS[inputs["kind"]], **inputs}
    known = {key: value for key, value in options.items() if not isinstance(value, str)}
    for key in known.keys() & {"mean", "std", "low", "high", "offset", "p"}:
        if isinstance(known[key], bool) or not isinstance(known[key], int | float) or not math.isfinite(known[key]):
            return key, f"{known[key]!r} is not a finite number"
    for key in known.keys() & WHOLE:
        if isinstance(known[key], bool) or not isinstance(known[key], int):
            return key, f"{known[key]!r} is not a whole number"
    for key in known.keys() & FLAGS:
        if not isinstance(known[key], bool):
            return key, f"{known[key]!r} is not true or false"
    if known.get("std", 1) <= 0:
        return "std", f"{known['std']} is not above 0; `choice` draws constants"
    if not 0 <= known.get("p", 0) <= 1:
        return "p", f"{known['p']} is not a probability, from 0 to 1"
    if {"low", "high"} <= known.keys() and known["low"] > known["high"]:
        key, relation, other = ("low", "above", "high") if "low" in inputs else ("high", "below", "low")
        return key, f"{known[key]} is {relation} `{other}`, which is {known[other]}"
    values = known.get("values", (0,))
    if not isinstance(values, list | tuple) or not values or not all(isinstance(x, int | float) for x in values):
        return "values", f"a non-empty list of numbers is needed, not {values!r}"
    return None


def for_dtype(inputs: Mapping[str, Value], dtype: str) -> Mapping[str, Value] | None:
    """Return the distribution adapted to a dtype, or None if it does not apply.

    >>> for_dtype({"kind": "normal"}, "i32"), for_dtype({"kind": "huge"}, "i8")
    ({'kind': 'integers'}, None)
    """
    kind = inputs["kind"]
    if dtype in FLOATS:
        return None if kind in INDICES else inputs
    if kind in FLOAT_ONLY:
        return None
    if dtype == "bool":
        return None if kind in INDICES else inputs if kind in _EVERY_TYPE else {"kind": "bool"}
    return _as_integers(inputs) if kind in ("normal", "uniform") else inputs


def _as_integers(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
    """Return a distribution of integers in about the same range."""
    match inputs:
        case {"kind": "uniform", "low": low, "high": high}:
            return {"kind": "integers", "low": math.ceil(low), "high": max(math.ceil(low), math.ceil(high) - 1)}
        case {"kind": "normal", "std": std}:
            mean = inputs.get("mean", 0)
            return {"kind": "integers", "low": math.floor(mean - 2 * std), "high": math.ceil(mean + 2 * std)}
        case _:
            return {"kind": "integers"}


# The number of arguments in brackets, and the smallest and largest rank (None: no limit).
LAYOUTS = {
    "contig": (0, 0, None), "transposed": (2, 2, None), "permuted": (0, 2, None), "strided": (2, 1, None),
    "expanded": (1, 1, None), "offset": (1, 0, None), "channels_last": (0, 4, 4),
}  # fmt: skip


def parse(layout: str) -> tuple[str, tuple[int, ...]] | None:
    """Return the name and numbers of a layout, or None if it is invalid.

    >>> parse("strided(-1, 2)"), parse("strided"), parse("diagonal")
    (('strided', (-1, 2)), None, None)
    """
    match = re.fullmatch(r"(\w+)(?:\(\s*(-?\d+(?:\s*,\s*-?\d+)*)\s*\))?", layout)
    if match is None or match[1] not in LAYOUTS:
        return None
    numbers = tuple(int(number) for number in match[2].split(",")) if match[2] else ()
    positive = match[1] not in ("strided", "offset") or numbers[-1:] > (0,)
    return (match[1], numbers) if len(numbers) == LAYOUTS[match[1]][0] and positive else None


def fits(layout: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor of this shape can have the layout.

    >>> fits("transposed(0,1)", (4, 5)), fits("transposed(0,2)", (4, 5)), fits("expanded(0)", ())
    (True, False, False)
    """
    parsed = parse(layout)
    if parsed is None:
        return False
    name, numbers = parsed
    _, min_rank, max_rank = LAYOUTS[name]
    axes = {"transposed": numbers, "strided": numbers[:1], "expanded": numbers}.get(name, ())
    rank = len(shape)
    return min_rank <= rank and (max_rank is None or rank <= max_rank) and all(-rank <= axis < rank for axis in axes)
