"""What the tests of the plugin share."""

import os
import tempfile
from collections.abc import Iterator

import pytest

from conformance.tests.pretence import FAKE, ROOT, keep_imports


@pytest.fixture
def imports() -> Iterator[None]:
    """Keep, when `pytester` is done, what runs inside this process have imported."""
    yield
    keep_imports()


@pytest.fixture
def box(imports: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder with the pretended runner; its lock and its logs are its own."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(pytester.path)]))
    monkeypatch.setenv("TMPDIR", str(pytester.path))
    monkeypatch.setattr(tempfile, "tempdir", None)  # this process has looked TMPDIR up before
    monkeypatch.setenv("BENCH_LOG", str(pytester.path / "bench.log"))
    for name in ("GITHUB_STEP_SUMMARY", "PYTEST_XDIST_WORKER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.syspath_prepend(str(pytester.path))
    pytester.makepyfile(fake=FAKE)
    return pytester
