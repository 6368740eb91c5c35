"""Replay: the same texts at two revisions pass, others fail with a diff, and nothing compared is no success."""

import subprocess
from pathlib import Path

import pytest

from conformance.tests.history import past


def replay(folder: Path, revision: str) -> subprocess.CompletedProcess[str]:
    plugins = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    return past.run(folder, "pytest", *plugins, "--mlcomp", "mine.toml", "--mlcomp-replay", revision)


def test_replay_shows_what_a_commit_changed(tmp_path: Path) -> None:
    past.repository(tmp_path, [past.COMMENT, past.UNSCHEDULED])
    unlike = replay(tmp_path, "c1")
    assert unlike.returncode == 1, unlike.stdout
    assert "3 texts at c1 and now, 2 of them different" in unlike.stdout
    assert "\n--- before cpu add[" in unlike.stdout and "\n-" in unlike.stdout.split("+++ after")[1]
    past.git(tmp_path, "checkout", "-q", "c0", "--", "compiler")
    same = replay(tmp_path, "c1")  # whose texts are kept
    assert same.returncode == 0, same.stdout
    assert "3 texts at c1 and now, none of them different" in same.stdout
    assert len(list(Path(tmp_path, "cache", "mlcomp-revisions", "records").iterdir())) == 1


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    past.git(tmp_path, "init", "-q")
    (tmp_path / "mine.toml").write_text(past.SHAPES)
    result = replay(tmp_path, "no-such-thing")
    assert result.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--mlcomp-replay: " in result.stderr and "has no revision 'no-such-thing'" in result.stderr
