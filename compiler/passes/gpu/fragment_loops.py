"""Loops over lanes on fragments: each thread traverses its registers, rows first, then columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.ir import kernel as k
from compiler.ir import tile
from compiler.ir.expr import COMBINE, Expr, Load, Var, both, const, loads, names, op, static, substitute
from compiler.ir.index import simplify
from compiler.ir.launches import is_bound
from compiler.ir.layout import Digit, Fragment
from compiler.ir.statement import Let, Stmt, Store, within
from compiler.ir.tensor import memory_order
from compiler.passes.gpu import fragments, mma
from compiler.passes.gpu.emission import Emission
from compiler.passes.gpu.expressions import lowered, place_of
from compiler.passes.gpu.lanes import accumulated, adjacent_accesses, declare_parts, emit_wide
from compiler.passes.gpu.scope import WARP, Part, Scope
from compiler.passes.gpu.sequences import sequence
from compiler.schedule.steps import Bind, ScheduleError

Body = list[k.Stmt]


def fragment_of(state: Emission, f: tile.For) -> Fragment | None:
    """The fragment whose registers a loop over lanes traverses; None if none of its tiles is a fragment."""
    below = tuple(n for n in within(f.body) if is_bound(n, "lanes"))
    tensors = {n: state.facts.tiles[n] for n in state.facts.fragments if n in state.facts.tiles}
    return fragments.fragment_of_nest(fragments.Nest(f, below), tensors, state.facts.fragments)


def over_rows(state: Emission, f: tile.For, fragment: Fragment, scope: Scope) -> Body:
    """The loop over the rows of fragments. All threads of a row execute statements outside of loops over columns.

    A loop over fragments with one value per column traverses those.
    """
    if fragment.shape[0] == 1 and f.extent is const(fragment.shape[1]) and f.kind == "parallel":
        alone = scope.inner(level="thread")
        alone.part = Part(fragment, "", const(0))
        return over_columns(state, f, alone)
    if static(f.extent, f"the extent of {f.var}") != fragment.shape[0] or f.kind != "parallel":
        raise state.refuse(f"{f.var} goes over {f.extent} rows of fragments of {fragment.shape}, or reduces")
    start, _ = state.origin(fragment)
    inner = scope.inner(level="thread")
    digits = [d for d in fragment.registers if d.row]
    if _has_rows_innermost(f, scope) and digits:
        return _columns_outside(state, f, fragment, inner)
    variables, offset = _digit_variables(state, digits, inner, "row")
    inner.values[f.var] = simplify(start + offset, inner.ranges, index=True)
    inner.part = Part(fragment, f.var, offset)
    return mma.unrolled_loops(variables, digits, sequence(state, f.body, inner))


def store_by_matrices(state: Emission, f: tile.For, fragment: Fragment, scope: Scope) -> Body | None:
    """Emit by stmatrix a loop that only computes a tile of 16-bit elements in shared memory; None for others.

    The tile's rows are those of the fragment, or its columns. Elements that the loop replaces are loaded by ldmatrix.
    """
    match f.body:
        case (
            tile.For(bind=tile.Bind(level="lanes"), kind="parallel", body=(*before, Store(op="set") as s)) as columns,
        ):
            values = [x for x in before if isinstance(x, Let)]
        case _:
            return None
    held, axes = state.shared.get(s.buffer), (Var(f.var), Var(columns.var))
    if held is None or held.tensor.dtype.bytes != 2 or set(s.index) != set(axes):
        return None
    layout = fragment if s.index == axes else _transposed(fragment)
    if "stmatrix" not in state.facts.target.features or held.shape != layout.shape:
        return None
    others = [x for value in (*values, s) for x in loads(value) if (x.buffer, x.index) != (s.buffer, s.index)]
    wide = any(len(x.index) > 1 and x.buffer not in state.facts.fragments for x in others) or len(values) < len(before)
    how = mma.match_ldmatrix(layout, held.tensor.dtype)
    return None if wide or how is None else _store_matrices(state, axes, tuple(values), s, fragment, how, scope)


def _transposed(fragment: Fragment) -> Fragment:
    """The layout of the tile that has the fragment's columns as rows."""
    threads, registers = (
        tuple(Digit(d.extent, d.column, d.row) for d in digits) for digits in (fragment.threads, fragment.registers)
    )
    return Fragment((fragment.shape[1], fragment.shape[0]), threads, registers)


def _store_matrices(
    state: Emission, axes: tuple[Var, Var], values: tuple[Stmt, ...], s: Store, fragment: Fragment,
    how: tuple[bool, list[Digit]], scope: Scope,
) -> Body:  # fmt: skip
    """Compute as many registers as an instruction stores, then store them; `values` are what the stored value uses."""
    dtype, turned = state.facts.tiles[s.buffer].dtype, s.index != axes
    layout, suffix = (_transposed(fragment) if turned else fragment), "_transposed" if how[0] else ""
    count, matrix, rest = mma.first_matrices(how[1])
    pack = layout.registers[0]
    inner = scope.inner(level="thread")
    parts = [Digit(pack.extent, pack.row, pack.column), *matrix]
    own, others = (mma.digit_variables(state, some, inner) for some in (parts, rest))
    row, column = mma.matrix_address(state, layout, matrix, count)
    down, across = mma.advance(const(0), const(0), rest, others)
    whole = tile.Slice(s.buffer, (const(0), const(0)), layout.shape)
    to = mma.address(state, whole, row + down, column + across, inner)
    place = mma.advance(down, across, parts, own)
    register, weight = mma.register_index(parts, own)
    down, across = reversed(place) if turned else place
    inner.part = Part(fragment, axes[0].name, down, axes[1].name, across)
    for axis, start, offset in zip(axes, state.origin(fragment), (down, across), strict=True):
        inner.values[axis.name] = simplify(start + offset, inner.ranges, index=True)
    load, declared, values, value = _loaded_matrices(state, s, values, (to, count, weight, suffix), register, inner)
    near = state.fresh(f"{s.buffer}_near")
    made = [*declared, *sequence(state, values, inner)]
    made = mma.unrolled_loops(own, parts, [*made, k.Store(near, register, lowered(state, value, inner))])
    call = k.Call(f"mlc_stmatrix{suffix}", (count,), (to, k.Address(near, const(0))), (to.buffer,))
    return mma.unrolled_loops(others, rest, [*load, k.Array(near, dtype, weight, "local", 16), *made, call])


def _loaded_matrices(
    state: Emission, s: Store, values: tuple[Stmt, ...], matrices: tuple[k.Address, int, int, str], register: Expr,
    scope: Scope,
) -> tuple[Body, Body, tuple[Stmt, ...], Expr]:  # fmt: skip
    """The load of the elements that are replaced, the declaration of one, and the statements and value that use it."""
    place, count, weight, suffix = matrices
    element = Load(s.buffer, s.index, state.facts.tiles[s.buffer].dtype)
    if all(element not in loads(x) for x in (*values, s)):
        return [], [], values, s.value
    before, name = (state.fresh(f"{s.buffer}_{word}") for word in ("before", "element"))
    load = k.Call(f"mlc_ldmatrix{suffix}", (count,), (k.Address(before, const(0)), place), (before,))
    var = Var(name, element.dtype)
    scope.values[name] = var
    (*values_with_element, store) = substitute((*values, s), {element: var})
    assert isinstance(store, Store)
    declared = k.Declare(name, Load(before, (register,), element.dtype))
    return ([k.Array(before, element.dtype, weight, "local", 16), load], [declared], tuple(values_with_element),
            store.value)  # fmt: skip


def _has_rows_innermost(f: tile.For, scope: Scope) -> bool:
    """Whether a loop over rows and columns alone stores with the rows innermost in memory."""
    match f.body:
        case (tile.For(bind=tile.Bind(level="lanes"), kind="parallel") as columns,):
            stores = [n for n in columns.walk() if isinstance(n, Store)]
            last = [names(n.index[_contiguous_axis(n, scope)]) for n in stores if n.index]
            return any(f.var in used and columns.var not in used for used in last)
    return False


def _contiguous_axis(s: Store, scope: Scope) -> int:
    """The contiguous axis of the buffer stored to."""
    held = scope.buffers.get(s.buffer)
    return memory_order(held)[-1] if held is not None and len(held.shape) == len(s.index) else -1


def _columns_outside(state: Emission, f: tile.For, fragment: Fragment, inner: Scope) -> Body:
    """Emit such a loop with columns outside, so that vertically adjacent elements are stored together."""
    columns = f.body[0]
    assert isinstance(columns, tile.For)
    if static(columns.extent, f"the extent of {columns.var}") != fragment.shape[1]:
        raise state.refuse(f"{columns.var} goes over fragments of {fragment.shape[1]} columns")
    row, column = state.origin(fragment)
    across = [d for d in fragment.registers if d.column]
    variables, column_offset = _digit_variables(state, across, inner, "column")
    count, rest = _consecutive_digits([d for d in fragment.registers if d.row], "row")
    others, down = _digit_variables(state, rest, inner, "row")
    lane = Var(state.fresh("row"))
    inner.ranges[lane.name] = (0, count - 1)
    inner.values[f.var] = simplify(row + down + lane, inner.ranges, index=True)
    inner.values[columns.var] = simplify(column + column_offset, inner.ranges, index=True)
    inner.part = Part(fragment, f.var, down + lane, columns.var, column_offset)
    made = emit_wide(state, columns.body, inner, lane, count)
    return mma.unrolled_loops(variables, across, mma.unrolled_loops(others, rest, made))


def _consecutive_digits(digits: list[Digit], axis: str) -> tuple[int, list[Digit]]:
    """The number of consecutive places that digits cover together along an axis, and the remaining digits."""
    count, rest = 1, list(digits)
    while found := next((d for d in rest if getattr(d, axis) == count), None):
        rest.remove(found)
        count *= found.extent
    return count, rest


def over_columns(state: Emission, f: tile.For, scope: Scope) -> Body:
    """The loop over columns; its reductions are combined over the threads of a row."""
    part = scope.part
    assert part is not None
    fragment = part.fragment
    if static(f.extent, f"the extent of {f.var}") != fragment.shape[1]:
        raise state.refuse(f"{f.var} goes over fragments of {fragment.shape[1]} columns")
    inner = scope.inner()
    outer = accumulated(f, scope)
    before = declare_parts(state, outer, inner)
    body = _column_loop(state, f, fragment, part, inner)
    after: Body = []
    for name, how in outer.items():
        total, thread_part = scope.values[name], inner.values[name]
        assert isinstance(total, Var)
        combined = (
            k.Together(how, thread_part, _threads_per_row(state, fragment))
            if _threads_per_row(state, fragment) > 1
            else thread_part
        )
        after.append(k.Assign(total.name, op(COMBINE[how], total, combined)))
    return [*before, *body, *after]


def _column_loop(state: Emission, f: tile.For, fragment: Fragment, part: Part, inner: Scope) -> Body:
    _, start = state.origin(fragment)
    digits = [d for d in fragment.registers if d.column]
    if vector := dict(f.bind.args).get("vector"):
        return _fill_registers(_ReorderedColumns(state, f, start, part, inner.inner()), digits, vector)
    count, rest = _consecutive_digits(digits, "column")
    variables, offset = _digit_variables(state, rest, inner, "column")
    lane = Var(state.fresh("column"))
    inner.ranges[lane.name] = (0, count - 1)
    at = offset + lane if count > 1 else offset
    inner.values[f.var] = simplify(start + at, inner.ranges, index=True)
    inner.part = Part(fragment, part.rows, part.row, f.var, at)
    made = emit_wide(state, f.body, inner, lane, count) if count > 1 else sequence(state, f.body, inner)
    return mma.unrolled_loops(variables, rest, made)


def _fill_registers(place: _ReorderedColumns, digits: list[Digit], vector: int) -> Body:
    """A loop that fills runs of `vector` registers from memory, each by wide loads.

    Consecutive registers may come from contiguous memory even if the tile's columns do not: the sum of a product may
    traverse memory in another order. Raises ScheduleError if no loads are that wide.
    """
    f = place.f
    step = Bind(f.var, f.bind.level, f.bind.args)
    match f.body:
        case (Store(to, _, value, "set"),) if to in place.scope.registers and loads(value):
            taken, rest = _first_registers(digits, vector)
        case _:
            raise ScheduleError(step, f"{f.var} does something other than fill registers from memory")
    if math.prod(d.extent for d in taken) != vector:
        raise ScheduleError(step, f"of the registers that {f.var} goes through no {vector} follow each other")
    variables, lane = place.at(vector, taken, rest)
    if not place.reads_side_by_side(lane, vector):
        raise ScheduleError(step, f"{vector} registers in a row are made of what does not lie side by side")
    return mma.unrolled_loops(variables, rest, emit_wide(place.state, f.body, place.scope, lane, vector))


def _first_registers(digits: list[Digit], count: int) -> tuple[list[Digit], list[Digit]]:
    """The digits, or parts of them, that number the first `count` registers as far as they go, and the others."""
    taken: list[Digit] = []
    rest: list[Digit] = []
    for d in digits:
        extent = math.gcd(count, d.extent) if not rest else 1
        count //= extent
        taken += [Digit(extent, d.row, d.column)] if extent > 1 else []
        rest += [Digit(d.extent // extent, d.row * extent, d.column * extent)] if extent < d.extent else []
    return taken, rest


@dataclass(frozen=True)
class _ReorderedColumns:
    """A loop over columns whose lanes traverse registers in another order than the tile."""

    state: Emission
    f: tile.For
    start: Expr
    part: Part
    scope: Scope

    def at(self, count: int, taken: list[Digit], rest: list[Digit]) -> tuple[list[Expr], Var]:
        """The variables of the loops around the lanes, and the lane, with their places set in the scope."""
        variables, offset = _digit_variables(self.state, rest, self.scope, "column")
        lane, weight = Var(self.state.fresh("column")), 1
        self.scope.ranges[lane.name] = (0, count - 1)
        for d in taken:
            offset, weight = offset + lane // weight % d.extent * d.column, weight * d.extent
        self.scope.values[self.f.var] = simplify(self.start + offset, self.scope.ranges, index=True)
        at = simplify(offset, self.scope.ranges, index=True)
        self.scope.part = Part(self.part.fragment, self.part.rows, self.part.row, self.f.var, at)
        return variables, lane

    def reads_side_by_side(self, lane: Var, count: int) -> bool:
        """Whether everything that depends on the lane is a wide load, and there is one."""
        (s,) = self.f.body
        assert isinstance(s, Store)
        found = adjacent_accesses(self.state, self.f.body, self.scope, lane, count)
        wide_ones = {b for b, _ in found.loads}
        fixed = (lane.name not in names(place_of(self.state, x.buffer, x.index, self.scope)[1])
                 for x in loads(s.value) if x.buffer not in wide_ones)  # fmt: skip
        return bool(wide_ones) and all(fixed)


def is_first_sharer(state: Emission, fragment: Fragment) -> Expr:
    """A condition that holds in one of the threads that hold the same rows."""
    conditions: list[Expr] = []
    weight = 1
    for d in fragment.threads:
        if not d.row:
            number, by = (state.lane(), weight) if weight < WARP else (state.warp(), weight // WARP)
            digit = simplify(number // by % d.extent, state.known, index=True)
            conditions.append(op("eq", digit, const(0)))
        weight *= d.extent
    return both(*conditions)


def _threads_per_row(state: Emission, fragment: Fragment) -> int:
    """The number of adjacent threads that hold one row together. Raises ValueError if they are not adjacent."""
    count = 1
    for d in fragment.threads:
        if not d.column:
            break
        count *= d.extent
    if math.prod(d.extent for d in fragment.threads if d.column) != count or count > WARP:
        raise state.refuse("a row of a fragment is spread over several warps and reduced")
    return count


def _digit_variables(state: Emission, digits: list[Digit], scope: Scope, axis: str) -> tuple[list[Expr], Expr]:
    """A variable for each digit, and the offset that they make along an axis."""
    made: list[Expr] = []
    offset: Expr = const(0)
    for d in digits:
        var = Var(state.fresh(axis)) if d.extent > 1 else const(0)
        if isinstance(var, Var):
            scope.ranges[var.name] = (0, d.extent - 1)
        made.append(var)
        offset = offset + var * getattr(d, axis)
    return made, offset
