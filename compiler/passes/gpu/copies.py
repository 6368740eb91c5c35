"""Copies between global and shared memory by all threads of a block, in pieces as wide as both sides allow.

Elements outside the source become zero; elements outside the target are not written.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.analysis import access
from compiler.analysis.copies import BY_THREADS, row_axis, row_of_pieces
from compiler.analysis.copies import pieces as counted
from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import STORAGE_ONLY
from compiler.ir.expr import Const, Expr, Var, both, const, op, select
from compiler.ir.index import simplify
from compiler.ir.multiples import divides
from compiler.ir.tensor import Tensor
from compiler.passes.gpu import mma, tma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import address, array_of, is_constant, lowered, offset_in
from compiler.passes.gpu.scope import THREAD, Scope

Body = list[k.Stmt]


@dataclass(frozen=True)
class _Piece:
    """A piece of a copy: where it begins on both sides, and whether that is within the buffers."""

    target: Expr
    source: Expr
    inside_target: Expr
    inside_source: Expr
    left: Expr  # elements from its beginning to the end of the source's row


def copy(state: Emission, s: tile.Copy, scope: Scope) -> Body:
    """Emit a copy."""
    if s.target.buffer in state.facts.fragments:
        return mma.load_fragment(state, s, scope)
    if s.how == "tma":
        if not state.facts.specialised:
            raise state.refuse("a tensor copy stands in no kernel with producers")
        if s.full is None and s.target.buffer in state.shared:
            raise state.refuse(f"no mbarrier is told of the tensor copy to {s.target.buffer}")
        if s.full is not None:
            return tma.load(state, s, address(state, s.full, scope), scope)
        return tma.store(state, s, scope)
    return pieces(state, s, scope)


def pieces(state: Emission, s: tile.Copy, scope: Scope) -> Body:
    """The loop over the pieces of a copy that each thread moves."""
    if s.how not in BY_THREADS:
        raise state.refuse(f"a {s.how} copy to {s.target.buffer} outside of its place")
    size, width, threads = scope.buffers[s.source.buffer].dtype.bytes, s.width, scope.role.threads
    row, count = row_of_pieces(s, size), counted(s, size)
    total_rounds = -(-count // threads)
    rounds = s.rounds or total_rounds
    inner = scope.inner(level="thread")
    turn = Var(state.fresh("turn"))
    inner.ranges[turn.name] = (0, rounds - 1)
    first = Var(state.fresh("first")) if total_rounds > rounds else const(0)
    if isinstance(first, Var):
        inner.ranges[first.name] = (0, total_rounds - 1)
    at = first + turn if rounds > 1 else first
    thread = state.once("thread", THREAD, threads)
    number = thread + at * threads
    body = _move_piece(state, s, _piece(state, s, number, width, row, inner), width, inner)
    if row is not None:
        inside_row = op("lt", number % row, const(tile.extents(s.target)[-1]))
        body = [k.If(simplify(inside_row, inner.ranges, index=True), tuple(body))]
    if count % (threads * rounds):
        inside = simplify(op("lt", number, const(count)), inner.ranges, index=True)
        body = [k.If(inside, tuple(body))]
    if rounds > 1:
        body = [k.unrolled(turn, rounds, *body)]
    return [k.For(first.name, const(0), const(total_rounds), rounds, tuple(body))] if isinstance(first, Var) else body


def _piece(state: Emission, s: tile.Copy, number: Expr, width: int, row: int | None, scope: Scope) -> _Piece:
    """Piece `number` of a copy in row-major order; `row` is the number of pieces per row, if given."""
    places, insides = [], []
    index: tuple[Expr, ...] = ()
    for x in (s.target, s.source):
        index = index_of(state, x, _index_in_slice(x, number, width, row), scope)
        insides.append(_is_in_bounds(x, index, scope, state))
        places.append(_flat_offset(state, x.buffer, index, scope))
    axis = row_axis(s.source)
    end, last = (const(1), const(0)) if axis is None else (scope.buffers[s.source.buffer].shape[axis], index[axis])
    left = simplify(lowered(state, end, scope) - last, scope.ranges, index=True)
    return _Piece(places[0], places[1], insides[0], insides[1], left)


def _index_in_slice(s: tile.Slice, number: Expr, width: int, row: int | None) -> list[Expr]:
    """The index of piece `number` along the axes of a slice."""
    long = tile.extents(s)
    if not long:
        return []
    local: list[Expr] = []
    rest, parts = number, [*long[:-1], row or long[-1] // width]
    for n in reversed(parts[1:]):
        local.insert(0, rest % n)
        rest = rest // n
    local.insert(0, rest)
    local[-1] = local[-1] * width
    return local


def index_of(state: Emission, s: tile.Slice, local: list[Expr], scope: Scope) -> tuple[Expr, ...]:
    """The index of an element in the buffer, given its index along the slice's axes."""
    lowered_slice = s.replace(starts=tuple(lowered(state, e, scope) for e in s.starts))
    return tuple(simplify(e, scope.ranges, index=True) for e in tile.element(lowered_slice, local))


def _flat_offset(state: Emission, buffer: str, index: tuple[Expr, ...], scope: Scope) -> Expr:
    if buffer in state.shared:
        return offset_in(state, state.shared[buffer], index, scope)
    return access.address(index, scope.buffers[buffer], scope.ranges)


def _is_in_bounds(s: tile.Slice, index: tuple[Expr, ...], scope: Scope, state: Emission) -> Expr:
    """Whether the first element of a piece is within its buffer, along the axes that need a check."""
    shape = scope.buffers[s.buffer].shape
    checks = [op("ge", index[d], const(0)) for d in s.within]
    checks += [op("lt", index[d], lowered(state, shape[d], scope)) for d in s.within]
    return both(*(simplify(c, scope.ranges, index=True) for c in checks))


def _move_piece(state: Emission, s: tile.Copy, piece: _Piece, width: int, scope: Scope) -> Body:
    tensor = scope.buffers[s.source.buffer]
    whole = s.source.buffer in state.shared or divides(lowered(state, _row_extent(s.source, tensor), scope), width)
    if s.how == "cp.async":
        return _asynchronous(state, s, piece, width, whole, tensor.dtype.bytes)
    near = state.fresh(f"{s.source.buffer}_near")
    held, source = k.Address(near, const(0)), k.Address(array_of(state, s.source.buffer), piece.source)
    to = k.Address(array_of(state, s.target.buffer), piece.target)
    made: Body = [
        k.Array(near, tensor.dtype, width, "local", 16),
        *_load_piece(state, s, held, source, width, piece.inside_source, scope),
        k.Call("mlc_store", (width,), (to, held), (to.buffer,)),
    ]
    return made if isinstance(piece.inside_target, Const) else [k.If(piece.inside_target, tuple(made))]


def _load_piece(
    state: Emission, s: tile.Copy, to: k.Address, source: k.Address, width: int, inside: Expr, scope: Scope
) -> Body:
    """Load a piece of the source into a thread's array, with zeros where it is not inside."""
    load = k.Call("mlc_load", (width,), (to, source), (to.buffer,))
    if isinstance(inside, Const):
        return [load]
    if is_constant(state, s.source.buffer):
        return [k.Call("mlc_load_where", (width,), (to, source, inside), (to.buffer,))]
    dtype = scope.buffers[s.source.buffer].dtype
    zero = Const(0.0, dtype) if dtype in STORAGE_ONLY else const(0, dtype)
    i = Var(state.fresh("n"))
    blank = k.unrolled(i, width, k.Store(to.buffer, i, zero))
    return [k.If(inside, (load,), (blank,))]


def _row_extent(s: tile.Slice, tensor: Tensor) -> Expr:
    """The extent of the axis along which pieces lie."""
    axis = row_axis(s)
    return const(1) if axis is None else tensor.shape[axis]


def _asynchronous(state: Emission, s: tile.Copy, piece: _Piece, width: int, whole: bool, size: int) -> Body:
    target, source = array_of(state, s.target.buffer), array_of(state, s.source.buffer)
    bytes_ = width * size
    template = (bytes_, s.prefetch) if s.prefetch else (bytes_,)
    addresses = (k.Address(target, piece.target), k.Address(source, piece.source))
    if isinstance(piece.inside_source, Const) and whole:
        return [k.Call("mlc_cp_async", template, addresses, (target,))]
    there: Expr = const(bytes_) if whole else op("min", piece.left * size, const(bytes_))
    there = select(piece.inside_source, there, const(0))
    return [k.Call("mlc_cp_async_zero", template, (*addresses, there), (target,))]
