"""Passes that let a kernel run, or store, elsewhere do so only if no input is overwritten between."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compiler.execution import named
from compiler.ir.stages import IRS
from compiler.ir.statement import Program
from compiler.passes.loop import recompute as recomputing
from compiler.passes.loop.concat_in_place import concat_in_place
from compiler.passes.loop.forward_copies import forward_copies

COPY = """
def f(x: f32[8], a: f32[8], *, z: f32[8]):
    t: f32[8]
    with kernel("t", [a, t], writes=[t]):
        for i in parallel(8):
            t[i] = tanh(a[i])
    with kernel("z", [{read}, z], writes=[z]):
        for i in parallel(8):
            z[i] = {read}[7 - i]
    with kernel("x", [t, x], writes=[x]):
        for i in parallel(8):
            x[i] = t[i]
"""
PARTS = """
def f(x: f32[2, 8], a: f32[8], *, z: f32[8]):
    t: f32[8]
    u: f32[8]
    with kernel("t", [a, t], writes=[t]):
        for i in parallel(8):
            t[i] = tanh(a[i])
    with kernel("u", [a, u], writes=[u]):
        for i in parallel(8):
            u[i] = exp(a[i])
    with kernel("z", [{read}, z], writes=[z]):
        for i in parallel(8):
            z[i] = {read}[{row}7 - i]
    with kernel("x", [t, u, x], writes=[x]):
        for n in parallel(2):
            for i in parallel(8):
                x[n, i] = (t[i] if n == 0 else 0.0) + (u[i] if n == 1 else 0.0)
"""
CHAIN = """
def f(x: f32[64, 64], w: f32[64, 64], v: f32[64, 64], *, y: f32[64, 64]):
    t: f32[64, 64]
    with kernel("t", [x, w, t], writes=[t]):
        for i in parallel(64):
            for j in parallel(64):
                s: f32 = 0.0
                for k in reduce(64):
                    s += x[i, k] * w[k, j]
                t[i, j] = exp(s)
    with kernel("written", [v, {read}], writes=[{read}]):
        for i in parallel(64):
            for j in parallel(64):
                {read}[i, j] = v[j, i]
    with kernel("y", [t, v, y], writes=[y]):
        for i in parallel(64):
            for j in parallel(64):
                u: f32 = 0.0
                for k in reduce(64):
                    u += t[i, k] * v[k, j]
                y[i, j] = u
"""


def recompute(program: Program) -> Program:
    return recomputing.recompute(program, named.target("sm_90a"))


@pytest.mark.parametrize(
    ("run", "text", "free", "read"),
    [
        (forward_copies, COPY, "a", "x"),
        (concat_in_place, PARTS, "a", "x"),
        (recompute, CHAIN.replace("*, y", "r: f32[64, 64], *, y"), "r", "x"),
    ],
)
def test_a_kernel_stays_where_an_input_is_overwritten_after_it(
    run: Callable[[Program], Program], text: str, free: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputing, "_pays", lambda *arguments: True)
    for name in (free, read):
        program = IRS["loop"].parse(text.format(read=name, row="0, " if name == "x" and run is concat_in_place else ""))
        assert (run(program) == program) == (name == read), name
