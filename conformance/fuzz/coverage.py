"""Calls in; which rules of which passes they made the compiler apply, out.

A rule is a function of a pass or of the scheduler that gives something other than None: which one, and at which of its
lines, is what is reached. So a rule that was asked and did not fit is not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import compiler

ROOT = Path(compiler.__file__).resolve().parent
PARTS = tuple(str(ROOT / part) for part in ("passes", "schedule", "render"))


class Reached:
    """Within it, every place of a rule that gives something is noted.

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
        """The places, as text that a change elsewhere in a file leaves as it is."""
        return {
            f"{Path(code.co_filename).relative_to(ROOT).as_posix()}:{code.co_qualname}:{line - code.co_firstlineno}"
            for code, line in self.met
        }
