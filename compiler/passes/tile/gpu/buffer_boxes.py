"""Boxes of buffers that the loops of a tile cover: each loop traverses one axis, or several as its digits.

For example, a loop over pixels, `i`, traverses rows and columns of an image as `i // 8` and `i % 8`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Op, Var, const, names
from compiler.ir.linear import from_linear, linear
from compiler.ir.tensor import Tensor
from compiler.passes.tile.nests import match_slice


def box(index: Sequence[Expr], long: Mapping[str, int], tensor: Tensor) -> tuple[list[str], tile.Slice] | None:
    """The loops of `long` in the order of the buffer's memory, and the slice that they cover; None if it is no box.

    The loop along the contiguous axis comes last.
    """
    plain = match_slice(index, dict(long))
    if plain is not None and (len(plain[0]) < 2 or tensor.strides[-1] is const(1)):
        return plain[0], plain[1].replace(buffer=tensor.name)
    found = [_axis(e, long) for e in index]
    digits: dict[str, list[tuple[int, int, int]]] = {v: [] for v in long}  # divisor, extent, axis
    starts, lengths, steps = [], [], []
    for d, axis in enumerate(found):
        if axis is None:
            return None
        start, var, divisor, extent, step = axis
        starts.append(start)
        lengths.append(extent)
        steps.append(step)
        if extent:
            digits[var].append((divisor, extent, d))
    for v, parts in digits.items():
        parts.sort(reverse=True)
        below = [a[1] * a[0] for a in parts]
        if (
            not parts
            or parts[-1][0] != 1
            or below[0] != long[v]
            or any(a[0] != b[0] * b[1] for a, b in pairwise(parts))
        ):
            return None
    order = sorted(digits, key=lambda v: tensor.strides[digits[v][-1][2]] is const(1))
    taken = [d for v in order for _, _, d in digits[v]]
    axes = (*(d for d in range(len(index)) if d not in taken), *taken)
    natural = axes == tuple(range(len(axes)))
    more = (tuple(steps) if set(steps) - {1} else (), () if natural else axes)
    return order, tile.Slice(tensor.name, tuple(starts), tuple(lengths), *more)


def _axis(e: Expr, long: Mapping[str, int]) -> tuple[Expr, str, int, int, int] | None:
    """An index as a start plus a digit of one loop: start, loop, divisor, extent and step.

    The extent is 0 for an index that does not move; None for one that moves in another way.
    """
    terms, rest = linear(e)
    own = [(t, c) for t, c in terms.items() if names(t) & set(long)]
    start = from_linear(({t: c for t, c in terms.items() if not names(t) & set(long)}, rest))
    if not own:
        return start, "", 1, 0, 1
    (atom, step), *others = own
    digit = _digit(atom, long)
    return None if others or step < 1 or digit is None else (start, *digit, step)


def _digit(e: Expr, long: Mapping[str, int]) -> tuple[str, int, int] | None:
    match e:
        case Var(name):
            return name, 1, long[name]
        case Op("floordiv", (Var(name), Const(int() as d))) if long[name] % d == 0:
            return name, d, long[name] // d
        case Op("mod", (Var(name), Const(int() as m))) if long[name] % m == 0:
            return name, 1, m
        case Op("mod", (Op("floordiv", (Var(name), Const(int() as d))), Const(int() as m))) if (
            long[name] % (d * m) == 0
        ):
            return name, d, m
    return None
