"""Nsight Compute: make the command that profiles given kernels in a run of another command."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from compiler.errors import ToolchainError

# The sections on what limits a kernel, its launch parameters, and its occupancy.
_SECTIONS = ("SpeedOfLight", "LaunchStats", "Occupancy")
_TOOLKIT = Path("/usr/local/cuda/bin")


def command(kernels: Sequence[str], run: Sequence[str]) -> list[str]:
    """`run` under ncu, which prints a summary of as many launches of `kernels` as there are names, the first ones.

    Raises ToolchainError if ncu is not installed.
    """
    tool = shutil.which("ncu") or shutil.which("ncu", path=str(_TOOLKIT))
    if tool is None:
        raise ToolchainError(
            "no profiler: `ncu` is not on PATH; it comes with NVIDIA's toolkit as Nsight Compute "
            "(Debian, Ubuntu: `apt-get install nsight-compute`)."
        )
    names = "|".join(map(re.escape, dict.fromkeys(kernels)))
    sections = [word for section in _SECTIONS for word in ("--section", section)]
    filters = ["--kernel-name-base", "function", "--kernel-name", f"regex:^({names})$"]
    return [tool, "--target-processes", "all", *filters, "--launch-count", str(len(kernels)), *sections, *run]
