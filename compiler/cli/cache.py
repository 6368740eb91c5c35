"""`mlcomp cache`: show, verify, prune or clear the cache of compiled kernels."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from compiler.cli.sources import UsageError
from compiler.runtime import detect, inventory, seal, trust
from compiler.runtime.inventory import File

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "action",
        nargs="?",
        default="show",
        choices=("show", "verify", "prune", "clear"),
        help="show (default): path and size; verify: check the seal of every file; prune: remove unusable files; "
        "clear: remove all but tuning results",
    )
    command.add_argument(
        "--older-than", type=_parse_days, metavar="DAYS", help="prune: also remove files not used for DAYS days"
    )
    command.add_argument(
        "--max-size",
        type=_parse_bytes,
        metavar="SIZE",
        help="prune: also remove least recently used files down to SIZE, such as 500M",
    )


def cache(options: argparse.Namespace) -> int:
    if options.action != "prune" and not options.older_than is options.max_size is None:
        raise UsageError(f"--older-than and --max-size are for `mlcomp cache prune`, not for {options.action}")
    folder = Path(os.path.realpath(detect.default_cache(os.environ)))
    match options.action:
        case "show":
            return _show(folder)
        case "verify":
            return _verify(folder)
        case "prune":
            removed = inventory.prune(folder, options.older_than, options.max_size)
        case _:
            removed = inventory.clear(folder)
    print(f"removed {_count_and_size(removed)} of {folder}; {_count_and_size(inventory.files(folder))} are left")
    return 0


def _show(folder: Path) -> int:
    problem = trust.distrust_reason(folder, folder)
    print(f"place: {folder}{f' (refused: {problem})' if problem else ''}")
    key = seal.key_path() if seal.is_persistent() else "none is stored, so each process builds its kernels again"
    print(f"key:   {key}")
    files = inventory.files(folder)
    print(f"size:  {_count_and_size(files)}")
    for kind in dict.fromkeys(file.kind for file in files):
        print(f"  {kind}: {_count_and_size([file for file in files if file.kind == kind])}")
    return 1 if problem else 0


def _verify(folder: Path) -> int:
    if problem := trust.distrust_reason(folder, folder):
        print(f"{folder} is refused: {problem}")
        return 1
    files = [file for file in inventory.files(folder) if file.kind in inventory.KINDS.values()]
    damaged = inventory.damaged(files)
    for file in damaged:
        print(f"{file.path} is damaged or forged; it is built again when it is needed")
    print(f"{_count_and_size(files)}: {len(files) - len(damaged)} intact, {len(damaged)} damaged")
    return 1 if damaged else 0


def _count_and_size(files: list[File]) -> str:
    """
    >>> _count_and_size([])
    '0 files, 0.0 MiB'
    """
    count = len(files)
    return f"{count} file{'s' if count != 1 else ''}, {sum(file.size for file in files) / (1 << 20):.1f} MiB"


def _parse_days(text: str) -> float:
    """Seconds.

    >>> _parse_days("0.5")
    43200.0
    """
    days = float(text)
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"{text}: a number of days")
    return days * 24 * 3600


def _parse_bytes(text: str) -> int:
    """
    >>> _parse_bytes("1.5G"), _parse_bytes("100")
    (1610612736, 100)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text}: bytes, or a number with K, M or G")
    return int(float(match[1]) * _UNITS[match[2].upper()])
