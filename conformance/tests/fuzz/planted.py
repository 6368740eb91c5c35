"""Miscompiles, each planted in a copy of the compiler, in; which of them random programs find, and how small, out.

    python -m conformance.tests.fuzz.planted [WORD …] [--programs N] [--seed S] [--at-once N] [--every N]

The rows of `planted.toml` whose names hold one of the words are planted, each by itself, and pytest fuzzes the copy up
to the first finding, which it reduces.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import conformance
from conformance import rows
from conformance.fuzz import generate
from conformance.run.fuzzing import FINDINGS

ROOT = Path(conformance.__file__).resolve().parent.parent
ROWS = Path(__file__).with_name("planted.toml")
MOST_PROGRAMS, MOST_OPS = 2000, 5


@dataclass(frozen=True)
class Plant:
    """A miscompile: in a file of the compiler, the text `new` in place of `old`; of a `pass` or a `schedule`."""

    of: str
    name: str
    file: str
    old: str
    new: str

    def into(self, compiler: Path) -> None:
        """Plant it in a copy of the compiler; raises ValueError if there is not one place for it."""
        path = compiler / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(
                f"{ROWS.name}, {self.name!r}: {self.file} has {text.count(self.old)} times: {self.old}\n"
                "Write there what the line is now, and what would be wrong in it."
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def plants() -> Iterator[Plant]:
    """The rows, in order."""
    for of, some in tomllib.loads(ROWS.read_text(encoding="utf-8")).items():
        for row in some:
            yield Plant(of, **row)


def hunt(plant: Plant, programs: int, seed: int) -> rows.Fuzz | None:
    """The first of so many random programs that goes wrong with the miscompile, reduced; None if none does."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for package in ("compiler", "conformance"):  # each imports the other from beside it alone
            shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("tests", "__pycache__"))
        plant.into(folder / "compiler")
        words = ["--mlcomp", "--mlcomp-fuzz", str(programs), "--mlcomp-seed", str(seed), "--mlcomp-report", "report"]
        words += ["--mlcomp-fuzz-what", "schedule,shape,layout"] if plant.of == "schedule" else []
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--rootdir", made, *words]
        own = {"PYTHONPATH": made, "PYTHONSAFEPATH": "1", "MLCOMP_CACHE": str(folder / "cache")}
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_ADDOPTS"} | own
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"{plant.name}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        found = [line for path in folder.glob(f"report/*/{FINDINGS}") for line in path.read_text().splitlines()]
        row = rows.loads(found[0]) if found else None
        assert row is None or isinstance(row, rows.Fuzz)
        if row is not None and row.kind == "internal":  # of what hunts, or of the copy
            raise RuntimeError(f"{plant.name}, program {row.seed}.{row.index}: {row.detail}")
        return row


def ops(row: rows.Fuzz) -> int:
    """The calls of the program that a finding was reduced to; those that it began with if it was not.

    Of one that took down what looks for findings, nothing is known: as many as there may be.
    """
    if not row.line:
        return generate.MOST_CALLS
    line = row.line if row.reduced.startswith("not reduced") else row.reduced.partition("\n")[0]
    return (line or row.line).count("; ")


def said(plant: Plant, row: rows.Fuzz | None) -> str:
    """What came of a miscompile, in one line."""
    if row is None:
        return f"NOT FOUND: {plant.of}: {plant.name}"
    small = row.reduced.partition("\n")[0] or row.line
    where = ", ".join(filter(None, (row.kind, row.first_bad_stage, row.first_bad_pass)))
    return f"program {row.index + 1}, {ops(row)} ops: {plant.of}: {plant.name} ({where})\n    {small}"


def main(words: Sequence[str]) -> int:
    """Plant, hunt, count; 1 if one is not found or stays too large."""
    parser = argparse.ArgumentParser(prog="python -m conformance.tests.fuzz.planted")
    parser.add_argument("words", nargs="*", help="of the names (default: all)")
    parser.add_argument("--programs", type=int, default=MOST_PROGRAMS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--every", default="1", help="N, or K/N: of the rows each Nth, from the Kth on")
    given = parser.parse_args(words)
    first, _, step = given.every.rpartition("/")
    chosen = [p for p in plants() if not given.words or any(w in p.name for w in given.words)]
    chosen = chosen[int(first or 1) - 1 :: int(step)]
    lost = 0
    with ThreadPoolExecutor(given.at_once) as pool:
        for plant, row in zip(chosen, pool.map(lambda p: hunt(p, given.programs, given.seed), chosen), strict=True):
            lost += row is None or ops(row) > MOST_OPS
            print(said(plant, row), flush=True)
    print(f"{len(chosen) - lost} of {len(chosen)} found within {given.programs} programs and reduced to {MOST_OPS} ops")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
