"""What the tests of the backend share."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler import backend
from compiler.backend import FallbackWarning, saved_packs
from compiler.backend.options import CompiledRegion
from compiler.execution.executable import Executable


@pytest.fixture
def fresh() -> Iterator[None]:
    """Nothing compiled before counts, and eager never steps in unseen."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    """The programs that are compiled."""
    found: list[Executable] = []
    build = backend._build

    def kept(*arguments: Any) -> Executable:
        found.append(build(*arguments))
        return found[-1]

    monkeypatch.setattr(backend, "_build", kept)
    return found


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each saved tensor is handed over by itself, so that hooks see it."""
    monkeypatch.setattr(saved_packs, "pack", lambda *_: None)


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[list[torch.dtype]]:
    """The types of the arguments that are copied to behind a program, a list for each kernel that copies."""
    found: list[list[torch.dtype]] = []
    copy = torch._foreach_copy_

    def noted(places: list[torch.Tensor], news: list[torch.Tensor]) -> None:
        found.append([x.dtype for x in places])
        copy(places, news)

    monkeypatch.setattr(torch, "_foreach_copy_", noted)
    return found


@pytest.fixture
def saved_for_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[CompiledRegion]]:
    """The programs of graphs whose saved tensors are laid out as for a GPU, at every stage: none comes from a cache."""
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path))
    torch.compiler.reset()
    made: list[CompiledRegion] = []
    program = backend._compile_program

    def heard(*args: object) -> object:
        report = args[-1]
        found = program(*args)  # type: ignore[arg-type]
        made.extend(report.regions)  # type: ignore[attr-defined]
        return found

    monkeypatch.setattr(backend, "_is_for_gpu", lambda inputs, options: True)
    monkeypatch.setattr(backend, "_compile_program", heard)
    yield made
    torch.compiler.reset()
