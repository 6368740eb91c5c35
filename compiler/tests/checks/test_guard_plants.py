"""Planted faults that a single net of guarded runs catches: each is caught by that net, and passes without it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.runtime import build, guarded
from compiler.runtime.guarded import Outcome
from compiler.runtime.launcher import DTYPES, Buffer, Plan

C_TYPES = {
    "f64": "double", "f32": "float", "f16": "_Float16", "i64": "int64_t", "i32": "int32_t", "i16": "int16_t",
    "i8": "int8_t", "u8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
FLOATS, INTEGERS = ("f64", "f32", "f16"), ("i64", "i32", "i16", "i8", "u8")
NUMBERS = (*FLOATS, *INTEGERS)
ALL = (*NUMBERS, "bool")
# Buffers of n elements: the input x, the output y, the temporaries t and u. Elements of x and y are STEP apart.
TEXT = """
#include <cstdint>
extern "C" __attribute__((visibility("default")))
int mlc_entry(void** buffers, const long long*, int) {
  typedef TYPE T;
  T *x = (T*)buffers[0], *y = (T*)buffers[1], *t = (T*)buffers[2], *u = (T*)buffers[3];
  const long long n = COUNT;
  BODY
  return 0;
}
"""
COPY = "for (int i = 0; i < n; i++) y[i] = x[i];"
ROW = "for (int i = 0; i < n; i++) "
KEPT = ROW + "t[i] = x[i];" + ROW + "u[i] = 0;" + ROW + "y[i] = t[i];"
ALIGNED = "if ((uintptr_t)x % 16) return 1;"
SPACED = "for (int i = 0; i < n; i++) y[2 * i] = x[2 * i];"


@dataclass(frozen=True)
class Fault:
    """A body that copies x to y, wrongly: the first of `found` is found, by `net`, and the rest may be as well."""

    name: str
    net: str
    body: str
    found: tuple[str, ...]
    dtypes: tuple[str, ...] = NUMBERS
    step: int = 1  # of the elements of x and y
    zero_end: bool = False  # whether the last element of x is 0
    zeros: int = 0  # of the temporaries, those that are zero before and after
    temporaries: tuple[int, int] = (0, 4096)  # where t and u lie in the arena
    misaligned: bool = False  # whether x begins one element behind a boundary


VALUES, RUNS = "an element is wrong", "the runs differ"
BYTE = "an element of y was never written"
NOT_LAST = "for (int i = 0; i < n - 1; i++) y[i] = x[i];"
ZONES, CONTENTS = "zones", "contents of zones"
FAULTS = (
    Fault("behind an output", ZONES, COPY + "y[n] = x[0];", ("0 bytes behind y",), ALL),
    Fault("before an output", ZONES, COPY + "y[-1] = x[0];", ("before y",), ALL),
    Fault("copied from behind an input", ZONES, ROW + "y[i] = x[i]; y[n] = x[n];", ("0 bytes behind y",), ALL),
    Fault("a zero behind an output", ZONES, COPY + "y[n] = 0;", ("0 bytes behind y",), ALL),
    Fault("behind an input", ZONES, COPY + "x[n] = x[0];", ("0 bytes behind x",), ALL),
    Fault("behind a temporary", ZONES, COPY + "t[n] = x[0];", ("0 bytes behind t",), ALL),
    Fault("in a gap of an output", ZONES, SPACED + "y[1] = x[0];", ("between the elements of y",), ALL, step=2),
    Fault("read behind an input, times zero", CONTENTS, ROW + "y[i] = x[i] + 0 * x[n + i];", (VALUES,), FLOATS),
    Fault("read before an input, times zero", CONTENTS, ROW + "y[i] = x[i] + 0 * x[i - n];", (VALUES,), FLOATS),
    Fault("read before a temporary, times zero", CONTENTS, ROW + "y[i] = x[i] + 0 * t[i - n];", (VALUES, RUNS), FLOATS),
    Fault("read behind an output, times zero", CONTENTS, ROW + "y[i] = x[i] + 0 * y[n + i];", (VALUES,), FLOATS),
    Fault("read behind an input", CONTENTS, ROW + "y[i] = x[i] + x[n + i];", (VALUES,)),
    Fault("bool read behind an input", CONTENTS, ROW + "y[i] = x[i] | x[n + i];", (BYTE, VALUES), ("bool",)),
    Fault("no last element", "poison", NOT_LAST, (VALUES,), zero_end=True),
    Fault("no last bool", "poison", NOT_LAST, (VALUES, BYTE), ("bool",), zero_end=True),
    Fault("a temporary not written, times zero", "poison", ROW + "y[i] = x[i] + 0 * t[i];", (VALUES, RUNS), FLOATS),
    Fault("a temporary not written", "poison", ROW + "y[i] = x[i] + t[i];", (VALUES, RUNS)),
    Fault("an input", "inputs", NOT_LAST + "y[n - 1] = 0; x[n - 1] = 1;", ("input x was changed",), ALL, zero_end=True),
    Fault(
        "in a gap of an input", "inputs", SPACED + "x[1] = x[1] == 1 ? 2 : 1;", ("input x was changed",), ALL, step=2
    ),
    Fault("a temporary not left zero", "zeros", COPY + "u[0] = 1;", ("u was not left zero",), ALL, zeros=1),
    Fault("output of the run before", "repetition", ROW + "y[i] = x[i] + (y[i] == x[i]);", (RUNS,)),
    Fault("temporary of the run before", "repetition", ROW + "{ y[i] = x[i] + (t[i] == 1); t[i] = 1; }", (RUNS,)),
    Fault("temporaries in one place", "arena", KEPT, (RUNS,), ALL, temporaries=(0, 0)),
    Fault("an input taken for aligned", "alignment", ALIGNED + COPY, (guarded.INVALID, VALUES), misaligned=True),
)
# What only a run with read-only inputs beside closed pages finds.
AT_EDGES = (
    Fault("an integer behind an input, times zero", "", ROW + "y[i] = x[i] + 0 * *(volatile T*)(x + n);", (), INTEGERS),
    Fault("an integer before an input, times zero", "", ROW + "y[i] = x[i] + 0 * *(volatile T*)(x - 1);", (), INTEGERS),
    Fault("read behind an input and dropped", "", COPY + "(void)*(volatile T*)(x + n);", (), ALL),
    Fault("an element of an input written as it is", "", COPY + "*(volatile T*)(x + 1) = x[1];", (), ALL),
)


def run(
    fault: Fault, dtype: str, draw: random.Random, cache: Path, runs: int = 3, edges: bool = False
) -> tuple[str, ...]:
    """Run the body of a fault on random data, and return the findings."""
    count = draw.randrange(3, 60)
    text = TEXT.replace("TYPE", C_TYPES[dtype]).replace("COUNT", str(count)).replace("BODY", fault.body)
    path = build.build(text, build.kernel_flags(optimise="-O0"), cache=cache)
    numbers = [draw.randrange(2 if dtype == "bool" else 100) for _ in range(count * fault.step)] + [0]
    storage = torch.tensor([0] * fault.misaligned + numbers).to(DTYPES[dtype])
    x = storage[int(fault.misaligned) :: fault.step][:count]
    if fault.zero_end:
        x[-1] = 0
    step = (fault.step,)
    plan = Plan((Buffer("x", dtype, (count,), step),), (Buffer("y", dtype, (count,), step),), fault.temporaries, 8192,
                zeros=fault.zeros)  # fmt: skip
    temps = [Buffer(name, dtype, (count,), (1,)) for name in "tu"]
    call = guarded.entry(path)
    return findings(guarded.run(call, plan, [x], temps, runs, unthreaded=call if edges else None), x)


def findings(outcome: Outcome, right: torch.Tensor) -> tuple[str, ...]:
    """What the nets of a guarded run find."""
    wrong = () if torch.equal(outcome.outputs[0], right) else (VALUES,)
    return (*wrong, *outcome.complaints, *(() if outcome.same else (RUNS,)))


Patch = pytest.MonkeyPatch


def _without_complaints(patch: Patch, about: str) -> None:
    """Without the complaints of forbidden writes that have these words."""
    found = guarded._forbidden_writes
    patch.setattr(guarded, "_forbidden_writes", lambda *args: [c for c in found(*args) if about not in c])


def _with_memory(patch: Patch, change: Callable[[Any], dict[str, Any]]) -> None:
    """With other fields of the memory."""
    lay_out = guarded._lay_out_memory

    def changed(*args: Any) -> Any:
        memory = lay_out(*args)
        return dataclasses.replace(memory, **change(memory))

    patch.setattr(guarded, "_lay_out_memory", changed)


def _without_poison(patch: Patch) -> None:
    patch.setattr(guarded, "NAN_BYTE", 0)
    patch.setattr(guarded, "POISON_BYTE", 0)


def _aligned(patch: Patch) -> None:
    add = guarded._Layout.add_region
    patch.setattr(guarded._Layout, "add_region", lambda self, name, size, dtype, *_: add(self, name, size, dtype))


# How each net is switched off; for `repetition` there is one run.
OFF: dict[str, Callable[[Patch], None]] = {
    "zones": lambda patch: _without_complaints(patch, "memory was written"),
    "contents of zones": lambda patch: patch.setattr(guarded, "_zone_element", lambda dtype, _: b"\0" * 8),
    "poison": _without_poison,
    "inputs": lambda patch: _without_complaints(patch, "was changed"),
    "zeros": lambda patch: _with_memory(patch, lambda _: {"zeroed": ()}),
    "repetition": lambda _: None,
    "arena": lambda patch: _with_memory(patch, lambda memory: {"packed": memory.separate}),
    "alignment": _aligned,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("built")


def test_every_net_has_a_fault_of_its_own() -> None:
    assert {fault.net for fault in FAULTS} == OFF.keys()


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_found_by_its_net_alone(fault: Fault, seed: int, cache: Path, monkeypatch: Patch) -> None:
    draw = random.Random(seed)
    for dtype in draw.sample(fault.dtypes, min(3, len(fault.dtypes))):
        found = run(fault, dtype, draw, cache)
        assert any(fault.found[0] in each for each in found), (seed, dtype, found)
        assert all(any(said in each for said in fault.found) for each in found), (seed, dtype, found)
        with monkeypatch.context() as patch:
            OFF[fault.net](patch)
            unseen = run(fault, dtype, draw, cache, runs=1 if fault.net == "repetition" else 3)
        assert unseen == (), f"seed {seed}, {dtype}: without {fault.net} it is found by another net: {unseen}"


@pytest.mark.parametrize("fault", AT_EDGES, ids=[fault.name for fault in AT_EDGES])
def test_closed_pages_find_what_no_value_tells(fault: Fault, seed: int, cache: Path) -> None:
    draw = random.Random(seed)
    for dtype in draw.sample(fault.dtypes, 2):
        (found,) = run(fault, dtype, draw, cache, edges=True)
        assert found == "with its inputs read-only and beside pages that may not be accessed, it died of SIGSEGV", seed
        assert run(fault, dtype, draw, cache) == (), (seed, dtype)


def test_a_right_kernel_passes_beside_closed_pages(seed: int, cache: Path) -> None:
    draw = random.Random(seed)
    for dtype in ALL:
        assert run(Fault("", "", COPY, ()), dtype, draw, cache, edges=True) == (), (seed, dtype)
