"""Commands of the suite: `mlcomp validate`, `compare`, `bisect` and others; their arguments are passed on unchanged."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# The suite depends on the compiler and not the other way round, so its commands run in a process of their own.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "validate": ("conformance.shapes.validate", "check shape files without running them"),
    "compare": ("conformance.history.compare", "show what changed between the reports of two or more runs"),
    "bisect": ("conformance.history.bisect", "find the commit, pass and schedule step that made a case wrong or slow"),
    "history": ("conformance.history.changes", "find the recorded run since which kernels are slower or faster"),
    "merge": ("conformance.run.merge", "merge the reports of the shards of a run"),
}


def run(module: str, words: Sequence[str]) -> int:
    """Run a module of the suite; return its exit status. It prints its own errors."""
    # This copy comes before the current folder, which may hold packages of the same names.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            _forward_output(process)
        except (
            KeyboardInterrupt
        ):  # a terminal sends it to both processes: the suite stores its results so far and says so
            _forward_output(process)
    if {"-h", "--help"} & {*words}:
        raise SystemExit(process.returncode)
    return process.returncode


def _forward_output(process: subprocess.Popen[str]) -> None:
    """Print lines as they arrive; some commands take long."""
    for line in process.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
