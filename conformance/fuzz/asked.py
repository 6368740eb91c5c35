"""What a run is asked for of random programs: which, for how long, what is varied in them and what is checked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# Through `torch.compile` beside eager, and beside itself on other data; random schedules of each kernel.
CHECKS = ("graph", "relation", "schedule")
VARIED = ("shape", "layout", "gradient")  # sizes that vary from call to call, strides of arguments, gradients
WHAT = (*CHECKS, *VARIED)
DEFAULT = ("graph", "relation", *VARIED)
BATCH = 25  # programs of an item
TRIED = "reduced so far: "  # then + for each trial that went wrong, - for each that did not


@dataclass(frozen=True)
class Asked:
    """`numbers` of programs, or as many as there are `seconds` for; `what` of `WHAT`."""

    numbers: range = range(0)
    seconds: float | None = None
    what: tuple[str, ...] = DEFAULT

    def __bool__(self) -> bool:
        return bool(self.numbers) or self.seconds is not None

    def shares(self, workers: int, targets: int) -> Iterator[tuple[str, range, float | None]]:
        """The items of a target: the name of each, its programs, and the seconds that it has for as many as it can.

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


def read(count: object, only: object, what: object) -> Asked:
    """What the options say; raises ValueError for what they may not."""
    words = DEFAULT if what is None else tuple(w for w in WHAT if w in str(what).split(","))
    if what is not None and (unknown := [w for w in str(what).split(",") if w not in WHAT]):
        raise ValueError(f"--mlcomp-fuzz-what: there is no {unknown[0]!r}; there are {', '.join(WHAT)}")
    if not set(words) & set(CHECKS):
        raise ValueError(f"--mlcomp-fuzz-what: {what} checks nothing; add {', '.join(CHECKS)}")
    if only is not None:
        if not isinstance(only, int) or only < 0:
            raise ValueError(f"--mlcomp-fuzz-only: {only} is no number of a program, the first of which is 0")
        return Asked(range(only, only + 1), None, words)
    if count is None:
        return Asked(what=words)
    number = re.fullmatch(r"(\d+)(s?)", str(count))
    if number is None or not int(number[1]):
        raise ValueError(f"--mlcomp-fuzz: {count} is no number of programs above 0, nor of seconds, such as 120s")
    return Asked(range(0), float(number[1]), words) if number[2] else Asked(range(int(number[1])), None, words)
