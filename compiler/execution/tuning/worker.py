"""A process that builds, races or checks candidates; requests and answers are lines of JSON.

Candidates run only here: a crash or a hang costs this process, and the requester starts another.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from compiler import pipeline
from compiler.execution import executable, gpu_programs, named, trial
from compiler.execution.tuning import measure, shelf
from compiler.execution.tuning.tune import without_hints
from compiler.ir import loop_text
from compiler.passes.complete_schedules import completed
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.pipeline import TEXTS
from compiler.runtime import cubin, resources
from compiler.schedule import steps
from compiler.targets.target import Target

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # constants of glibc's mallopt


@dataclass
class State:
    """State between requests: the operands of a kernel, and the call and results that others are compared with."""

    target: Target
    cache: Path
    sets: list[list[torch.Tensor]] = field(default_factory=list)
    first: measure.Contestant | None = None
    results: measure.Tensors = ()

    def lock_device(self) -> AbstractContextManager[None]:
        """Lock the device."""
        return shelf.device_lock(self.cache, gpu_programs.place_of(self.target))


def ready(_: State) -> Mapping[str, Any]:
    """Just answer, to show that the process is ready."""
    return {}


def candidates(state: State, program: str, count: int, known: str) -> Mapping[str, Any]:
    """The cheapest schedules of a kernel, without duplicates, with their estimates; and the `known` schedule, which
    counts as the dearest if it is none of them."""
    chosen: dict[str, float] = {}
    members = list(itertools.islice(without_hints(loop_text.parse(program), state.target), count))
    for p in members:
        chosen.setdefault(steps.show(p.schedule), p.cost)
    if known:
        chosen.setdefault(known, max(chosen.values()))
    return {"family": members[0].family, "costs": [*chosen.values()], "schedules": [*chosen]}


def build(state: State, program: str, schedule: str) -> Mapping[str, Any]:
    """The text of a kernel with a schedule, compiled into the cache; fails if it spills registers."""
    single = loop_text.parse(program)
    (kernel,) = single.kernels
    chosen = completed(single, kernel, steps.parse(schedule), state.target)
    lowering = pipeline.lower(loop_to_tile(single), state.target, {kernel.name: chosen}, source="tile")
    text = lowering.stages[TEXTS[state.target.kind]]
    if state.target.kind == "cpu":
        executable.build_text(lowering, state.cache)
    elif (arch := gpu_programs.architecture(state.target)) is not None:
        compiled = cubin.build_cubin(text, arch, include=(gpu_programs.HEADERS,), cache=state.cache)
        spilled = sum(u.spill_stores + u.spill_loads for u in resources.usage(compiled.log))
        if spilled:
            return {"failed": f"spills {spilled} bytes of registers"}
    return {"text": text}


def begin(state: State, text: str, seed: int) -> Mapping[str, Any]:
    """Make the operands, and the results that candidates have to match."""
    lowering = measure.lowering_of(text, state.target)
    inputs = trial.draw_inputs(lowering, seed, {})
    call = measure.call(lowering, state.cache)
    with state.lock_device():
        state.sets = measure.operands(inputs, state.target)
        state.results = tuple(x.clone() for x in call(*state.sets[0]))
        state.first = measure.contestant(call, state.sets, state.target.kind)
    return {}


def race(state: State, texts: list[str], rounds: int) -> Mapping[str, Any]:
    """Race texts against that of `begin`, which is first in the answer; fails if one has different results."""
    assert state.first is not None
    calls = [measure.call(measure.lowering_of(t, state.target), state.cache) for t in texts]
    with state.lock_device():
        for call in calls:
            problem = measure.describe_difference(call(*state.sets[0]), state.results, state.sets[0])
            if problem:
                return {"failed": f"wrong values: {problem}"}
        others = [measure.contestant(call, state.sets, state.target.kind) for call in calls]
        ratios = measure.race([state.first, *others], rounds, state.target.kind)
    return {"ratios": [asdict(r) for r in ratios]}


def guard(state: State, text: str) -> Mapping[str, Any]:
    """Run a text three times between guard zones, with poisoned outputs."""
    inputs = [x.cpu() for x in state.sets[0]]
    with state.lock_device():
        outcome = executable.execute_guarded(measure.lowering_of(text, state.target), inputs, cache=state.cache)
    complaints = [*outcome.complaints, *([] if outcome.same else ["three runs do not agree"])]
    if not complaints:
        problem = measure.describe_difference(outcome.outputs, tuple(x.cpu() for x in state.results), inputs)
        complaints = [f"wrong values: {problem}"] if problem else []
    return {"failed": "; ".join(complaints)} if complaints else {}


OPERATIONS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    f.__name__: f for f in (ready, candidates, build, begin, race, guard)
}


def answer(state: State, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Answer a request; an exception becomes a failure."""
    arguments = dict(request)
    try:
        with torch.no_grad():
            return OPERATIONS[arguments.pop("do")](state, **arguments)
    except Exception as problem:  # candidates may fail in any way
        lines = str(problem).strip().splitlines()
        return {
            "failed": f"{type(problem).__name__}: {lines[0] if lines else ''}"[:300],
            "lost": state.target.kind == "cuda",
        }


def main() -> None:
    target, cache = sys.argv[1], Path(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # printed text must not mix with answers
    torch.set_num_threads(1)
    _keep_memory()
    state = State(named.target(target), cache)
    for line in sys.stdin:
        replies.write(json.dumps(answer(state, json.loads(line))) + "\n")
        replies.flush()


def _keep_memory() -> None:
    """Make freed memory serve the next call, so that no contestant pays for page faults."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(_M_MMAP_MAX, 0)


if __name__ == "__main__":
    main()
