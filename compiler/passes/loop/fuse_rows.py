"""Fuse consecutive kernels over the same rows where that pays (Loop IR to Loop IR, for GPUs).

It pays if rows are many enough for the multiprocessors, or short, and a kernel reads the row that its predecessor made
at data-dependent positions: then nothing but a barrier between the two helps.
"""

from __future__ import annotations

import itertools
import math

from compiler.analysis import kernel_names
from compiler.analysis.sequences import sequence
from compiler.ir.expr import Const
from compiler.ir.statement import Kernel, Program
from compiler.passes.loop.costs import starts_cost_more
from compiler.passes.loop.fuse_attention import joined, private, rows_between
from compiler.targets.target import Target


def fuse_rows(program: Program, target: Target) -> Program:
    """Join consecutive kernels wherever the result reads within its rows at data-dependent positions."""
    if program.sizes:
        return program
    out: list[Kernel] = []
    rest = list(program.kernels)
    while rest:
        run = _run(rest, target)
        made = _one(program, run) if len(run) > 1 else None
        if made is not None:
            others = [k.name for k in (*out, *rest[len(run) :])]
            made = made.replace(name=kernel_names.free(made.name, others))
        out += run if made is None else [made]
        rest = rest[len(run) :]
    return program if len(out) == len(program.kernels) else program.replace(kernels=tuple(out))


def _run(kernels: list[Kernel], target: Target) -> list[Kernel]:
    """The longest prefix of the kernels in which each reads from the one before and is fast enough row by row."""
    run = kernels[:1]
    for k in kernels[1:]:
        before = run[-1]
        shared = rows_between(before, k) if {p.name for p in k.params} & set(before.writes) else []
        sizes = [f.extent for f in shared]
        rows = math.prod(int(n.value) for n in sizes if isinstance(n, Const))
        if not (shared and rows and all(starts_cost_more(x, rows, target) for x in (before, k))):
            break
        run.append(k)
    return run


def _one(program: Program, run: list[Kernel]) -> Kernel | None:
    """The kernels of a run joined into one; None if they cannot be."""
    least = min(len(rows_between(a, b)) for a, b in itertools.pairwise(run))
    made: Kernel | None = run[0]
    for k in run[1:]:
        made = joined(made, k, least) if made is not None else None
    if made is None:
        return None
    return made if sequence(made, private(program, made, run)) is not None else None
