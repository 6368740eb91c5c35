"""A process that builds candidates, races them, or checks them: requests in, as lines of JSON; answers out likewise.

Whatever a candidate does, it does it here: a crash or a hang costs this process, and whoever asked starts another.
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
from compiler.execution.tuning.tune import plain
from compiler.ir import loop_text
from compiler.passes.completed import completed
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.pipeline import TEXTS
from compiler.runtime import cubin, resources
from compiler.schedule import steps
from compiler.targets.target import Target

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # glibc's names


@dataclass
class Held:
    """What a process keeps between requests: the operands of a kernel, and the call that others are raced against."""

    target: Target
    cache: Path
    sets: list[list[torch.Tensor]] = field(default_factory=list)
    first: measure.Call | None = None
    results: measure.Tensors = ()

    def turn(self) -> AbstractContextManager[None]:
        """Alone on the device."""
        return shelf.turn(self.cache, gpu_programs.device_of(self.target))


def ready(_: Held) -> Mapping[str, Any]:
    """Nothing but an answer."""
    return {}


def candidates(held: Held, program: str, count: int) -> Mapping[str, Any]:
    """The cheapest schedules of a kernel, each once, with their estimates."""
    chosen: dict[str, float] = {}
    members = list(itertools.islice(plain(loop_text.parse(program), held.target), count))
    for p in members:
        chosen.setdefault(steps.show(p.schedule), p.cost)
    return {"family": members[0].family, "costs": [*chosen.values()], "schedules": [*chosen]}


def build(held: Held, program: str, schedule: str) -> Mapping[str, Any]:
    """The text of a kernel under a schedule, compiled into the cache; refused where it spills registers."""
    alone = loop_text.parse(program)
    (kernel,) = alone.kernels
    chosen = completed(alone, kernel, steps.parse(schedule), held.target)
    lowering = pipeline.lower(loop_to_tile(alone), held.target, {kernel.name: chosen}, source="tile")
    text = lowering.stages[TEXTS[held.target.kind]]
    if held.target.kind == "cpu":
        executable.built(lowering, held.cache)
    elif (arch := gpu_programs.architecture(held.target)) is not None:
        made = cubin.build_cubin(text, arch, include=(gpu_programs.HEADERS,), cache=held.cache)
        spilt = sum(u.spill_stores + u.spill_loads for u in resources.usage(made.log))
        if spilt:
            return {"failed": f"spills {spilt} bytes of registers"}
    return {"text": text}


def begin(held: Held, text: str, seed: int) -> Mapping[str, Any]:
    """Make the operands, and the results that candidates have to give as well."""
    lowering = measure.lowering_of(text, held.target)
    drawn = trial.draw(lowering, seed, {})
    held.first = measure.call(lowering, held.cache)
    with held.turn():
        held.sets = measure.operands(drawn, held.target)
        held.results = tuple(x.clone() for x in held.first(*held.sets[0]))
    return {}


def race(held: Held, texts: list[str], rounds: int) -> Mapping[str, Any]:
    """Texts against the one to begin with, which is the first of the answer; one with other results is refused."""
    assert held.first is not None
    calls = [held.first, *(measure.call(measure.lowering_of(t, held.target), held.cache) for t in texts)]
    with held.turn():
        for call in calls[1:]:
            problem = measure.differs(call(*held.sets[0]), held.results, held.sets[0])
            if problem:
                return {"failed": f"wrong values: {problem}"}
        found = measure.race(calls, held.sets, rounds, held.target.kind)
    return {"ratios": [asdict(r) for r in found]}


def guard(held: Held, text: str) -> Mapping[str, Any]:
    """Three runs between guard zones, with poisoned outputs."""
    inputs = [x.cpu() for x in held.sets[0]]
    with held.turn():
        done = executable.execute_guarded(measure.lowering_of(text, held.target), inputs, cache=held.cache)
    complaints = [*done.complaints, *([] if done.same else ["three runs do not agree"])]
    if not complaints:
        problem = measure.differs(done.outputs, tuple(x.cpu() for x in held.results), inputs)
        complaints = [f"wrong values: {problem}"] if problem else []
    return {"failed": "; ".join(complaints)} if complaints else {}


OPERATIONS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    f.__name__: f for f in (ready, candidates, build, begin, race, guard)
}


def answer(held: Held, request: Mapping[str, Any]) -> Mapping[str, Any]:
    """What becomes of a request; whatever is raised is its failure."""
    arguments = dict(request)
    try:
        with torch.no_grad():
            return OPERATIONS[arguments.pop("do")](held, **arguments)
    except Exception as problem:  # candidates may fail in any way
        said = str(problem).strip().splitlines()
        return {
            "failed": f"{type(problem).__name__}: {said[0] if said else ''}"[:300],
            "lost": held.target.kind == "cuda",
        }


def main() -> None:
    target, cache = sys.argv[1], Path(sys.argv[2])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anybody prints is no answer
    torch.set_num_threads(1)
    _keep_memory()
    held = Held(named.target(target), cache)
    for line in sys.stdin:
        replies.write(json.dumps(answer(held, json.loads(line))) + "\n")
        replies.flush()


def _keep_memory() -> None:
    """Memory that a call gives back serves the next one, so that no contestant pays for pages."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        library.mallopt(_M_MMAP_MAX, 0)


if __name__ == "__main__":
    main()
