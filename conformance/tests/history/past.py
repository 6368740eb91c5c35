"""A throwaway repository: this tree's compiler, and commits after it that each add some lines to one of its files."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import conformance

ROOT = Path(conformance.__file__).resolve().parent.parent
# What the lines that are added plant. The first changes no text; the others are of this compiler's own making.
COMMENT = ("compiler/schedule/heuristic.py", "# one more thought\n")
UNSCHEDULED = (  # slow: loops as they are written
    "compiler/schedule/heuristic.py",
    "def choose(*_: object) -> Schedule:\n    return Schedule()\n",
)
WRONG = (  # one and a half is rendered as one and a quarter
    "compiler/render/cpp.py",
    "_right = render\n\n\ndef render(*a, **k):\n    return _right(*a, **k).replace('1.5f', '1.25f')\n",
)
BROKEN = ("compiler/pipeline.py", "raise RuntimeError('half a change')\n")
MENDED = ("compiler/pipeline.py", "")
SHAPES = """
format = 1

[[case]]
name = "add"
expr = "x + 1.5"
dims = { N = [4096] }
args = { x = { shape = ["N"] } }
perf = { dims = [{ N = 4096 }] }

[[case]]
name = "total"
expr = "x.sum(-1)"
dims = { N = [4096] }
args = { x = { shape = ["N"] } }
"""


# A file and the lines that are added to it; and, if there is a third, which stand in its place.
Commit = tuple[str, str] | tuple[str, str, str]


def repository(folder: Path, commits: Sequence[Commit], shapes: str = SHAPES) -> Path:
    """A repository of one commit more than there are; text added by one is gone in the next of the same file if "".

    The commits are tagged c0, c1, … and `mine.toml` is a shape file.
    """
    skip = shutil.ignore_patterns("tests")
    shutil.copytree(ROOT / "compiler", folder / "compiler", ignore=skip)
    (folder / ".gitignore").write_text("__pycache__/\n/cache/\n")
    (folder / "mine.toml").write_text(shapes)
    git(folder, "init", "-q", "-b", "main")
    before = {path: (folder / path).read_text() for path, *_ in commits}
    commit(folder, 0, "the compiler as it is")
    for number, (path, lines, *old) in enumerate(commits, 1):
        text = (folder / path).read_text()
        if old:
            assert text.count(old[0]) == 1, f"{path} has {text.count(old[0])} times: {old[0]}"
        made = text.replace(old[0], lines) if old else f"{text}\n\n{lines}" if lines else before[path]
        (folder / path).write_text(made)
        commit(folder, number, f"change {number}")
    return folder


def commit(folder: Path, number: int, says: str) -> None:
    """Everything that is there now, as a commit with the tag of its number."""
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=me", "-c", "user.email=me@here", "commit", "-q", "--allow-empty", "-m", says)
    git(folder, "tag", f"c{number}")


def run(folder: Path, module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """A module run in a folder, which Python does not look into for packages; revisions are kept there."""
    own = {"PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1", "MLCOMP_CACHE": str(folder / "cache")}
    own["TMPDIR"] = str(folder / ".git")  # and so is the lock of the machine
    command = [sys.executable, "-m", module, *words]
    environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"} | own
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def git(folder: Path, *words: str) -> str:
    """What git prints."""
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout
