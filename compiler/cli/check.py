"""`mlcomp check`: run a CUDA text, possibly edited, under the emulator's checks and print findings with their lines."""

from __future__ import annotations

import argparse
from pathlib import Path

from compiler.cli.sources import add_shared, check_suffix, interruptible_import


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file", type=Path, metavar="FILE.cu", help="a text as `mlcomp show --ir cuda` prints it, perhaps edited"
    )
    add_shared(command, "--arg")
    command.add_argument(
        "--launch",
        action="append",
        default=[],
        metavar="KERNEL<<<GRID, BLOCK>>>",
        help="override the grid and block in the text's header, for example 'softmax<<<64x2, 128>>>'",
    )


def check(options: argparse.Namespace) -> int:
    """Return 1 if there is any finding, else 0."""
    check_suffix(options.file, "check")
    with interruptible_import():
        from compiler.execution import trial  # noqa: PLC0415

    findings = trial.check(options.file, options.target, options.seed, dict(options.shapes), options.launch)
    for line in findings:
        print(line)
    print(f"{options.file}: {len(findings) or 'no'} finding{'s' if len(findings) != 1 else ''}, seed {options.seed}")
    return 1 if findings else 0
