"""Queries on pipeline loops: what runs ahead, what is prepared, what computes."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from compiler.ir import tile
from compiler.ir.expr import names
from compiler.ir.launches import is_bound
from compiler.ir.statement import Let, Stmt, Store, within
from compiler.passes.gpu.fragments import WARP


def is_specialised(s: Stmt) -> bool:
    """Whether a statement is a pipeline with producer warps."""
    return is_bound(s, "pipeline") and dict(s.bind.args).get("producers", 0) > 0


def has_producers(body: tuple[Stmt, ...]) -> bool:
    return any(map(is_specialised, within(body)))


def preparing_threads(f: tile.For) -> int:
    """The number of threads that prepare copied tiles: those of all producer warps but one."""
    return (dict(f.bind.args).get("producers", 1) - 1) * WARP if is_specialised(f) else 0


def prepare_statements(f: tile.For) -> tuple[Stmt, ...]:
    """The statements that these threads execute before the matmuls."""
    return tuple(n for s in f.body if isinstance(s, tile.Stage) and s.role == "prepare" for n in s.body)


def producer_warps(pipes: Iterable[tile.For]) -> int:
    """The number of warps of a block that do not compute."""
    return max(dict(f.bind.args)["producers"] if prepare_statements(f) else 1 for f in pipes)


def computed_from(body: tuple[Stmt, ...], needed: set[str], kept: Collection[Stmt] = ()) -> list[Stmt]:
    """The values of a body that `needed` depends on, and the statements `kept`, in order."""
    out: list[Stmt] = []
    for s in reversed(body):
        if isinstance(s, Let) and s.name in needed:
            needed = needed | names(s.value)
        elif s not in kept:
            continue
        out.insert(0, s)
    return out


def split(f: tile.For) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """The statements that run ahead (copies with the values that they need), and those of computing threads.

    Values are computed on both sides.
    """
    ahead = [n for s in f.body if isinstance(s, tile.Stage) and s.role == "copy" for n in s.body]
    lets = computed_from(f.body, set().union(*(names(s) for s in ahead)))
    rest = tuple(s for s in f.body if not isinstance(s, tile.Stage))
    return (*lets, *ahead) if ahead else (), rest


def can_join_pipeline(s: tile.Copy, after: tuple[Stmt, ...]) -> bool:
    """Whether a copy can join the first copies of a pipeline that follows, and nothing after that needs its target."""
    match after:
        case (tile.For(bind=tile.Bind(level="pipeline")) as f, *others):
            return bool(split(f)[0]) and s.target.buffer not in tile.buffers(tuple(others))
    return False


def slotted_tiles(f: tile.For, kernel: str) -> frozenset[str]:
    """The tiles with one copy per slot of a pipeline: those that it copies ahead, and those prepared from them."""
    copied, _ = split(f)
    used = frozenset(c.target.buffer for c in copied if isinstance(c, tile.Copy))
    own = {s.tensor.name for s in f.body if isinstance(s, tile.Alloc)}
    if not used or not used <= own or any(isinstance(c, tile.Copy) and c.how != "tma" for c in copied):
        raise ValueError(
            f"kernel {kernel}: the producers of {f.var} copy nothing by tma, or to tiles from outside of it"
        )
    return used | {n.buffer for n in within(prepare_statements(f), Store) if n.buffer in own}


def slot_counts(f: tile.For, kernel: str) -> dict[str, int]:
    """The tiles of which a pipeline has several copies, and their number."""
    depth = dict(f.bind.args).get("depth", 1)
    if is_specialised(f):
        return dict.fromkeys(slotted_tiles(f, kernel), depth)
    return {s.target.buffer: depth for s in split(f)[0] if isinstance(s, tile.Copy)}


def has_overlap(f: tile.For) -> bool:
    """Whether the last matmul of an iteration overlaps the next iteration."""
    return bool(dict(f.bind.args).get("overlap"))


def without_tiles(rest: tuple[Stmt, ...], used: frozenset[str]) -> tuple[Stmt, ...]:
    """The statements without the allocations of the pipeline's own tiles."""
    return tuple(s for s in rest if not (isinstance(s, tile.Alloc) and s.tensor.name in used))
