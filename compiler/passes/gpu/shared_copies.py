"""Deduplicate functions that make the same temporary from the same buffers; only the first stays.

Each kernel copies its operands as its tiles need them: a gradient that two matmuls read is copied twice in the same
way. If its source has not changed in between, the second matmul can read the first one's copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from compiler.ir import isomorphism
from compiler.ir import kernel as k


def shared_copies(program: k.Program) -> k.Program:
    """Remove duplicate functions and their temporaries."""
    writers = Counter(w for f in program.functions for w in f.writes)
    own = {t.name for t in program.temps if writers[t.name] == 1} - set(program.zeros)
    kept: list[k.Function] = []
    first_by_key: dict[Hashable, int] = {}
    replacements: dict[str, str] = {}
    for n, f in enumerate(program.functions):
        f = _redirect_reads(f, replacements)
        key = _key(f) if f.writes and own.issuperset(f.writes) and not f.exchanged else None
        place = first_by_key.get(key) if key is not None else None
        if place is not None and not _is_source_changed(f, kept[place + 1 :]):
            table = {a.name: b.name for a, b in zip(f.params, kept[place].params, strict=True) if a.name in f.writes}
            if not _has_name_clash(program.functions[n + 1 :], table, replacements):
                replacements |= table
                continue
        if key is not None:
            first_by_key[key] = len(kept)
        kept.append(f)
    if not replacements:
        return program
    temps = tuple(t for t in program.temps if t.name not in replacements)
    return program.replace(functions=tuple(kept), temps=temps)


def _key(f: k.Function) -> Hashable:
    """A key equal for functions that do the same to the same buffers, apart from what they write."""
    return isomorphism.shape_of(f), tuple(p.name for p in f.params if p.name not in f.writes)


def _is_source_changed(f: k.Function, since: Sequence[k.Function]) -> bool:
    """Whether one of these functions writes what `f` reads."""
    read = {p.name for p in f.params} - set(f.writes)
    return any(read & set(g.writes) for g in since)


def _has_name_clash(later: Sequence[k.Function], table: Mapping[str, str], replacements: Mapping[str, str]) -> bool:
    """Whether a function would have two parameters, or a parameter and a variable, of the same name."""
    for f in later:
        params = {p.name for p in f.params}
        new = {table[name] for name in params & table.keys()}
        if new & (isomorphism.names(f).keys() | {replacements.get(name, name) for name in params}):
            return True
    return False


def _redirect_reads(f: k.Function, replacements: Mapping[str, str]) -> k.Function:
    """The function reading the remaining temporaries instead of the removed ones."""
    table = {p.name: replacements[p.name] for p in f.params if p.name in replacements}
    if not table:
        return f
    made: k.Function = isomorphism.renamed(f, table)
    isomorphism.same_shape(made, f)
    return made
