"""Tensor instructions of four warps (wgmma): operands in shared memory, asynchronous matmuls.

A matmul is started, and waited for before anything else accesses its accumulator or its operand in registers.
"""

from __future__ import annotations

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import Const, Expr, Load, Var, const, names, op, select
from compiler.ir.index import simplify
from compiler.ir.launches import is_bound
from compiler.ir.linear import from_linear, linear
from compiler.ir.statement import Stmt, Store
from compiler.passes.gpu import shared_memory
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered
from compiler.passes.gpu.facts import is_asynchronous
from compiler.passes.gpu.fragments import WARP
from compiler.passes.gpu.instruction_loops import instruction_loops
from compiler.passes.gpu.scope import Scope
from compiler.targets.target import Instruction

Body = list[k.Stmt]

ROW = 16  # bytes of a row of an unswizzled operand
_TYPES = {
    "bf16": "mlc_bf16",
    "f16": "mlc_f16",
    "f32": "float",
    "i8": "signed char",
    "f8e4m3": "mlc_f8e4m3",
    "f8e5m2": "mlc_f8e5m2",
}


def multiply(state: Emission, s: tile.Mma, row: Instruction, scope: Scope) -> Body:
    """Start acc += a . b as one commit group; the accumulator is in flight afterwards."""
    acc = state.facts.fragments[s.acc.buffer]
    array = scope.registers[s.acc.buffer]
    inner = scope.inner()
    repetition = instruction_loops(state, s, row, inner)
    long, at = repetition.long, repetition.at
    repeated = {v.name for v in at.values() if isinstance(v, Var)}
    group = state.warp() // (row.threads // WARP)
    place = {
        "m": group % s.grid[0] * (long["m"] // s.grid[0]) + at["m"] * row.m,
        "n": group // s.grid[0] % s.grid[1] * (long["n"] // s.grid[1]) + at["n"] * row.n,
        "k": at["k"] * row.k,
    }

    def there(x: tile.Slice, axes: str) -> tuple[k.Address, Expr, Expr]:
        """The address where the matmuls begin, the bytes between panels, and this repetition's offset in bytes.

        Repetitions of a matmul then differ only by a sum.
        """
        held = state.shared[x.buffer]
        bytes_ = held.tensor.dtype.bytes
        if not held.swizzle and held.width * bytes_ != ROW:
            raise state.refuse(f"{x.buffer} is not swizzled: its rows must have {ROW} bytes for {row.name}")
        local = iter(place[axis] for axis in axes)
        starts = (lowered(state, e, scope) for e in x.starts)
        index = tuple(e + next(local) if n else e for e, n in zip(starts, x.lengths, strict=True))
        terms, start = linear(shared_memory.slot_offset(held, index, inner.ranges))
        moves = {e: n * bytes_ for e, n in terms.items() if names(e) <= repeated}
        begin = from_linear(({e: n for e, n in terms.items() if e not in moves}, start))
        return k.Address(held.array, begin), const(held.panel * bytes_), from_linear((moves, 0))

    first = state.matmuls.blank.pop(s.acc.buffer, None)
    accumulate: Expr = const(1)
    if first is not None:
        begins = op("eq", at["k"], const(0)) if isinstance(at["k"], Var) else op("eq", const(0), const(0))
        start = simplify(op("and", begins, first), inner.ranges, index=True)
        accumulate = const(0) if isinstance(start, Const) and start.value else select(start, const(0), const(1))
    unit = at["m"] * acc.stride("m") + at["n"] * acc.stride("n")
    target = k.Address(array, simplify(unit, inner.ranges, index=True))
    b, b_panel, b_moved = there(s.b, s.layout[1])
    b_words = (f"mlc_{s.layout[1]}", state.shared[s.b.buffer].swizzle)
    if row.a_space == "shared":
        a, a_panel, a_moved = there(s.a, s.layout[0])
        words = (row.n, _TYPES[row.a_type], f"mlc_{s.layout[0]}", state.shared[s.a.buffer].swizzle, *b_words)
        call = k.Call(row.function, words, (target, a, a_panel, b, b_panel, accumulate, a_moved, b_moved), (array,))
    else:
        left = state.facts.fragments[s.a.buffer]
        begin = at["m"] * left.stride("m") + at["k"] * left.stride("k")
        a = k.Address(scope.registers[s.a.buffer], simplify(begin, inner.ranges, index=True))
        call = k.Call(row.function, (row.n, *b_words), (target, a, b, b_panel, accumulate, b_moved), (array,))
        state.matmuls.read.add(a.buffer)
    # One fence is enough for consecutive matmuls on one accumulator; registers already in flight need not be held.
    held = 0 if array in state.matmuls.running else acc.count
    fence = k.Call("mlc_wgmma_fence", (held,), (k.Address(array, const(0)),), (array,))
    first_one = [] if state.matmuls.latest == array else [*_complete_left(state, s, row, scope), fence]
    state.matmuls.latest = array
    state.matmuls.running[array] = acc.count
    state.matmuls.groups.append(array)
    return [*first_one, *repetition.around([call]), k.Call("mlc_wgmma_commit", (), ())]


def _complete_left(state: Emission, s: tile.Mma, row: Instruction, scope: Scope) -> Body:
    """Complete an operand in registers before the first matmul."""
    if row.a_space == "shared" or row.a_type not in ("bf16", "f16"):
        return []
    a = k.Address(scope.registers[s.a.buffer], const(0))
    return [k.Call("mlc_wgmma_hold", (state.facts.fragments[s.a.buffer].count,), (a,), (a.buffer,))]


def wait_if_touched(state: Emission, s: Stmt, scope: Scope) -> Body:
    """Wait for the matmuls in flight if a statement accesses their data."""
    touched = {scope.registers.get(b, b) for b in tile.buffers((s,))}
    if is_asynchronous(state.facts.target, s):
        assert isinstance(s, tile.Mma)
        return wait_all(state) if scope.registers.get(s.a.buffer) in state.matmuls.running else []
    state.matmuls.latest = ""
    return wait_all(state) if touched & (state.matmuls.running.keys() | state.matmuls.read) else []


def wait_all(state: Emission) -> Body:
    """Wait for all matmuls in flight."""
    if not state.matmuls.running:
        return []
    out = wait_for_all_but(state, 0)
    state.matmuls.read.clear()
    state.matmuls.latest = ""
    return out


def wait_for_all_but(state: Emission, pending: int) -> Body:
    """Wait for all but the latest `pending` groups; the accumulators of the others are then complete."""
    flying = state.matmuls
    flying.groups = flying.groups[-pending:] if pending else []
    idle, flying.idle = flying.idle and not pending, False
    out: Body = [k.Call("mlc_wgmma_idle", (), ()) if idle else k.Call("mlc_wgmma_wait", (pending,), ())]
    if pending and flying.more is not None:
        # ptxas 13.0 assumes that matmuls in flight at the end of a loop are complete there: it moves reads of the
        # accumulators before the wait after the loop. So the last iteration waits for all of them.
        out = [k.If(flying.more, tuple(out), (k.Call("mlc_wgmma_wait", (0,), ()),))]
    for array in sorted(flying.running.keys() - set(flying.groups)):
        held = k.Address(array, const(0))
        out.append(k.Call("mlc_wgmma_hold", (flying.running.pop(array),), (held,), (array,)))
        if array in flying.blanked:
            out.append(flying.blanked.pop(array))
    return out


# ---- accumulators that begin at zero


def zeroed_accumulator(state: Emission, s: Stmt, after: tuple[Stmt, ...]) -> str:
    """The accumulator that a loop zeroes for the next matmul, which can start from zero itself; else ""."""
    if not isinstance(s, tile.For) or s.bind.level != "lanes":
        return ""
    stores = [n for n in s.walk() if isinstance(n, Store)]
    if len(stores) != 1 or stores[0].op != "set" or not _is_zero(stores[0].value):
        return ""
    name = stores[0].buffer
    only = len(s.body) == 1 and isinstance(s.body[0], tile.For) and s.body[0].body == (stores[0],)
    if name not in state.facts.fragments or not only:
        return ""
    user = next((x for x in after if name in tile.buffers((x,))), None)
    if is_bound(user, "pipeline"):
        runs = not isinstance(user.extent, Const) or int(user.extent.value) > 0
        inside = [x for x in user.body if name in tile.buffers((x,))]  # every iteration reaches its matmul
        user = inside[0] if runs and len(inside) == 1 else None
    if isinstance(user, tile.Mma) and is_asynchronous(state.facts.target, user) and user.acc.buffer == name:
        whole = tuple(n or 1 for n in user.acc.lengths) == state.facts.fragments[name].shape
        return name if whole and name not in (user.a.buffer, user.b.buffer) else ""
    return ""


def initialised_by(state: Emission, f: tile.For, turn: Var) -> tuple[str, ...]:
    """The accumulators that a pipeline's matmul initialises, in its first iteration, where `turn` is 0."""
    blank, used = state.matmuls.blank, tile.buffers((f,))
    begun = tuple(name for name in blank if name in used)
    blank |= dict.fromkeys(begun, op("eq", turn, const(0)))
    return begun


def zero_after_loop(state: Emission, begun: tuple[str, ...], extent: Expr, scope: Scope) -> Body:
    """Zero the accumulators after the loop that was to initialise them, if it had no iteration.

    Accumulators in flight are zeroed after the wait for their matmuls. ptxas 13.0 believes that an accumulator read
    after a loop of unknown length is read while its matmuls run (C7514), unless this selection is there: it is emitted
    even if the sizes are known to be positive.
    """
    if isinstance(extent, Const):
        return []
    out: Body = []
    for name in begun:
        array, dtype = scope.registers[name], state.facts.tiles[name].dtype
        n = Var(state.fresh("n"))
        made = select(op("lt", const(0), extent), Load(array, (n,), dtype), const(0, dtype))
        chosen = k.unrolled(n, state.facts.fragments[name].count, k.Store(array, n, made))
        if array in state.matmuls.running:
            state.matmuls.blanked[array] = chosen
        else:
            out.append(chosen)
    return out


def _is_zero(e: Expr) -> bool:
    return isinstance(e, Const) and e.value == 0
