"""Schedules of several kernels: as one text, for some kernels only, and for kernels that there are none of."""

from __future__ import annotations

import pytest
import torch

from compiler import compile as compiled
from compiler import pipeline
from compiler.errors import CompilerError
from compiler.ir import loop_text
from compiler.schedule import files
from compiler.schedule.steps import Schedule, ScheduleError, parse
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target

TEXT = """
def two(x: f32[64, 480], *, y: f32[64, 480], z: f32[64]):
    with kernel("scaled", [x, y], writes=[y]):
        for i in parallel(64):
            for j in parallel(480):
                y[i, j] = x[i, j] * 2.0
    with kernel("summed", [x, z], writes=[z]):
        for i in parallel(64):
            s: f32 = 0.0
            for j in reduce(480):
                s += x[i, j]
            z[i] = s
"""
PROGRAM = loop_text.parse(TEXT)
SERIAL = {"scaled": Schedule(), "summed": Schedule()}
REFUSED = {
    "no section": ("with kernel(scaled):\n    pass\n", r'line 1: a section begins with: with kernel\("NAME"\):'),
    "twice": ('with kernel("a"):\n    pass\nwith kernel("a"):\n    pass\n', "line 3: kernel a has a section before"),
    "outside": ('with kernel("a"):\n    pass\nbind("i", blocks)\n', r"line 3: bind\('i', blocks\) is in no kernel's"),
    "no step": ('with kernel("a"):\n    slit("i", 3)\n', r"line 2: slit\('i', 3\) is not a step"),
    "no text": ("with kernel(", "line 1"),
}


@pytest.mark.parametrize("target", [cpu.AVX2, nvidia.SM_90A], ids=lambda t: t.name)
def test_what_was_chosen_reads_back_and_makes_the_same(target: Target) -> None:
    chosen = pipeline.lower(PROGRAM, target, source="loop")
    text = files.show_schedules(chosen.schedules)
    assert files.parse(text) == chosen.schedules
    again = pipeline.lower(PROGRAM, target, files.parse(text), source="loop")
    assert again.stages == chosen.stages


@pytest.mark.parametrize("how", REFUSED)
def test_a_text_that_is_none_is_refused(how: str) -> None:
    text, message = REFUSED[how]
    with pytest.raises(ValueError, match=message):
        files.parse(text)


def test_kernels_without_a_section_are_scheduled_all_the_same() -> None:
    chosen = pipeline.lower(PROGRAM, cpu.AVX2, source="loop", until="tile")
    mine = {"summed": parse('bind("i", blocks)')}
    made = pipeline.lower(PROGRAM, cpu.AVX2, mine, source="loop", until="tile")
    assert made.schedules == {**chosen.schedules, **mine}
    assert pipeline.lower(PROGRAM, cpu.AVX2, SERIAL, source="loop", until="tile").schedules == SERIAL


def test_a_schedule_for_no_kernel_names_the_nearest() -> None:
    with pytest.raises(CompilerError, match=r"no kernel sumed to schedule; did you mean summed\?"):
        pipeline.lower(PROGRAM, cpu.AVX2, {"sumed": Schedule()}, source="loop")


def test_a_step_that_was_given_is_refused_beside_those_that_are_chosen() -> None:
    with pytest.raises(ScheduleError, match="no loop k"):
        pipeline.lower(PROGRAM, cpu.AVX2, {"summed": parse('bind("k", blocks)')}, source="loop")


def test_steps_alone_are_for_one_kernel() -> None:
    with pytest.raises(ValueError, match=r"this one has 2: begin a section .* for any of scaled, summed"):
        pipeline.read_schedules('bind("i", blocks)', PROGRAM, cpu.AVX2, "loop")
    one = PROGRAM.replace(kernels=PROGRAM.kernels[1:], outputs=PROGRAM.outputs[1:])
    assert pipeline.read_schedules('bind("i", blocks)', one, cpu.AVX2, "loop") == {"summed": parse('bind("i", blocks)')}


def test_compile_takes_schedules_for_some_kernels() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1) @ w

    inputs = torch.randn(33, 40), torch.randn(40, 50)
    name, mine = "softmax_33x40_f32", parse('bind("i", blocks)')
    made = compiled(function, inputs, "cpu", schedules={name: mine})
    assert len(made.lowering.schedules) == 2 and made.lowering.schedules[name] == mine
    torch.testing.assert_close(made(*inputs), function(*inputs), rtol=1e-4, atol=1e-5)
