"""Structural identity of kernels up to names, for Loop, Tile and Kernel IR, and a kernel as a program of its own."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any
from weakref import WeakKeyDictionary

from compiler.ir import kernel as k
from compiler.ir import loop, loop_text, tile
from compiler.ir.expr import Load, Var, fresh
from compiler.ir.node import Node, mapped
from compiler.ir.roles import Advance, Mbarrier, Mbarriers, Ring
from compiler.ir.statement import Accum, Init, InOrder, Kernel, Let, Program, Store
from compiler.ir.tensor import Tensor

# The fields of each class that hold names of buffers and variables: a name or a tuple of names.
_NAME_FIELDS: Mapping[type, tuple[str, ...]] = {
    Tensor: ("name",), Load: ("buffer",), Var: ("name",),
    Kernel: ("writes", "once", "past"), Let: ("name",), Init: ("name",), Accum: ("name",), Store: ("buffer",),
    InOrder: ("turn", "var"),
    loop.For: ("var",), tile.For: ("var",), tile.Slice: ("buffer",),
    Mbarrier: ("array",), Mbarriers: ("name",), Ring: ("slot", "phase", "tiles"), Advance: ("slot", "phase", "last"),
    k.Function: ("writes", "exchanged"), k.Array: ("name",), k.Declare: ("name",), k.Assign: ("name",),
    k.For: ("var",), k.Store: ("buffer",), k.Gather: ("buffer",), k.Address: ("buffer",), k.Peer: ("buffer",),
    k.Together: ("scratch",), k.Map: ("name",), k.TensorMap: ("name", "buffer"), k.Call: ("writes",),
}  # fmt: skip


def names(node: Node) -> Mapping[str, str]:
    """The names in a kernel, in order of occurrence, each with the name that it has in all kernels of this shape."""
    found = _names.get(node)
    if found is None:
        every = dict.fromkeys(name for n in node.walk() for name in _own_names(n))
        found = _names[node] = MappingProxyType({name: f"n{i}" for i, name in enumerate(every)})
    return found


_names: WeakKeyDictionary[Node, Mapping[str, str]] = WeakKeyDictionary()


def renamed(node: Any, table: Mapping[str, str]) -> Any:
    """`node` with the names in `table` replaced, all at once."""
    changed = {a for a, b in table.items() if a != b}
    done: dict[Node, Node] = {}

    def go(n: Node) -> Node:
        copy = done.get(n)
        if copy is None:
            named = _NAME_FIELDS.get(type(n))
            if _names_in(n).isdisjoint(changed):
                copy = n
            elif named is None:
                copy = n.map(go)
            else:
                fields = ((f in named, getattr(n, f)) for f in type(n).fields)
                copy = type(n)(*(_replace_names(v, table) if names else mapped(v, go) for names, v in fields))
            done[n] = copy
        return copy

    return go(node)


def free_name(kernel: Kernel, name: str) -> Kernel:
    """The kernel with its own variable of this name, if it has one, renamed, so that a buffer may have the name."""
    if name not in names(kernel) or any(p.name == name for p in kernel.params):
        return kernel
    made: Kernel = renamed(kernel, {name: fresh(name, {*names(kernel)})})
    return made


@functools.lru_cache(maxsize=1 << 14)
def _names_in(node: Node) -> frozenset[str]:
    """The names that occur in a node."""
    return frozenset(_own_names(node)).union(*map(_names_in, node.below))


def shape_of(node: Kernel | k.Function) -> Node:
    """The kernel or function with canonical names: the same object for all that differ only in names."""
    found = _shapes.get(node)
    if found is None:
        cleared = {"name": "", "origin": ()} | ({"schedule": ""} if isinstance(node, k.Function) else {"whole": ""})
        found = _shapes[node] = renamed(node.replace(**cleared), names(node))
    return found


def same_shape(made: Kernel | k.Function, source: Kernel | k.Function) -> None:
    """Record that `made` is `source` under other names, so that its shape need not be computed."""
    if source in _shapes:
        _shapes[made] = _shapes[source]


_shapes: WeakKeyDictionary[Node, Node] = WeakKeyDictionary()


def firsts(functions: Iterable[k.Function]) -> dict[str, str]:
    """For each function name, the name of the first function that differs from it only in names."""
    seen: dict[Node, str] = {}
    return {f.name: seen.setdefault(shape_of(f), f.name) for f in functions}


def _own_names(n: Node) -> Iterator[str]:
    for field in _NAME_FIELDS.get(type(n), ()):
        value = getattr(n, field)
        yield from (value,) if isinstance(value, str) else value


def _replace_names(value: str | tuple[str, ...], table: Mapping[str, str]) -> str | tuple[str, ...]:
    if isinstance(value, str):
        return table.get(value, value)
    return tuple(table.get(v, v) for v in value) if any(v in table for v in value) else value


def alone(program: Program, kernel: Kernel) -> Program:
    """The kernel as a program: inputs are what it reads, outputs what it writes, temporaries its private ones."""
    users = Counter(p.name for k in program.kernels for p in k.params)
    own = {t.name for t in program.temps if users[t.name] == 1}
    visible = [p for p in kernel.params if p.name not in own]
    return Program(
        kernel.name,
        tuple(p for p in visible if p.name not in kernel.writes),
        tuple(p for p in visible if p.name in kernel.writes),
        tuple(p for p in kernel.params if p.name in own),
        (kernel,),
        program.sizes,
    )


def key(program: Program) -> str:
    """The digest of a program of one kernel; equal for programs that differ only in names."""
    (kernel,) = program.kernels
    cleared = program.replace(name="f", kernels=(kernel.replace(name="kernel", origin=(), whole=""),))
    text = loop_text.show(renamed(cleared, names(kernel)))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
