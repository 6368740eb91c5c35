"""Gradients of pools on GPUs: threads load the windows of several elements once, and then choose without a branch."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import compiler
from compiler.checks import inspection
from compiler.execution import executable
from compiler.runtime import cubin, sass
from compiler.schedule.steps import Bind, Margin
from compiler.targets.nvidia import SM_90A
from compiler.tests.meaning import fresh_seed

Pool = Callable[[Tensor], Tensor]
POOLS: dict[str, tuple[Pool, tuple[int, ...]]] = {
    "even": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 24, 16)),
    "odd": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 23, 21)),
    "beside each other": (lambda x: F.max_pool2d(x, 3, 1, 1), (2, 3, 12, 11)),
    "dilated": (lambda x: F.max_pool2d(x, 3, 2, 1, 2), (2, 3, 24, 20)),
    "three apart": (lambda x: F.max_pool2d(x, 5, 3, 2), (2, 2, 17, 24)),
    "of two strides": (lambda x: F.max_pool2d(x, (5, 3), (4, 2), (2, 1)), (2, 2, 17, 24)),
    "to the end": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (2, 3, 24, 20)),
    "of rows": (lambda x: F.max_pool1d(x, 3, 2), (3, 4, 33)),
    "in space": (lambda x: F.max_pool3d(x, 3, 2, 1), (1, 2, 8, 7, 6)),
    "averaged": (lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (2, 3, 16, 15)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (4, 4)), (2, 3, 12, 10)),
    "relu behind": (lambda x: F.max_pool2d(x.relu() * 2, 3, 2, 1), (2, 3, 16, 20)),
}


# Images alone may be channels-last.
LAID = [
    pytest.param(name, layout, id=f"{name}-{word}")
    for name, (_, shape) in POOLS.items()
    for layout, word in ((torch.contiguous_format, "first"), (torch.channels_last, "last"))
    if word == "first" or len(shape) == 4
]


def gradient(pool: Pool, *given: Tensor) -> Tensor:
    found: Tensor = compiler.gradient(pool, 1, [0])(*given)[0]
    return found


def steps(lowering: compiler.Lowering) -> list[Any]:
    return [step for schedule in lowering.schedules.values() for step in schedule.steps]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "layout"), LAID)
def test_windows_are_loaded_once(name: str, layout: torch.memory_format, dtype: torch.dtype) -> None:
    torch.manual_seed(fresh_seed())
    pool, shape = POOLS[name]
    x = torch.randint(-60, 60, shape).to(dtype).to(memory_format=layout)
    given = [x, torch.randint_like(pool(x), -9, 9)]
    lowering = compiler.lower(compiler.capture_gradient(pool, given[:1], given[1:], [0]).program, SM_90A)
    assert any(isinstance(step, Margin) for step in steps(lowering)), lowering.schedules
    found = executable.execute_guarded(lowering, given, stage="kernel", emulate=True)
    assert not found.complaints and found.same
    wanted = gradient(pool, *(t.double() for t in given)).to(dtype)
    torch.testing.assert_close(found.outputs[0].reshape(x.shape), wanted)


@pytest.mark.skipif(cubin.nvrtc_compiler() is None or sass.disassembler() is None, reason="no CUDA compiler")
def test_loads_of_windows_do_not_wait_for_each_other() -> None:
    """A thread has 2 x 4 elements, which lie in 2 x 3 windows, each with an index and a gradient."""
    x = torch.zeros(8, 64, 56, 56, dtype=torch.bfloat16)
    y, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    given = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    captured = compiler.capture(
        lambda y, x, at: torch.ops.aten.max_pool2d_with_indices_backward(y, x, *given, at), [y, x, at]
    )
    lowering = compiler.lower(captured.program, SM_90A)
    (kernel,) = inspection.inspect([lowering])[0]
    count = {
        word: sum(n for code, n in kernel.opcodes.items() if re.match(word, code)) for word in ("LDG", "STG", "BSSY")
    }
    assert count == {"LDG": 12, "STG": 2, "BSSY": 0} and not kernel.complaints, kernel.opcodes


def test_filters_of_groups_are_no_windows() -> None:
    """A result's channel over those of a group is the group, but no two groups share what they read."""
    x, w = torch.randn(2, 4, 17), torch.randn(6, 2, 3)
    captured = compiler.capture(lambda x, w: F.conv1d(x, w, groups=2), [x, w])
    lowering = compiler.lower(captured.program, compiler.target("sm_90a:strict"))
    assert not any(isinstance(step, Margin) for step in steps(lowering)), lowering.schedules


def test_neighbours_that_are_no_power_of_two_are_stored_one_by_one() -> None:
    pool, shape = POOLS["adaptive"]
    x = torch.randint(-60, 60, shape).float()
    given = [x, torch.randint_like(pool(x), -9, 9)]
    made = compiler.compile(compiler.capture_gradient(pool, given[:1], given[1:], [0]), target=SM_90A)
    assert any(isinstance(s, Bind) and s.level == "vector" for s in steps(made.lowering))
    torch.testing.assert_close(made(*given)[0], gradient(pool, *given))


def test_channels_that_are_neighbours_go_to_neighbouring_threads() -> None:
    x = torch.randn(2, 8, 12, 10).to(memory_format=torch.channels_last)
    y, at = F.max_pool2d(x, 3, 2, 1, return_indices=True)

    def function(y: Tensor, x: Tensor, at: Tensor) -> Any:
        return torch.ops.aten.max_pool2d_with_indices_backward(y, x, [3, 3], [2, 2], [1, 1], [1, 1], False, at)

    made = compiler.compile(function, [y, x, at], "sm_90a")
    around = {step.loop for step in steps(made.lowering) if isinstance(step, Margin)}
    (channels,) = around
    assert f"for {channels} in parallel(8):" in made.lowering.show("loop")
    torch.testing.assert_close(made(y, x, at), function(y, x, at))
