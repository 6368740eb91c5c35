"""`mlcomp cache`: show, verify, prune or clear the cache of compiled kernels."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

from compiler.cli.sources import Senseless
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
        "--older-than", type=_days, metavar="DAYS", help="prune: also remove files not used for DAYS days"
    )
    command.add_argument(
        "--max-size",
        type=_bytes,
        metavar="SIZE",
        help="prune: also remove least recently used files down to SIZE, such as 500M",
    )


def cache(options: argparse.Namespace) -> int:
    if options.action != "prune" and not options.older_than is options.max_size is None:
        raise Senseless(f"--older-than and --max-size are for `mlcomp cache prune`, not for {options.action}")
    folder = Path(os.path.realpath(detect.default_cache(os.environ)))
    match options.action:
        case "show":
            return _show(folder)
        case "verify":
            return _verify(folder)
        case "prune":
            gone = inventory.prune(folder, options.older_than, options.max_size)
        case _:
            gone = inventory.clear(folder)
    print(f"removed {_amount(gone)} of {folder}; {_amount(inventory.files(folder))} are left")
    return 0


def _show(folder: Path) -> int:
    problem = trust.distrust_reason(folder, folder)
    print(f"place: {folder}{f' (refused: {problem})' if problem else ''}")
    key = seal.key_path() if seal.is_persistent() else "none is stored, so each process builds its kernels again"
    print(f"key:   {key}")
    found = inventory.files(folder)
    print(f"size:  {_amount(found)}")
    for kind in dict.fromkeys(file.kind for file in found):
        print(f"  {kind}: {_amount([file for file in found if file.kind == kind])}")
    return 1 if problem else 0


def _verify(folder: Path) -> int:
    if problem := trust.distrust_reason(folder, folder):
        print(f"{folder} is refused: {problem}")
        return 1
    found = [file for file in inventory.files(folder) if file.kind in inventory.KINDS.values()]
    bad = inventory.damaged(found)
    for file in bad:
        print(f"{file.path} is damaged or forged; it is built again when it is needed")
    print(f"{_amount(found)}: {len(found) - len(bad)} intact, {len(bad)} damaged")
    return 1 if bad else 0


def _amount(files: list[File]) -> str:
    """
    >>> _amount([])
    '0 files, 0.0 MiB'
    """
    count = len(files)
    return f"{count} file{'s' if count != 1 else ''}, {sum(file.size for file in files) / (1 << 20):.1f} MiB"


def _days(text: str) -> float:
    """Seconds.

    >>> _days("0.5")
    43200.0
    """
    days = float(text)
    if not days >= 0:
        raise argparse.ArgumentTypeError(f"{text}: a number of days")
    return days * 24 * 3600


def _bytes(text: str) -> int:
    """
    >>> _bytes("1.5G"), _bytes("100")
    (1610612736, 100)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: bytes, or a number with K, M or G")
    return int(float(found[1]) * _UNITS[found[2].upper()])
