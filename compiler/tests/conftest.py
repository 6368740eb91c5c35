"""Case files are tests: each `cases/PASS/NAME.ir` runs its passes, and `pytest --update` writes down what they make."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler.tests import case_file
from compiler.tests.meaning import fresh_seed


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="write what the passes make into the case files")


@pytest.fixture
def seed() -> int:
    """Fresh each time; named in every failure."""
    return fresh_seed()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    return _CaseFile.from_parent(parent, path=file_path) if file_path.suffix == ".ir" else None


class _CaseFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _CaseItem.from_parent(self, name=self.path.stem)


class _Different(AssertionError):
    """The passes made something else than the file says."""


class _CaseItem(pytest.Item):
    def runtest(self) -> None:
        case = case_file.read(self.path)
        made = case_file.check(case, fresh_seed())
        if made == case.after:
            return
        if self.config.getoption("update"):
            self.path.write_text(case.before + case_file.SEPARATOR + made, encoding="utf-8")
            return
        lines = difflib.unified_diff(case.after.splitlines(), made.splitlines(), "expected", "made", lineterm="")
        raise _Different("\n".join(lines) + "\n`pytest --update` accepts it")

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        if isinstance(excinfo.value, AssertionError | ValueError):
            return f"{self.path}: {excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.parent.name}/{self.name}"
