"""Find powers of two by which the arguments of a traced program may be scaled, and the resulting scales of results.

This is dimensional analysis: every argument has a unit, the unit of a product is the product of its factors' units, all
terms of a sum have the same unit, and the operand of an exponential has none. An assignment of units that satisfies
all constraints scales every result exactly, bit by bit, since powers of two cause no rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch.fx import Node

from conformance.fuzz.tracing import Traced, arguments_of, name_of, nodes_in, operands_of, values_of

MOST_EXPONENT = 30  # the largest exponent, so that squares of squares stay finite
# Calls whose operands and results all have the same unit.
SAME_UNIT = frozenset({
    "add", "sub", "maximum", "minimum", "where", "neg", "abs", "relu", "leaky_relu", "clamp", "clone", "copy", "copy_",
    "_to_copy", "alias", "detach", "cat", "constant_pad_nd", "view", "permute", "squeeze", "unsqueeze",
    "expand", "slice", "select", "diagonal", "unfold", "split_with_sizes", "repeat", "flip", "roll", "gather", "index",
    "index_select", "embedding", "scatter", "scatter_add", "slice_scatter", "select_scatter", "index_put", "index_add",
    "sum", "mean", "amax", "amin", "max", "min", "sort", "topk", "cumsum", "cummax", "argmax", "argmin", "reshape",
    "linalg_vector_norm", "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "any", "max_pool2d_with_indices",
})  # fmt: skip
FILLS = {"full": "fill_value", "full_like": "fill_value", "scalar_tensor": "s"}
PLACES = ("index", "indices", "condition")  # arguments that are positions or conditions, and have no unit
# Arguments that may be numbers with the unit of the other operands: those other than zero and infinities force it to 1.
NUMBERS = ("self", "other", "min", "max", "value", "fill_value")
# The unit of the result is this power of the operand's unit.
ONE_HALF = Fraction(1, 2)
POWERS = {"sqrt": ONE_HALF, "rsqrt": -ONE_HALF, "reciprocal": -2 * ONE_HALF, "sign": 0 * ONE_HALF, "var": 4 * ONE_HALF}
# Products, with the name of the argument that is added to them.
PRODUCTS = {"mul": "", "mm": "", "bmm": "", "convolution": "bias", "addmm": "self"}

Form = tuple[Fraction, ...]  # a unit, as the exponent of each argument's unit
Unit = Form | None  # None: any unit, as zeros and infinities have


@dataclass(frozen=True)
class Scaling:
    """The exponents of two by which arguments are scaled and results are multiplied."""

    arguments: Mapping[str, int]
    results: tuple[int, ...]


class _Units:
    """The units of all values of a program; `one` collects the constraints: units that must be 1."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.names = [a for a, node in traced.arguments.items() if node.meta["val"].is_floating_point()]
        self.unitless: Form = tuple(Fraction(0) for _ in self.names)
        self.constraints: list[Form] = []
        self.units: dict[Node, list[Unit]] = {}
        for node in traced.graph.graph.nodes:
            if node.op == "placeholder":
                self.units[node] = [self._argument_unit(node)]
            elif node.op == "call_function" and name_of(node) == "getitem":
                self.units[node] = [self.units[node.args[0]][node.args[1]]]
            elif node.op == "call_function":
                self.units[node] = self._result_units(node)
            elif node.op == "get_attr":
                self.units[node] = [self.unitless]

    def _argument_unit(self, node: Node) -> Form:
        names = list(self.traced.arguments)
        name = next(n for n in names if self.traced.arguments[n] is node)
        return tuple(Fraction(n == name) for n in self.names)

    def _result_units(self, node: Node) -> list[Unit]:
        unit = self._call_unit(node)
        # Integers and bools have no unit, as scaling must not change them.
        return [unit if x.is_floating_point() else self.unitless for x in values_of(node)]

    def _call_unit(self, node: Node) -> Unit:
        name, operands = name_of(node), [unit for x in operands_of(node) for unit in self.units[x][:1]]
        arguments = arguments_of(node)
        if name in FILLS:
            return _unit_of_number(arguments[FILLS[name]], self.unitless)
        if name in POWERS or (name == "pow" and arguments.get("exponent") in (2, 3)):
            power = POWERS[name] if name in POWERS else Fraction(arguments["exponent"])
            return None if operands[0] is None else tuple(power * k for k in operands[0])
        if name in PRODUCTS:
            return self._product(arguments, arguments.get(PRODUCTS[name]) if PRODUCTS[name] else None)
        if name == "div" and arguments.get("rounding_mode") is None:
            return self._quotient(arguments)
        dtype = arguments.get("dtype")
        # The operand of a rounding to integers, or of a bit cast, must have no unit.
        keeps_unit = dtype is None or dtype is torch.bool or (dtype.is_floating_point and name != "view")
        if name in SAME_UNIT and keeps_unit and (name != "linalg_vector_norm" or arguments["ord"] == 2):
            numbers = [arguments[w] for w in NUMBERS if isinstance(arguments.get(w), int | float)]
            terms = [self.units[x][0] for word in arguments if word not in PLACES for x in nodes_in(arguments[word])]
            return self._equal_unit([*terms, *(_unit_of_number(n, self.unitless) for n in numbers)])
        for unit in operands:
            self._equal_unit([unit, self.unitless])
        return self.unitless

    def _equal_unit(self, units: Sequence[Unit]) -> Unit:
        """Constrain these units to be equal and return their unit; None entries are compatible with any."""
        fixed = [unit for unit in units if unit is not None]
        self.constraints += [tuple(a - b for a, b in zip(fixed[0], unit, strict=True)) for unit in fixed[1:]]
        return fixed[0] if fixed else None

    def _product(self, arguments: Mapping[str, Any], addend: Any) -> Unit:
        factors = [self.units[x][0] for x in arguments.values() if isinstance(x, Node) and x is not addend]
        product = None if None in factors else tuple(sum(ks, Fraction(0)) for ks in zip(*factors, strict=True))
        return self._equal_unit([product, self.units[addend][0]]) if isinstance(addend, Node) else product

    def _quotient(self, arguments: Mapping[str, Any]) -> Unit:
        numerator, denominator = (
            self.units[x][0] if isinstance(x, Node) else self.unitless for x in (arguments["self"], arguments["other"])
        )
        if numerator is None or denominator is None:
            return numerator and self._equal_unit([numerator, self.unitless])
        return tuple(a - b for a, b in zip(numerator, denominator, strict=True))


def _unit_of_number(x: float, unitless: Form) -> Unit:
    return None if x == 0 or math.isinf(x) else unitless


def scaling(traced: Traced, rng: random.Random) -> Scaling | None:
    """Draw a scaling that changes something; None if there is none."""
    values = [x for node in traced.graph.graph.nodes if "val" in node.meta for x in values_of(node)]
    if any(x.dtype is torch.float16 for x in values):  # scaling would reach its denormal numbers, which round more
        return None
    units = _Units(traced)
    basis = _nullspace(units.constraints, len(units.names))
    if not basis:
        return None
    coefficients = [Fraction(rng.choice((-1, 1))) for _ in basis]
    exponents = [
        sum((a * v[k] for a, v in zip(coefficients, basis, strict=True)), Fraction(0)) for k in range(len(units.names))
    ]

    def exponent(unit: Unit) -> Fraction:
        return sum((a * k for a, k in zip(exponents, unit or units.unitless, strict=True)), Fraction(0))

    all_exponents = [exponent(unit) for known in units.units.values() for unit in known]
    common, largest = math.lcm(*(e.denominator for e in all_exponents)), max(map(abs, all_exponents))
    if not largest or common * largest > MOST_EXPONENT:
        return None
    factor = common * rng.randint(1, int(MOST_EXPONENT // (common * largest)))
    return Scaling(
        {name: e for name, k in zip(units.names, exponents, strict=True) if (e := int(factor * k))},
        tuple(int(factor * exponent(units.units[node][0])) for node in traced.results),
    )


def _nullspace(rows: Sequence[Form], n: int) -> list[list[Fraction]]:
    """Return a basis of the null space of the rows.

    >>> [list(map(int, v)) for v in _nullspace([(Fraction(1), Fraction(-1), Fraction(0))], 3)]
    [[1, 1, 0], [0, 0, 1]]
    """
    reduced: dict[int, list[Fraction]] = {}  # rows in reduced echelon form, by the column of their leading one
    for given_row in rows:
        row = list(given_row)
        for column, other in reduced.items():
            row = [a - row[column] * b for a, b in zip(row, other, strict=True)]
        lead = next((k for k in range(n) if row[k]), None)
        if lead is None:
            continue
        row = [a / row[lead] for a in row]
        reduced = {c: [a - r[lead] * b for a, b in zip(r, row, strict=True)] for c, r in reduced.items()}
        reduced[lead] = row
    free = [k for k in range(n) if k not in reduced]
    return [[Fraction(k == c) if k in free else -reduced[k][c] for k in range(n)] for c in free]
