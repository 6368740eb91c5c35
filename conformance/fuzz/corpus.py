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
from conformance.fuzz.asked import REACHED_FILE
from conformance.fuzz.program import Program
from conformance.shapes.cases import Arg


def known_places(folder: Path) -> set[str]:
    """Return all places that the corpus reaches."""
    try:
        lines = (folder / REACHED_FILE).read_text(encoding="utf-8").split("\n")
        return set(lines[:-1])  # the last line may be incomplete
    except FileNotFoundError:
        return set()


def add(folder: Path, program: Program, places: Iterable[str]) -> list[str]:
    """Add the program to the corpus if it reaches new places; returns these."""
    new = sorted(set(places) - known_places(folder))
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / REACHED_FILE).open("a", encoding="utf-8") as file:
            file.write("".join(f"{place}\n" for place in new))
        temporary = folder / f".{program.seed}.{program.index}.part"
        temporary.write_text(program_to_json(program), encoding="utf-8")
        temporary.replace(folder / f"{program.seed}.{program.index}.json")
    return new


def program_to_json(program: Program) -> str:
    """Serialise a program as JSON, without altered data."""
    return json.dumps(asdict(replace(program, altered=None)), indent=1) + "\n"


def program_from_json(text: str) -> Program:
    """Return the program that `program_to_json` serialised."""
    # All NaNs become the same object, since tuples with identical NaN objects compare equal.
    fields: dict[str, Any] = json.loads(text, parse_constant={"NaN": nan, "Infinity": inf, "-Infinity": -inf}.get)
    args = tuple(
        Arg(a["name"], tuple(a["shape"]), a["dtype"], a["layout"], _data_options(a), a["constant"], tuple(a["axes"]))
        for a in fields["args"]
    )
    varying = {name: {int(k): v for k, v in axes.items()} for name, axes in fields["varying"].items()}
    lines, results, gradients, points = (tuple(fields[name]) for name in ("lines", "results", "gradients", "points"))
    numbers = tuple(fields.get("numbers", ()))
    return Program(fields["seed"], fields["index"], args, lines, results, gradients, points, varying, numbers=numbers)


def _data_options(arg: Any) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in arg["inputs"].items()}


ROOT = Path(compiler.__file__).resolve().parent
PARTS = tuple(str(ROOT / part) for part in ("passes", "schedule", "render"))


class Coverage:
    """Context manager that records the return statements of passes, schedules and renderers that return a value.

    >>> with Coverage() as none: sorted([3, 1])
    [1, 3]
    >>> none.places()
    set()
    """

    def __init__(self) -> None:
        self.reached: set[tuple[CodeType, int]] = set()
        self.is_recorded: dict[CodeType, bool] = {}

    def __enter__(self) -> Coverage:
        self.previous_trace = sys.gettrace()
        sys.settrace(self._on_call)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self.previous_trace)

    def _on_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code not in self.is_recorded:
            self.is_recorded[code] = code.co_filename.startswith(PARTS)
        if not self.is_recorded[code]:
            return None
        frame.f_trace_lines = False
        return self._on_return

    def _on_return(self, frame: FrameType, event: str, returned: Any) -> Any:
        if event == "return" and returned is not None:
            self.reached.add((frame.f_code, frame.f_lineno))
        return self._on_return

    def places(self) -> set[str]:
        """Return the places as FILE:FUNCTION:LINE with the line relative to the function, so that changes elsewhere in
        a file do not alter them."""
        return {
            f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:{code.co_qualname}:{line - code.co_firstlineno}"
            for code, line in self.reached
        }
