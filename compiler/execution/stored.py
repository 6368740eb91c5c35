"""Cache the text and launches of lowered programs across processes.

The key covers all that they depend on: the program's text, the target, the schedules given, and the compiler's sources.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from compiler.errors import CacheError
from compiler.ir import aten, aten_text, kernel, kernel_text
from compiler.pipeline import TEXTS, Fallback, Lowering
from compiler.render import header
from compiler.runtime import store
from compiler.schedule import steps
from compiler.schedule.steps import Schedule
from compiler.targets.target import Target

SUFFIX = ".json"
_COMPILER = Path(__file__).parents[1]


def code(
    program: aten.Program,
    target: Target,
    schedules: tuple[tuple[str, Schedule], ...],
    cache: Path,
    lower: Callable[[], Lowering],
    records_digest: str = "",
) -> Lowering:
    """The program with its text and launches, without the stages between. If it is not in the cache, `lower` makes all
    stages. `records_digest` is the digest of the stored schedules."""
    path = store.entry(cache, _key(program, target, schedules, records_digest), SUFFIX)
    if (parts := store.read_parts(path)) is not None:
        return _read(parts[0], program, target)
    lowering = lower()
    with contextlib.suppress(CacheError):  # a read-only or full cache is not updated
        _write(path, lowering)
    return lowering


def _key(
    program: aten.Program, target: Target, schedules: tuple[tuple[str, Schedule], ...], records_digest: str
) -> str:
    schedule_texts = [f"{name} {steps.show(x)}" for name, x in schedules]
    parts = (
        sources(),
        _target_text(target),
        aten_text.show(program),
        *schedule_texts,
        *([records_digest] if records_digest else []),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def sources() -> str:
    """The digest of the compiler's sources."""
    digest = hashlib.sha256()
    for path in sorted(p for p in _COMPILER.rglob("*.py") if "tests" not in p.parts):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(_COMPILER)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


@functools.lru_cache(maxsize=16)
def _target_text(target: Target) -> str:
    return repr(target)


def _read(content: bytes, program: aten.Program, target: Target) -> Lowering:
    entry = json.loads(content)
    launched = kernel_text.parse(entry["kernel"])
    kernel.verify(launched)
    stages = {"torch": program, "kernel": launched, TEXTS[target.kind]: entry["text"]}
    return Lowering(stages, target, {}, tuple(Fallback(*x) for x in entry["fallbacks"]))


def _write(path: Path, lowering: Lowering) -> None:
    text = lowering.stages[TEXTS[lowering.target.kind]]
    launched = kernel_text.show(header.launches_only(lowering.stages["kernel"]))
    entry = {"kernel": launched, "text": text, "fallbacks": [(x.kernel, x.reason) for x in lowering.fallbacks]}
    with store.build_folder(path) as folder:
        draft = folder / "program"
        draft.write_text(json.dumps(entry))
        store.publish(draft, path)
