"""`mlcomp validate`: shape files are read and expanded, nothing in them runs, what is wrong is said by its line."""

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.shapes import validate
from conformance.tests.pretence import PERF, ROOT, case

HEAD = "format = 1\n"


def test_good_files_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + case("one", PERF) + case("two", dims="dims.N = 4"))
    (tmp_path / "pyproject.toml").write_text("")
    assert validate.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{path}: 3 cases, 1 benchmark\n"


def test_what_is_wrong_is_said_by_its_line_and_nothing_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, none = (tmp_path / name for name in ("good.toml", "bad.toml", "none.toml"))
    good.write_text(HEAD + case("fine").replace('expr = "x + 1"', 'module = "beside:Mine"'))
    (tmp_path / "beside.py").write_text("raise SystemExit('it ran')")
    bad.write_text(HEAD + case("one").replace("dims.N", "dmis.N"))
    assert validate.main([str(good), str(bad), str(none)]) == 1
    fine, wrong, missing = capsys.readouterr().out.splitlines()
    assert fine == f"{good}: 2 cases, 0 benchmarks"
    assert wrong.startswith(f"{bad}:6: ") and "dims" in wrong
    assert missing.startswith(f"{none}:1: cannot be read")


def test_a_folder_without_any_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate.main([str(tmp_path)]) == 1
    assert "no shape files in" in capsys.readouterr().out


def test_the_command_asks_the_suite(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + case("one").replace("expr", "exrp"))
    command = [sys.executable, "-m", "compiler.cli", "validate", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout.startswith(f"{path}:4: ") and done.stderr == ""
