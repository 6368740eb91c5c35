"""`python -m conformance.inference [MODEL ...]`: run whole models through the backend; check results, measure times.

Each model has random weights and is called without gradients. A result may be four times as far from that in f32, or in
f64 for models in f32, as eager's is. With `--race` calls are timed against PyTorch's modes in paired rounds, and the
table says how long the first call of each takes, which compiles. All models (or `--jobs` of them) are compiled
concurrently, each in its own process, and timed one after another.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from conformance.bench import apart, duel
from conformance.inference.models import MODELS, Call, Model, call, small_version, with_layers
from conformance.report import tables

OURS = "ours"
# PyTorch's name of a mode -> function that compiles a model in it.
RIVALS: Mapping[str, Callable[[Any], Any]] = {
    "eager": lambda m: m,
    "default": torch.compile,
    "reduce-overhead": partial(torch.compile, mode="reduce-overhead"),
    "max-autotune": partial(torch.compile, mode="max-autotune"),
}

MOST_ERROR = 4.0  # tolerance in units of eager's error: eager's result is only one sample of the error
CALLS_PER_WAIT = 4  # calls between two waits for the device
WARM_UPS = 3
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True)
class Job:
    """The work on one model."""

    name: str
    model: Model
    device: str
    dtype: str
    rivals: tuple[str, ...]
    seed: int
    mode: str | None = None  # mlcomp's mode


def work(job: Job, turn: apart.Turn) -> Iterator[tuple[str, apart.Row]]:
    """Yield the row of a model's results, and that of its race."""
    torch.manual_seed(job.seed)
    model_call = call(job.model, job.device, TYPES[job.dtype])
    compilers: dict[str, Callable[[Any], Any]] = {OURS: partial(torch.compile, backend="mlcomp", mode=job.mode)}
    compilers |= {name: RIVALS[name] for name in job.rivals}
    compiled, first_seconds = {}, {}
    for name, compile_model in compilers.items():
        torch.compiler.reset()
        compiled[name] = compile_model(model_call.model)
        model_call.reset_caches(TYPES[job.dtype])
        start = time.perf_counter()
        model_call.run(compiled[name])
        _wait(job.device)
        first_seconds[name] = time.perf_counter() - start
    yield "results", [job.name, *_errors(model_call, compiled[OURS])]
    if job.rivals:
        calls = {name: partial(_call_repeatedly, model_call, m, job.device) for name, m in compiled.items()}
        for f in calls.values():
            for _ in range(WARM_UPS):
                f()
        with turn():
            protocol = duel.Protocol(budget_ns=4_000_000_000, sample_ns=4_000_000)
            samples = duel.race(calls, time.perf_counter_ns, np.random.default_rng(job.seed), protocol)
        quickest = duel.fastest(samples, job.rivals)
        ratio = duel.ratio(samples, quickest, OURS)
        each = [f"{samples.median(name) * 1e3 / CALLS_PER_WAIT:.3f}" for name in compilers]
        compile_times = [f"{first_seconds[name]:.1f}" for name in compilers]
        yield "times", [job.name, *each, f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]", *compile_times]


def _errors(model_call: Call, ours: Any) -> list[object]:
    """Return the largest errors of ours and of eager against a wider dtype, and whether ours is within tolerance."""
    eager, compiled = _result(model_call, model_call.model), _result(model_call, ours)
    exact = _result(model_call, copy.deepcopy(model_call.model).to(_wider(_dtype(model_call.model))))
    our_error, eager_error = (float((x - exact).abs().max()) for x in (compiled, eager))
    unit = torch.finfo(_dtype(model_call.model)).eps * float(exact.abs().max())
    return [
        f"{our_error:.3g}",
        f"{eager_error:.3g}",
        "right" if our_error <= MOST_ERROR * eager_error + unit else "WRONG",
    ]


def _wider(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float32 else torch.float32


def _result(model_call: Call, m: Any) -> Tensor:
    model_call.reset_caches(_dtype(m))
    return model_call.run(m).double()


def _dtype(m: Any) -> torch.dtype:
    dtype: torch.dtype = next(m.parameters()).dtype
    return dtype


def _call_repeatedly(model_call: Call, m: Any, device: str) -> None:
    model_call.reset_caches(_dtype(m))
    for _ in range(CALLS_PER_WAIT):
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        model_call.run(m)
    _wait(device)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main(words: Sequence[str] | None = None) -> int:
    """Run the chosen models and print tables; returns 1 if a result is wrong or anything fails."""
    parser = apart.parser("conformance.inference", __doc__, "run", MODELS, "calls", RIVALS)
    parser.add_argument("--dtype", choices=tuple(TYPES), default="bf16")
    parser.add_argument(
        "--layers", type=int, default=0, metavar="N", help="use only the first N layers of a model (default: all)"
    )
    parser.add_argument(
        "--jobs", type=int, default=len(MODELS), metavar="N", help="number of models compiled concurrently"
    )
    parser.add_argument("--mode", choices=("reduce-overhead",), help="how ours is compiled (default: no mode)")
    options = apart.parse(parser, words, MODELS, RIVALS)
    names, rivals = options.names, options.race
    if any(MODELS[n].config for n in names) and importlib.util.find_spec("transformers") is None:
        parser.error('the models are those of the transformers package: pip install "pytest-mlcomp[models]"')
    models = {name: with_layers(MODELS[name], options.layers) for name in names}
    models = models if options.full else {name: small_version(model) for name, model in models.items()}
    jobs = [Job(n, m, options.device, options.dtype, rivals, options.seed, options.mode) for n, m in models.items()]
    parts = [jobs[n : n + options.jobs] for n in range(0, len(jobs), options.jobs)]
    results = [rows for part in parts for rows in apart.run(part, work)]
    heads = {
        "results": ["model", "error of ours", "error of eager", ""],
        "times": ["model", f"{OURS}, ms", *rivals, "of the quickest", f"first call, s: {OURS}", *rivals],
        "problem": ["model", "problem"],
    }
    print("\n\n".join(tables.table(rows, heads[k]) for k in heads if (rows := [f[k] for f in results if f.get(k)])))
    ratios = [float(str(f["times"][len(rivals) + 2]).split()[0]) for f in results if "times" in f]
    if ratios:
        print(f"\ngeometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}")
    return int(any("problem" in f or f.get("results", [""])[-1] == "WRONG" for f in results))
