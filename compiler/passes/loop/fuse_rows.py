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
from compiler.passes.loop.costs import launch_costs_more
from compiler.passes.loop.fuse_attention import join_kernels, private_temporaries, shareable_rows
from compiler.targets.target import Target


def fuse_rows(program: Program, target: Target) -> Program:
    """Join consecutive kernels wherever the result reads within its rows at data-dependent positions."""
    if program.sizes:
        return program
    out: list[Kernel] = []
    rest = list(program.kernels)
    while rest:
        run = _fusible_prefix(rest, target)
        fused = _join_run(program, run) if len(run) > 1 else None
        if fused is not None:
            others = [k.name for k in (*out, *rest[len(run) :])]
            fused = fused.replace(name=kernel_names.free(fused.name, others))
        out += run if fused is None else [fused]
        rest = rest[len(run) :]
    return program if len(out) == len(program.kernels) else program.replace(kernels=tuple(out))


def _fusible_prefix(kernels: list[Kernel], target: Target) -> list[Kernel]:
    """The longest prefix of the kernels in which each reads from the one before and is fast enough row by row."""
    run = kernels[:1]
    for k in kernels[1:]:
        before = run[-1]
        shared = shareable_rows(before, k) if {p.name for p in k.params} & set(before.writes) else []
        sizes = [f.extent for f in shared]
        rows = math.prod(int(n.value) for n in sizes if isinstance(n, Const))
        if not (shared and rows and all(launch_costs_more(x, rows, target) for x in (before, k))):
            break
        run.append(k)
    return run


def _join_run(program: Program, run: list[Kernel]) -> Kernel | None:
    """The kernels of a run joined into one; None if they cannot be."""
    common_rows = min(len(shareable_rows(a, b)) for a, b in itertools.pairwise(run))
    fused: Kernel | None = run[0]
    for k in run[1:]:
        fused = join_kernels(fused, k, common_rows) if fused is not None else None
    if fused is None:
        return None
    return fused if sequence(fused, private_temporaries(program, fused, run)) is not None else None
