"""The schedule step `partial_sums`: split a long sum into a sum of partial sums."""

from __future__ import annotations

from compiler.analysis.long_sums import added_to
from compiler.ir import tile
from compiler.ir.expr import Expr, Var, identity, substitute
from compiler.ir.index import simplify
from compiler.ir.rewrite import statements
from compiler.ir.statement import Accum, Init, Kernel, Stmt
from compiler.ir.value_ranges import extent_range
from compiler.passes.tile.nests import SERIAL, loop_variables, pieces
from compiler.schedule.steps import PartialSums, ScheduleError


def partial_sums(step: PartialSums, f: tile.For, kernel: Kernel) -> tuple[Stmt, ...]:
    """`partial_sums("r", 8, piece="r_piece", partial=("s_partial",))`

    before:
        s: f32 = 0.0
        for r in serial(20, reduce):
            s += x[r]
        y[0] = s
    after:
        s: f32 = 0.0
        for r_piece in serial(3, reduce):
            s_partial: f32 = 0.0
            for r in serial(min(8, 20 - r_piece * 8), reduce):
                s_partial += x[r_piece * 8 + r]
            s += s_partial
        y[0] = s

    If a scan reads such a scalar, it reads the sum of the earlier pieces and of the current one. Pieces of one
    iteration need no inner loop.
    """
    if step.length < 1:
        raise ScheduleError(step, "the length must be at least 1")
    sums = added_to(f, kernel.body)
    if f.kind not in ("reduce", "scan") or not sums:
        raise ScheduleError(step, f"{f.var} adds to no scalar of a floating type")
    if len(step.partial) != len(sums):
        raise ScheduleError(step, f"it makes {len(sums)} sums here, and names {', '.join(step.partial) or 'none'}")
    (piece,) = loop_variables(step, (step.piece,), 1)
    count, left = pieces(f.extent, step.length, piece)
    ranges = {piece.name: extent_range(count), f.var: (0, step.length - 1)}
    parts = {s: s.replace(name=name) for s, name in zip(sums, step.partial, strict=True)}
    table: dict[Expr, Expr] = {s: s + part for s, part in parts.items()}
    partial_names = {s.name: part.name for s, part in parts.items()}

    def renamed(s: Stmt) -> Stmt | None:
        return s.replace(name=partial_names[s.name]) if isinstance(s, Accum) and s.name in partial_names else None

    at = piece * step.length + Var(f.var) if step.length > 1 else piece
    piece_body = statements(simplify(substitute(f.body, {Var(f.var): at, **table}), ranges), renamed)
    body = (
        *(Init(part.name, identity("sum", s.dtype)) for s, part in parts.items()),
        *((f.replace(extent=left, body=piece_body),) if step.length > 1 else piece_body),
        *(Accum(s.name, "sum", part) for s, part in parts.items()),
    )
    return (tile.For(piece.name, count, f.kind, SERIAL, body),)
