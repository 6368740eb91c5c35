"""`mlcomp validate`: shape files checked without running them, by the suite that reads them."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

# The suite is built on the compiler and not the other way round, so it is a process of its own that is asked.
SUITE = "conformance.shapes.validate"


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", type=Path, nargs="+", metavar="FILE", help="a shape file, or a folder of them")


def validate(options: argparse.Namespace) -> int:
    """1 when any file is wrong."""
    command = [sys.executable, "-m", SUITE, *(str(path) for path in options.files)]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    sys.stdout.write(answer.stdout)
    return answer.returncode
