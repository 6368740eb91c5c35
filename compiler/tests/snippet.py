"""Statements of Tile IR, as a docstring shows them, go in; a whole program comes out, with all buffers declared.

Buffers are f32, or bf16 where the text only ever reads `f32(name[..])` or stores `bf16(..)`; shapes are as large as the
indices reach.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from compiler.ir import tile, tile_text
from compiler.ir.expr import Load, static
from compiler.ir.ranges import Range
from compiler.ir.statement import If, Program, Stmt, Store
from compiler.ir.value_ranges import value_range

Shapes = dict[str, tuple[int, ...]]


def program(
    text: str, shapes: dict[str, tuple[int, ...]] | None = None, temps: frozenset[str] = frozenset()
) -> Program:
    """The program whose one kernel has this body; every buffer that is no temporary has a value from the beginning."""
    text = textwrap.dedent(text).strip("\n")
    ranks, written = _buffers(ast.parse(text))
    if shapes is None or set(ranks) - set(shapes):
        guess = _parse(text, {name: (1,) * rank for name, rank in ranks.items()}, written)
        shapes = _shapes(guess.kernels[0].body, set(ranks)) | (shapes or {})
    made = _parse(text, {name: shapes[name] for name in ranks}, written)
    tensors = made.kernels[0].params
    return made.replace(
        inputs=tuple(t for t in tensors if t.name not in temps),
        outputs=tuple(t for t in made.outputs if t.name not in temps),
        temps=tuple(t for t in tensors if t.name in temps),
    )


def shapes_of(p: Program) -> Shapes:
    return {t.name: tuple(map(static, t.shape)) for t in p.kernels[0].params}


def body(p: Program) -> str:
    _, _, statements = tile_text.show(p).partition("    with kernel")
    return textwrap.dedent("\n".join(statements.splitlines()[1:]))


def _parse(text: str, shapes: Shapes, written: set[str]) -> Program:
    declared = {name: f"{name}: {_type(name, text)}[{', '.join(map(str, s)) or '()'}]" for name, s in shapes.items()}
    inputs = [d for name, d in declared.items() if name not in written]
    outputs = [d for name, d in declared.items() if name in written]
    arguments = ", ".join([*inputs, "*", *outputs] if outputs else inputs)
    writes = ", ".join(n for n in shapes if n in written)
    head = f'def f({arguments}):\n    with kernel("f", [{", ".join(shapes)}], writes=[{writes}]):\n'
    return tile_text.parse(head + textwrap.indent(text, " " * 8))


def _type(name: str, text: str) -> str:
    short = rf"\bf32\({name}\[|^ *{name}\[.*\] = bf16\("
    uses = len(re.findall(rf"\b{name}\[", text))
    return "bf16" if 0 < uses == len(re.findall(short, text, re.MULTILINE)) else "f32"


def _buffers(tree: ast.Module) -> tuple[dict[str, int], set[str]]:
    """Ranks of the buffers that are not made inside, and which of them are written."""
    ranks: dict[str, int] = {}
    written: set[str] = set()
    inside: set[str] = set()
    for n in ast.walk(tree):
        match n:
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name(space), _)) if space in tile.SPACES:
                inside.add(name)
            case ast.Subscript(ast.Name(name), index, ctx):
                ranks[name] = len(index.elts) if isinstance(index, ast.Tuple) else 1
                if isinstance(ctx, ast.Store):
                    written.add(name)
            case ast.Call(ast.Name("copy"), [ast.Subscript(ast.Name(name)), *_]):
                written.add(name)
            case ast.Call(ast.Name("mma"), [_, ast.Subscript(ast.Name(name)), *_]):
                written.add(name)
    types = {"f64", "f32", "bf16", "f16", "i64", "i32"}
    return {n: r for n, r in ranks.items() if n not in inside | types}, written - inside


def _shapes(statements: tuple[Stmt, ...], names: set[str]) -> Shapes:
    found: Shapes = {}
    for name, reach in _reaches(statements, {}):
        if name in names:
            found[name] = tuple(map(max, found.get(name, reach), reach))
    return found


def _reaches(statements: tuple[Stmt, ...], ranges: dict[str, Range]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """For every access, how large its buffer must be."""
    for s in statements:
        if isinstance(s, tile.For | If):
            inner = dict(ranges)
            if isinstance(s, tile.For):
                inner[s.var] = (0, (value_range(s.extent, ranges)[1] or 1) - 1)
            yield from _reaches(s.body, inner)
            continue
        for n in s.walk():
            match n:
                case Load(buffer, index, _) | Store(buffer, index, _, _):
                    yield buffer, tuple((value_range(i, ranges)[1] or 0) + 1 for i in index)
                case tile.Slice(buffer, starts, lengths):
                    ends = zip(starts, lengths, strict=True)
                    yield buffer, tuple((value_range(i, ranges)[1] or 0) + max(n, 1) for i, n in ends)
