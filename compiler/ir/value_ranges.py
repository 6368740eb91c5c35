"""Ranges of index expressions, given those of their variables.

Ranges map variable names to inclusive (low, high) pairs; None is an unknown end. A `Below` also knows the symbolic
extent that its variable stays below. Symbolic sizes have ranges of their own.

Indices are assumed to be far from 2**63. Data may wrap around: its range has both ends or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from compiler.ir.dtype import i64, integer_range
from compiler.ir.expr import Cast, Const, Expr, Load, Op, Select, Size, Var
from compiler.ir.linear import (
    Linear,
    exact_quotient,
    factors_of,
    has_sizes,
    linear,
    multiplied,
    only_sizes,
    plus,
    times,
    variables_of,
)
from compiler.ir.ranges import (
    UNKNOWN,
    WHOLE,
    Range,
    absolute,
    bits,
    divided_range,
    either,
    extreme,
    greater,
    is_vast,
    lesser,
    within,
)

Ranges = Mapping[str, Range]


class Below(tuple[int | None, int | None]):
    """The range 0 .. extent - 1, with the bounds that are known of the extent.

    Equal to another only if the extents are equal: two unknown ends are not the same.
    """

    extent: Expr

    def __new__(cls, extent: Expr, ranges: Ranges) -> Below:
        high = value_range(extent, ranges)[1]
        made = super().__new__(cls, (0, None if high is None else high - 1))
        made.extent = extent
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Below) and other.extent is self.extent

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.extent)


def extent_range(extent: Expr) -> Range:
    """The range of an axis of that extent."""
    if isinstance(extent, Const):
        return 0, int(extent.value) - 1
    return Below(extent, {}) if has_sizes(extent) else (0, None)


def range_below(extent: Expr, ranges: Ranges) -> Range:
    """The range of a loop variable below `extent`."""
    if has_sizes(extent):
        return Below(extent, ranges)
    high = value_range(extent, ranges)[1]
    return 0, None if high is None else high - 1


class KnownRanges(dict[str, Range]):
    """Ranges of variables, with those found of expressions: each is asked for many times in nested quotients."""

    def __init__(self, ranges: Ranges) -> None:
        super().__init__(ranges)
        self.found: dict[Expr, Range] = {}


def value_range(e: Expr, ranges: Ranges) -> Range:
    """Bounds of an integer expression in 64-bit arithmetic."""
    match e:
        case Const(value):
            return int(value), int(value)
        case Size(low=least, high=most):
            return least, most
        case Var(name):
            return ranges.get(name, (None, None))
    known = ranges if type(ranges) is KnownRanges else KnownRanges(ranges)
    found = known.found.get(e)
    if found is None:
        found = known.found[e] = _find_range(e, known)
    return found


def _find_range(e: Expr, ranges: KnownRanges) -> Range:
    match e:
        case Op("add" | "sub" | "neg" | "mul"):
            return _linear_range(e, ranges)
        case Op("floordiv", (a, Const(int() as d))) if d > 0:
            low, high = value_range(a, ranges)
            return None if low is None else low // d, None if high is None else high // d
        case Op("mod", (_, Const(int() as d))) if d > 0:
            return 0, d - 1
        case Op("floordiv" | "mod" as how, (a, d)) if only_sizes(d) or (value_range(d, ranges)[0] or 0) > 0:
            return divided_range(how, value_range(a, ranges), value_range(d, ranges))
        case Op("min" | "max" as how, (a, b)):
            return extreme(how, _data_range(a, ranges), _data_range(b, ranges))
        case Op("and" | "or" | "xor" as how, (a, b)) if e.dtype is i64:
            return bits(how, value_range(a, ranges), value_range(b, ranges))
        case Op("shr", (a, Const(int() as by))) if 0 <= by < 64:
            low, high = value_range(a, ranges)
            return None if low is None else low >> by, None if high is None else high >> by
        case Op("require", (cond, a)):
            return _range_where(cond, a, ranges)
        case Op("where", (_, a, b)) | Select(_, a, b):
            return either(value_range(a, ranges), value_range(b, ranges))
        case Op("abs", (a,)):
            return absolute(_data_range(a, ranges))
        case Cast(arg) if e.dtype is i64 and arg.dtype.is_integer and arg.dtype.bits < 64:
            return integer_range(arg.dtype)
    return UNKNOWN


def _data_range(e: Expr, ranges: Ranges) -> Range:
    """The bounds of an expression; those of its type if it is data of unknown range."""
    found = value_range(e, ranges)
    return WHOLE if found == UNKNOWN and has_data(e, ranges) else found


def _range_where(cond: Expr, e: Expr, ranges: Ranges) -> Range:
    """The range of `e` where `cond` holds, joined with 0."""
    low, high = value_range(e, ranges)
    for c in conjuncts(cond):
        match c:
            case Op("ge", (a, b)) if a is e:
                low = greater(low, value_range(b, ranges)[0])
            case Op("lt", (a, b)) if a is e and (most := value_range(b, ranges)[1]) is not None:
                high = lesser(high, most - 1)
    return None if low is None else min(low, 0), None if high is None else max(high, 0)


def conjuncts(cond: Expr) -> Iterator[Expr]:
    """The operands of a conjunction, flattened."""
    match cond:
        case Op("and", (a, b)):
            yield from conjuncts(a)
            yield from conjuncts(b)
        case _:
            yield cond


def _linear_range(e: Expr, ranges: Ranges) -> Range:
    form = linear(e)
    if e in form[0]:  # a product of variables
        return _product_range(e, ranges)
    return within(form_range(form, ranges))


def form_range(form: Linear, ranges: Ranges) -> Range:
    """Bounds of a linear form without wrap-around."""
    low, high = _sum_range(form, ranges)
    if any(_is_symbolic(atom, ranges) for atom in form[0]):
        most, least = _size_bound(form, ranges, 1), _size_bound(form, ranges, -1)
        high = lesser(high, None if most is None else _sum_range(most, ranges)[1])
        low = greater(low, None if least is None else _sum_range(least, ranges)[0])
    return low, high


def _product_range(e: Expr, ranges: Ranges) -> Range:
    """The range of a product of sizes and other factors, if no factor is negative."""
    low, high = 1, 1
    known, vast = True, False
    for x in factors_of(e):
        a, b = value_range(x, ranges)
        if a is None or a < 0:
            return UNKNOWN
        known, vast = known and b is not None, vast or is_vast((a, b))
        low, high = low * a, high * (b or 0)
    return UNKNOWN if vast and not known else within((low, high if known else None))


def _is_symbolic(atom: Expr, ranges: Ranges) -> bool:
    """Whether an atom contains a size, or a variable bounded by one."""
    if type(atom) is Var:
        return type(ranges.get(atom.name)) is Below
    return any(type(v) is Size or type(ranges.get(v.name)) is Below for v in variables_of(atom))


def _size_bound(form: Linear, ranges: Ranges, sign: int) -> Linear | None:
    """A sum of sizes that bounds the form from above (sign 1) or below (-1); None if none is found."""
    terms, rest = form
    out: Linear = {}, rest
    for atom, c in terms.items():
        if not _is_symbolic(atom, ranges):
            low, high = value_range(atom, ranges)
            end = high if c * sign > 0 else low
            if end is None or is_vast((end, end)):
                return None
            out = plus(out, ({}, end * c), 1)
            continue
        made: Linear = {}, 1
        for x in factors_of(atom):
            end_of = _upper_bound(x, ranges) if c * sign > 0 else _lower_bound(x, ranges)
            if end_of is None:
                return None
            made = multiplied(made, end_of)
        out = plus(out, times(made, c), 1)
    return out


def _upper_bound(x: Expr, ranges: Ranges) -> Linear | None:
    """An upper bound of a non-negative factor, as a sum of sizes."""
    match x:
        case Size():
            return {x: 1}, 0
        case Var(name) if isinstance(below := ranges.get(name), Below):
            return plus(linear(below.extent), ({}, 1), -1)
        case Op("floordiv", (a, d)) if _is_nonnegative(a, ranges):
            most = _size_bound(linear(a), ranges, 1)
            quotient = None if most is None else exact_quotient(plus(most, ({}, 1), 1), d)
            return None if quotient is None else plus(quotient, ({}, 1), -1)
        case Op("mod", (_, d)) if only_sizes(d):
            return plus(linear(d), ({}, 1), -1)
        case Op("require", (cond, a)):
            for c in conjuncts(cond):
                if isinstance(c, Op) and c.name == "lt" and c.args[0] is a and only_sizes(c.args[1]):
                    return plus(linear(c.args[1]), ({}, 1), -1)
    low, high = value_range(x, ranges)
    return None if low is None or low < 0 or high is None else ({}, high)


def _is_nonnegative(e: Expr, ranges: Ranges) -> bool:
    low, _ = value_range(e, ranges)
    return low is not None and low >= 0


def _lower_bound(x: Expr, ranges: Ranges) -> Linear | None:
    """A lower bound of a non-negative factor, as a sum of sizes."""
    if isinstance(x, Size):
        return {x: 1}, 0
    low, _ = value_range(x, ranges)
    return None if low is None or low < 0 else ({}, low)


def _sum_range(form: Linear, ranges: Ranges) -> Range:
    terms, rest = form
    low: int | None = rest
    high: int | None = rest
    vast = False
    for atom, c in terms.items():
        a, b = value_range(atom, ranges)
        if c < 0:
            a, b = b, a
        low = None if low is None or a is None else low + c * a
        high = None if high is None or b is None else high + c * b
        vast = vast or is_vast((a, b))
    # Added to data near the limits of 64 bits, an index may be enough to wrap around.
    return UNKNOWN if vast and (low is None or high is None) else (low, high)


def has_data(e: Expr, ranges: Ranges, others: Range = UNKNOWN) -> bool:
    """Whether it contains data: a tensor element, or a name of unknown range. Names without a range have `others`."""
    return any(isinstance(n, Load) or (isinstance(n, Var) and ranges.get(n.name, others) == UNKNOWN) for n in e.walk())
