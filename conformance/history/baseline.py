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
from conformance.bench.emitted import StoredKernel
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

    def stored(self, row: rows.Item) -> StoredKernel | None:
        """Return the stored kernel of a benchmark, or None."""
        if self.record is not None:
            text = self.record.get(f"{row.target} {row.id}")
            headers = self.record.get(f"{kind_of(row.target)} {texts.HEADERS}")
            # If the compiler refused the case, the record has its message instead of a text.
            is_known = text is not None and headers is not None and text.startswith("// ")
            return StoredKernel(self.name, text or "", emitted.unpack_headers(headers or "")) if is_known else None
        entry = self.entry(row)
        if entry is None or self.folder is None:
            return None
        headers = _read(self.folder / "headers" / f"{entry['headers']}.txt")
        return StoredKernel(self.name, _read(self.folder / "kernels" / entry["text"]), emitted.unpack_headers(headers))

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


def case_name(row: Check) -> str:
    """Return the name of a case that is unique within a run."""
    return f"{row.file}::{rows.name(row)}"


def find(name: str, reports: Path, here: Path, request: revisions.TextRequest) -> Baseline:
    """Return the baseline `name`: a folder, a name in `reports`, or a git revision, whose texts are lowered now.

    Raises BaselineError if it is none of these.
    """
    for folder in (here / name, reports / name):
        _restore_backup(folder)
        if (folder / INDEX).is_file():
            return Baseline(name, folder)
    try:
        revision = revisions.find(revisions.repository(here), name)
        (record,) = revisions.records([revision], request, len(os.sched_getaffinity(0)))
    except revisions.RevisionError as error:
        known = sorted(path.parent.name for path in reports.glob(f"*/{INDEX}"))
        hint = f"; there are {', '.join(known)}" if known else ""
        raise BaselineError(f"{name} is no baseline in {reports}{hint}, no folder of one, and: {error}") from error
    return Baseline(name, record=record)


def save(
    folder: Path, cases: Sequence[Check], benches: Sequence[Bench], facts: Mapping[str, Any], headers: Mapping[str, str]
) -> int:
    """Store the kernels of a run and keep the other entries of the folder; returns the number of entries.

    `headers` maps each kind of target to its headers, joined by `emitted.packed`. Raises BaselineError if it cannot be
    written; the folder is unchanged then.
    """
    _restore_backup(folder)
    verdicts = {case_name(row): row.verdict for row in cases}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with compiler.own_folder(folder.parent) as temporary:
            new_folder = temporary / folder.name
            new_folder.mkdir()
            if (folder / INDEX).is_file():
                shutil.copytree(folder, new_folder, dirs_exist_ok=True)
                verdicts = json.loads(_read(folder / INDEX))["cases"] | verdicts
            for part in ("kernels", "headers"):
                (new_folder / part).mkdir(exist_ok=True)
            for row in benches:
                if row.source:
                    _store(new_folder, row, headers[kind_of(row.target)])
            (new_folder / INDEX).write_text(_json({"schema": SCHEMA, **facts, "cases": verdicts}), encoding="utf-8")
            _drop_unused(new_folder)
            os.sync()
            backup = _backup(folder)
            if folder.exists():
                shutil.rmtree(backup, ignore_errors=True)  # a killed run may have left it
                os.replace(folder, backup)
            os.replace(new_folder, folder)
            shutil.rmtree(backup, ignore_errors=True)
    except OSError as error:
        raise BaselineError(f"cannot write the baseline {folder}: {error.strerror}; what stood there stands") from None
    return len(list((folder / "kernels").glob("*.json")))


def drift(row: Bench, entry: Mapping[str, Any] | None) -> dict[str, float]:
    """Return, if our code is unchanged, for each rival the factor by which its time relative to ours has changed."""
    earlier = (entry or {}).get("us", {})
    if row.against.why != "equal code" or OURS not in earlier or not row.ours_us:
        return {}
    now = {name: comparison.speedup for name, comparison in row.over.items()}
    return {name: round(now[name] / (earlier[name] / earlier[OURS]), 3) for name in sorted(now) if earlier.get(name)}


def _store(folder: Path, row: Bench, headers: str) -> None:
    digest = hashlib.sha256(headers.encode()).hexdigest()[:16]
    (folder / "headers" / f"{digest}.txt").write_text(headers, encoding="utf-8")
    text = slug(row) + SUFFIXES[kind_of(row.target)]
    (folder / "kernels" / text).write_text(row.source, encoding="utf-8")
    micros = {name: [_round(1e6 * x) for x in seconds] for name, seconds in row.samples.items()}
    entry = {
        "case": row.id, "file": row.file, "target": row.target, "dtype": row.dtype, "text": text, "headers": digest,
        "identity": row.against.identity, "kernels": row.kernels, "compile_seconds": _round(row.compile_seconds or 0.0),
        "us": {name: _round(sorted(seconds)[len(seconds) // 2]) for name, seconds in micros.items() if seconds},
        "samples_us": micros.get(OURS, []),
    }  # fmt: skip
    (folder / "kernels" / f"{slug(row)}.json").write_text(_json(entry), encoding="utf-8")


def _drop_unused(folder: Path) -> None:
    used = {json.loads(_read(path))["headers"] for path in (folder / "kernels").glob("*.json")}
    for path in (folder / "headers").glob("*.txt"):
        if path.stem not in used:
            path.unlink()


def _backup(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def _restore_backup(folder: Path) -> None:
    """Restore the folder if a run was killed between moving it away and moving the new one to its place."""
    if _backup(folder).is_dir() and not folder.exists():
        os.replace(_backup(folder), folder)


def _round(value: float) -> float:
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
