"""Programs for threads: their launches as values, and both ways of the emulator to run them; GPUs are elsewhere."""

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler.errors import CompilerError, ToolchainError
from compiler.execution import buffers, gpu_programs
from compiler.runtime import profile
from compiler.runtime.launches import Launch

TARGET = compiler.target("sm_90a")
emulated = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, on which compiled functions run")


def lowered(function: object, *inputs: torch.Tensor) -> compiler.Lowering:
    return compiler.lower(compiler.capture(function, list(inputs)).program, TARGET)  # type: ignore[arg-type]


def launches(lowering: compiler.Lowering) -> tuple[Launch, ...]:
    return gpu_programs.launches(lowering.stages["kernel"], buffers.plan(lowering, {})).launches


def test_each_function_is_a_launch_on_numbered_buffers() -> None:
    two = lowered(lambda x: F.softmax(x, -1).cumsum(0), torch.randn(5, 33))
    softmax, scan = launches(two)
    made = gpu_programs.launches(two.stages["kernel"], buffers.plan(two, {}))
    assert (softmax.args, scan.args) == ((0, 2), (2, 1))  # input, temporary; temporary, output
    assert (softmax.synchronizes, scan.synchronizes) == (True, False)
    assert all(n > 0 for n in (*softmax.grid, *softmax.block))
    assert [b.size for b in made.buffers] == [5 * 33 * 4] * 3 and made.arena >= 5 * 33 * 4


def test_buffers_reach_from_the_first_to_the_last_element() -> None:
    strided = lowered(lambda x: x + 1, torch.randn(9, 8)[::2, ::4])
    made = gpu_programs.launches(strided.stages["kernel"], buffers.plan(strided, {}))
    assert made.inputs[0].size == (4 * 16 + 4 + 1) * 4 and made.outputs[0].size == 5 * 2 * 4


def test_nothing_is_launched_on_nothing() -> None:
    assert launches(lowered(lambda x: x + 1, torch.randn(0, 3))) == ()


@pytest.mark.parametrize("stage", ["kernel", "cuda"])
def test_stages_run(stage: str) -> None:
    x = torch.randn(33, 100)
    (made,) = compiler.execute(lowered(lambda x: F.softmax(x, -1), x), stage, [x])
    torch.testing.assert_close(made, F.softmax(x, -1))


def test_what_the_checks_find_is_told_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 5)
    lowering = lowered(lambda x: x * 2, x)
    text = gpu_programs.text(lowering, "cuda")
    wrong = text.replace("] * 2.0f", " + 1] * 2.0f")
    assert wrong != text
    monkeypatch.setattr(gpu_programs, "text", lambda *_: wrong)
    line = next(n for n, words in enumerate(wrong.splitlines(), 1) if " + 1] * 2.0f" in words)
    with pytest.raises(CompilerError, match=rf"kernel\.cu:{line}: .*out of bounds"):
        compiler.execute(lowering, "kernel", [x])


@emulated
def test_inputs_amid_sixteen_bytes_are_copied() -> None:
    base = torch.randn(41)
    x = base[1:]
    assert x.data_ptr() % 16 and not gpu_programs.aligned([x])[0].data_ptr() % 16
    compiled = compiler.compile(lambda x: x * 2, [x], "sm_80")
    assert compiled.emulated and compiled.kernels == 1
    torch.testing.assert_close(compiled(x), x * 2)
    outcome = compiler.execute_guarded(compiled.lowering, [x])
    assert outcome.complaints == () and outcome.same


@emulated
def test_a_compiled_function_refuses_other_tensors() -> None:
    compiled = compiler.compile(lambda x: x + 1, [torch.randn(8)], "cuda")
    with pytest.raises(ValueError, match="expected f32"):
        compiled(torch.randn(9))
    with pytest.raises(TypeError, match="expected 1 arguments"):
        compiled()


@emulated
def test_weights_are_bound() -> None:
    linear = torch.nn.Linear(6, 3)
    x = torch.randn(4, 6)
    compiled = compiler.compile(linear, [x], "cuda")
    torch.testing.assert_close(compiled(x), linear(x))


def test_no_profiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    with pytest.raises(ToolchainError, match="ncu"):
        profile.command(["k"], ["true"])
    monkeypatch.setattr("shutil.which", lambda *_, **__: "/bin/ncu")
    made = profile.command(["a", "b.c"], ["run"])
    assert made[0] == "/bin/ncu" and made[-1] == "run" and r"regex:^(a|b\.c)$" in made
