"""Lower Tensor IR to Loop IR: each group becomes one loop nest.

The shared loops (rows) are outermost. Inside them, every reduction and every stored map has its own loops, in the order
in which values are needed; maps that are not stored are computed where they are read. An expensive map that several of
these loops read is stored in a temporary by the first.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.ir import expr, loop
from compiler.ir.expr import Expr, Load, Select, Var, canonical, identity, select, substitute
from compiler.ir.index import simplify
from compiler.ir.linear import linear
from compiler.ir.ranges import Range
from compiler.ir.statement import Accum, If, Init, InOrder, Kernel, Let, Program, Stmt, Store, within
from compiler.ir.tensor import Axis, Equation, Group, Map, Order, Reduce, Scan, Scatter, Tensor, reads, row_major, shape
from compiler.ir.tensor import Program as TensorProgram
from compiler.ir.value_ranges import extent_range
from compiler.passes.loop.in_place import in_place
from compiler.passes.tensor.costs import WORTH_KEEPING, cost
from compiler.passes.tensor.shared_loops import Nest, nest


def tensor_to_loop(program: TensorProgram, checks_report_later: bool = False) -> Program:
    """Return one kernel per group. A scatter becomes two, its base and its updates, unless it is done in place.

    `checks_report_later` says that checks of data do not stop a call, as on a GPU (see `in_place`).
    """
    results = {t.name: t for t in program.outputs}
    tensors = {t.name: t for t in program.inputs} | results
    temps: list[Tensor] = []
    kernels: list[Kernel] = []
    readers: dict[str, set[int]] = {}
    for k, group in enumerate(program.groups):
        for n in {n for e in group.equations for n in reads(e)}:
            readers.setdefault(n, set()).add(k)
    for k, group in enumerate(program.groups):
        stored = [e.name for e in group.equations if readers.get(e.name, set()) - {k} or e.name in results]
        builder = _Builder(group, stored)
        for e in group.equations:
            if e.name in builder.kept and e.name not in results:
                temps.append(Tensor(e.name, e.dtype, shape(e), row_major(shape(e))))
                tensors[e.name] = temps[-1]
        kernels += builder.kernels(tensors)
    made = Program(program.name, program.inputs, program.outputs, tuple(temps), tuple(kernels), program.sizes)
    into = {t.name: x for t, x in zip(program.outputs, program.into, strict=False) if x}
    return in_place(made, into, checks_report_later)


@dataclass
class _Scope:
    """A body under construction, with the values available in it, by equation and index."""

    parent: _Scope | None
    ranges: dict[str, Range]
    body: list[Stmt] = field(default_factory=list)
    values: dict[tuple[str, tuple[Expr, ...]], Expr] = field(default_factory=dict)

    def find(self, key: tuple[str, tuple[Expr, ...]]) -> Expr | None:
        scope: _Scope | None = self
        while scope is not None:
            if key in scope.values:
                return scope.values[key]
            scope = scope.parent
        return None

    def inner(self, axes: tuple[Axis, ...]) -> _Scope:
        return _Scope(self, self.ranges | {a.name: extent_range(a.extent) for a in axes})


class _Builder:
    """Builds the kernels of one group; `kept` names the equations that get memory."""

    def __init__(self, group: Group, stored: list[str]) -> None:
        self.group = group
        self.made = {e.name: e for e in group.equations}
        found = nest(group.equations, stored)
        if found is None:
            raise ValueError(f"group {group.name}: its equations share no loop nest")
        self.nest: Nest = found
        self.kept = set(stored) | self._worth_keeping()
        self.done: dict[str, _Scope] = {}  # equations in memory, with the loops that store them
        self.taken = {name for e in group.equations for name in reads(e)}  # buffers that are loaded
        self.rows = _Scope(None, {})

    def _worth_keeping(self) -> set[str]:
        """Expensive maps over whole rows that more than one loop of this group reads."""
        rows = {a.name for a in self.nest.rows}
        sweeps = [e for e in self.group.equations if isinstance(e, Reduce | Scan)]
        roots = [e for e in self.group.equations if e in sweeps or not self._readers(e.name)]
        evaluated = [self._evaluated_with(r) for r in roots]
        out = set()
        for e in self.group.equations:
            own = {self.nest.names[e.name, a.name] for a in e.axes}
            is_expensive = isinstance(e, Map) and cost(e.value) >= WORTH_KEEPING
            if is_expensive and sweeps and own > rows and sum(e.name in names for names in evaluated) > 1:
                out.add(e.name)
        return out

    def _readers(self, name: str) -> list[Equation]:
        return [e for e in self.group.equations if name in reads(e)]

    def _evaluated_with(self, root: Equation) -> set[str]:
        """The names that evaluating `root` evaluates in the same loop."""
        found: set[str] = set()
        waiting = [root]
        while waiting:
            new = [n for n in reads(waiting.pop()) if n in self.made and n not in found]
            found |= {*new}
            waiting += [self.made[n] for n in new if isinstance(self.made[n], Map)]
        return found

    def kernels(self, tensors: dict[str, Tensor]) -> list[Kernel]:
        match self.group.equations:
            case (Scatter() as s,):
                return [
                    self._kernel(self.group.name + "_base", self._scatter_base(s), tensors),
                    self._kernel(self.group.name, self._scatter(s), tensors),
                ]
            case (Order() as o,):
                return [self._kernel(self.group.name, _lower_order(o), tensors)]
        axes = tuple(Axis(self._fresh(a.name), a.extent) for a in self.nest.rows)
        self.loops = dict(zip((a.name for a in self.nest.rows), axes, strict=True))
        self.rows = _Scope(None, {}).inner(axes)
        # Reductions first: their loops store the maps that they read, which then need no loops of their own. A scan's
        # loop stores the maps that read the scan.
        for e in sorted(self.group.equations, key=lambda e: not isinstance(e, Reduce)):
            if (e.name in self.kept or isinstance(e, Reduce | Scan)) and e.name not in self.done:
                self._build_loops(e)
        return [self._kernel(self.group.name, _nest_loops(axes, ["parallel"] * len(axes), self.rows.body), tensors)]

    def _kernel(self, name: str, body: tuple[Stmt, ...], tensors: dict[str, Tensor]) -> Kernel:
        writes = tuple(dict.fromkeys(n.buffer for n in within(body, Store)))
        used = [n.buffer for s in body for n in s.walk() if isinstance(n, Load)]
        params = tuple(dict.fromkeys([*(b for b in used if b not in writes), *writes]))
        return Kernel(name, tuple(tensors[p] for p in params), writes, body, self.group.origin)

    def _fresh(self, name: str) -> str:
        """Return `name`, numbered if it is taken: a second loop `i` is `i_1`, since splitting `i` makes `i1`."""
        stem, k = name if name.endswith("_") else name + "_", 0
        while name in self.taken or name in self.made:
            k += 1
            name = f"{stem}{k}"
        self.taken.add(name)
        return name

    def _index(self, e: Equation, inner: dict[str, Axis]) -> tuple[Var, ...]:
        """The loop variables for the axes of `e`, given the loops opened inside the rows."""
        return tuple((self.loops | inner)[self.nest.names[e.name, a.name]].var for a in e.axes)

    def _new_loops(self, e: Equation, axes: tuple[Axis, ...]) -> dict[str, Axis]:
        names = [(self.nest.names[e.name, a.name], a) for a in axes]
        return {n: Axis(self._fresh(a.name), a.extent) for n, a in names if n not in self.loops}

    def _build_loops(self, e: Equation) -> None:
        match e:
            case Map():
                inner = self._new_loops(e, e.axes)
                scope = self.rows.inner(tuple(inner.values()))
                self._value(e, self._index(e, inner), scope)
                self.rows.body += _nest_loops(tuple(inner.values()), ["parallel"] * len(inner), scope.body)
            case Reduce():
                value = self._value(e, self._index(e, {}), self.rows)
                if e.name in self.kept:
                    self.rows.body.append(Store(e.name, self._index(e, {}), value))
            case Scan():
                self._scan(e)

    def _scan(self, e: Scan) -> None:
        inner = self._new_loops(e, tuple(a for a in e.axes if a.name == e.along))
        axes = tuple(inner.values())
        scope = self.rows.inner(axes)
        total = self._fresh(e.name + "_total")
        index = self._index(e, inner)
        value = self._expression(e.value, self._table(e, index), scope)
        scope.body.append(Accum(total, e.op, value))
        scope.values[e.name, index] = Var(total, e.dtype)
        if e.name in self.kept:
            scope.body.append(Store(e.name, index, Var(total, e.dtype)))
        for m in self.group.equations:
            if isinstance(m, Map) and m.name in self.kept and e.name in self._evaluated_with(m):
                self._value(m, self._index(m, inner), scope)
        self.rows.body += [Init(total, identity(e.op, e.dtype)), *_nest_loops(axes, ["scan"], scope.body)]
        self.done[e.name] = scope

    def _table(self, e: Equation, index: tuple[Expr, ...]) -> dict[Expr, Expr]:
        return {a.var: i for a, i in zip(e.axes, index, strict=True)}

    def _value(self, e: Equation, index: tuple[Expr, ...], scope: _Scope, guarded: bool = False) -> Expr:
        """The value of `e` at `index`, computed in `scope` or further outside, unless it is already available.

        With `guarded`, a select guards the value, whose loads may be out of bounds where the other side is taken; it
        then stays inside the expression.
        """
        key = (e.name, index)
        available = scope.find(key)
        if available is not None:
            return available
        if e.name in self.done and self._is_written(e, index, scope):
            return Load(e.name, index, e.dtype)
        if isinstance(e, Reduce):
            value = self._reduce(e, index)
            self.rows.values[key] = value
            return value
        assert isinstance(e, Map), f"{e.name} is read where it is not complete"
        home = self.rows if all(i in {a.var for a in self.loops.values()} for i in index) else scope
        if guarded and not self._is_row_index(e, index):
            return self._expression(e.value, self._table(e, index), scope, guarded=True)
        value = self._expression(e.value, self._table(e, index), home)
        if not isinstance(value, expr.Const | Var | Load):
            name = self._fresh(e.name + "_")
            home.body.append(Let(name, value))
            value = Var(name, e.dtype)
        home.values[key] = value
        if e.name in self.kept and e.name not in self.done and self._visits_all_once(e, index, home):
            home.body.append(Store(e.name, index, value))
            self.done[e.name] = home
        return value

    def _is_written(self, e: Equation, index: tuple[Expr, ...], scope: _Scope) -> bool:
        """Whether this element is in memory: stored for these same rows, by a loop that has ended."""
        loops = [self.loops.get(self.nest.names[e.name, a.name]) for a in e.axes]
        own_rows = all(a is None or a.var is i for a, i in zip(loops, index, strict=True))
        home, here = self.done[e.name], scope
        while here is not home and here.parent is not None:
            here = here.parent
        return own_rows and (home is self.rows or here is not home)

    def _is_row_index(self, e: Equation, index: tuple[Expr, ...]) -> bool:
        """Whether the index is the shared loops for the axes of `e`, and hence always in bounds."""
        loops = [self.loops.get(self.nest.names[e.name, a.name]) for a in e.axes]
        return all(a is not None and a.var is i for a, i in zip(loops, index, strict=True))

    def _visits_all_once(self, e: Equation, index: tuple[Expr, ...], scope: _Scope) -> bool:
        """Whether these loops visit each element of `e` exactly once."""
        names = [i.name for i in index if isinstance(i, Var)]
        full = all(scope.ranges.get(n) == extent_range(a.extent) for n, a in zip(names, e.axes, strict=False))
        return len(names) == len(set(names)) == len(index) and full and set(names) == set(scope.ranges)

    def _reduce(self, e: Reduce, index: tuple[Expr, ...]) -> Expr:
        """Append the reduction's own loops to the rows, ahead of the reader; return the accumulator."""
        inner = self._new_loops(e, e.over)
        axes = tuple(inner.values())
        scope = self.rows.inner(axes)
        table = self._table(e, index) | {a.var: inner[self.nest.names[e.name, a.name]].var for a in e.over}
        value = self._expression(e.value, table, scope)
        total = self._fresh(e.name + "_")
        scope.body.append(Accum(total, e.op, value))
        self.rows.body += [Init(total, identity(e.op, e.dtype)), *_nest_loops(axes, ["reduce"] * len(axes), scope.body)]
        return Var(total, e.dtype)

    def _expression(self, e: Expr, table: dict[Expr, Expr], scope: _Scope, guarded: bool = False) -> Expr:
        """`e` under the substitution `table`, with loads of this group's equations replaced by their values."""
        done: dict[tuple[Expr, bool], Expr] = {}

        def go(n: Expr, guarded: bool) -> Expr:
            if (n, guarded) not in done:
                done[n, guarded] = replaced(n, guarded)
            return done[n, guarded]

        def replaced(n: Expr, guarded: bool) -> Expr:
            match n:
                case Select(cond, then, other):
                    return select(go(cond, guarded), go(then, True), go(other, True))
                case Load(buffer, index) if buffer in self.made:
                    return self._value(self.made[buffer], tuple(go(i, guarded) for i in index), scope, guarded)
            made: Expr = canonical(n.map(lambda child: go(child, guarded)))
            return made

        made: Expr = simplify(go(simplify(substitute(e, table), scope.ranges), guarded), scope.ranges)
        return made

    def _scatter_base(self, s: Scatter) -> tuple[Stmt, ...]:
        body: list[Stmt] = [Store(s.name, tuple(a.var for a in s.axes), s.base)]
        return _nest_loops(s.axes, ["parallel"] * len(s.axes), body)

    def _scatter(self, s: Scatter) -> tuple[Stmt, ...]:
        """The updates of a scatter.

        Loops that alone determine an index touch distinct elements: they are parallel and outermost. The others run in
        order.
        """
        moved = {next(iter(terms)) for i in s.index if len(terms := linear(i)[0]) == 1}
        distinct = [a for a in s.over if a.var in moved]
        ordered = [a for a in s.over if a.var not in moved]
        update: Stmt = Store(s.name, s.index, s.value, s.op)
        body = [update if isinstance(s.guard, expr.Const) and s.guard.value else If(s.guard, (update,))]
        return _nest_loops((*distinct, *ordered), ["parallel"] * len(distinct) + ["scan"] * len(ordered), body)


def _lower_order(e: Order) -> tuple[Stmt, ...]:
    rows = tuple(a for a in e.axes if a.name != e.along)
    (turn,), (over,) = (a for a in e.axes if a.name == e.along), e.over
    body = (Store(e.name, tuple(a.var for a in e.axes), over.var),)
    every = InOrder(turn.name, turn.extent, over.name, over.extent, e.value, e.how, body)
    return _nest_loops(rows, ["parallel"] * len(rows), [every])


def _nest_loops(axes: tuple[Axis, ...], kinds: list[str], body: list[Stmt]) -> tuple[Stmt, ...]:
    out = tuple(body)
    for a, kind in reversed(list(zip(axes, kinds, strict=True))):
        out = (loop.For(a.name, a.extent, kind, out),)
    return out
