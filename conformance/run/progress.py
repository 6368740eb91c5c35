"""The status line: if nothing has happened for some seconds, it shows on the terminal what is running.

It is written only if stderr is a terminal, and removed before pytest writes again.
"""

import os
import sys
import threading
import time
from typing import Any

import pytest
from rich.console import Console
from rich.status import Status
from rich.text import Text

QUIET_SECONDS = 3.0
TICK_SECONDS = 0.5
NAMES_SHOWN = 3
ENOUGH, LONG_SECONDS = 5, 20.0  # fewest items and seconds for an estimate of the remaining time


class Progress:
    """The status line and its contents."""

    def __init__(self, console: Console, own_line: bool, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.console, self.own_line, self.quiet_seconds = console, own_line, quiet_seconds
        self.running: dict[str, float] = {}
        self.total = self.done = self.failed = 0
        self.started = self.last = time.monotonic()
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def watch(self) -> None:
        """Start a thread that calls `tick` periodically until `end`."""
        threading.Thread(target=self._watch, name="mlcomp-progress", daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(TICK_SECONDS):
            self.tick()

    def tick(self) -> None:
        """Show or update the line if nothing has happened for `quiet_seconds`."""
        with self._lock:
            if self._ended.is_set() or not self.running or time.monotonic() - self.last < self.quiet_seconds:
                return
            if self._status is not None:
                self._status.update(self.text())
                return
            if self.own_line:
                self.console.print()  # pytest's dots are on this line
            self._status = self.console.status(self.text())
            self._status.start()

    def hide(self) -> None:
        """Remove the line before something else is written."""
        with self._lock:
            self.last = time.monotonic()
            if self._status is not None:
                self._status.stop()
                self._status = None

    def end(self) -> None:
        """Remove the line for good."""
        self.hide()
        self._ended.set()

    @property
    def shown(self) -> bool:
        """Whether the line is shown now."""
        return self._status is not None

    def text(self) -> Text:
        """Return the text of the line."""
        now = time.monotonic()
        oldest = sorted(self.running.items(), key=lambda item: item[1])
        names = [f"{name.partition('::')[2] or name} {now - since:.0f} s" for name, since in oldest[:NAMES_SHOWN]]
        failed = f", {self.failed} failed" if self.failed else ""
        done = f"{self.done} of {self.total or '?'} done{failed}{self._time_left(now)}"
        return Text(f"{done}: {', '.join(names)}", no_wrap=True, overflow="ellipsis")

    def _time_left(self, now: float) -> str:
        """Return the estimated time left at the present rate; "" while too little is done."""
        elapsed = now - self.started
        if self.done < ENOUGH or elapsed < LONG_SECONDS or self.total <= self.done:
            return ""
        minutes = elapsed / self.done * (self.total - self.done) / 60
        return f", about {minutes:.0f} min left" if minutes >= 1 else ", less than a minute left"

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the number of items that this process collected."""
        self.total = max(self.total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """Take the number of items of a worker; every worker collects the same."""
        self.total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note that an item starts, here or in a worker."""
        self.hide()
        if not self.running and not self.done:
            self.started = time.monotonic()
        self.running[nodeid] = time.monotonic()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count failures."""
        self.hide()
        self.failed += report.failed

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Note that an item has ended."""
        self.hide()
        self.running.pop(nodeid, None)
        self.done += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End before the tables are printed."""
        self.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """End on an interrupt."""
        self.end()

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self) -> None:
        """End before the traceback is printed."""
        self.end()


def on_terminal() -> Progress | None:
    """Return a status line on this process's terminal, or None if stderr is not a capable one."""
    if not os.isatty(2):
        return None
    # A copy, since pytest's capturing replaces the descriptor while items run.
    console = Console(file=os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace"))
    return None if console.is_dumb_terminal else Progress(console, own_line=sys.__stdout__ is not None and os.isatty(1))
