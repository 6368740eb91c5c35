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


def run(command: str, words: Sequence[str]) -> int:
    """The exit status of the suite; it says by itself what is wrong."""
    # With this copy before any folder that happens to be the current one.
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    answer = subprocess.run(
        [sys.executable, "-P", "-m", COMMANDS[command][0], *words], env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    sys.stdout.write(answer.stdout)
    if {"-h", "--help"} & {*words}:
        raise SystemExit(answer.returncode)
    return answer.returncode
