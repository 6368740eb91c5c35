"""Commands of the suite: `mlcomp validate`, `compare`, `bisect` and others, whose words go on to it as they are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# The suite is built on the compiler and not the other way round, so it is a process of its own that is asked.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "validate": ("conformance.shapes.validate", "check shape files without running them"),
    "compare": ("conformance.history.compare", "what changed between the reports of two runs"),
    "bisect": ("conformance.history.bisect", "which commit, and which pass of it, made a kernel slow or wrong"),
    "history": ("conformance.history.changes", "since which recorded run kernels are slower or faster"),
    "merge": ("conformance.run.merge", "one report of the shards of a run"),
}


def run(module: str, words: Sequence[str]) -> int:
    """The exit status of a module of the suite; it says by itself what is wrong."""
    # With this copy before any folder that happens to be the current one.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        [sys.executable, "-P", "-m", module, *words], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True,
    ) as asked:  # fmt: skip
        try:
            _pass_on(asked)
        except KeyboardInterrupt:  # which a terminal sends to both: the suite keeps what it has, and says so
            _pass_on(asked)
    if {"-h", "--help"} & {*words}:
        raise SystemExit(asked.returncode)
    return asked.returncode


def _pass_on(asked: subprocess.Popen[str]) -> None:
    """Print lines as they come, for some take long."""
    for line in asked.stdout or ():
        sys.stdout.write(line)
        sys.stdout.flush()
