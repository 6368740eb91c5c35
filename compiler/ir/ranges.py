"""Arithmetic of integer ranges: inclusive pairs, in which None is an unknown end."""

from __future__ import annotations

Range = tuple[int | None, int | None]

LEAST, MOST = -(2**63), 2**63 - 1
WHOLE: Range = LEAST, MOST  # 64-bit integers
UNKNOWN: Range = None, None
VAST = 2**62  # bound of sizes and indices


def within(r: Range) -> Range:
    """The range of a 64-bit result: unknown if it may have wrapped around."""
    low, high = r
    return UNKNOWN if (low is not None and low < LEAST) or (high is not None and high > MOST) else r


def is_vast(r: Range) -> bool:
    """Whether a known end is so large that the value must be data."""
    return any(end is not None and abs(end) >= VAST for end in r)


def absolute(r: Range) -> Range:
    """The range of an absolute value; that of the least integer is itself."""
    low, high = r
    if low is None or high is None:
        return 0, None
    return within((0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high))))


def lesser(a: int | None, b: int | None) -> int | None:
    """The lesser of two ends; the other one if one is unknown."""
    return min((x for x in (a, b) if x is not None), default=None)


def greater(a: int | None, b: int | None) -> int | None:
    """The greater of two ends; the other one if one is unknown."""
    return max((x for x in (a, b) if x is not None), default=None)


def divided_range(how: str, a: Range, d: Range) -> Range:
    """The range of a non-negative number divided by a size (or its remainder); the size is taken as at least 1."""
    if a[0] is None or a[0] < 0 or d[0] is None or d[0] < 0:
        return None, None
    if how == "floordiv":
        return 0, None if a[1] is None else a[1] // max(d[0], 1)
    return 0, lesser(a[1], None if d[1] is None else d[1] - 1)


def bits(how: str, a: Range, b: Range) -> Range:
    """The range of a bitwise operation on non-negative numbers."""
    (la, ha), (lb, hb) = a, b
    if la is None or lb is None or la < 0 or lb < 0:
        return None, None
    if how == "and":
        return 0, lesser(ha, hb)
    return 0, None if ha is None or hb is None else 2 ** max(ha.bit_length(), hb.bit_length()) - 1


def either(a: Range, b: Range) -> Range:
    """The union of two ranges."""
    low = None if a[0] is None or b[0] is None else min(a[0], b[0])
    return low, None if a[1] is None or b[1] is None else max(a[1], b[1])


def extreme(how: str, a: Range, b: Range) -> Range:
    """The range of the min or max of two numbers."""
    low, high = either(a, b)
    return (low, lesser(a[1], b[1])) if how == "min" else (greater(a[0], b[0]), high)
