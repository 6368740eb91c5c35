"""Shards: cut the items of a run into N parts, and join the rows of all parts to the whole run.

The assignment of items to shards depends only on the names of all items and the times in the reports, so machines with
the same checkout agree on it. A shard writes `rows.jsonl` beside its report: a head that identifies the shard, then all
rows. Shards that were cut from different items are not joined.
"""

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from conformance import rows
from conformance.report.writer import Run

ROWS = "rows.jsonl"
DEFAULT_SECONDS = 1.0  # assumed seconds of an item if no report has times


class ShardError(Exception):
    """The shards do not form a whole run; the message says which, and what to do."""


@dataclass(frozen=True)
class Head:
    """The head of a shard: number `part` of `parts` of the items with this digest, and options of the whole run."""

    part: int
    parts: int
    items: str
    status: int = 0  # pytest's exit status, before the checks that need the whole run
    fail_on: tuple[str, ...] = ()
    baseline: str = ""
    gone: tuple[str, ...] = ()  # cases that passed in the baseline
    record: bool = False


def digest(names: Sequence[str]) -> str:
    """Return the digest of a set of item names."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:16]


def durations(reports: Path) -> dict[str, float]:
    """Return the seconds of items by short name, the maximum over all devices' reports; items in none are missing."""
    seconds: dict[str, float] = {}
    for path in sorted(reports.glob("*/run.json")):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            reported = [(row, False) for row in data["cases"]] + [(row, True) for row in data["benches"]]
            for row, bench in reported:
                item = rows.Item(id=row["id"], file="", suite="", op="", target=row["target"], dtype="")
                name = f"{Path(row['file']).name}::{rows.name(item, bench=bench)}"
                seconds[name] = max(seconds.get(name, 0.0), float(row["seconds"]))
        except (OSError, ValueError, KeyError, TypeError):
            continue  # a report of another version; all shards ignore it alike
    return seconds


def cut(names: Sequence[str], parts: int, seconds_of: Mapping[str, float]) -> list[int]:
    """Return the shard (from 1) of each item: longest items first, each to the shard with the least time.

    >>> cut(["a.toml::long", "a.toml::x", "a.toml::y"], 2, {"a.toml::long": 2.0, "a.toml::x": 1.0})
    [1, 2, 2]
    """
    default = statistics.median(seconds_of.values()) if seconds_of else DEFAULT_SECONDS
    seconds = [seconds_of.get(name.rpartition("/")[2] if "::" in name else name, default) for name in names]
    totals, shard_of = [0.0] * parts, [0] * len(names)
    for n in sorted(range(len(names)), key=lambda n: (-seconds[n], names[n])):
        emptiest = min(range(parts), key=lambda part: totals[part])
        totals[emptiest] += seconds[n]
        shard_of[n] = emptiest + 1
    return shard_of


def dump(run: Run, head: Head) -> str:
    """Serialise a shard."""
    facts = {"env": run.env, "seconds": run.seconds, "tier": run.tier, "seed": run.seed, "unfit": run.unfit}
    first = {**rows.to_json(head), **facts, "when": run.when.isoformat()}
    return "\n".join((json.dumps(first), *map(rows.dumps, run.all_rows))) + "\n"


def load(folder: Path) -> tuple[Head, Run]:
    """Read a shard from the folder of its report; raises ShardError."""
    try:
        first, *others = (folder / ROWS).read_text(encoding="utf-8").splitlines()
        facts: dict[str, Any] = json.loads(first)
        head = rows.from_json(Head, {field.name: facts.pop(field.name) for field in fields(Head)})
        run = Run.from_rows(map(rows.loads, others), **{**facts, "when": datetime.fromisoformat(facts["when"])})
    except OSError as error:
        raise ShardError(f"{folder} has no part of a run: {folder / ROWS} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ShardError(
            f"{folder / ROWS} is not the report of a part of a run ({type(error).__name__}: {error})"
        ) from None
    return head, run


def join(parts: Sequence[tuple[Head, Run]]) -> tuple[Head, Run]:
    """Join all shards of a run; raises ShardError if some are missing or they were cut from different items."""
    heads, runs = zip(*sorted(parts, key=lambda part: part[0].part), strict=True)
    expected = list(range(1, heads[0].parts + 1))
    if [head.part for head in heads] != expected or any(head.parts != heads[0].parts for head in heads):
        present = ", ".join(f"{head.part}/{head.parts}" for head in heads)
        raise ShardError(f"a whole run has each of its {heads[0].parts} parts once; here are {present}")
    if len({head.items for head in heads}) > 1:
        raise ShardError("the parts were cut from different cases: run all of the same checkout with the same options")
    whole = Head(
        part=1, parts=1, items=heads[0].items, status=max(head.status for head in heads),
        fail_on=heads[0].fail_on, baseline=heads[0].baseline, record=any(head.record for head in heads),
        gone=tuple(sorted({case for head in heads for case in head.gone})),
    )  # fmt: skip
    env = {key: " + ".join(dict.fromkeys(str(run.env[key]) for run in runs if run.env[key])) or None
           for key in runs[0].env}  # fmt: skip
    return whole, Run.from_rows(
        (row for run in runs for row in run.all_rows), env=env,
        seconds=max(run.seconds for run in runs), tier=runs[0].tier, seed=runs[0].seed,
        unfit="; ".join(dict.fromkeys(run.unfit for run in runs if run.unfit)), when=max(run.when for run in runs),
    )  # fmt: skip
