"""Deduplicate kernels: kernels that differ only in names share one schedule and are lowered once.

`Kinds` partitions the kernels of a Loop IR program into equivalence classes (kinds). The results of a kind are renamed
for each of its kernels and cached for later programs.
"""

from __future__ import annotations

import re
import threading
from collections import Counter, OrderedDict
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass

from compiler.ir import isomorphism
from compiler.ir import kernel as k
from compiler.ir.statement import Kernel, Program
from compiler.ir.tensor import Tensor
from compiler.passes.tile.fresh_names import rename_schedule
from compiler.schedule.steps import Schedule, show

REMEMBERED = 512  # kinds that are cached


@dataclass(frozen=True)
class Lowered:
    """The result of lowering one kernel, possibly as several launches.

    `temps` are the kernel's own temporaries that remain and those that its schedule added. `parts` are temporaries that
    exist only in Kernel IR; those of them that start as zeros are in `zeros` instead. `given_up` is the reason why a
    simpler schedule replaced the chosen one, or empty.
    """

    source: Kernel
    schedule: Schedule
    given_up: str
    tiles: tuple[Kernel, ...]
    functions: tuple[k.Function, ...]
    temps: tuple[Tensor, ...]
    parts: tuple[Tensor, ...]
    zeros: tuple[Tensor, ...]


_known: OrderedDict[Hashable, Lowered] = OrderedDict()
_lock = threading.Lock()


def forget_kernels() -> None:
    """Clear the cache of lowered kernels: a cached kernel keeps names of the program that it came from inside it.

    The next program is then lowered as in a fresh process.
    """
    with _lock:
        _known.clear()


class Kinds:
    """The kinds of kernels of a program.

    `by` holds everything besides the kernel itself that its lowering depends on. A kernel named in `scheduled` has a
    schedule of its own and is a kind by itself. `firsts` has one kernel of each kind that is not cached yet.
    """

    def __init__(self, whole: Program, by: Hashable, scheduled: Collection[str]) -> None:
        users = Counter(p.name for kernel in whole.kernels for p in kernel.params)
        self.own = {t.name for t in whole.temps if users[t.name] == 1}
        results = {t.name for t in whole.outputs}
        self.whole = whole
        self.of: dict[str, Hashable] = {}
        self.lowered: dict[Hashable, Lowered] = {}
        firsts: dict[Hashable, Kernel] = {}
        for kernel in whole.kernels:
            roles = tuple("own" if p.name in self.own else p.name in results for p in kernel.params)
            kind = kernel.name if kernel.name in scheduled else (isomorphism.shape_of(kernel), roles, whole.sizes, by)
            self.of[kernel.name] = kind
            with _lock:
                if kind in _known:
                    _known.move_to_end(kind)
                    self.lowered[kind] = _known[kind]
                else:
                    firsts.setdefault(kind, kernel)
        self.firsts = firsts

    def alone(self, kernel: Kernel) -> Program:
        """Return a program of this kernel only; temporaries that it shares with other kernels become inputs."""
        whole, params = self.whole, {p.name for p in kernel.params}
        shared = (t for t in whole.temps if t.name in params - self.own)
        return whole.replace(
            kernels=(kernel,),
            inputs=(*(t for t in whole.inputs if t.name in params), *shared),
            outputs=tuple(t for t in whole.outputs if t.name in params),
            temps=tuple(t for t in whole.temps if t.name in self.own & params),
        )

    def note(
        self, kind: Hashable, tiles: Program, kernels: k.Program | None, schedule: Schedule, given_up: str
    ) -> None:
        """Record the result of lowering a kind by itself. `kernels` is None if lowering stopped at Tile IR."""
        source = self.firsts[kind]
        functions = kernels.functions if kernels is not None else ()
        known = {t.name for t in tiles.temps}
        later = [t for t in kernels.temps if t.name not in known] if kernels is not None else []
        zeros = tuple(t for t in later if kernels is not None and t.name in kernels.zeros)
        parts = tuple(t for t in later if t not in zeros)
        self.lowered[kind] = Lowered(source, schedule, given_up, tiles.kernels, functions, tiles.temps, parts, zeros)

    def remember(self) -> None:
        """Cache the lowered kernels of this program for later ones; called after all passes."""
        with _lock:
            for kind, made in self.lowered.items():
                if made.functions and not isinstance(kind, str):
                    _known[kind] = made
            while len(_known) > REMEMBERED:
                _known.popitem(last=False)

    def everything(self) -> dict[str, Lowered]:
        """Return the result for each kernel of the whole program, by its name."""
        whole = self.whole
        taken = {t.name for t in (*whole.inputs, *whole.outputs, *whole.temps)}
        return {x.name: _rename_result(self.lowered[self.of[x.name]], x, taken, whole) for x in whole.kernels}


def tiles_of(whole: Program, lowered: Mapping[str, Lowered]) -> Program:
    """Assemble the whole program in Tile IR."""
    private = {p.name for x in lowered.values() for p in x.source.params}
    left = {t.name: t for x in lowered.values() for t in x.temps}
    users = Counter(p.name for kernel in whole.kernels for p in kernel.params)
    kept = [left.get(t.name, t) for t in whole.temps if users[t.name] != 1 or t.name in left]
    made = [t for t in left.values() if t.name not in private]
    kernels = tuple(kernel for x in lowered.values() for kernel in x.tiles)
    return whole.replace(kernels=kernels, temps=(*kept, *made))


def functions_of(tiles: Program, lowered: Mapping[str, Lowered]) -> k.Program:
    """Assemble the whole program in Kernel IR."""
    parts = (t for x in lowered.values() for t in x.parts)
    zeros = tuple(t for x in lowered.values() for t in x.zeros)
    functions = tuple(f for x in lowered.values() for f in x.functions)
    return k.Program(
        tiles.name, tiles.inputs, tiles.outputs, (*tiles.temps, *parts, *zeros), functions, tiles.sizes,
        tuple(t.name for t in zeros),
    )  # fmt: skip


def _rename_result(found: Lowered, kernel: Kernel, taken: set[str], whole: Program) -> Lowered:
    """Rename a result for another kernel of its kind. Names of new temporaries avoid `taken` and are added to it."""
    table = dict(zip(isomorphism.names(found.source), isomorphism.names(kernel), strict=True))
    temps = (*found.temps, *found.parts, *found.zeros)
    new = [t.name for t in temps if t.name not in table]
    table |= _choose_names(new, table, taken)
    taken |= {table[name] for name in new}
    if kernel is found.source and all(a == b for a, b in table.items()):
        return found
    sizes = {s.name for s in whole.sizes}

    def choose_names(names: Iterable[str], known: dict[str, str]) -> dict[str, str]:
        return _choose_names(names, known, {*known.values(), *sizes})

    schedule, inner = rename_schedule(found.schedule, table, choose_names)
    inner |= choose_names((name for x in found.tiles for name in isomorphism.names(x)), inner)
    text = show(schedule)

    def kernel_name(x: Kernel | k.Function) -> str:
        return kernel.name + x.name.removeprefix(found.source.name)

    tiles = tuple(
        isomorphism.renamed(x, inner).replace(
            name=kernel_name(x), origin=kernel.origin, whole=kernel.name if x.whole else ""
        )
        for x in found.tiles
    )
    functions = []
    for f in found.functions:
        isomorphism.shape_of(f)  # computed once for all functions renamed from it
        params = {p.name: table[p.name] for p in f.params}
        params |= _choose_names(isomorphism.names(f), params, {*params.values(), *sizes}, whole_names_only=True)
        made = isomorphism.renamed(f, params)
        made = made.replace(name=kernel_name(f), origin=kernel.origin, schedule=text if f.schedule else "")
        isomorphism.same_shape(made, f)
        functions.append(made)
    temps, parts, zeros = (
        tuple(isomorphism.renamed(t, table) for t in x) for x in (found.temps, found.parts, found.zeros)
    )
    return Lowered(kernel, schedule, found.given_up, tiles, tuple(functions), temps, parts, zeros)


def under(schedule: Schedule, source: Kernel, kernel: Kernel) -> Schedule:
    """Rename a schedule of `source` for a kernel that differs only in names. Raises ValueError for other kernels."""
    table = dict(zip(isomorphism.names(source), isomorphism.names(kernel), strict=True))
    return rename_schedule(schedule, table, lambda names, known: _choose_names(names, known, {*known.values()}))[0]


def _choose_names(
    names: Iterable[str], table: Mapping[str, str], taken: Collection[str], whole_names_only: bool = False
) -> dict[str, str]:
    """Choose names for those `names` that are not in `table`.

    Names of `table` that occur within a name are replaced too, unless `whole_names_only`. The new names differ from
    each other and from those in `taken`.
    """
    new = [name for name in dict.fromkeys(names) if name not in table]
    if not new:
        return {}
    changed = sorted((a for a, b in table.items() if a != b and not whole_names_only), key=len, reverse=True)
    inside = re.compile(f"(?<![A-Za-z])(?:{'|'.join(map(re.escape, changed))})") if changed else None
    used = set(taken)
    out: dict[str, str] = {}
    for name in new:
        made = inside.sub(lambda found: table[found[0]], name) if inside is not None else name
        while made in used:
            made += "_"
        out[name] = made
        used.add(made)
    return out
