"""Compilers of git revisions, and the texts that they emit; both are cached by commit.

Shape files are always read by this suite, so that every revision lowers the same cases. Only the folder `compiler` is
taken from the revision; it comes first on the Python path.
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

SUITE = Path(__file__).resolve().parents[2]  # the folder on the Python path that has this suite
PACKAGE = "compiler"
NOW = "the working tree"


class RevisionError(Exception):
    """The revision does not exist, or its compiler fails."""


@dataclass(frozen=True)
class Revision:
    """The compiler of a commit, in `folder`; with an empty `commit` that of the working tree."""

    name: str
    commit: str
    folder: Path


def repository(start_folder: Path) -> Path:
    """Return the git repository around `start_folder` if it has a compiler, else that around this suite."""
    for folder in (start_folder, SUITE):
        root = _git(folder, "rev-parse", "--show-toplevel", check=False).strip()
        if root and (Path(root) / PACKAGE / "__init__.py").is_file():
            return Path(root)
    raise RevisionError(
        f"{start_folder} is in no git repository of the compiler: give one with revisions to compare with"
    )


def find(repo: Path, name: str) -> Revision:
    """Return the revision of that name; its files are extracted unless they are cached. Raises RevisionError."""
    if name == NOW:
        return Revision(name, "", repo)
    output = _git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", check=False)
    if not output:
        raise RevisionError(f"{repo} has no revision {name!r}")
    commit = output.strip()
    folder = _cache_folder() / commit
    if not folder.is_dir():
        with _write_atomically(folder) as incomplete:
            tar = _git_bytes(repo, "archive", "--format=tar", commit, PACKAGE)
            with tarfile.open(fileobj=io.BytesIO(tar)) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # new in Python 3.11.4
                archive.extractall(incomplete)
    return Revision(name, commit, folder)


def between(repo: Path, good: str, bad: str) -> list[str]:
    """Return `good` and the later commits up to `bad`, along first parents, that change the compiler."""
    first, last = (find(repo, name).commit for name in (good, bad))
    commits = _git(repo, "rev-list", "--first-parent", "--reverse", f"{first}..{last}", "--", PACKAGE).split()
    if first != last and not _git(repo, "rev-list", "--max-count=1", f"{first}..{last}").strip():
        raise RevisionError(f"{bad} does not come after {good}")
    return [first, *commits]


def commit_title(repo: Path, commit: str) -> str:
    """Return the abbreviated hash and the subject line of a commit."""
    return _git(repo, "log", "-1", "--format=%h %s", commit).strip()


def start_module(revision: Revision, temporary: Scratch, module: str, *words: str) -> subprocess.Popen[str]:
    """Start a module of this suite as a process with the compiler of a revision; it ends when `temporary` is closed."""
    path = os.pathsep.join((str(revision.folder), str(SUITE)))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words], text=True,
        env={**os.environ, **temporary.environment, "PYTHONPATH": path, COMPILER: str(revision.folder / PACKAGE)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def wait_for_output(process: subprocess.Popen[str], what: str) -> str:
    """Wait for a process and return its output; raises RevisionError with the end of its output if it failed."""
    output, errors = process.communicate()
    if process.returncode != 0:
        raise RevisionError(f"{what} failed: {(errors or output).strip()[-2000:]}")
    return output


@dataclass(frozen=True)
class TextRequest:
    """A request for texts: the cases of shape files at a tier, only those named in `only`, or only benchmarks."""

    files: tuple[Path, ...]
    targets: tuple[str, ...]
    tier: str = "smoke"
    only: tuple[str, ...] = ()
    timed: bool = False

    @property
    def key(self) -> str:
        """The cache key of the record, apart from the commit."""
        parts = [*map(str, self.targets), self.tier, *self.only, str(self.timed), version("torch")]
        parts += [path.read_text(encoding="utf-8", errors="replace") for path in self.files]
        parts += [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (texts, emitted)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def records(revisions: Sequence[Revision], request: TextRequest, jobs: int) -> list[texts.Record]:
    """Return the texts of each revision; those that are not cached are lowered concurrently."""
    with contextlib.closing(scratch.make()) as temporary:
        archives = [
            _cache_folder() / "records" / f"{revision.commit}-{request.key}.zip"
            if revision.commit
            else temporary.folder / "now.zip"
            for revision in revisions
        ]
        missing = [n for n, archive in enumerate(archives) if not archive.is_file()]
        jobs_each = str(max(1, jobs // max(1, len(missing))))
        words = ["--tier", request.tier, "--targets", ",".join(request.targets), "-n", jobs_each]
        words += ["--timed"] if request.timed else []
        words += [word for case in request.only for word in ("--only", case)]
        processes = []
        for n in missing:
            output = str(temporary.folder / f"{n}.zip")
            processes.append(
                start_module(
                    revisions[n], temporary, texts.__name__, "record", output, *map(str, request.files), *words
                )
            )
        for n, process in zip(missing, processes, strict=True):
            wait_for_output(process, f"lowering with the compiler of {revisions[n].name}")
            archives[n].parent.mkdir(parents=True, exist_ok=True)
            with _write_atomically(archives[n]) as file:
                shutil.copyfile(temporary.folder / f"{n}.zip", file)
        return [texts.read(archive) for archive in archives]


@contextlib.contextmanager
def _write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder, and rename it to `path` when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with compiler.own_folder(path.parent) as temporary:
        yield temporary / "it"
        try:
            os.replace(temporary / "it", path)
        except OSError:
            if not path.is_dir():  # else another process has made it meanwhile
                raise


def _cache_folder() -> Path:
    """Return the folder of cached revisions: in $MLCOMP_CACHE if that is set, else beside the kernel cache."""
    configured = os.environ.get("MLCOMP_CACHE")
    base = (
        Path(configured).expanduser()
        if configured
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    )
    return base / "mlcomp-revisions"


def _git(folder: Path, *words: str, check: bool = True) -> str:
    return _git_bytes(folder, *words, check=check).decode()


def _git_bytes(folder: Path, *words: str, check: bool = True) -> bytes:
    try:
        process = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError as error:
        raise RevisionError(f"revisions are read with git, which could not be started: {error.strerror}") from error
    if check and process.returncode != 0:
        raise RevisionError(f"git {' '.join(words)} in {folder}: {process.stderr.decode(errors='replace').strip()}")
    return process.stdout if process.returncode == 0 else b""
