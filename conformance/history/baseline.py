"""Baselines: a folder with the emitted kernels of benchmarks and what is needed to race them again.

    baseline.json      the environment, the tier, the verdict of every case
    kernels/CASE.cu    the emitted text; its head states the launch, its comments the schedule
    kernels/CASE.json  its digest, the digest of its headers, its samples, and times of the rivals
    headers/DIGEST.txt the included headers, stored once for all texts that share them

Keys are sorted and numbers are short, so that two baselines can be diffed. A new folder is written beside the old one
and renamed to its place, so that a baseline is always complete.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import compiler
from conformance import rows
from conformance.bench import emitted
from conformance.bench.emitted import Stored
from conformance.history import revisions, texts
from conformance.rows import OURS, Bench, Check
from conformance.shapes.cases import kind_of

INDEX = "baseline.json"
SCHEMA = 1
DIGITS = 4  # significant digits of a sample
SUFFIXES = {"cpu": ".cpp", "cuda": ".cu"}


class BaselineError(Exception):
    """The baseline does not exist, or cannot be read or written."""


@dataclass(frozen=True)
class Baseline:
    """Stored kernels: those of a folder, or the texts (`record`) emitted by a revision, without times."""

    name: str
    folder: Path | None = None
    record: texts.Record | None = None

    def stored(self, row: rows.Item) -> Stored | None:
        """Return the stored kernel of a benchmark, or None."""
        if self.record is not None:
            text = self.record.get(f"{row.target} {row.id}")
            headers = self.record.get(f"{kind_of(row.target)} {texts.HEADERS}")
            # If the compiler refused the case, the record has its message instead of a text.
            known = text is not None and headers is not None and text.startswith("// ")
            return Stored(self.name, text or "", emitted.unpacked(headers or "")) if known else None
        entry = self.entry(row)
        if entry is None or self.folder is None:
            return None
        headers = _read(self.folder / "headers" / f"{entry['headers']}.txt")
        return Stored(self.name, _read(self.folder / "kernels" / entry["text"]), emitted.unpacked(headers))

    def entry(self, row: rows.Item) -> dict[str, Any] | None:
        """Return the stored `.json` entry of a benchmark, or None."""
        path = self.folder / "kernels" / f"{slug(row)}.json" if self.folder else None
        return json.loads(_read(path)) if path is not None and path.is_file() else None

    def verdicts(self) -> Mapping[str, str]:
        """Return the stored verdicts of cases by their names."""
        found: dict[str, str] = json.loads(_read(self.folder / INDEX))["cases"] if self.folder else {}
        return found


def slug(row: rows.Item) -> str:
    """Return the file name of a case, without suffix.

    >>> slug(rows.Item(id="a[N4-dim_m1.f32]", file="shapes/x.toml", suite="x", op="a", target="cpu", dtype="f32"))
    'x.a_N4-dim_m1.f32-cpu'
    """
    words = f"{Path(row.file).stem}.{rows.name(row, bench=False)}"
    return re.sub(r"[^\w.+-]+", "_", words).strip("_")


def named(row: Check) -> str:
    """Return the name of a case that is unique within a run."""
    return f"{row.file}::{rows.name(row)}"


def find(asked: str, reports: Path, here: Path, lowered: revisions.Asked) -> Baseline:
    """Return the baseline `asked`: a folder, a name in `reports`, or a git revision, whose texts are lowered now.

    Raises BaselineError if it is none of these.
    """
    for folder in (here / asked, reports / asked):
        _settle(folder)
        if (folder / INDEX).is_file():
            return Baseline(asked, folder)
    try:
        at = revisions.find(revisions.repository(here), asked)
        (record,) = revisions.records([at], lowered, len(os.sched_getaffinity(0)))
    except revisions.RevisionError as error:
        known = sorted(path.parent.name for path in reports.glob(f"*/{INDEX}"))
        there = f"; there are {', '.join(known)}" if known else ""
        raise BaselineError(f"{asked} is no baseline in {reports}{there}, no folder of one, and: {error}") from error
    return Baseline(asked, record=record)


def save(
    folder: Path, cases: Sequence[Check], benches: Sequence[Bench], facts: Mapping[str, Any], headers: Mapping[str, str]
) -> int:
    """Store the kernels of a run and keep the other entries of the folder; returns the number of entries.

    `headers` maps each kind of target to its headers, joined by `emitted.packed`. Raises BaselineError if it cannot be
    written; the folder is unchanged then.
    """
    _settle(folder)
    verdicts = {named(row): row.verdict for row in cases}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with compiler.own_folder(folder.parent) as own:
            made = own / folder.name
            made.mkdir()
            if (folder / INDEX).is_file():
                shutil.copytree(folder, made, dirs_exist_ok=True)
                verdicts = json.loads(_read(folder / INDEX))["cases"] | verdicts
            for part in ("kernels", "headers"):
                (made / part).mkdir(exist_ok=True)
            for row in benches:
                if row.source:
                    _store(made, row, headers[kind_of(row.target)])
            (made / INDEX).write_text(_json({"schema": SCHEMA, **facts, "cases": verdicts}), encoding="utf-8")
            _drop_unused(made)
            os.sync()
            before = _before(folder)
            if folder.exists():
                shutil.rmtree(before, ignore_errors=True)  # a killed run may have left it
                os.replace(folder, before)
            os.replace(made, folder)
            shutil.rmtree(before, ignore_errors=True)
    except OSError as error:
        raise BaselineError(f"cannot write the baseline {folder}: {error.strerror}; what stood there stands") from None
    return len(list((folder / "kernels").glob("*.json")))


def drift(row: Bench, entry: Mapping[str, Any] | None) -> dict[str, float]:
    """Return, if our code is unchanged, for each rival the factor by which its time relative to ours has changed."""
    then = (entry or {}).get("us", {})
    if row.against.why != "equal code" or OURS not in then or not row.ours_us:
        return {}
    now = {name: over.speedup for name, over in row.over.items()}
    return {name: round(now[name] / (then[name] / then[OURS]), 3) for name in sorted(now) if then.get(name)}


def _store(made: Path, row: Bench, headers: str) -> None:
    digest = hashlib.sha256(headers.encode()).hexdigest()[:16]
    (made / "headers" / f"{digest}.txt").write_text(headers, encoding="utf-8")
    text = slug(row) + SUFFIXES[kind_of(row.target)]
    (made / "kernels" / text).write_text(row.source, encoding="utf-8")
    micros = {name: [_short(1e6 * x) for x in some] for name, some in row.samples.items()}
    entry = {
        "case": row.id, "file": row.file, "target": row.target, "dtype": row.dtype, "text": text, "headers": digest,
        "identity": row.against.identity, "kernels": row.kernels, "compile_seconds": _short(row.compile_seconds or 0.0),
        "us": {name: _short(sorted(some)[len(some) // 2]) for name, some in micros.items() if some},
        "samples_us": micros.get(OURS, []),
    }  # fmt: skip
    (made / "kernels" / f"{slug(row)}.json").write_text(_json(entry), encoding="utf-8")


def _drop_unused(made: Path) -> None:
    used = {json.loads(_read(path))["headers"] for path in (made / "kernels").glob("*.json")}
    for path in (made / "headers").glob("*.txt"):
        if path.stem not in used:
            path.unlink()


def _before(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def _settle(folder: Path) -> None:
    """Restore the folder if a run was killed between moving it away and moving the new one to its place."""
    if _before(folder).is_dir() and not folder.exists():
        os.replace(_before(folder), folder)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def _json(value: Any) -> str:
    """Format as JSON with sorted keys, one entry per line, and each list of numbers on one line."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False)
    return re.sub(r"\[[\d\s.,e+-]*\]", lambda m: " ".join(m[0].split()), text) + "\n"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BaselineError(f"the baseline is not whole: {path} cannot be read: {error}; save it again") from None
