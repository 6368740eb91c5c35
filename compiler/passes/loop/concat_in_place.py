"""Compute the parts of a concatenation in place instead of copying them together (Loop IR to Loop IR).

The gradient of a split is an example: a sum of parts of which all but one are zero. The producer of each part stores it
in the whole, and the kernel that assembles them is removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from compiler.analysis.nests import perfect, store_after_lets
from compiler.ir import loop
from compiler.ir.expr import Cast, Expr, Load, Select, Var, cast, const, dim, loads, substitute
from compiler.ir.isomorphism import free_name
from compiler.ir.rewrite import statements
from compiler.ir.statement import Kernel, Program, Store
from compiler.ir.tensor import Tensor
from compiler.passes.loop.forward_copies import is_written_once_read_once
from compiler.passes.loop.narrow import selecting_index, terms


@dataclass(frozen=True)
class _Part:
    """The temporary read by `load` is part `number` along `axis` of a whole; `term` selects it in the stored value."""

    load: Load
    axis: Var
    number: int
    term: Select


def concat_in_place(program: Program) -> Program:
    """Remove each kernel that assembles parts, if one kernel makes each part and no other reads it."""
    if program.sizes:
        return program
    for k in program.kernels:
        found = _match_assembly(program, k)
        if found is not None:
            program = _store_parts_in_place(program, k, *found)
    return program


def _match_assembly(program: Program, k: Kernel) -> tuple[Store, list[_Part]] | None:
    """The store of a kernel that only assembles parts, with its lets inlined, and the parts; None for other kernels."""
    loops, body = perfect(loop.For, k.body)
    store = store_after_lets(body)
    if store is None or store.op != "set" or k.writes != (store.buffer,):
        return None
    value = store.value.arg if isinstance(store.value, Cast) else store.value
    selected = [term for term in terms(value, {}) if isinstance(term, Select)]
    found = selecting_index(terms(value, {}))
    if found is None or any(len(loads(term)) != 1 for term in selected):
        return None
    axis, numbers = found
    extents: dict[Expr, Expr] = {Var(f.var): f.extent for f in loops}
    if extents.get(axis) is not dim(len(numbers)) or set(numbers) != set(range(len(numbers))):
        return None
    if set(store.index) != set(extents) or len(store.index) != len(extents) or store.index[-1] is axis:
        return None
    pieces = [_Part(loads(term)[0], axis, number, term) for term, number in zip(selected, numbers, strict=True)]
    if not all(
        is_written_once_read_once(program, k, part.load.buffer) and _covers_temporary(part, store, extents, k)
        for part in pieces
    ):
        return None
    return (store, pieces) if len({p.load.buffer for p in pieces}) == len(pieces) else None


def _covers_temporary(part: _Part, store: Store, extents: Mapping[Expr, Expr], k: Kernel) -> bool:
    """Whether a part reads its whole temporary, along the other axes of the whole, with the same last axis."""
    index = part.load.index
    shape = next(p.shape for p in k.params if p.name == part.load.buffer)
    others = extents.keys() - {part.axis}
    whole = tuple(extents.get(v) for v in index)
    return set(index) == others and len(index) == len(others) and whole == shape and index[-1] is store.index[-1]


def _store_parts_in_place(program: Program, k: Kernel, store: Store, pieces: list[_Part]) -> Program:
    whole = next(p for p in k.params if p.name == store.buffer)
    kernels = [x for x in program.kernels if x is not k]
    for part in pieces:
        kernels = [
            _store_to_whole(x, store, part, pieces, whole) if part.load.buffer in x.writes else x for x in kernels
        ]
    removed = {p.load.buffer for p in pieces}
    return program.replace(kernels=tuple(kernels), temps=tuple(t for t in program.temps if t.name not in removed))


def _store_to_whole(k: Kernel, store: Store, part: _Part, pieces: list[_Part], whole: Tensor) -> Kernel:
    """The kernel with stores to its part of the whole instead of to the temporary."""
    name, k = part.load.buffer, free_name(k, whole.name)

    def rule(s: Any) -> Store | None:
        if not isinstance(s, Store) or s.buffer != name:
            return None
        place: dict[Expr, Expr] = dict(zip(part.load.index, s.index, strict=True)) | {part.axis: dim(part.number)}
        part_value = substitute(part.term.then, {part.load: cast(s.value, part.load.dtype)})
        zeros: dict[Expr, Expr] = {p.term: const(0.0, p.term.dtype) for p in pieces if p is not part}
        value = substitute(store.value, zeros | {part.term: part_value})
        return Store(store.buffer, tuple(substitute(i, place) for i in store.index), value)

    def named(p: Tensor) -> Tensor:
        return whole if p.name == name else p

    params = tuple(dict.fromkeys(map(named, k.params)))
    writes = tuple(dict.fromkeys(store.buffer if w == name else w for w in k.writes))
    return k.replace(params=params, writes=writes, body=statements(k.body, rule))
