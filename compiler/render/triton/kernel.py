"""Emits a scheduled kernel of Tile IR as a Triton function.

Loops over blocks become the programs of the grid, loops over lanes the axes of tensors; all others are loops. A loop
over lanes that accumulates becomes a reduction along its axis, or `tl.dot` if it is a matmul. A serial loop around one
carries the unreduced tensor and reduces it once after the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.analysis.guarded_factors import unwidened
from compiler.ir import tile
from compiler.ir.dtype import DType, bf16, boolean, f16, f32, i64
from compiler.ir.expr import Expr, Load, Size, Var, dim, identity, names, product, substitute
from compiler.ir.index import simplify
from compiler.ir.launches import is_bound
from compiler.ir.statement import Accum, If, Init, Kernel, Let, Stmt, Store, within
from compiler.ir.value_ranges import range_below
from compiler.render.triton.expression import count_uses, mask, store, value
from compiler.render.triton.lanes import Dot, accumulations, lane_depth, match_dot, matmul_loops
from compiler.render.triton.operations import COMBINERS
from compiler.render.triton.values import LOOSE, TYPES, Axes, Value, convert, literal
from compiler.render.triton.writer import Lane, Writer, lane_axis

Body = tuple[Stmt, ...]
WARP = 32
MIN_DOT_EXTENT = 16  # least elements along each axis of an operand of `tl.dot`


@dataclass(frozen=True)
class Function:
    """The text of a kernel, the number of its programs and of their warps, its helpers, and whether it checks data."""

    lines: tuple[str, ...]
    programs: Expr
    warps: int
    helpers: frozenset[str]
    checks_data: bool


def function(kernel: Kernel, name: str, spellings: Mapping[str, str], sizes: Sequence[Size]) -> Function:
    """Emit a kernel; raises Unsupported for what Triton cannot express, ValueError for an unsuitable schedule."""
    dots = {d.k: d for d in matmul_loops(kernel.body)}
    rank = lane_depth(kernel.body, dots)
    if rank != 2:
        dots, rank = {}, lane_depth(kernel.body, ())
    params = [*(spellings[p.name] for p in kernel.params), *(spellings[s.name] for s in sizes)]
    w = Writer({p.name: p for p in kernel.params}, rank, spellings, [*params, name])
    w.env = {s.name: Value(spellings[s.name], i64, narrow=True) for s in sizes}
    w.barrier_buffers = _buffers_with_barriers(kernel)
    k = _Kernel(w, dots)
    k.body(kernel.body)
    parameters = [*params, *(["mlc_failed"] if w.failing else [])]
    threads = max((dict(f.bind.args).get("threads", 0) for f in within(kernel.body, tile.For)), default=0)
    lines = ("@triton.jit", f"def {name}({', '.join(parameters)}):", *(w.lines or ["    pass"]))
    return Function(lines, product(tuple(k.grid)), max(1, threads // WARP) or 4, frozenset(w.helpers), w.failing)


class _Kernel:
    """Emits the statements of one kernel; `scopes` has the lanes, and the number of loops, around each scalar's
    initialisation."""

    def __init__(self, w: Writer, dots: dict[str, Dot]) -> None:
        self.w, self.dots = w, dots
        self.grid: list[Expr] = []
        self.scopes: dict[str, tuple[Axes, int]] = {}
        self.loops = 0
        self.unreduced: dict[str, tuple[Value, Axes]] = {}
        self.shared_axes: list[dict[object, str]] = [{}]
        self.dot_axes = {v for d in dots.values() for v in (d.m, d.n, d.k)}

    def body(self, body: Body) -> None:
        for s in body:
            self.stmt(s)

    def stmt(self, s: Stmt) -> None:
        w = self.w
        match s:
            case tile.For(bind=tile.Bind("blocks")):
                self.blocks(s)
            case tile.For(bind=tile.Bind("lanes")):
                self.lanes(s)
            case tile.For(bind=tile.Bind("serial" | "unroll")):
                self.serial(s)
            case tile.For(bind=binding):
                raise ValueError(f"loop {s.var}: Triton's own compiler decides about {binding.level}")
            case Let(name, e):
                count_uses(w, [e])
                v = value(w, e)
                w.env[name] = v if v.literal or (v.is_atom and len(v.code) < 24) else w.assign(v, name)
            case Init(name, e):
                self.init(name, e)
            case Accum(name, op, e):
                count_uses(w, [e])
                self.accumulate(name, op, e)
            case Store(buffer, index, e, op):
                count_uses(w, [*index, e])
                store(w, buffer, index, e, op)
            case If(cond, body):
                count_uses(w, [cond])
                c = value(w, cond)
                with w.guarded(c if c.is_atom else w.assign(c, "chosen")):
                    self.body(body)
            case tile.Alloc(tensor, space) if space in ("local", "registers"):
                w.tensors[tensor.name] = tensor
                w.local.add(tensor.name)
            case tile.Sync():
                w.barrier()
            case _:
                raise ValueError(f"Triton has no {type(s).__name__}, which its own compiler makes")

    # ---- loops

    def blocks(self, f: tile.For) -> None:
        """Decode nested loops over blocks from the program id, the innermost varying fastest."""
        w = self.w
        nest = [f]
        while len(nest[-1].body) == 1 and is_bound(inner := nest[-1].body[0], "blocks"):
            assert isinstance(inner, tile.For)
            nest.append(inner)
        if self.grid:
            raise ValueError(f"loop {f.var}: its blocks come after others")
        self.grid = [g.extent for g in nest]
        code = "tl.program_id(0)"
        if len(nest) > 1:
            w.line(f"{(pid := w.name('pid'))} = {code}")
            code = pid
        for n, g in enumerate(nest):
            inner_blocks = product(tuple(self.grid[n + 1 :]))
            count_uses(w, [inner_blocks, g.extent])
            text = code if inner_blocks == dim(1) else f"{code} // {value(w, inner_blocks).operand}"
            text = text if n == 0 else f"{text} % {value(w, g.extent).operand}"
            w.ranges[g.var] = range_below(g.extent, w.ranges)
            if g.extent != dim(1):
                w.env[g.var] = w.assign(Value(text, i64, narrow=True), g.var)
        unit_loops: dict[Expr, Expr] = {Var(g.var): dim(0) for g in nest if g.extent == dim(1)}
        body = nest[-1].body
        self.body(simplify(substitute(body, unit_loops), w.ranges) if unit_loops else body)

    def serial(self, f: tile.For) -> None:
        w = self.w
        w.ranges[f.var] = range_below(f.extent, w.ranges)
        count_uses(w, [f.extent])
        end = value(w, f.extent)
        if end.axes:
            raise ValueError(f"loop {f.var} runs differently often in each lane")
        carried = self.allocate_unreduced(f) if f.kind == "reduce" and not self.unreduced else {}
        self.unreduced |= carried
        name = w.name(f.var)
        w.env[f.var] = Value(name, i64, narrow=True)
        if w.written:
            w.barrier()
        self.loops += 1
        self.shared_axes.append({})
        with w.loop(f"for {name} in range({'' if end.literal else '0, '}{end.code}):"):
            line_count = len(w.lines)
            self.body(f.body)
            if w.written:
                w.barrier()
            if len(w.lines) == line_count:
                w.line("pass")
        self.shared_axes.pop()
        self.loops -= 1
        for scalar, (accumulator, axes) in carried.items():
            del self.unreduced[scalar]
            self.add(scalar, *self.reduce(scalar, self.accumulation_op(f, scalar), accumulator, axes))

    def accumulation_op(self, f: tile.For, scalar: str) -> str:
        return next(n.op for n in f.walk() if isinstance(n, Accum) and n.name == scalar)

    def allocate_unreduced(self, f: tile.For) -> dict[str, tuple[Value, Axes]]:
        """Allocate the unreduced tensors of scalars that loops over lanes in a serial loop accumulate, and return them
        with the axes to reduce."""
        paths_of: dict[str, list[tuple[tile.For, ...]]] = {}
        types: dict[str, tuple[DType, str]] = {}
        for a, path in accumulations(f.body, ()):
            if a.name in self.scopes:
                paths_of.setdefault(a.name, []).append(path)
                types[a.name] = self.w.env[a.name].dtype, a.op
        out: dict[str, tuple[Value, Axes]] = {}
        for name, paths in paths_of.items():
            if len(paths) != 1 or not paths[0] or any(g.var in self.dots for g in paths[0]):
                continue
            for d, g in enumerate(paths[0]):
                w = self.w
                w.ranges[g.var] = range_below(g.extent, w.ranges)
                w.lanes[g.var], w.dims[g.var] = self.lane(g), len(self.scopes[name][0]) + d
            axes = frozenset(g.var for g in paths[0])
            dtype, op = types[name]
            all_axes = axes | self.scopes[name][0]
            code = (
                f"tl.full({self.w.shape(all_axes)}, {literal(identity(op, dtype).value, dtype).code}, {_type(dtype)})"
            )
            unreduced = self.w.assign(Value(code, dtype, all_axes), f"{name}_each")
            out[name] = unreduced, axes
            for g in paths[0]:
                del self.w.lanes[g.var], self.w.dims[g.var]
        return out

    def lane(self, f: tile.For) -> Lane:
        return lane_axis(f, self.w.ranges, MIN_DOT_EXTENT if f.var in self.dot_axes else 1)

    def lanes(self, f: tile.For) -> None:
        """Emit a loop over lanes; loops with the same number of lanes share an axis."""
        w = self.w
        if f.kind == "scan":
            raise ValueError(f"loop {f.var} is a scan, which lanes cannot run in order")
        w.ranges[f.var] = range_below(f.extent, w.ranges)
        axis = self.lane(f)
        if axis.end is not None and names(axis.end) & set(w.lanes):
            raise ValueError(f"loop {f.var} is of another length in each lane")
        if f.var in self.dots:
            self.dot(match_dot(f, tuple(w.lanes)), axis)
            return
        key = (axis.size, axis.end, tuple(w.lanes))
        shared_axis = next((known[key] for known in reversed(self.shared_axes) if key in known), None)
        body = f.body
        if shared_axis is not None:
            axis, body = Lane(shared_axis, axis.size, axis.end), substitute(body, {Var(f.var): Var(shared_axis)})
        else:
            self.shared_axes[-1][key] = f.var
        w.lanes[axis.var], w.dims[axis.var] = axis, len(w.lanes)
        w.index(axis.var)
        mask(w, frozenset({axis.var}))
        self.body(body)
        del w.lanes[axis.var], w.dims[axis.var]

    # ---- scalars

    def init(self, name: str, e: Expr) -> None:
        w = self.w
        count_uses(w, [e])
        v, axes = value(w, e), frozenset(w.lanes)
        type_name = _type(e.dtype)
        if v.literal:
            code = f"tl.full({w.shape(axes) if axes else '[]'}, {v.code}, {type_name})"
        else:
            code = w.broadcast(convert(v, e.dtype), axes).code
        w.env[name] = w.assign(Value(code, e.dtype, axes), name)
        self.scopes[name] = axes, self.loops

    def accumulate(self, name: str, op: str, e: Expr) -> None:
        """Accumulate the terms of the lanes; those of masked lanes are replaced by the identity."""
        w = self.w
        axes, _ = self.scopes[name]
        inner = frozenset(w.lanes) - axes
        dtype = w.env[name].dtype
        v = value(w, e)
        v = convert(v, dtype) if v.narrow else v
        lane_mask = mask(w, inner)
        if lane_mask is not None:
            v = v if v.is_atom else w.assign(v, "term")
            code = f"tl.where({lane_mask.code}, {v.argument}, {literal(identity(op, dtype).value, dtype).argument})"
            v = Value(code, dtype, v.axes | lane_mask.axes)
        if name in self.unreduced:
            unreduced, unreduced_axes = self.unreduced[name]
            v = w.broadcast(v, unreduced_axes)
            w.line(f"{unreduced.code} = {self.combine(op, unreduced, v)}")
            return
        self.add(name, *(self.reduce(name, op, w.broadcast(v, inner), inner) if inner else (op, v)))

    def add(self, name: str, op: str, v: Value) -> None:
        accumulator = self.w.env[name]
        if not v.axes <= accumulator.axes:
            raise ValueError(f"{name} is one number, and many are added to it")
        self.w.line(f"{accumulator.code} = {self.combine(op, accumulator, v)}")
        self.forget(accumulator)

    def forget(self, accumulator: Value) -> None:
        """Drop memoized values that depend on an accumulator that has changed."""
        name = next(n for n, v in self.w.env.items() if v is accumulator)
        for memo in self.w.memo:
            for key in [k for k in memo if isinstance(k, tuple) and isinstance(k[0], Expr) and name in names(k[0])]:
                del memo[key]

    def combine(self, op: str, a: Value, b: Value) -> str:
        w, dtype = self.w, a.dtype
        if op == "sum" or op == "prod":
            return f"{a.operand} {'+' if op == 'sum' else '*'} {b.operand}"
        if dtype is boolean or op in ("and", "or"):
            return f"{a.operand} {'&' if op in ('min', 'and') else '|'} {b.operand}"
        if dtype.is_float:
            w.helpers.add(COMBINERS[op])
            return f"{COMBINERS[op]}({a.code}, {b.typed})"
        return f"tl.{op}imum({a.code}, {b.typed})"

    def reduce(self, name: str, op: str, v: Value, axes: Axes) -> tuple[str, Value]:
        """Reduce a tensor along axes; a scalar if no lanes enclose the accumulator."""
        w, dtype = self.w, v.dtype
        kept_axes = v.axes - axes
        outer, _ = self.scopes[name]
        code = v.operand
        as_bool = dtype is boolean
        if as_bool:
            code = f"{code}.to(tl.int32)"
        extreme = {"min": "min", "and": "min", "max": "max", "or": "max"}.get(op, "")
        dims = [self.w.dims.get(a, len(outer)) for a in axes]
        for d in [None] if not outer else sorted(dims):
            dim_argument = f"{d}, " if d is not None else "None, "
            keep = "" if d is None else ", keep_dims=True"
            if op == "sum":
                code = f"tl.sum({code}, {dim_argument[:-2]}{keep})"
            elif as_bool or (dtype.is_integer and op in ("min", "max")):
                code = f"tl.{extreme}({code}, {dim_argument[:-2]}{keep})"
            else:
                w.helpers.add(COMBINERS[op])
                code = f"tl.reduce({code}, {dim_argument}{COMBINERS[op]}{keep})"
        if as_bool:
            return op, Value(f"{code} != 0", dtype, kept_axes, level=LOOSE)
        if dtype.is_integer:
            code = f"{code}.to({_type(dtype)})"
        return op, Value(code, dtype, kept_axes)

    def dot(self, d: Dot | None, k: Lane) -> None:
        w = self.w
        assert d is not None
        accumulator = w.env[d.accumulator]
        if w.guards or accumulator.axes != {d.m, d.n}:
            raise ValueError(f"the product in {d.accumulator} is of some elements only")
        left, right = unwidened(d.a), unwidened(d.b)
        if left.dtype is not right.dtype or left.dtype not in (f32, bf16, f16):
            left, right = d.a, d.b
        count_uses(w, [left, right])
        w.lanes[k.var] = k
        a, b = (self.dot_operand(x, order) for x, order in ((left, (d.m, d.k)), (right, (d.k, d.n))))
        del w.lanes[k.var]
        precision = ', input_precision="tf32x3"' if left.dtype is f32 else ""
        w.line(f"{accumulator.code} = tl.dot({a.code}, {b.code}, {accumulator.code}{precision})")
        self.forget(accumulator)

    def dot_operand(self, e: Expr, order: tuple[str, str]) -> Value:
        """An operand of `tl.dot`, with zeros in masked lanes."""
        w = self.w
        with w.with_axes(order):
            v = value(w, e)
            operand_mask = mask(w, frozenset(order))
            if operand_mask is not None and not isinstance(e, Load):
                v = v if v.is_atom else w.assign(v, "factor")
                zero = f"tl.full([], 0.0, {v.type})"
                v = Value(f"tl.where({operand_mask.code}, {v.code}, {zero})", v.dtype, v.axes | operand_mask.axes)
            v = w.broadcast(v, frozenset(order))
            return v if v.is_atom and v.code.isidentifier() else w.assign(v, "factor")


def _buffers_with_barriers(kernel: Kernel) -> set[str]:
    """The buffers whose stores need barriers: those that are also loaded, or stored to in scans."""
    nodes = [n for s in kernel.body for n in s.walk()]
    scans = [f for f in nodes if isinstance(f, tile.For) and f.kind == "scan"]
    stored = {n.buffer for n in nodes if isinstance(n, Store)}
    return {n.buffer for n in nodes if isinstance(n, Load) and n.buffer in stored} | {
        n.buffer for f in scans for n in f.walk() if isinstance(n, Store)
    }


def _type(dtype: DType) -> str:
    return f"tl.{TYPES[dtype.name]}"
