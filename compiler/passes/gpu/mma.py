"""Tensor instructions of a warp: fragments are loaded from shared memory by ldmatrix, matmuls run in registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.dtype import DType
from compiler.ir.expr import Const, Expr, Load, Var, const, static
from compiler.ir.index import simplify
from compiler.ir.layout import Digit, Fragment
from compiler.passes.gpu import fragments, wgmma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered, offset_in
from compiler.passes.gpu.instruction_loops import instruction_loops
from compiler.passes.gpu.scope import WARP, Scope
from compiler.targets.target import instruction

Body = list[k.Stmt]

MATRIX = 8  # rows of an ldmatrix matrix, of 16 bytes each
WORD = 4  # bytes per thread of each matrix
MOST_MATRICES = 4
WIDEST = 16  # bytes that a thread loads at most at once


def multiply(state: Emission, s: tile.Mma, scope: Scope) -> Body:
    """acc += a . b by one instruction for each part of the accumulator that a warp has, repeated along k."""
    row = instruction(state.facts.target, s.instruction)
    if row.b_space == "shared":
        return wgmma.multiply(state, s, row, scope)
    acc, a, b = (state.facts.fragments[x.buffer] for x in (s.acc, s.a, s.b))
    inner = scope.inner()
    repetition = instruction_loops(state, s, row, inner)

    def operand(x: tile.Slice, axes: str, fragment: Fragment) -> k.Address:
        starts = [lowered(state, e, scope) for e in x.starts]
        begin = fragments.register(fragment, starts[0], starts[1], inner.ranges)
        for axis in axes:
            begin = begin + repetition.at[axis] * fragment.stride(axis)
        return k.Address(scope.registers[x.buffer], simplify(begin, inner.ranges, index=True))

    args = (operand(s.acc, "mn", acc), operand(s.a, "mk", a), operand(s.b, "kn", b))
    return repetition.around([k.Call(row.function, (row.m, row.n, row.k), args, (args[0].buffer,))])


# ---- operands


def load_fragment(state: Emission, s: tile.Copy, scope: Scope) -> Body:
    """Load a slice of a tile in shared memory as a fragment, by ldmatrix if its distribution matches."""
    fragment = state.facts.fragments[s.target.buffer]
    array = scope.registers[s.target.buffer]
    if s.source.buffer not in state.shared or any(not isinstance(e, Const) or e.value for e in s.target.starts):
        raise state.refuse(f"fragment {s.target.buffer} is loaded whole, from shared memory")
    shape = tuple(static(n) for n in state.facts.tiles[s.target.buffer].shape)
    if tuple(n for n in s.source.lengths if n) != shape:
        raise state.refuse(f"fragment {s.target.buffer} of {shape} is loaded from a part of it")
    dtype = state.facts.tiles[s.target.buffer].dtype
    how = match_ldmatrix(fragment, dtype)
    if how is None:
        return _load_by_threads(state, s, fragment, array, scope)
    transposed, digits = how
    return _load_by_ldmatrix(state, s, fragment, array, transposed, digits, scope)


def match_ldmatrix(fragment: Fragment, dtype: DType) -> tuple[bool, list[Digit]] | None:
    """Whether ldmatrix must transpose, and the digits of the 32-bit registers; None if its distribution differs."""
    pack = WORD // dtype.bytes
    digits = list(fragment.registers)
    if dtype.bytes not in (2, WORD) or len(fragment.threads) < 2:
        return None
    if pack > 1:
        if not digits or digits[0].extent != pack:
            return None
        step = (digits[0].row, digits[0].column)
        digits = digits[1:]
    else:
        step = (fragment.threads[0].row, fragment.threads[0].column)
    across, down = fragment.threads[:2]
    if across.extent != 4 or down.extent != MATRIX or sorted(step) != [0, 1]:
        return None
    other = (step[1], step[0])
    if (across.row, across.column) != (pack * step[0], pack * step[1]) or (down.row, down.column) != other:
        return None
    transposed = step == (1, 0)
    return None if transposed and pack == 1 else (transposed, digits)


def _load_by_ldmatrix(
    state: Emission, s: tile.Copy, fragment: Fragment, array: str, transposed: bool, digits: list[Digit], scope: Scope
) -> Body:
    """Load by ldmatrix, up to four registers at a time."""
    count, matrix, rest = first_matrices(digits)
    row, column = matrix_address(state, fragment, matrix, count)
    inner = scope.inner()
    variables = digit_variables(state, rest, inner)
    row, column = advance(row, column, rest, variables)
    register, _ = register_index(rest, variables, count * WORD // state.facts.tiles[s.target.buffer].dtype.bytes)
    source = address(state, s.source, row, column, inner)
    function = "mlc_ldmatrix_transposed" if transposed else "mlc_ldmatrix"
    return unrolled_loops(variables, rest, [k.Call(function, (count,), (k.Address(array, register), source), (array,))])


def digit_variables(state: Emission, digits: Sequence[Digit], scope: Scope) -> list[Var]:
    """A variable for each digit."""
    made = [Var(state.fresh("part")) for _ in digits]
    scope.ranges.update((var.name, (0, d.extent - 1)) for var, d in zip(made, digits, strict=True))
    return made


def advance(row: Expr, column: Expr, digits: Sequence[Digit], values: Sequence[Var]) -> tuple[Expr, Expr]:
    """Advance a place in a tile by digits with these values."""
    for d, value in zip(digits, values, strict=True):
        row, column = row + value * d.row, column + value * d.column
    return row, column


def register_index(digits: Sequence[Digit], values: Sequence[Var], weight: int = 1) -> tuple[Expr, int]:
    """The register named by digits with these values if the first has weight `weight`, and the number of registers."""
    register: Expr = const(0)
    for d, value in zip(digits, values, strict=True):
        register, weight = register + value * weight, weight * d.extent
    return register, weight


def unrolled_loops(variables: Sequence[Expr], digits: Sequence[Digit], body: Body) -> Body:
    """Unrolled loops around a body, the fastest digit innermost."""
    for var, d in zip(variables, digits, strict=True):
        body = [k.unrolled(var, d.extent, *body)] if isinstance(var, Var) else body
    return body


def matrix_address(state: Emission, fragment: Fragment, matrix: list[Digit], count: int) -> tuple[Expr, Expr]:
    """The row and column whose address a lane passes to the instruction: eight lanes for each of `count` matrices.

    Rows of a matrix are rows of the tile in memory, contiguous along the last axis.
    """
    lane = state.lane()
    row: Expr = lane % MATRIX
    column: Expr = const(0)
    number = lane // MATRIX % count
    for d in matrix:
        row, column = row + number % d.extent * d.row, column + number % d.extent * d.column
        number = number // d.extent
    before = WARP
    for t in fragment.threads[2:]:
        digit = state.warp() // (before // WARP) % t.extent
        row, column = row + digit * t.row, column + digit * t.column
        before *= t.extent
    row = state.once("row", simplify(row, state.known, index=True), fragment.shape[0])
    return row, state.once("column", simplify(column, state.known, index=True), fragment.shape[1])


def first_matrices(digits: list[Digit]) -> tuple[int, list[Digit], list[Digit]]:
    """The number of matrices that one instruction loads, their digits, and the remaining digits."""
    count, taken, rest = 1, [], list(digits)
    while rest and count < MOST_MATRICES:
        part = math.gcd(rest[0].extent, MOST_MATRICES // count)
        if part == 1:
            break
        d = rest.pop(0)
        taken.append(Digit(part, d.row, d.column))
        count *= part
        if d.extent > part:
            rest.insert(0, Digit(d.extent // part, d.row * part, d.column * part))
            break
    return count, taken, rest


def _load_by_threads(state: Emission, s: tile.Copy, fragment: Fragment, array: str, scope: Scope) -> Body:
    """Each thread loads its own elements, contiguous ones at once."""
    row, column = state.origin(fragment)
    inner = scope.inner()
    dtype = state.facts.tiles[s.target.buffer].dtype
    variables: list[Var] = []
    digits: list[Digit] = []
    register: Expr = const(0)
    weight = count = 1
    lane = Var(state.fresh("near"))
    for d in fragment.registers:
        if d.column == count and not d.row and count * d.extent * dtype.bytes <= WIDEST:
            # A digit of the index among contiguous elements, with this weight among the registers.
            register = register + lane // count % d.extent * weight
            count *= d.extent
        else:
            digits.append(d)
            variables += digit_variables(state, [d], inner)
            register = register + variables[-1] * weight
        weight *= d.extent
    inner.ranges[lane.name] = (0, count - 1)
    source = address(state, s.source, *advance(row, column, digits, variables), inner)
    place = simplify(register, inner.ranges, index=True)
    if count == 1:
        value = Load(source.buffer, (source.index,), dtype)
        return unrolled_loops(variables, digits, [k.Store(array, place, value)])
    near = state.fresh(f"{s.source.buffer}_near")
    load = k.Call("mlc_load", (count,), (k.Address(near, const(0)), source), (near,))
    put = k.Store(array, place, Load(near, (lane,), dtype))
    dealt = k.unrolled(lane, count, put)
    return unrolled_loops(variables, digits, [k.Array(near, dtype, count, "local", 16), load, dealt])


def address(state: Emission, s: tile.Slice, row: Expr, column: Expr, scope: Scope) -> k.Address:
    """The address of an element of a slice with two axes."""
    local = iter((row, column))
    starts = (lowered(state, e, scope) for e in s.starts)
    index = tuple(e + next(local) if n else e for e, n in zip(starts, s.lengths, strict=True))
    held = state.shared[s.buffer]
    return k.Address(held.array, offset_in(state, held, index, scope))
