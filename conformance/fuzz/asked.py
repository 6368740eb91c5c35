"""The request of a fuzzing run: which programs or for how long, what to vary in them and what to check."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# `torch.compile` against eager; `torch.compile` against itself on other data; `torch.export` against eager; random
# schedules of each kernel.
CHECKS = ("graph", "relation", "export", "schedule")
VARIED = ("shape", "layout", "gradient")  # dynamic sizes, strides of arguments, gradients
WHAT = (*CHECKS, *VARIED)
DEFAULT = ("graph", "relation", "export", *VARIED)
KNOWN = "reached.txt"  # file of a corpus that lists every compiler rule reached by its programs
PROGRAM = "program.json"  # file of a finding with the program as `corpus.py` writes it
FRESH = 0.4  # share of programs that are newly drawn although there is a corpus
BATCH = 25  # programs per item
TRIED = "reduced so far: "  # prefix of a progress message; then + for each trial that failed, - for each that passed


@dataclass(frozen=True)
class Asked:
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
        entry = str(rng.choice(names)) if names and rng.random() >= FRESH else ""
        return {"corpus": str(self.corpus), "entry": entry}

    def __bool__(self) -> bool:
        return bool(self.numbers) or self.seconds is not None

    def shares(self, workers: int, targets: int) -> Iterator[tuple[str, range, float | None]]:
        """Yield the items of a target: name, numbers of programs, and the time limit in seconds if there is one.

        >>> list(Asked(range(30)).shares(1, 1))
        [('0-24', range(0, 25), None), ('25-29', range(25, 30), None)]
        >>> list(Asked(seconds=60.0).shares(2, 3))
        [('60s-0of2', range(0, 1000000000, 2), 20.0), ('60s-1of2', range(1, 1000000000, 2), 20.0)]
        """
        if self.seconds is not None:
            for k in range(workers):
                yield f"{self.seconds:g}s-{k}of{workers}", range(k, 10**9, workers), self.seconds / targets
            return
        for start in range(self.numbers.start, self.numbers.stop, BATCH):
            some = range(start, min(start + BATCH, self.numbers.stop))
            yield f"{some.start}-{some.stop - 1}", some, None


def read(count: object, only: object, what: object, corpus: object, *, here: Path) -> Asked:
    """Parse the options --mlcomp-fuzz, -only, -what and -corpus; raises ValueError for invalid ones."""
    words = DEFAULT if what is None else tuple(w for w in WHAT if w in str(what).split(","))
    if what is not None and (unknown := [w for w in str(what).split(",") if w not in WHAT]):
        raise ValueError(f"--mlcomp-fuzz-what: there is no {unknown[0]!r}; there are {', '.join(WHAT)}")
    if not set(words) & set(CHECKS):
        raise ValueError(f"--mlcomp-fuzz-what: {what} checks nothing; add {', '.join(CHECKS)}")
    if only is not None:
        if str(only).isdecimal():
            return Asked(range(int(str(only)), int(str(only)) + 1), None, words)
        if (here / str(only)).is_file():
            return Asked(range(1), None, words, here / str(only))
        raise ValueError(f"--mlcomp-fuzz-only: {only} is no number of a program, the first of which is 0, nor a file")
    folder = None if corpus is None else here / str(corpus)
    if count is None:
        if folder is not None:
            raise ValueError("--mlcomp-fuzz-corpus: no programs are asked for; add --mlcomp-fuzz 600s")
        return Asked(what=words)
    number = re.fullmatch(r"(\d+)(s?)", str(count))
    if number is None or not int(number[1]):
        raise ValueError(f"--mlcomp-fuzz: {count} is no number of programs above 0, nor of seconds, such as 120s")
    if number[2]:
        return Asked(range(0), float(number[1]), words, corpus=folder)
    return Asked(range(int(number[1])), None, words, corpus=folder)
