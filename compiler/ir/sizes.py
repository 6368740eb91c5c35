"""Symbolic sizes: bind them to the shapes of given tensors, or say why these do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from compiler.ir.dtype import i64
from compiler.ir.expr import Const, Expr, Size, sizes_in, specialised, static, substitute
from compiler.ir.node import Node

N = TypeVar("N", bound=Node)
Declared = Sequence[tuple[str, tuple[Expr, ...]]]  # inputs with their shapes


class SizeError(ValueError):
    """Tensors whose shapes do not fit what a program was compiled for."""


def unbound(sizes: Sequence[Size], declared: Declared) -> tuple[Size, ...]:
    """The sizes that are not, by themselves, the extent of an input's axis."""
    own = {e for _, shape in declared for e in shape}
    return tuple(s for s in sizes if s not in own)


def bind(sizes: Sequence[Size], declared: Declared, shapes: Sequence[Sequence[int]]) -> dict[Size, int]:
    """The values of the sizes, given the shapes of the inputs; raises SizeError naming the input or the size."""
    out: dict[Size, int] = {}
    for (_, shape), got in zip(declared, shapes, strict=True):
        if len(got) == len(shape):
            for e, n in zip(shape, got, strict=True):
                if isinstance(e, Size):
                    out.setdefault(e, n)
    missing = [s.name for s in sizes if s not in out]
    if missing:
        raise SizeError(f"no axis of an input is just {', '.join(missing)}")
    for s in sizes:
        if out[s] < s.low or (s.high is not None and out[s] > s.high):
            to = "" if s.high is None else f" to {s.high}"
            raise SizeError(f"{s.name} is {out[s]}, but it was compiled for sizes from {s.low}{to}")
    for (name, shape), got in zip(declared, shapes, strict=True):
        want = numbers(shape, out)
        if want != tuple(got):
            raise SizeError(f"input {name} has shape {list(got)}, expected {list(want)}")
    return out


def numbers(values: Sequence[Expr], sizes: Mapping[Size, int]) -> tuple[int, ...]:
    """Sizes as numbers."""
    return tuple(int(e.value) if isinstance(e, Const) else static(specialised(e, sizes)) for e in values)


def fixed(node: N, sizes: Mapping[Size, int]) -> N:
    """A program with numbers for its symbolic sizes."""
    table = {s: Const(n, i64) for s, n in sizes.items()}
    if not table:
        return node
    made: N = substitute(node.replace(sizes=()), table)  # type: ignore[call-overload]
    left = sizes_in(made)
    assert not left, f"{left} are not among the sizes of the program"
    return made
