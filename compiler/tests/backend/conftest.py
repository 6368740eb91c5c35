"""What the tests of the backend share."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compiler import backend
from compiler.backend import FallbackWarning
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
