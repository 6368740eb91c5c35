"""A folder of programs that each reached what none before it did, of which the next ones are made.

It is any run's: workers share it, and a later run goes on where it was. `reached.txt` has every place that is known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from conformance.fuzz.asked import KNOWN
from conformance.fuzz.program import Program
from conformance.shapes.cases import Arg


def known(folder: Path) -> set[str]:
    """Every place that is reached."""
    try:
        return set((folder / KNOWN).read_text(encoding="utf-8").split("\n")[:-1])  # the last may be a part
    except FileNotFoundError:
        return set()


def keep(folder: Path, program: Program, places: Iterable[str]) -> list[str]:
    """The places that none had reached; if there are any, the program is an entry from now on."""
    new = sorted(set(places) - known(folder))
    if new:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / KNOWN).open("a", encoding="utf-8") as file:
            file.write("".join(f"{place}\n" for place in new))
        part = folder / f".{program.seed}.{program.index}.part"
        part.write_text(dumped(program), encoding="utf-8")
        part.replace(folder / f"{program.seed}.{program.index}.json")
    return new


def dumped(program: Program) -> str:
    """A program as text."""
    return json.dumps(asdict(replace(program, altered=None)), indent=1) + "\n"


def loaded(text: str) -> Program:
    """The program of a text."""
    found: dict[str, Any] = json.loads(text)
    args = tuple(
        Arg(a["name"], tuple(a["shape"]), a["dtype"], a["layout"], a["inputs"], a["constant"], tuple(a["axes"]))
        for a in found["args"]
    )
    varying = {name: {int(k): v for k, v in axes.items()} for name, axes in found["varying"].items()}
    lines, results, gradients, points = (tuple(found[name]) for name in ("lines", "results", "gradients", "points"))
    return Program(found["seed"], found["index"], args, lines, results, gradients, points, varying)
