"""Text of Tile IR, both ways.

A loop names its level (`for j in vector(100, reduce, width=8):`; `parallel` is implied), a tile its memory (`a =
shared(bf16[128, 64], swizzle=128, slots=3)`), a copy its kind (`copy(a[..], x[..], "cp.async", width=8)`). Slices are
`start: +length` or `start: +length: step`, followed by `.permute(1, 0)` if the axes are taken in another order, and by
`.within(0)` if elements out of bounds along an axis are left out. Synchronisation is a call: `barrier()`,
`wait_copies(1)`. The layout of a tile in registers follows its type: `lanes(2048, threads=256, vector=8)` or
`fragment((16, 8), [4 @ (0, 2), 8 @ (1, 0)], [2 @ (0, 1), 2 @ (8, 0)], unit=4)`, with the digits of threads and of
registers and their steps in the tile.
"""

from __future__ import annotations

import ast

from compiler.ir import roles_text, statement_text, tile
from compiler.ir.expr import Expr
from compiler.ir.layout import Digit, Fragment, ThreadMap
from compiler.ir.statement import Program, Stmt
from compiler.ir.tensor import Tensor
from compiler.ir.text import Scope, expression, fail, indent, show_type, tensor_type
from compiler.ir.text import show as show_expr

_COPY_WORDS = ("width", "rounds", "prefetch")


def show(program: Program) -> str:
    return statement_text.show(program, _show)


def parse(text: str) -> Program:
    """A program from its text; raises TextError with line and column."""
    return statement_text.parse(text, _parse)


def _show(s: Stmt) -> list[str]:
    match s:
        case tile.For(var, extent, kind, tile.Bind(level, args), body):
            said = [show_expr(extent), *([] if kind == "parallel" else [kind]), *(f"{n}={v}" for n, v in args)]
            return [f"for {var} in {level}({', '.join(said)}):", *indent(statement_text.show_body(body, _show))]
        case tile.Alloc(t, space, swizzle, layout, slots):
            said = [show_type(t.dtype, t.shape, t.strides), *([_show_layout(layout)] if layout else [])]
            said += [f"{word}={n}" for word, n, plain in (("swizzle", swizzle, 0), ("slots", slots, 1)) if n != plain]
            return [f"{t.name} = {space}({', '.join(said)})"]
        case tile.Stage(role, body):
            return [f'with stage("{role}"):', *indent(statement_text.show_body(body, _show))]
        case tile.Sync(what, pending):
            return [f"{what}({pending if what in tile.COUNTED else ''})"]
        case tile.Copy(target, source, how, full):
            told = f", {roles_text.show_barrier(full)}" if full is not None else ""
            told += "".join(f", {word}={n}" for word in _COPY_WORDS if (n := getattr(s, word)))
            told += f", multicast={show_expr(s.multicast)}" if s.multicast is not None else ""
            return [f'copy({show_slice(target)}, {show_slice(source)}, "{how}"{told})']
        case tile.Mma(instruction, acc, a, b, operands, sizes, grid, neighbours, again, store):
            said = [
                f'"{instruction}"',
                *map(show_slice, (acc, a, b)),
                *(f'"{x}"' for x in operands),
                *map(show_expr, sizes),
                *([f"grid={grid}"] if grid else []),
                *([f'neighbours="{neighbours}"'] if neighbours else []),
                *(["again=True"] if again else []),
                *(["store=True"] if store else []),
            ]
            return [f"mma({', '.join(said)})"]
    return roles_text.show(s, _show)


def show_slice(s: tile.Slice) -> str:
    steps = [f": {n}" if n > 1 else "" for n in s.steps or (1,) * len(s.starts)]
    axes = zip(s.starts, s.lengths, steps, strict=True)
    parts = [f"{show_expr(b)}: +{n}{step}" if n else show_expr(b) for b, n, step in axes]
    calls = (("permute", s.order), ("within", s.within))
    behind = "".join(f".{name}({', '.join(map(str, axes))})" for name, axes in calls if axes)
    return f"{s.buffer}[{', '.join(parts) or '()'}]{behind}"


def _parse(s: ast.stmt, scope: Scope) -> tuple[Stmt, ...] | None:
    match s:
        case ast.For(ast.Name(var), ast.Call(ast.Name(level), [extent, *kind], keywords), body) if level in tile.LEVELS:
            inner, _ = statement_text.within(scope, var)
            words = tuple((k.arg or "", _whole(k.value)) for k in keywords)
            how = kind[0].id if kind and isinstance(kind[0], ast.Name) else "parallel"
            made = statement_text.statements(body, inner, _parse)
            return (tile.For(var, expression(extent, scope), how, tile.Bind(level, words), made),)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name(space), [kind, *more], keywords)) if space in tile.SPACES:
            t = Tensor(name, *tensor_type(kind, scope))
            scope.buffers[name] = t.dtype
            words_of = {word.arg: _whole(word.value) for word in keywords}
            held = _layout(more[0], scope) if more else None
            return (tile.Alloc(t, space, words_of.get("swizzle", 0), held, words_of.get("slots", 1)),)
        case ast.With([ast.withitem(ast.Call(ast.Name("stage"), [ast.Constant(str() as role)]))], body):
            return (tile.Stage(role, statement_text.statements(body, scope, _parse)),)
        case ast.Expr(ast.Call(ast.Name(what), pending, [])) if what in tile.SYNCS:
            return (tile.Sync(what, *map(_whole, pending)),)
        case ast.Expr(ast.Call(ast.Name("copy"), [target, source, ast.Constant(str() as how), *full], said)):
            told = next((roles_text.parse_barrier(x, scope) for x in full), None)
            alike = next((expression(word.value, scope) for word in said if word.arg == "multicast"), None)
            width, rounds, prefetch = (
                next((_whole(word.value) for word in said if word.arg == name), 0) for name in _COPY_WORDS
            )
            sides = _slice(target, scope), _slice(source, scope)
            return (tile.Copy(*sides, how, told, width, rounds, prefetch, alike),)
        case ast.Expr(
            ast.Call(
                ast.Name("mma"),
                [ast.Constant(str() as name), acc, a, b, ast.Constant(la), ast.Constant(lb), *sizes],
                keywords,
            )
        ):
            c, left, right = (_slice(x, scope) for x in (acc, a, b))
            given = tuple(expression(e, scope) for e in sizes)
            grid = next((_numbers(word.value) for word in keywords if word.arg == "grid"), ())
            options = {word.arg: ast.literal_eval(word.value) for word in keywords}
            near, flags = str(options.get("neighbours", "")), (bool(options.get(word)) for word in ("again", "store"))
            return (tile.Mma(name, c, left, right, (str(la), str(lb)), given, grid, near, *flags),)
    return roles_text.parse(s, scope, _parse, _whole)


def _show_layout(layout: Fragment | ThreadMap) -> str:
    match layout:
        case ThreadMap(extent, threads, vector):
            return f"lanes({show_expr(extent)}, threads={threads}, vector={vector})"
        case Fragment(shape, threads, registers, unit, strides):
            said = [f"unit={unit}", *(f"{axis}={n}" for axis, n in strides)]
            return f"fragment({shape}, {_show_digits(threads)}, {_show_digits(registers)}, {', '.join(said)})"
    raise TypeError(f"{type(layout).__name__} is not a layout")


def _show_digits(digits: tuple[Digit, ...]) -> str:
    return f"[{', '.join(f'{d.extent} @ ({d.row}, {d.column})' for d in digits)}]"


def _layout(e: ast.expr, scope: Scope) -> Fragment | ThreadMap:
    match e:
        case ast.Call(ast.Name("lanes"), [extent], [threads, vector]):
            return ThreadMap(expression(extent, scope), _whole(threads.value), _whole(vector.value))
        case ast.Call(ast.Name("fragment"), [shape, threads, registers], [unit, *strides]):
            rows, columns = _numbers(shape)
            by = tuple((word.arg or "", _whole(word.value)) for word in strides)
            return Fragment((rows, columns), _digits(threads), _digits(registers), _whole(unit.value), by)
    raise fail(e, "not a layout")


def _digits(e: ast.expr) -> tuple[Digit, ...]:
    match e:
        case ast.List(digits):
            return tuple(map(_digit, digits))
    raise fail(e, "expected digits")


def _digit(e: ast.expr) -> Digit:
    match e:
        case ast.BinOp(extent, ast.MatMult(), steps):
            return Digit(_whole(extent), *_numbers(steps))
    raise fail(e, "expected a digit, as 4 @ (0, 2)")


def _numbers(e: ast.expr) -> tuple[int, ...]:
    match e:
        case ast.Tuple([a, b]):
            return _whole(a), _whole(b)
    raise fail(e, "expected two whole numbers")


def _whole(e: ast.expr) -> int:
    match e:
        case ast.Constant(int() as v):
            return v
    raise fail(e, "expected a whole number")


def _slice(e: ast.expr, scope: Scope) -> tile.Slice:
    match e:
        case ast.Subscript(ast.Name(name), index) if name in scope.buffers:
            parts = index.elts if isinstance(index, ast.Tuple) else [index]
            return tile.Slice(name, *_ranges(parts, scope))
        case ast.Call(ast.Attribute(inner, "permute" | "within" as what), [*axes], []):
            field = "order" if what == "permute" else what
            return _slice(inner, scope).replace(**{field: tuple(map(_whole, axes))})
    raise fail(e, "not a slice of a buffer")


def _ranges(parts: list[ast.expr], scope: Scope) -> tuple[tuple[Expr, ...], tuple[int, ...], tuple[int, ...]]:
    starts, lengths, steps = [], [], []
    for p in parts:
        match p:
            case ast.Slice(ast.expr() as start, ast.UnaryOp(ast.UAdd(), n), step):
                starts.append(expression(start, scope))
                lengths.append(_whole(n))
                steps.append(_whole(step) if step else 1)
            case ast.expr():
                starts.append(expression(p, scope))
                lengths.append(0)
                steps.append(1)
    return tuple(starts), tuple(lengths), tuple(steps) if set(steps) - {1} else ()
