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
from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.expr import Const, both, const, op, static
from compiler.ir.rewrite import nodes
from compiler.ir.statement import Let
from compiler.ir.tensor import Tensor, known_bytes
from compiler.passes.gpu.dependent_launch import WAIT, overlaps

SHORT_BYTES = 10 << 20  # bytes that a function reads and writes, at most: it runs about as long as it takes to start
MOST_FUNCTIONS = 24  # functions per launch, to limit its parameters and text
MOST_LAUNCHES_AHEAD = 8  # launches by which a function may be moved ahead: its results live that much longer
MOST_SHARED_BYTES = 16 << 10  # bytes of shared memory, which all blocks of the launch then have
_PLAIN = (Let, k.Declare, k.Assign, k.Store, k.For, k.If, k.Array)
_MOVES = ("mlc_load", "mlc_store")


def shared_launches(program: k.Program) -> k.Program:
    """Move functions of inputs alone to the front, in few launches, followed by functions of their results."""
    writers = Counter(w for f in program.functions for w in f.writes)
    inputs = {t.name for t in program.inputs}
    available = inputs - writers.keys()
    written_once = {name for name, count in writers.items() if count == 1} - set(program.zeros)
    # A function that writes an input is not moved to the front: it must stay after all that read it.
    own = written_once - inputs
    front, left = list[k.Function](), list(program.functions)
    for _ in range(2):
        ready = [f for f in left if _is_short(f, available, own)]
        left = [f for f in left if f not in ready]
        available = available | {w for f in ready for w in f.writes}
        front += _merge_independent(ready, [f.name for f in (*front, *program.functions)])
    left = _merge_with_earlier(left, written_once, [f.name for f in (*front, *program.functions)])
    if len(front) + len(left) == len(program.functions):
        return program
    return program.replace(functions=(*front, *left))


def _merge_with_earlier(functions: list[k.Function], written_once: set[str], taken: list[str]) -> list[k.Function]:
    """Merge each function, in order, with the nearest group before it that it is independent of."""
    groups: list[list[k.Function]] = []
    plain = {f.name for f in functions if _is_plain(f, written_once)}
    for f in functions:
        place = _find_group(groups, f, plain) if f.name in plain else None
        if place is None:
            groups.append([f])
        else:
            groups[place].append(f)
    return [_merge(some, taken) if len(some) > 1 else some[0] for some in groups]


def _find_group(groups: list[list[k.Function]], f: k.Function, plain: set[str]) -> int | None:
    """The last group of `plain` functions that `f` may join: it waits neither for that nor for later ones; or None."""
    for n in range(len(groups) - 1, max(len(groups) - 1 - MOST_LAUNCHES_AHEAD, -1), -1):
        some = groups[n]
        if any(_must_wait(before, f) for before in some):
            return None
        if some[0].name not in plain or _launch_kind(some[0]) != _launch_kind(f) or len(some) == MOST_FUNCTIONS:
            continue
        *shorter, _ = sorted(sum(map(known_bytes, x.params)) for x in (*some, f))
        if sum(shorter) <= SHORT_BYTES:
            return n
    return None


def _must_wait(before: k.Function, f: k.Function) -> bool:
    """Whether a function has to wait for an earlier one."""
    mine, theirs = {p.name for p in f.params}, {p.name for p in before.params}
    return not mine.isdisjoint(before.writes) or not theirs.isdisjoint(f.writes)


def _merge_independent(ready: list[k.Function], taken: list[str]) -> list[k.Function]:
    """Merge independent functions into as few launches as possible."""
    kinds: dict[Hashable, list[k.Function]] = {}
    for f in ready:
        kinds.setdefault(_launch_kind(f), []).append(f)
    parts = [some[n : n + MOST_FUNCTIONS] for some in kinds.values() for n in range(0, len(some), MOST_FUNCTIONS)]
    return [_merge(some, taken) if len(some) > 1 else some[0] for some in parts]


def _launch_kind(f: k.Function) -> Hashable:
    """The properties that functions of one launch must share."""
    return f.block, *{(a.dtype, a.align) for a in _shared_arrays(f)}


def _is_short(f: k.Function, available: set[str], own: set[str]) -> bool:
    """Whether a function is short and plain and reads only what is `available`."""
    read = {p.name for p in f.params} - set(f.writes)
    return bool(read) and read <= available and sum(map(known_bytes, f.params)) <= SHORT_BYTES and _is_plain(f, own)


def _is_plain(f: k.Function, own: set[str]) -> bool:
    """Whether a function writes only `own`, which no other function writes, and its blocks are independent."""
    plain = f.block and f.cluster == 1 and not f.maps and not f.exchanged and all(isinstance(n, Const) for n in f.grid)
    if not plain or not own.issuperset(f.writes):
        return False
    if len(_shared_arrays(f)) > 1 or any(a.align > 128 for a in _shared_arrays(f)):
        return False
    return (
        all(map(_is_local_to_block, f.body))
        and sum(a.size * a.dtype.bytes for a in _shared_arrays(f)) <= MOST_SHARED_BYTES
    )


def _is_local_to_block(s: k.Stmt) -> bool:
    """Whether a statement involves only the threads of one block."""
    for n in s.walk():
        match n:
            case k.Call(function) if n is not WAIT and not function.startswith(_MOVES):
                return False
            case k.Barrier(scope) if scope != "block":
                return False
            case k.Peer():
                return False
            case k.Stmt() if not isinstance(n, (*_PLAIN, k.Call, k.Barrier)):
                return False
    return True


def _shared_arrays(f: k.Function) -> list[k.Array]:
    return [s for s in f.body if isinstance(s, k.Array) and s.space == "shared"]


def _merge(functions: list[k.Function], taken: Iterable[str]) -> k.Function:
    """A launch with the blocks of all functions, one function after the other."""
    params = tuple({p.name: p for f in functions for p in f.params}.values())
    arrays = [a for f in functions for a in _shared_arrays(f)]
    tile = max(arrays, key=lambda a: a.size).replace(name=_free_name("tile", params)) if arrays else None
    body: list[k.Stmt] = [] if tile is None else [tile]
    body += [WAIT] if any(map(overlaps, functions)) else []
    begin = 0
    for n, f in enumerate(functions):
        blocks = math.prod(map(static, f.grid))
        here = k.Builtin("block.x")
        mine = both(op("ge", here, const(begin)), op("lt", here, const(begin + blocks)))
        body.append(k.If(mine, _branch_body(f, n, begin, params, tile)))
        begin += blocks
    name = kernel_names.free(f"{functions[0].name}_and_{len(functions) - 1}_more", set(taken))
    origin = kernel_names.joined(*(f.origin for f in functions))
    writes = tuple(w for f in functions for w in f.writes)
    return functions[0].replace(
        name=name, params=params, writes=writes, body=tuple(body), grid=(const(begin),), origin=origin, schedule="",
    )  # fmt: skip


def _branch_body(
    f: k.Function, number: int, begin: int, params: tuple[Tensor, ...], tile: k.Array | None
) -> tuple[k.Stmt, ...]:
    """The body of a function with its variables renamed, for blocks from `begin` on."""
    own = {p.name for p in f.params}
    table = {name: _free_name(f"{name}_{number}", params) for name in isomorphism.names(f) if name not in own}
    table |= {a.name: tile.name for a in _shared_arrays(f) if tile is not None}
    made: k.Function = isomorphism.renamed(f, table)
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


def _free_name(name: str, params: tuple[Tensor, ...]) -> str:
    return kernel_names.free(name, {p.name for p in params})
