"""Tensor IR in, Tensor IR out: a large 16-bit value that a kernel leaves to others in memory lies there in 16 bits.

Values computed from 16-bit floats are f32 inside a kernel. In memory that is twice what PyTorch moves for the same
tensor, as the sum of a residual that a norm and the next residual read, or the branch of a network that is added later.
Such a value is rounded once, where it is made, and all of its readers read that: as in eager, what one of them makes of
it agrees with what the others do. Which values those are depends on what later passes fuse, so kernels are made of the
program as it is to find out; scores between two matmuls of attention, say, never lie in memory. A matmul of f32 numbers
reads its operands as blocks of memory: they stay f32.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from compiler.ir import statement
from compiler.ir.dtype import DType
from compiler.ir.expr import Cast, Expr, Load, cast
from compiler.ir.node import Node
from compiler.ir.rewrite import nodes
from compiler.ir.tensor import Equation, Group, Map, Program, Reduce, equations, shape, with_expressions
from compiler.passes.tensor.contractions import count, is_contraction
from compiler.passes.tensor.remake import LEAST


def round_stored(program: Program, kernels: Callable[[Program], statement.Program]) -> Program:
    """Values that are computed in f32 and read, as such, by another kernel, rounded to what PyTorch holds them in.

    `kernels` makes and fuses the kernels of a program.
    """
    large = {e.name: e.narrow for e in equations(program) if e.narrow is not None and _pays(e)}
    if not large:
        return program
    multiplied = {name for e in equations(program) if is_contraction(e) for name in _wide(e.walk(), large)}
    left = {name for k in kernels(program).kernels for s in k.body for name in _wide(s.walk(), large) - set(k.writes)}
    return with_rounded(program, left - multiplied)


def with_rounded(program: Program, values: Collection[str]) -> Program:
    """The program with each of these values rounded where it is made, and read so."""
    taken = {*(e.name for e in equations(program)), *(t.name for t in program.inputs)}
    found = (e for e in equations(program) if e.name in values and e.narrow is not None)
    made = {e.name: _rounded(e) for e in found if _stored(e.name) not in taken}
    return program.replace(groups=tuple(_group(g, made) for g in program.groups)) if made else program


def rounded_in(program: Program) -> set[str]:
    """The values that a program rounds where they are made."""
    loads = {e.name: e.value.arg for e in equations(program) if isinstance(e, Map) and isinstance(e.value, Cast)}
    return {x.buffer for name, x in loads.items() if isinstance(x, Load) and name == _stored(x.buffer)}


def _stored(name: str) -> str:
    return f"{name}_stored"


def _pays(e: Equation) -> bool:
    return isinstance(e, Map | Reduce) and count(shape(e)) * e.dtype.bytes >= LEAST


def _wide(found: Iterable[Node], large: Mapping[str, DType]) -> set[str]:
    """Values that are loaded, and not only to be rounded."""
    every = list(found)  # equal loads are one node
    rounded = {n.arg for n in every if isinstance(n, Cast) and isinstance(n.arg, Load)
               and n.dtype is large.get(n.arg.buffer)}  # fmt: skip
    return {n.buffer for n in every if isinstance(n, Load) and n.buffer in large and n not in rounded}


def _rounded(e: Equation) -> Map:
    assert e.narrow is not None
    return Map(_stored(e.name), e.axes, cast(Load(e.name, tuple(a.var for a in e.axes), e.dtype), e.narrow))


def _group(g: Group, made: Mapping[str, Map]) -> Group:
    """The group with each of these behind what it rounds, and read in its place."""

    stored = {e.name for e in made.values()}

    def rule(n: object) -> Expr | None:
        match n:
            case Load(name, index, dtype) if name in made:
                return cast(Load(made[name].name, index, made[name].dtype), dtype)
            case Cast(Cast(Load(name) as load), dtype) if name in stored and load.dtype is dtype:
                return load
        return None

    found: list[Equation] = []
    for e in g.equations:
        found.append(with_expressions(e, lambda x: nodes(x, rule)))
        if e.name in made:
            found.append(made[e.name])
    return g.replace(equations=tuple(found))
