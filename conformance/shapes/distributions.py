"""The table of input distributions: their options with defaults, and the element types they make sense for."""

import math
from collections.abc import Mapping

from conformance.shapes.cases import FLOATS, Value

# The options of each kind; None marks an option that has no default and must be given.
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
    "index": {"below": None, "unique_along": "no", "negative": False},
    "invalid_index": {"below": None, "wraps": False},
    "bool": {"p": 0.5},
    "choice": {"values": None},
}
FLOAT_ONLY = frozenset({"unit", "prob", "simplex", "big_offset", "denormal", "huge"})
INDICES = frozenset({"index", "invalid_index"})
_EVERY_TYPE = frozenset({"zeros", "ones", "one_hot", "choice", "bool"})


def for_dtype(inputs: Mapping[str, Value], dtype: str) -> Mapping[str, Value] | None:
    """The distribution as it applies to a dtype, or None where it does not.

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
    return _whole(inputs) if kind in ("normal", "uniform") else inputs


def _whole(inputs: Mapping[str, Value]) -> Mapping[str, Value]:
    """The whole numbers of about the same range."""
    match inputs:
        case {"kind": "uniform", "low": low, "high": high}:
            return {"kind": "integers", "low": math.ceil(low), "high": max(math.ceil(low), math.ceil(high) - 1)}
        case {"kind": "normal", "std": std}:
            mean = inputs.get("mean", 0)
            return {"kind": "integers", "low": math.floor(mean - 2 * std), "high": math.ceil(mean + 2 * std)}
        case _:
            return {"kind": "integers"}
