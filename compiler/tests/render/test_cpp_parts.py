"""Long C++ texts are compiled in parts, side by side: they define together what the text defines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import compiler
from compiler.errors import ToolchainError
from compiler.execution import executable
from compiler.execution.cpp_flags import flags
from compiler.render import cpp
from compiler.runtime import build
from compiler.tests.meaning import fresh_seed

DEFINED = re.compile(r"^(?:static )?(?:__attribute__\(\([^)]*\)\) )?void (\w+)\([^;{]*\{$", re.MULTILINE)


def kernels(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Vectors, scalars, loops over threads, large arrays, and a requirement of the data."""
    y = torch.softmax(x @ x, -1)
    return y, y.sort(0).values, (y.exp() + x.half()).cumsum(1), y[i], torch.tanh(x).sum()


def test_a_text_in_parts_computes_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch.manual_seed(fresh_seed())
    inputs = [torch.randn(64, 64), torch.randint(0, 64, (5,))]
    whole = compiler.compile(kernels, inputs, cache=tmp_path / "whole")
    monkeypatch.setattr(cpp, "PART", 500)
    made = cpp.parts(whole.source)
    assert len(made) > 4 and sum("mlc_entry(" in text for text in made) == 1
    assert sorted(name for text in made for name in DEFINED.findall(text)) == sorted(DEFINED.findall(whole.source))
    executable._stages_to_run.cache_clear()
    monkeypatch.setattr(build, "_built", {})
    split = compiler.compile(kernels, inputs, cache=tmp_path / "parts")
    assert split.source == whole.source
    for ours, theirs in zip(split(*inputs), whole(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(IndexError):
        split(inputs[0], torch.full((5,), 64))


def test_a_part_that_is_refused_is_told_of_as_the_text_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = compiler.compile(kernels, [torch.randn(64, 64), torch.zeros(5).long()]).source
    monkeypatch.setattr(cpp, "PART", 500)
    wrong = text.replace("int mlc_entry(", "int mlc_entry(nothing ", 1)
    line = wrong[: wrong.index("int mlc_entry(")].count("\n") + 1
    with pytest.raises(ToolchainError, match=f"kernel.cpp:{line}:"):
        build.build(wrong, flags(compiler.target("cpu")), cache=tmp_path, include=(executable.HEADERS,),
                    split=cpp.parts)  # fmt: skip
