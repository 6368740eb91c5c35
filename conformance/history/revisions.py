"""A revision of a repository in; the compiler as it was then, and what its texts were, out: kept by commit, made once.

It is always this suite that reads shape files and asks, so that the same cases are asked of every revision; of the
revision there is its folder `compiler`, and Python finds that one first.
"""

import contextlib
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import compiler
from conformance import COMPILER
from conformance.bench import emitted
from conformance.history import texts
from conformance.isolation import scratch
from conformance.isolation.scratch import Scratch

SUITE = Path(__file__).resolve().parents[2]  # from which this suite is imported
PACKAGE = "compiler"
NOW = "the working tree"


class RevisionError(Exception):
    """There is no such revision, or nothing to be had of it."""


@dataclass(frozen=True)
class Revision:
    """The compiler of a commit, or with an empty one as it is in the working tree: the folder that it is in."""

    name: str
    commit: str
    folder: Path


def repository(place: Path) -> Path:
    """The repository around a folder that has a compiler in it, or else the one that this suite lies in."""
    for folder in (place, SUITE):
        found = _git(folder, "rev-parse", "--show-toplevel", check=False).strip()
        if found and (Path(found) / PACKAGE / "__init__.py").is_file():
            return Path(found)
    raise RevisionError(f"{place} is in no git repository of the compiler: give one with revisions to compare with")


def find(repo: Path, name: str) -> Revision:
    """The revision of that name, its files taken from the repository unless they are there; raises RevisionError."""
    if name == NOW:
        return Revision(name, "", repo)
    found = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", check=False)
    if not found:
        raise RevisionError(f"{repo} has no revision {name!r}")
    commit = found.strip()
    folder = _cache() / commit
    if not folder.is_dir():
        with _whole(folder) as made:
            packed = _git_bytes(repo, "archive", "--format=tar", commit, PACKAGE)
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 has it first
                archive.extractall(made)
    return Revision(name, commit, folder)


def between(repo: Path, good: str, bad: str) -> list[str]:
    """The commits from `good` to `bad` along first parents, both included, that change the compiler."""
    first, last = (find(repo, name).commit for name in (good, bad))
    listed = _git(repo, "rev-list", "--first-parent", "--reverse", f"{first}..{last}", "--", PACKAGE).split()
    if first != last and not _git(repo, "rev-list", "--max-count=1", f"{first}..{last}").strip():
        raise RevisionError(f"{bad} does not come after {good}")
    return [first, *listed]


def subject(repo: Path, commit: str) -> str:
    """A commit as one line: its short name and what it says."""
    return _git(repo, "log", "-1", "--format=%h %s", commit).strip()


def start(at: Revision, own: Scratch, module: str, *words: str) -> subprocess.Popen[str]:
    """A module of this suite begun as a process that compiles with the compiler of a revision, and ends with `own`."""
    path = os.pathsep.join((str(at.folder), str(SUITE)))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words], text=True,
        env={**os.environ, **own.environment, "PYTHONPATH": path, COMPILER: str(at.folder / PACKAGE)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finished(process: subprocess.Popen[str], what: str) -> str:
    """What a process printed; raises RevisionError with its last words where it failed."""
    said, complained = process.communicate()
    if process.returncode != 0:
        raise RevisionError(f"{what} failed: {(complained or said).strip()[-2000:]}")
    return said


@dataclass(frozen=True)
class Asked:
    """Whose texts are wanted: cases of shape files at a tier, or `only` some of them by name, or those `timed`."""

    files: tuple[Path, ...]
    targets: tuple[str, ...]
    tier: str = "smoke"
    only: tuple[str, ...] = ()
    timed: bool = False

    @property
    def key(self) -> str:
        """What a record of them is kept as."""
        parts = [*map(str, self.targets), self.tier, *self.only, str(self.timed), version("torch")]
        parts += [path.read_text(encoding="utf-8", errors="replace") for path in self.files]
        parts += [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (texts, emitted)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def records(revisions: Sequence[Revision], asked: Asked, jobs: int) -> list[texts.Record]:
    """The texts of each revision; those that were not made before are made at the same time."""
    with contextlib.closing(scratch.make()) as own:
        places = [
            _cache() / "records" / f"{at.commit}-{asked.key}.zip" if at.commit else own.folder / "now.zip"
            for at in revisions
        ]
        missing = [n for n, place in enumerate(places) if not place.is_file()]
        share = str(max(1, jobs // max(1, len(missing))))
        words = ["--tier", asked.tier, "--targets", ",".join(asked.targets), "-n", share]
        words += ["--timed"] if asked.timed else []
        words += [word for case in asked.only for word in ("--only", case)]
        started = []
        for n in missing:
            made = str(own.folder / f"{n}.zip")
            started.append(start(revisions[n], own, texts.__name__, "record", made, *map(str, asked.files), *words))
        for n, process in zip(missing, started, strict=True):
            finished(process, f"lowering with the compiler of {revisions[n].name}")
            places[n].parent.mkdir(parents=True, exist_ok=True)
            with _whole(places[n]) as file:
                shutil.copyfile(own.folder / f"{n}.zip", file)
        return [texts.read(place) for place in places]


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A file or folder made elsewhere and put in its place when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with compiler.own_folder(path.parent) as own:
        yield own / "it"
        try:
            os.replace(own / "it", path)
        except OSError:
            if not path.is_dir():  # then somebody was faster
                raise


def _cache() -> Path:
    """Where revisions are kept: beside the cache of kernels."""
    chosen = os.environ.get("MLCOMP_CACHE")
    base = Path(chosen).expanduser() if chosen else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "mlcomp-revisions"


def _git(folder: Path, *words: str, check: bool = True) -> str:
    return _git_bytes(folder, *words, check=check).decode()


def _git_bytes(folder: Path, *words: str, check: bool = True) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError as error:
        raise RevisionError(f"revisions are read with git, which could not be started: {error.strerror}") from error
    if check and done.returncode != 0:
        raise RevisionError(f"git {' '.join(words)} in {folder}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout if done.returncode == 0 else b""
