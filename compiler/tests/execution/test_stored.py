"""A program that was compiled before is neither lowered nor built again, unless something that it depends on is new."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

import compiler
from compiler import pipeline
from compiler.execution import buffers, executable, gpu_programs, stored
from compiler.ir import kernel_text
from compiler.pipeline import Lowering
from compiler.render import header
from compiler.tests.meaning import fresh_seed


class LoweredAnew(Exception):
    """The passes were gone through."""


def layers(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    for _ in range(3):
        x = torch.softmax(x @ w, -1)
    return x, x.gather(1, (x * 7).long().clamp(0, 3))


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Nothing is remembered from the compilations of other tests, nor by later ones from these."""
    executable._stages_to_run.cache_clear()
    yield monkeypatch
    executable._stages_to_run.cache_clear()


def again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another process: passes raise."""

    def refuse(*_: Any) -> Lowering:
        raise LoweredAnew

    executable._stages_to_run.cache_clear()
    monkeypatch.setattr(executable, "lowered", refuse)


def given(n: int = 24) -> list[torch.Tensor]:
    torch.manual_seed(fresh_seed())
    return [torch.randn(n, 40), torch.randn(40, 40)]


def right(made: executable.Executable, inputs: list[torch.Tensor]) -> None:
    torch.testing.assert_close(made(*inputs), layers(*inputs), rtol=1e-4, atol=1e-5)


def test_a_program_of_another_process_is_loaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    inputs = given()
    first = compiler.compile(layers, inputs, cache=tmp_path)
    right(first, inputs)
    shown = first.lowering.show("tile")
    with monkeypatch.context() as patch:
        again(patch)
        second = compiler.compile(layers, inputs, cache=tmp_path)
    right(second, inputs)
    assert (second.source, second.kernels, second.digest) == (first.source, first.kernels, first.digest)
    assert second.lowering.show("tile") == shown
    assert second.code.stages["kernel"].temps == first.code.stages["kernel"].temps


def test_so_is_one_for_all_sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shapes = {"x": {0: Dim("rows", min=1, max=4096)}, "w": None}
    compiler.compile(layers, given(), cache=tmp_path, dynamic_shapes=shapes)
    again(monkeypatch)
    made = compiler.compile(layers, given(), cache=tmp_path, dynamic_shapes=shapes)
    for n in (1, 24, 33):
        right(made, given(n))


@pytest.mark.parametrize("what", ["the compiler", "the target", "the sizes", "a schedule"])
def test_what_it_depends_on_is_looked_at(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = compiler.compile(layers, given(), "cpu:baseline", cache=tmp_path)
    again(monkeypatch)
    target, inputs, schedules = "cpu:baseline", given(), None
    match what:
        case "the compiler":
            monkeypatch.setattr(stored, "sources", lambda: "other")
        case "the target":
            target = "cpu"
        case "the sizes":
            inputs = given(25)
        case _:
            schedules = dict(list(first.code.schedules.items())[:1])
    with pytest.raises(LoweredAnew):
        compiler.compile(layers, inputs, target, cache=tmp_path, schedules=schedules)


def test_a_damaged_program_is_lowered_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inputs = given()
    compiler.compile(layers, inputs, cache=tmp_path)
    (path,) = tmp_path.rglob("*.json")
    content = path.read_bytes()
    assert b"* 40" in content
    path.write_bytes(content.replace(b"* 40", b"* 41"))
    with monkeypatch.context() as patch, pytest.raises(LoweredAnew), caplog.at_level(logging.WARNING, "mlcomp"):
        again(patch)
        compiler.compile(layers, inputs, cache=tmp_path)
    assert str(path) in caplog.text
    right(compiler.compile(layers, inputs, cache=tmp_path), inputs)
    assert path.read_bytes() == content
    again(monkeypatch)
    right(compiler.compile(layers, inputs, cache=tmp_path), inputs)


def test_what_is_stored_is_launched_as_what_was_lowered_is() -> None:
    """Grids, shared memory, tensor maps, clusters, zeros and requirements of a GPU's kernels are kept."""

    def everything(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.softmax(x @ w, -1)
        return y, y[i], x.sum(), (x @ w.t()).sum(), F.scaled_dot_product_attention(x[None], w[None], w[None])

    inputs = [torch.randn(256, 256).bfloat16(), torch.randn(256, 256).bfloat16(), torch.zeros(5).long()]
    lowering = pipeline.lower(compiler.capture(everything, inputs).program, compiler.target("sm_90a"))
    kernel = lowering.stages["kernel"]
    kept = kernel_text.parse(kernel_text.show(header.launches_only(kernel)))
    plan = buffers.plan(lowering, {})
    stages = {"torch": lowering.stages["torch"], "kernel": kept}
    assert buffers.plan(Lowering(stages, lowering.target, {}), {}) == plan
    ours, theirs = gpu_programs.launches(kept, plan), gpu_programs.launches(kernel, plan)
    assert any(f.maps for f in kernel.functions) and any(x.shared for x in theirs.launches)
    # What an emulator makes use of is not stored: where there is no GPU nothing is.
    alike = [[replace(x, synchronizes=True) for x in y.launches] for y in (ours, theirs)]
    assert alike[0] == alike[1] and replace(ours, launches=()) == replace(theirs, launches=())
