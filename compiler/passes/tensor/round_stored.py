"""Round large 16-bit values when a kernel stores them for other kernels (Tensor IR to Tensor IR).

Values computed from 16-bit floats are f32 inside a kernel. Stored as f32 they move twice the bytes that PyTorch moves,
as for a residual sum read by a norm and by the next residual, or a branch of a network that is added later. Such a
value is rounded once, where it is computed, and all readers read the rounded one: as in eager, their results agree with
each other. Which values are stored depends on later fusion, so the kernels of the program are made to find out: the
scores between two matmuls of attention, for example, are never stored. The operands of an f32 matmul, which reads
blocks of memory as they are, stay f32.
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
from compiler.passes.tensor.rematerialize import LEAST_BYTES


def round_stored(program: Program, kernels: Callable[[Program], statement.Program]) -> Program:
    """Round the values computed in f32 that another kernel reads as f32, to the type in which PyTorch holds them.

    `kernels` lowers a program to fused kernels.
    """
    large = {e.name: e.narrow for e in equations(program) if e.narrow is not None and _pays(e)}
    if not large:
        return program
    multiplied = {name for e in equations(program) if is_contraction(e) for name in _loaded_unrounded(e.walk(), large)}
    unrounded = {
        name
        for k in kernels(program).kernels
        for s in k.body
        for name in _loaded_unrounded(s.walk(), large) - set(k.writes)
    }
    return with_rounded(program, unrounded - multiplied)


def with_rounded(program: Program, values: Collection[str]) -> Program:
    """The program with these values rounded where they are computed, and all readers reading the rounded ones."""
    taken = {*(e.name for e in equations(program)), *(t.name for t in program.inputs)}
    found = (e for e in equations(program) if e.name in values and e.narrow is not None)
    roundings = {e.name: _round_value(e) for e in found if _rounded_name(e.name) not in taken}
    return program.replace(groups=tuple(_add_roundings(g, roundings) for g in program.groups)) if roundings else program


def rounded_in(program: Program) -> set[str]:
    """The names of the values that a program rounds where they are computed."""
    loads = {e.name: e.value.arg for e in equations(program) if isinstance(e, Map) and isinstance(e.value, Cast)}
    return {x.buffer for name, x in loads.items() if isinstance(x, Load) and name == _rounded_name(x.buffer)}


def _rounded_name(name: str) -> str:
    return f"{name}_stored"


def _pays(e: Equation) -> bool:
    return isinstance(e, Map | Reduce) and count(shape(e)) * e.dtype.bytes >= LEAST_BYTES


def _loaded_unrounded(found: Iterable[Node], large: Mapping[str, DType]) -> set[str]:
    """The values that are loaded for other uses than being rounded."""
    every = list(found)  # equal loads are one node
    rounded = {n.arg for n in every if isinstance(n, Cast) and isinstance(n.arg, Load)
               and n.dtype is large.get(n.arg.buffer)}  # fmt: skip
    return {n.buffer for n in every if isinstance(n, Load) and n.buffer in large and n not in rounded}


def _round_value(e: Equation) -> Map:
    assert e.narrow is not None
    return Map(_rounded_name(e.name), e.axes, cast(Load(e.name, tuple(a.var for a in e.axes), e.dtype), e.narrow))


def _add_roundings(g: Group, roundings: Mapping[str, Map]) -> Group:
    """The group with a rounding after each value in `roundings`, and its readers changed to read that."""

    stored = {e.name for e in roundings.values()}

    def rule(n: object) -> Expr | None:
        match n:
            case Load(name, index, dtype) if name in roundings:
                return cast(Load(roundings[name].name, index, roundings[name].dtype), dtype)
            case Cast(Cast(Load(name) as load), dtype) if name in stored and load.dtype is dtype:
                return load
        return None

    found: list[Equation] = []
    for e in g.equations:
        found.append(with_expressions(e, lambda x: nodes(x, rule)))
        if e.name in roundings:
            found.append(roundings[e.name])
    return g.replace(equations=tuple(found))
