"""Merge short, independent functions into one launch.

The weights of a model are rounded, and rearranged for tiles, by as many kernels as it has layers, each of which takes
about as long to start as to run. None depends on another, so the blocks of one launch can do them all. What only such
functions produce is available early as well, so that functions of it are one launch after them. Of the others, a
function joins the nearest one before it that it need not wait for, such as the products of one token with several
matrices; all of these but the longest are short.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from typing import Any

from compiler.analysis import kernel_names
from compiler.ir import alike
from compiler.ir import kernel as k
from compiler.ir.expr import Const, Op, both, const, op, static
from compiler.ir.rewrite import nodes
from compiler.ir.statement import Let
from compiler.ir.tensor import Tensor, known_bytes
from compiler.passes.gpu.dependent_launch import WAIT, overlaps

SHORT = 10 << 20  # bytes that a function reads and writes, at most: it runs about as long as it takes to start
MOST = 24  # functions per launch, to limit its parameters and text
FAR = 8  # launches by which a function may be moved ahead: its results live that much longer
SHARED = 16 << 10  # bytes of shared memory, which all blocks of the launch then have
_PLAIN = (Let, k.Declare, k.Assign, k.Store, k.For, k.If, k.Array)
_MOVES = ("mlc_load", "mlc_store")


def shared_launches(program: k.Program) -> k.Program:
    """Move functions of inputs alone to the front, in few launches, followed by functions of their results."""
    writers = Counter(w for f in program.functions for w in f.writes)
    inputs = {t.name for t in program.inputs}
    there = inputs - writers.keys()
    # A function that writes an input must stay after all that read it.
    own = {name for name, count in writers.items() if count == 1} - set(program.zeros) - inputs
    front, left = list[k.Function](), list(program.functions)
    for _ in range(2):
        ready = [f for f in left if _is_short(f, there, own)]
        left = [f for f in left if f not in ready]
        there = there | {w for f in ready for w in f.writes}
        front += _launches(ready, [f.name for f in (*front, *program.functions)])
    left = _beside(left, own, [f.name for f in (*front, *program.functions)])
    if len(front) + len(left) == len(program.functions):
        return program
    return program.replace(functions=(*front, *left))


def _beside(functions: list[k.Function], own: set[str], taken: list[str]) -> list[k.Function]:
    """Merge each function, in order, with the nearest group before it that it is independent of."""
    groups: list[list[k.Function]] = []
    plain = {f.name for f in functions if _is_plain(f, own)}
    for f in functions:
        place = _place(groups, f, plain) if f.name in plain else None
        if place is None:
            groups.append([f])
        else:
            groups[place].append(f)
    return [_one(some, taken) if len(some) > 1 else some[0] for some in groups]


def _place(groups: list[list[k.Function]], f: k.Function, plain: set[str]) -> int | None:
    """The last group of `plain` functions that `f` may join: it waits neither for that nor for later ones; or None."""
    for n in range(len(groups) - 1, max(len(groups) - 1 - FAR, -1), -1):
        some = groups[n]
        if any(_wait(before, f) for before in some):
            return None
        if some[0].name not in plain or _kind(some[0]) != _kind(f) or len(some) == MOST:
            continue
        *shorter, _ = sorted(sum(map(known_bytes, x.params)) for x in (*some, f))
        if sum(shorter) <= SHORT:
            return n
    return None


def _wait(before: k.Function, f: k.Function) -> bool:
    """Whether a function has to wait for an earlier one."""
    mine, theirs = {p.name for p in f.params}, {p.name for p in before.params}
    return not mine.isdisjoint(before.writes) or not theirs.isdisjoint(f.writes)


def _launches(ready: list[k.Function], taken: list[str]) -> list[k.Function]:
    """Merge independent functions into as few launches as possible."""
    kinds: dict[Hashable, list[k.Function]] = {}
    for f in ready:
        kinds.setdefault(_kind(f), []).append(f)
    parts = [some[n : n + MOST] for some in kinds.values() for n in range(0, len(some), MOST)]
    return [_one(some, taken) if len(some) > 1 else some[0] for some in parts]


def _kind(f: k.Function) -> Hashable:
    """The properties that functions of one launch must share."""
    return f.block, *{(a.dtype, a.align) for a in _shared(f)}


def _is_short(f: k.Function, there: set[str], own: set[str]) -> bool:
    """Whether a function is short and plain and reads only what is `there`."""
    read = {p.name for p in f.params} - set(f.writes)
    return bool(read) and read <= there and sum(map(known_bytes, f.params)) <= SHORT and _is_plain(f, own)


def _is_plain(f: k.Function, own: set[str]) -> bool:
    """Whether a function writes only its own temporaries and its blocks are independent."""
    plain = f.block and f.cluster == 1 and not f.maps and not f.exchanged and all(isinstance(n, Const) for n in f.grid)
    if not plain or not own.issuperset(f.writes):
        return False
    if len(_shared(f)) > 1 or any(a.align > 128 for a in _shared(f)):
        return False
    return all(map(_is_alone, f.body)) and sum(a.size * a.dtype.bytes for a in _shared(f)) <= SHARED


def _is_alone(s: k.Stmt) -> bool:
    """Whether a statement involves only the threads of one block."""
    for n in s.walk():
        match n:
            case k.Call(function) if n is not WAIT and not function.startswith(_MOVES):
                return False
            case k.Barrier(scope) if scope != "block":
                return False
            case k.Peer() | Op("require"):
                return False
            case k.Stmt() if not isinstance(n, (*_PLAIN, k.Call, k.Barrier)):
                return False
    return True


def _shared(f: k.Function) -> list[k.Array]:
    return [s for s in f.body if isinstance(s, k.Array) and s.space == "shared"]


def _one(some: list[k.Function], taken: Iterable[str]) -> k.Function:
    """A launch with the blocks of all functions, one function after the other."""
    params = tuple({p.name: p for f in some for p in f.params}.values())
    arrays = [a for f in some for a in _shared(f)]
    tile = max(arrays, key=lambda a: a.size).replace(name=_free("tile", params)) if arrays else None
    body: list[k.Stmt] = [] if tile is None else [tile]
    body += [WAIT] if any(map(overlaps, some)) else []
    begin = 0
    for n, f in enumerate(some):
        blocks = math.prod(map(static, f.grid))
        here = k.Builtin("block.x")
        mine = both(op("ge", here, const(begin)), op("lt", here, const(begin + blocks)))
        body.append(k.If(mine, _part(f, n, begin, params, tile)))
        begin += blocks
    name = kernel_names.free(f"{some[0].name}_and_{len(some) - 1}_more", set(taken))
    origin = kernel_names.joined(*(f.origin for f in some))
    writes = tuple(w for f in some for w in f.writes)
    return some[0].replace(
        name=name, params=params, writes=writes, body=tuple(body), grid=(const(begin),), origin=origin, schedule="",
    )  # fmt: skip


def _part(
    f: k.Function, number: int, begin: int, params: tuple[Tensor, ...], tile: k.Array | None
) -> tuple[k.Stmt, ...]:
    """The body of a function with its variables renamed, for blocks from `begin` on."""
    own = {p.name for p in f.params}
    table = {name: _free(f"{name}_{number}", params) for name in alike.names(f) if name not in own}
    table |= {a.name: tile.name for a in _shared(f) if tile is not None}
    made: k.Function = alike.renamed(f, table)
    block = op("max", k.Builtin("block.x") - const(begin), 0)
    sizes = [static(n) for n in f.grid]
    axes = {}
    for d, axis in enumerate("xyz"[: len(sizes)]):
        along = op("floordiv", block, math.prod(sizes[:d])) if d else block
        axes[f"block.{axis}"] = op("mod", along, sizes[d]) if d + 1 < len(sizes) else along

    def moved(n: Any) -> Any:
        return axes.get(n.name) if isinstance(n, k.Builtin) else None

    kept = tuple(s for s in made.body if s is not WAIT and not (isinstance(s, k.Array) and s.space == "shared"))
    return nodes(kept, moved)


def _free(name: str, params: tuple[Tensor, ...]) -> str:
    return kernel_names.free(name, {p.name for p in params})
