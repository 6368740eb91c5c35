"""The request of a fuzzing run: which programs or for how long, what to vary in them and what to check."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# `torch.compile` against eager; `torch.compile` against itself on other data; `torch.export` against eager; random
# schedules of each kernel.
CHECKS = ("graph", "relation", "export", "schedule")
VARIATIONS = ("shape", "layout", "gradient")  # dynamic sizes, strides of arguments, gradients
WHAT = (*CHECKS, *VARIATIONS)
DEFAULT = ("graph", "relation", "export", *VARIATIONS)
REACHED_FILE = "reached.txt"  # file of a corpus that lists every compiler rule reached by its programs
PROGRAM_FILE = "program.json"  # file of a finding with the program as `corpus.py` writes it
FRESH_SHARE = 0.4  # share of programs that are newly drawn although there is a corpus
BATCH = 25  # programs per item
LONGEST = 60.0  # seconds per item, so that an interrupted run has counted all but the last minute
OUTCOMES_PREFIX = (
    "reduced so far: "  # prefix of a progress message; then + for each trial that failed, - for each that passed
)


@dataclass(frozen=True)
class FuzzRequest:
    """The request: programs of these `numbers`, or as many as fit into `seconds`, or the one in the file `program`.

    `what` is a subset of WHAT. With a `corpus`, programs are derived from its entries, and those that reach a new rule
    are added to it.
    """

    numbers: range = range(0)
    seconds: float | None = None
    what: tuple[str, ...] = DEFAULT
    program: Path | None = None
    corpus: Path | None = None

    def options(self, seed: int, index: int) -> dict[str, str]:
        """Return the options of `mutate.drawn` for a program: its file, the corpus entry to derive it from, or none."""
        if self.program is not None:
            return {"program": str(self.program)}
        if self.corpus is None:
            return {}
        rng, names = random.Random(f"{seed}.{index} from"), sorted(self.corpus.glob("*.json"))
        entry = str(rng.choice(names)) if names and rng.random() >= FRESH_SHARE else ""
        return {"corpus": str(self.corpus), "entry": entry}

    def __bool__(self) -> bool:
        return bool(self.numbers) or self.seconds is not None

    def shares(self, workers: int, targets: int) -> Iterator[tuple[str, range, float | None]]:
        """Yield the items of a target: name, numbers of programs, and the time limit in seconds if there is one.

        >>> list(FuzzRequest(range(30)).shares(1, 1))
        [('0-24', range(0, 25), None), ('25-29', range(25, 30), None)]
        >>> list(FuzzRequest(seconds=60.0).shares(2, 3))
        [('60s-0of2', range(0, 1000000000, 2), 20.0), ('60s-1of2', range(1, 1000000000, 2), 20.0)]
        >>> [name for name, _, _ in FuzzRequest(seconds=240.0).shares(1, 2)]
        ['240s-0of2', '240s-1of2']
        """
        if self.seconds is not None:
            parts = max(1, math.ceil(self.seconds / targets / LONGEST))
            items, seconds = workers * parts, self.seconds / targets / parts
            yield from ((f"{self.seconds:g}s-{k}of{items}", range(k, 10**9, items), seconds) for k in range(items))
            return
        for start in range(self.numbers.start, self.numbers.stop, BATCH):
            batch = range(start, min(start + BATCH, self.numbers.stop))
            yield f"{batch.start}-{batch.stop - 1}", batch, None


def read_options(count: object, only: object, what: object, corpus: object, *, here: Path) -> FuzzRequest:
    """Parse the options --mlcomp-fuzz, -only, -what and -corpus; raises ValueError for invalid ones."""
    checks = DEFAULT if what is None else tuple(w for w in WHAT if w in str(what).split(","))
    if what is not None and (unknown := [w for w in str(what).split(",") if w not in WHAT]):
        raise ValueError(f"--mlcomp-fuzz-what: there is no {unknown[0]!r}; there are {', '.join(WHAT)}")
    if not set(checks) & set(CHECKS):
        raise ValueError(f"--mlcomp-fuzz-what: {what} checks nothing; add {', '.join(CHECKS)}")
    if only is not None:
        if beside := [name for name, value in (("", count), ("-corpus", corpus)) if value is not None]:
            raise ValueError(f"--mlcomp-fuzz{beside[0]}: --mlcomp-fuzz-only runs one program alone; remove the option")
        if str(only).isdecimal():
            return FuzzRequest(range(int(str(only)), int(str(only)) + 1), None, checks)
        if (here / str(only)).is_file():
            return FuzzRequest(range(1), None, checks, here / str(only))
        raise ValueError(f"--mlcomp-fuzz-only: {only} is no number of a program, the first of which is 0, nor a file")
    folder = None if corpus is None else here / str(corpus)
    if count is None:
        if folder is not None:
            raise ValueError("--mlcomp-fuzz-corpus: no programs are asked for; add --mlcomp-fuzz 600s")
        if what is not None:
            raise ValueError("--mlcomp-fuzz-what: no programs are asked for; add --mlcomp-fuzz 600s")
        return FuzzRequest()
    number = re.fullmatch(r"(\d+)(s?)", str(count))
    if number is None or not int(number[1]):
        raise ValueError(f"--mlcomp-fuzz: {count} is no number of programs above 0, nor of seconds, such as 120s")
    if number[2]:
        return FuzzRequest(range(0), float(number[1]), checks, corpus=folder)
    return FuzzRequest(range(int(number[1])), None, checks, corpus=folder)
