"""Text of warp roles and of their mbarrier protocol, both ways."""

from __future__ import annotations

import ast
from collections.abc import Callable

from compiler.ir import roles
from compiler.ir.dtype import i64
from compiler.ir.statement import Stmt
from compiler.ir.statement_text import ParseOwn, ShowOwn, show_body, statements
from compiler.ir.text import Scope, expression, fail, indent
from compiler.ir.text import show as show_expr

Whole = Callable[[ast.expr], int]


def show(s: Stmt, own: ShowOwn) -> list[str]:
    match s:
        case roles.Role(kind, first, threads, registers, body):
            more = f", registers={registers}" if registers else ""
            return [f'with role("{kind}", first={first}, threads={threads}{more}):', *indent(show_body(body, own))]
        case roles.One(body):
            return ["with one_thread():", *indent(show_body(body, own))]
        case roles.Mbarriers(name, count, arrivals, blocks):
            more = f", blocks={blocks}" if blocks > 1 else ""
            return [f"{name} = mbarriers({count}, arrivals={arrivals}{more})"]
        case roles.Ring(slot, phase, depth, tiles, start):
            said = [str(depth), *tiles, *([f"phase={start}"] if start else [])]
            return [f"{', '.join(n for n in (slot, phase) if n)} = ring({', '.join(said)})"]
        case roles.Advance(slot, phase, depth, last):
            return [f"advance({', '.join(x for x in (slot, phase, str(depth), last) if x)})"]
        case roles.Wait(barrier, phase):
            return [f"wait({show_barrier(barrier)}, {show_expr(phase)})"]
        case roles.Arrive(barrier):
            return [f"arrive({show_barrier(barrier)})"]
        case roles.Expect(barrier, count):
            return [f"expect({show_barrier(barrier)}, {count})"]
    raise TypeError(f"{type(s).__name__} is not a Tile IR statement")


def show_barrier(b: roles.Mbarrier) -> str:
    return f"{b.array}[{show_expr(b.slot)}]"


def parse(s: ast.stmt, scope: Scope, own: ParseOwn, whole: Whole) -> tuple[Stmt, ...] | None:
    match s:
        case ast.With([ast.withitem(ast.Call(ast.Name("role"), [ast.Constant(str() as kind)], keywords))], body):
            words = {word.arg: whole(word.value) for word in keywords}
            made = statements(body, scope.inner(), own)
            return (roles.Role(kind, words["first"], words["threads"], words.get("registers", 0), made),)
        case ast.With([ast.withitem(ast.Call(ast.Name("one_thread"), [], []))], body):
            return (roles.One(statements(body, scope, own)),)
        case ast.Assign([ast.Name(name)], ast.Call(ast.Name("mbarriers"), [count], keywords)):
            words = {word.arg: whole(word.value) for word in keywords}
            return (roles.Mbarriers(name, whole(count), words["arrivals"], words.get("blocks", 1)),)
        case ast.Assign([target], ast.Call(ast.Name("ring"), [depth, *tiles], keywords)):
            slot, phase = ("", _name(target)) if isinstance(target, ast.Name) else map(_name, _elements(target))
            scope.scalars.update(dict.fromkeys(filter(None, (slot, phase)), i64))
            start = whole(keywords[0].value) if keywords else 0
            return (roles.Ring(slot, phase, whole(depth), tuple(map(_name, tiles)), start),)
        case ast.Expr(ast.Call(ast.Name(word), args, [])):
            return _call(word, args, scope, whole)
    return None


def _call(word: str, args: list[ast.expr], scope: Scope, whole: Whole) -> tuple[Stmt, ...] | None:
    match word, args:
        case "advance", [ast.Name(phase), ast.Constant() as depth]:
            return (roles.Advance("", phase, whole(depth)),)
        case "advance", [ast.Name(slot), ast.Name(phase), depth, *last]:
            return (roles.Advance(slot, phase, whole(depth), *map(_name, last)),)
        case "wait", [barrier, phase]:
            return (roles.Wait(parse_barrier(barrier, scope), expression(phase, scope)),)
        case "arrive", [barrier]:
            return (roles.Arrive(parse_barrier(barrier, scope)),)
        case "expect", [barrier, count]:
            return (roles.Expect(parse_barrier(barrier, scope), whole(count)),)
    return None


def parse_barrier(e: ast.expr, scope: Scope) -> roles.Mbarrier:
    match e:
        case ast.Subscript(ast.Name(name), slot):
            return roles.Mbarrier(name, expression(slot, scope))
    raise fail(e, "not an mbarrier, as full[slot]")


def _elements(e: ast.expr) -> list[ast.expr]:
    match e:
        case ast.Tuple([slot, phase]):
            return [slot, phase]
    raise fail(e, "expected a slot and a phase")


def _name(e: ast.expr) -> str:
    match e:
        case ast.Name(name):
            return name
    raise fail(e, "expected a name")
