"""What the tests of the backend share."""

from typing import Any

import pytest

from compiler import backend
from compiler.execution.executable import Executable


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Executable]:
    """The programs that are compiled."""
    found: list[Executable] = []
    build = backend._built

    def kept(*arguments: Any) -> Executable:
        found.append(build(*arguments))
        return found[-1]

    monkeypatch.setattr(backend, "_built", kept)
    return found
