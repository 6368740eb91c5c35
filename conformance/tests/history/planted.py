"""Regressions, each planted somewhere in a history of its own, in; which of them `mlcomp bisect` names rightly, out.

    python -m conformance.tests.history.planted [WORD …] [--commits N] [--seed S]

The rows of `planted.toml` whose kind or name holds one of the words are planted, each in a throwaway repository of as
many commits, of which the others change nothing that is emitted, and one does not even compile.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from conformance.tests.fuzz import planted as miscompiles
from conformance.tests.history import past

ROWS = Path(__file__).with_name("planted.toml")
SECONDS = 300.0
SHAPE = (33, 65)
BROKEN = "compiler/ir/dtype.py"  # no row is of it
SHAPES = """
format = 1

[[case]]
name = "it"
expr = '''{expr}'''
dims = {{ {dims} }}
args = {{ x = {{ shape = [{names}] }} }}
"""


@dataclass(frozen=True)
class Plant:
    """Of a `kind`, value or speed: the text `new` in place of `old`, which makes an expression of x wrong or slow."""

    kind: str
    name: str
    file: str
    old: str
    new: str
    expr: str
    by: str
    shape: tuple[int, ...] = SHAPE


@dataclass(frozen=True)
class Answer:
    """What bisecting said of a plant: whether the commit and the pass or steps are right, how long it took, and the
    work of processors in that time, which does not depend on what else the machine does."""

    commit: bool
    by: bool
    seconds: float
    work: float
    said: str


def plants() -> Iterator[Plant]:
    """The rows, in order."""
    wrong = {plant.name: plant for plant in miscompiles.plants()}
    for kind, rows in tomllib.loads(ROWS.read_text(encoding="utf-8")).items():
        for row in rows:
            known: dict[str, Any] = {**row, "shape": tuple(row.get("shape", SHAPE))}
            if kind == "value":
                at = wrong[row["name"]]
                known |= {"file": at.file, "old": at.old, "new": at.new}
            yield Plant(kind, **known)


def history(plant: Plant, at: int, count: int, rng: random.Random) -> list[past.Commit]:
    """So many commits, of which that of a number is the plant, and two others break and mend the compiler."""
    path = f"compiler/{plant.file}"
    files = sorted(str(p.relative_to(past.ROOT)) for p in (past.ROOT / "compiler/passes").rglob("*.py"))
    made: list[past.Commit] = [(rng.choice(files), f"# thought {n}\n") for n in range(1, count + 1)]
    broken = rng.choice([n for n in range(1, count) if at not in (n, n + 1)])
    made[broken - 1 : broken + 1] = [(BROKEN, "raise RuntimeError('half a change')\n"), (BROKEN, "")]
    made[at - 1] = (path, plant.new, plant.old)
    return made


def bisected(plant: Plant, count: int, seed: int) -> Answer:
    """What bisecting a history with the plant says."""
    rng = random.Random(f"{seed} {plant.name}")
    at = rng.randint(1, count)
    names = [f"D{k}" for k in range(len(plant.shape))]
    dims = ", ".join(f"{name} = [{n}]" for name, n in zip(names, plant.shape, strict=True))
    shapes = SHAPES.format(expr=plant.expr, dims=dims, names=", ".join(f'"{name}"' for name in names))
    case = "-".join(f"{name}{n}" for name, n in zip(names, plant.shape, strict=True))
    with tempfile.TemporaryDirectory() as made:
        folder = past.repository(Path(made), history(plant, at, count, rng), shapes)
        words = [f"mine.toml::it[{case}.f32.contig.normal]", "--good", "c0", "--bad", "HEAD", f"--{plant.kind}"]
        start, before = time.monotonic(), _work()
        done = past.run(folder, "conformance.history.bisect", *words)
        seconds, work = time.monotonic() - start, _work() - before
    since = re.search(r" is \w+ since\n  \w+ change (\d+)\n", done.stdout)
    said = done.stdout if done.returncode == 0 else done.stderr.strip().splitlines()[-1]
    return Answer(
        since is not None and int(since[1]) == at, bool(re.search(plant.by, done.stdout)), seconds, work, said
    )


def _work() -> float:
    """The time of processors that processes which are done have taken."""
    times = os.times()
    return times.children_user + times.children_system


def main(words: Sequence[str]) -> int:
    """Plant, bisect, count; 1 unless all but one are named rightly, every commit is, and in time."""
    parser = argparse.ArgumentParser(prog="python -m conformance.tests.history.planted")
    parser.add_argument("words", nargs="*", help="of the kinds or names (default: all)")
    parser.add_argument("--commits", type=int, default=64)
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args(words)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    chosen = [p for p in plants() if not given.words or any(w in f"{p.kind} {p.name}" for w in given.words)]
    print(f"seed {seed}; {given.commits} commits each", flush=True)
    found = []
    for plant in chosen:
        one = bisected(plant, given.commits, seed)
        found.append(one)
        commit, by = ("right" if ok else "WRONG" for ok in (one.commit, one.by))
        took = f"{one.seconds:.0f} s, work {one.work:.0f} s"
        print(f"{plant.kind}: {plant.name}: commit {commit}, pass or step {by}, {took}", flush=True)
        if not (one.commit and one.by):
            print("    " + one.said.replace("\n", "\n    "), flush=True)
    rights, named = sum(one.commit for one in found), sum(one.by for one in found)
    longest = max((one.seconds for one in found), default=0.0)
    print(f"{rights} of {len(found)} commits, {named} passes or steps, {longest:.0f} s at most")
    return int(rights < len(found) or named < len(found) - 1 or longest > SECONDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
