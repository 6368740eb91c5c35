"""Whole runs of the suite, each killed at a random moment, in; what any of them left that is not whole, out.

    python -m conformance.tests.history.killed [--moments N] [--seed S]

Each run checks and times a kernel that no other has, in turns in one process and over two workers, and writes a report,
a baseline, a line of a history and entries of the cache where those of the runs before it are. Every other one is
killed at any moment, the others while reports, baseline or history are written. After each, all that stands there must
be whole, and no process of the run may be left. The last run is not killed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from conformance.history import baseline, journal, revisions
from conformance.tests.history import past

MARK = "MLCOMP_KILLED"  # the variable by which a run's processes are known
SHAPES = """
format = 1

[[case]]
name = "add"
expr = "x + {number}.5"
dims.N = [5]
args.x = {{ shape = ["N"] }}
perf = {{ dims = [{{ N = 64 }}] }}
"""
WRITES = (
    *("--mlcomp-report", "reports", "--mlcomp-bench", "quick", "--mlcomp-vs", "eager"),
    *("--mlcomp-save-baseline", "--mlcomp-record", "--junitxml", "junit.xml", "--benchmark-json", "theirs.json"),
)
PAGES = {"run.json", "benchmark.json", "index.html", "summary.md", "speedup.md", "coverage.md"}
SECONDS = 30.0  # for the processes of a killed run to end


@dataclass
class Place:
    """A folder that runs are in, one after the other, and how many lines its history has at least."""

    folder: Path
    lines: int = 0
    runs: int = 0

    def start(self, workers: int) -> subprocess.Popen[bytes]:
        """A run begun: of a kernel of its own."""
        self.runs += 1
        (self.folder / "mine.toml").write_text(SHAPES.format(number=self.runs), encoding="utf-8")
        (self.folder / "tmp").mkdir(exist_ok=True)
        own = {"PYTHONPATH": str(past.ROOT), "MLCOMP_CACHE": str(self.folder / "cache"), MARK: str(self.folder)}
        own["TMPDIR"] = str(self.folder / "tmp")
        words = ["-p", "conformance.plugin", "-p", "no:cacheprovider", "--mlcomp", "mine.toml", *WRITES]
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *words, "-n", str(workers)], cwd=self.folder,
            env={key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"} | own,
            stdin=subprocess.DEVNULL, stdout=(self.folder / "said").open("wb"), stderr=subprocess.STDOUT,
        )  # fmt: skip

    def written(self) -> frozenset[tuple[str, int]]:
        """Every file of the reports, with the moment when it was written."""
        found = set()
        for folder, _, names in os.walk(self.folder / "reports"):
            for name in names:
                with contextlib.suppress(OSError):  # gone meanwhile
                    found.add((f"{folder}/{name}", os.stat(f"{folder}/{name}").st_mtime_ns))
        return frozenset(found)


def running(folder: Path) -> list[str]:
    """What processes there are of runs in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={folder}".encode() in (path / "environ").read_bytes().split(b"\0"):
                words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append(f"{path.name} {words[:200]}")
    return found


def still_running(folder: Path) -> list[str]:
    """Those that do not end by themselves soon."""
    deadline = time.monotonic() + SECONDS
    while (found := running(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def whole_run(place: Place, workers: int) -> tuple[float, float]:
    """The seconds that a run takes which nobody kills, and those of them in which reports are written."""
    before, begin = place.written(), time.monotonic()
    with place.start(workers) as run:
        while run.poll() is None and place.written() == before:
            time.sleep(0.003)
        first = time.monotonic()
        if run.wait() != 0:
            raise RuntimeError((place.folder / "said").read_text(encoding="utf-8")[-3000:])
    end = time.monotonic()
    assert len(json.loads((place.folder / "theirs.json").read_text())["benchmarks"]) == 1
    assert len(list(ElementTree.parse(place.folder / "junit.xml").iter("testcase"))) == 3  # and whether it can judge
    return end - begin, end - first


def killed(place: Place, workers: int, seconds: float, writing: bool) -> str:
    """Kill a run so many seconds after its beginning, or after its first `writing`; what it was doing then."""
    before, begin = place.written(), time.monotonic()
    with place.start(workers) as run:
        while writing and run.poll() is None and place.written() == before:
            time.sleep(0.003)
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(seconds)
        run.kill()
    how = "after it" if run.returncode >= 0 else "while writing" if place.written() != before else "before writing"
    return f"{how}, {time.monotonic() - begin:.2f} s after its beginning"


def left(place: Place) -> Iterator[str]:
    """What is not whole, and what still runs."""
    yield from (f"still running: {one}" for one in still_running(place.folder))
    for path in (place.folder / "tmp").glob("mlcomp-*/"):
        yield f"temporary folder: {path} with {[str(one) for one in path.rglob('*')]}"
    for part in (_reports, _history, _baseline, _cache):
        try:
            yield from part(place)
        except (AssertionError, OSError, ValueError, journal.HistoryError, baseline.BaselineError) as problem:
            yield f"{part.__name__[1:]}: {type(problem).__name__}: {problem}"


def _reports(place: Place) -> Iterator[str]:
    for folder in (place.folder / "reports").iterdir():
        if folder.name in ("baseline", "history"):
            continue
        names = {path.name for path in folder.iterdir() if not path.name.startswith((".", "mlcomp-"))}
        if names != PAGES:
            yield f"reports: there are {sorted(names)}"
        for name in ("run.json", "benchmark.json"):
            json.loads((folder / name).read_text(encoding="utf-8"))
        if not (folder / "index.html").read_text(encoding="utf-8").rstrip().endswith("</html>"):
            yield "reports: index.html has no end"


def _history(place: Place) -> Iterator[str]:
    (path,) = (place.folder / "reports/history").glob("*.jsonl")
    lines, place.lines = place.lines, len(journal.read(path))
    if place.lines not in (lines, lines + 1):
        yield f"history: {lines} lines have become {place.lines}"


def _baseline(place: Place) -> Iterator[str]:
    (device,) = (place.folder / "reports/baseline").iterdir()
    found = baseline.find("main", device, place.folder / "nowhere", revisions.TextRequest((), ("cpu",)))
    if found.folder is None or not found.verdicts():
        yield "baseline: none, or no verdict in it"
    else:
        for path in (found.folder / "kernels").glob("*.json"):
            entry = json.loads(path.read_text(encoding="utf-8"))
            if not (found.folder / "kernels" / entry["text"]).read_text(encoding="utf-8").rstrip().endswith("}"):
                yield f"baseline: {entry['text']} has no end"
            if not (found.folder / "headers" / f"{entry['headers']}.txt").is_file():
                yield f"baseline: {path.name} has no headers"


def _cache(place: Place) -> Iterator[str]:
    own = {**os.environ, "PYTHONPATH": str(past.ROOT), "MLCOMP_CACHE": str(place.folder / "cache")}
    command = [sys.executable, "-m", "compiler.cli", "cache", "verify"]
    done = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        yield f"cache: {done.stdout}{done.stderr}"


def attempts(folder: Path, moments: int, seed: int, workers: Sequence[int] = (0, 2)) -> Iterator[list[str]]:
    """What each of so many killed runs left, and at last that which nobody kills."""
    draw, place = random.Random(seed), Place(folder)
    spans = [whole_run(place, count) for count in workers]
    place.lines = len(workers)
    yield list(left(place))
    for number in range(moments):
        kind, writing = number // 2 % len(workers), number % 2 == 1
        whole, end = spans[kind]
        did = killed(place, workers[kind], draw.uniform(0, end if writing else whole), writing)
        found = list(left(place))
        print(f"{number + 1}: -n {workers[kind]}, killed {did}: {'; '.join(found) or 'all is whole'}", flush=True)
        yield found
    whole_run(place, workers[-1])
    yield list(left(place))
    yield [f"litter: {path}" for path in (folder / "reports").rglob("*") if path.name.startswith((".", "mlcomp-"))]


def main(words: Sequence[str]) -> int:
    """Kill, look, count; 1 if anything is not whole."""
    parser = argparse.ArgumentParser(prog="python -m conformance.tests.history.killed")
    parser.add_argument("--moments", type=int, default=50)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(words)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found = [one for some in attempts(Path(folder), given.moments, seed) for one in some]
    print("\n".join(found) if found else f"after {given.moments} kills all was whole, and nothing ran on")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
