"""The judge of other backends, net by net: a wrong backend is caught by one of them, and passes without it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from conformance.judge import foreign, ladder, systems, tampering
from conformance.judge.oracle import Verdict
from conformance.rows import CaseResult
from conformance.shapes.cases import Case, to_json
from conformance.tests import wrong_backends
from conformance.tests.judge.test_foreign import PLAIN, TELLING

SEED = random.SystemRandom().randrange(2**31)
RESTORE_FUNCTIONS, RESTORE_SETTINGS = tampering.restore_functions, tampering.restore_settings
Patch = pytest.MonkeyPatch


class Anything:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def _passing(*_: Any, **__: Any) -> Verdict:
    return Verdict(True, 0.0)


def _anything(*_: Any) -> Iterator[Anything]:
    yield Anything()


# How each net is switched off.
OFF: dict[str, Callable[[Patch], None]] = {
    "values": lambda patch: patch.setattr(foreign, "_judge_outputs", _passing),
    "repeats": lambda patch: patch.setattr(foreign, "_judge_repeats", lambda *_: None),
    "earlier results": lambda patch: patch.setattr(foreign, "_check_earlier_results", lambda _: None),
    "used storage": lambda patch: patch.setattr(foreign, "REFILL_SEED", 1),  # the data of the first call again
    "large row": lambda patch: patch.setattr(foreign, "_judge_large_row", _passing),
    "strides": lambda patch: patch.setattr(foreign, "_allowed_strides", _anything),
    "aliases": lambda patch: patch.setattr(foreign, "_shares_storage", lambda *_: False),
    "writes": lambda patch: patch.setattr(foreign, "_require_unwritten", lambda *_: None),
    "result types": lambda patch: patch.setattr(foreign, "RESULT_TYPES", (torch.Tensor, wrong_backends.Lazy)),
    "functions": lambda patch: patch.setattr(tampering, "restore_functions", lambda: ""),
    "settings": lambda patch: patch.setattr(tampering, "restore_settings", lambda _: ""),
    "graphs": lambda patch: patch.setattr(foreign, "systems", SimpleNamespace(**vars(systems) | {"graph_count": int})),
}


@dataclass(frozen=True)
class Fault:
    """A kind of wrong backend, and what the net that catches it says."""

    net: str
    kind: str
    said: str
    made: Case = PLAIN


FAULTS = (
    Fault("values", "off by a thousandth", "call 1: output 0: element"),
    Fault("values", "another dtype", "call 1: output 0 is torch.float64, expected f32"),
    Fault("repeats", "work skipped", "on the data of call"),
    Fault("repeats", "every fiftieth call", "on the data of call"),
    Fault("earlier results", "one buffer for every call", "output 0 of call 1 was changed by a later call"),
    Fault("used storage", "results remembered by address", "in the storage of the first with new data in it"),
    Fault("large row", "wrong when large", "call at", TELLING["wrong when large"]),
    Fault("strides", "other strides", "call 1: output 0 has strides [1, 6], eager's [33, 1]"),
    Fault(
        "aliases",
        "input handed out later",
        "lies in the memory of argument 0",
        TELLING["input handed out later"],
    ),
    Fault("writes", "input written to", "call 2: argument 0 was written to"),
    Fault("writes", "weight written to", "call 2: weight 0 was written to", TELLING["weight written to"]),
    Fault("writes", "weight written to at first", "compiling it: weight 0 was", TELLING["weight written to"]),
    Fault("result types", "computed when used", "output 0 is a Lazy, which may put off its work"),
    Fault("graphs", "compiled again", "compiled again at N = ", TELLING["compiled again"]),
    Fault("functions", "comparison replaced", "torch.allclose was replaced by something else"),
    Fault("settings", "random numbers drawn", "the state of random numbers changed"),
    Fault("settings", "number of threads changed", "the number of threads changed"),
)


def check(fault: Fault) -> CaseResult:
    name = f"wrong {fault.kind}"
    if name not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=wrong_backends.backend(fault.kind), name=name)
    options = {"target": "cpu", "stages": (), "seed": SEED, "threads": 1, "backend": name, "dump": None}
    return ladder.check(to_json(fault.made), options)


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: Patch) -> Iterator[None]:
    """What backends change in the process is restored, whatever the judge does."""
    settings = tampering.current_settings()
    yield
    RESTORE_FUNCTIONS()
    RESTORE_SETTINGS(settings)


def test_every_net_has_a_fault_of_its_own() -> None:
    assert {fault.net for fault in FAULTS} == OFF.keys()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.kind for fault in FAULTS])
def test_a_wrong_backend_is_caught_by_one_net_alone(fault: Fault, monkeypatch: Patch) -> None:
    row = check(fault)
    assert row.verdict == "fail" and fault.said in row.detail, (SEED, row)
    OFF[fault.net](monkeypatch)
    row = check(fault)
    assert row.verdict == "pass", f"seed {SEED}: without {fault.net} it is caught by another net: {row.detail}"
