"""The corpus: a folder of programs that each reached a compiler rule that no earlier one did (coverage guidance).

The unit of coverage is a return statement of a function of the compiler that returned something other than None, since
rules return None if they do not apply. Workers share the folder, and later runs continue with it. `reached.txt` lists
all places that have been reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from math import inf, nan
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import compiler
from conformance.fuzz.asked import KNOWN
from conformance.fuzz.program import Program
from conformance.shapes.cases import Arg


def known(folder: Path) -> set[str]:
    """Return all places that the corpus reaches."""
    try:
        return set((folder / KNOWN).read_text(encoding="utf-8").split("\n")[:-1])  # the last line may be incomplete
    except FileNotFoundError:
        return set()


def keep(folder: Path, program: Program, places: Iterable[str]) -> list[str]:
    """Add the program to the corpus if it reaches new places; returns these."""
    new = sorted(set(places) - known(folder))
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / KNOWN).open("a", encoding="utf-8") as file:
            file.write("".join(f"{place}\n" for place in new))
        part = folder / f".{program.seed}.{program.index}.part"
        part.write_text(dumped(program), encoding="utf-8")
        part.replace(folder / f"{program.seed}.{program.index}.json")
    return new


def dumped(program: Program) -> str:
    """Serialise a program as JSON, without altered data."""
    return json.dumps(asdict(replace(program, altered=None)), indent=1) + "\n"


def loaded(text: str) -> Program:
    """Return the program that `dumped` serialised."""
    # All NaNs become the same object, since tuples with identical NaN objects compare equal.
    found: dict[str, Any] = json.loads(text, parse_constant={"NaN": nan, "Infinity": inf, "-Infinity": -inf}.get)
    args = tuple(
        Arg(a["name"], tuple(a["shape"]), a["dtype"], a["layout"], _drawn(a), a["constant"], tuple(a["axes"]))
        for a in found["args"]
    )
    varying = {name: {int(k): v for k, v in axes.items()} for name, axes in found["varying"].items()}
    lines, results, gradients, points = (tuple(found[name]) for name in ("lines", "results", "gradients", "points"))
    numbers = tuple(found.get("numbers", ()))
    return Program(found["seed"], found["index"], args, lines, results, gradients, points, varying, numbers=numbers)


def _drawn(arg: Any) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in arg["inputs"].items()}


ROOT = Path(compiler.__file__).resolve().parent
PARTS = tuple(str(ROOT / part) for part in ("passes", "schedule", "render"))


class Reached:
    """Context manager that records the return statements of passes, schedules and renderers that return a value.

    >>> with Reached() as none: sorted([3, 1])
    [1, 3]
    >>> none.places()
    set()
    """

    def __init__(self) -> None:
        self.met: set[tuple[CodeType, int]] = set()
        self.ours: dict[CodeType, bool] = {}

    def __enter__(self) -> Reached:
        self.before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self.before)

    def _called(self, frame: FrameType, event: str, given: Any) -> Any:
        code = frame.f_code
        if code not in self.ours:
            self.ours[code] = code.co_filename.startswith(PARTS)
        if not self.ours[code]:
            return None
        frame.f_trace_lines = False
        return self._returns

    def _returns(self, frame: FrameType, event: str, given: Any) -> Any:
        if event == "return" and given is not None:
            self.met.add((frame.f_code, frame.f_lineno))
        return self._returns

    def places(self) -> set[str]:
        """Return the places as FILE:FUNCTION:LINE with the line relative to the function, so that changes elsewhere in
        a file do not alter them."""
        return {
            f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:{code.co_qualname}:{line - code.co_firstlineno}"
            for code, line in self.met
        }
