"""Accumulators of asynchronous matmuls begin with the first matmul, whatever the number of steps; without one they are
zero."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import compiler
from compiler.checks import inspection
from compiler.runtime import cubin, sass

needs_tools = pytest.mark.skipif(
    cubin.nvrtc_compiler() is None or sass.disassembler() is None, reason="no CUDA compiler"
)


def product(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def numbers(*shape: int) -> Tensor:
    return torch.randint(-4, 5, shape).bfloat16()


def dims() -> tuple[dict[int, torch.export.Dim], dict[int, torch.export.Dim]]:
    m, k, n = (torch.export.Dim(name) for name in "mkn")
    return {0: m, 1: k}, {0: k, 1: n}


def from_none_on() -> compiler.Captured:
    """The product with any number of columns and rows, of which torch.export says that there are two at least."""
    captured = compiler.capture(product, [numbers(24, 33), numbers(33, 16)], dynamic_shapes=dims())
    ir = compiler.IRS["torch"]
    text = ir.show(captured.program)
    assert "size[2, inf, 33]" in text
    return replace(captured, program=ir.parse(text.replace("size[2, inf, 33]", "size[0, inf, 33]")))


def check(made: compiler.Executable, *depths: int) -> None:
    assert "mlc_wgmma<" in made.lowering.show("cuda")
    for depth in depths:
        x, w = numbers(24, depth), numbers(depth, 16)
        assert torch.equal(made(x, w), (x.double() @ w.double()).bfloat16()), depth


def test_roles_of_any_number_of_steps() -> None:
    check(compiler.compile(from_none_on(), target="sm_90a"), 33, 64, 65, 130)


@pytest.mark.parametrize("depth", [2, 1])
def test_pipelines_of_all_threads(depth: int) -> None:
    captured, target = from_none_on(), compiler.target("sm_90a")
    chosen = compiler.show_schedules(compiler.lower(captured.program, target).schedules)
    text = chosen.replace('"shared", "tma", 128', '"shared", "cp.async", 128')
    by_all = text.replace("pipeline, depth=2, producers=1", f"pipeline, depth={depth}")
    assert by_all != text != chosen
    schedules = compiler.read_schedules(by_all, captured.program, target)
    check(compiler.compile(captured, target=target, schedules=schedules), 33, 0, 64, 65, 130)


@needs_tools
def test_matmuls_of_any_number_of_steps_run_side_by_side() -> None:
    captured = compiler.capture(product, [numbers(24, 33), numbers(33, 16)], dynamic_shapes=dims())
    lowered = compiler.lower(captured.program, compiler.target("sm_90a"))
    kernels = inspection.inspect([lowered])[0]
    assert kernels and not [c for kernel in kernels for c in kernel.complaints]
