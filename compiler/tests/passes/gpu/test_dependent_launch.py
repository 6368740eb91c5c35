"""Kernels that begin while those before them end: where they wait, and that the emulator finds who does not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from compiler import frontend, pipeline
from compiler.execution import buffers, gpu_programs
from compiler.ir import kernel as k
from compiler.passes.gpu import dependent_launch
from compiler.passes.gpu.early_prefetch import PREFETCH
from compiler.runtime.emulator import emulator
from compiler.runtime.launcher import DTYPES
from compiler.targets.nvidia import SM_80, SM_90A
from compiler.tests.meaning import fresh_seed

PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...], torch.dtype]] = {
    "rows": (lambda x: torch.softmax(x, -1), ((24, 96),), torch.float32),
    "elements": (lambda x, y: F.silu(x) * y, ((24, 96), (24, 96)), torch.bfloat16),
    "tiles": (lambda x, y: x @ y, ((64, 128), (128, 64)), torch.bfloat16),
    "rows and tiles": (lambda x: torch.softmax(x, -1).t().contiguous() @ x, ((128, 64),), torch.bfloat16),
    "two kernels": (lambda x: torch.softmax(x, -1).cumsum(0).t() @ x, ((48, 64),), torch.float32),
}


def lowered(name: str) -> tuple[pipeline.Lowering, list[torch.Tensor]]:
    function, shapes, dtype = PROGRAMS[name]
    inputs = [torch.randn(s).to(dtype) for s in shapes]
    return pipeline.lower(frontend.capture(function, inputs).program, SM_90A), inputs


def reports(text: str, lowering: pipeline.Lowering, inputs: list[torch.Tensor], seed: int) -> set[str]:
    """The kinds of reports of a run of `text`, in place of that of the lowering, in the emulator's check mode."""
    planned = buffers.plan(lowering, {})
    plan = gpu_programs.launches(lowering.stages["kernel"], planned)
    path = emulator.build(text, (gpu_programs.HEADERS,), check=True)
    outputs = [torch.empty_strided(b.shape, b.stride, dtype=DTYPES[b.dtype]) for b in planned.outputs]
    found = emulator.run_pointers(path, plan, [x.data_ptr() for x in (*inputs, *outputs)], True, seed)
    return {r.kind for r in found.reports}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_kernel_waits_once_before_it_touches_a_tensor(name: str) -> None:
    lowering, _ = lowered(name)
    plan = gpu_programs.launches(lowering.stages["kernel"], buffers.plan(lowering, {}))
    assert plan.launches and all(launch.overlaps for launch in plan.launches)
    for f in lowering.stages["kernel"].functions:
        tensors = {p.name for p in f.params}
        waits = [n for n, s in enumerate(f.body) if s is dependent_launch.WAIT]
        touched = [
            n
            for n, s in enumerate(f.body)
            if tensors & {getattr(x, "buffer", "") for x in s.walk()} and getattr(s, "function", "") != PREFETCH
        ]
        assert len(waits) == 1 and all(n > waits[0] for n in touched)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("waits", [True, False])
def test_the_emulator_finds_a_kernel_that_does_not_wait(name: str, waits: bool) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    lowering, inputs = lowered(name)
    text = gpu_programs.text(lowering, "kernel")
    if not waits:
        assert "  mlc_wait_dependencies();\n" in text
        text = text.replace("  mlc_wait_dependencies();\n", "")
    assert reports(text, lowering, inputs, seed) == (set() if waits else {"launch dependency"}), f"seed {seed}"


@pytest.mark.parametrize("plain", [True, False])
def test_the_emulator_finds_a_constant_load_of_what_the_kernel_before_writes(plain: bool) -> None:
    seed = fresh_seed()
    torch.manual_seed(seed)
    x = torch.randn(64, 96)
    lowering = pipeline.lower(frontend.capture(lambda x: torch.softmax(x @ x.t(), -1), [x]).program, SM_90A)
    text = gpu_programs.text(lowering, "kernel")
    assert re.search(r"mlc_load_once<\d+, 0>", text), text
    if not plain:
        text = re.sub(r"(mlc_load_once<\d+), 0>", r"\1>", text)
    assert reports(text, lowering, [x], seed) == (set() if plain else {"constant written"}), f"seed {seed}"


def test_older_gpus_and_kernels_that_touch_nothing_stay_as_they_are() -> None:
    lowering, _ = lowered("rows")
    program = lowering.stages["kernel"]
    bare = program.replace(functions=tuple(f.replace(body=_bare(f.body)) for f in program.functions))
    assert dependent_launch.dependent_launch(bare, SM_80) is bare
    assert dependent_launch.dependent_launch(bare, SM_90A) is program
    assert dependent_launch.dependent_launch(program, SM_90A) is program
    empty = program.replace(functions=(program.functions[0].replace(body=()),))
    assert dependent_launch.dependent_launch(empty, SM_90A) is empty
    plan = gpu_programs.launches(bare, buffers.plan(lowering, {}))
    assert not any(launch.overlaps for launch in plan.launches)


def _bare(body: tuple[k.Stmt, ...]) -> tuple[k.Stmt, ...]:
    return tuple(s for s in body if s is not dependent_launch.WAIT)
