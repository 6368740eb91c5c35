"""How long a training step takes, compiled by us and by each of PyTorch's ways, in paired rounds of one process."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import nn

from conformance.bench import duel
from conformance.training.curves import OPTIONS
from conformance.training.models import MODELS, Batch, Kind, Size

OURS = "ours"
Compiled = Callable[..., Callable[..., torch.Tensor]]
# How a function is compiled, by what PyTorch calls it.
RIVALS: Mapping[str, Compiled] = {
    "eager": lambda f: f,
    "default": partial(torch.compile, fullgraph=True),
    "reduce-overhead": partial(torch.compile, fullgraph=True, mode="reduce-overhead"),
    "max-autotune": partial(torch.compile, fullgraph=True, mode="max-autotune"),
}
TOGETHER = 4  # steps before the device is waited for, as in training
WARM = 3


def ours(device: str) -> Mapping[str, str]:
    """Our modes by what they are called beside PyTorch's: on GPUs also the one where programs have their own memory."""
    return {OURS: "default"} | ({f"{OURS} reduce-overhead": "reduce-overhead"} if device == "cuda" else {})


def contestants(
    name: str, size: Size, device: str, dtype: torch.dtype | None, rivals: Sequence[str]
) -> duel.Contestants:
    """`TOGETHER` steps of each, from copies of one model on one batch, compiled and warm: forward under autocast to
    `dtype` where that is said, backward and AdamW."""
    kind = MODELS[name]
    model, (x, wanted) = kind.make(size).to(device), kind.batch(size)
    batch = x.to(device), wanted.to(device)
    modes = {way: {**OPTIONS, "mode": mode} for way, mode in ours(device).items()}
    ways: dict[str, Compiled] = {
        way: partial(torch.compile, backend="mlcomp", fullgraph=True, options=options) for way, options in modes.items()
    }
    ways |= {rival: RIVALS[rival] for rival in rivals}
    made = {
        way: partial(_steps, _step(copy.deepcopy(model), batch, kind, size.rate, compiled, dtype))
        for way, compiled in ways.items()
    }
    for call in made.values():
        for _ in range(WARM):
            call()
    return made


def race(calls: duel.Contestants, seed: int = 0) -> duel.Samples:
    """Seconds of a step of each."""
    protocol = duel.Protocol(budget_ns=6_000_000_000, sample_ns=4_000_000)
    found = duel.race(calls, time.perf_counter_ns, np.random.default_rng(seed), protocol)
    return duel.Samples(found.names, found.seconds / TOGETHER, found.repeats, found.looks)


def _step(
    model: nn.Module, batch: Batch, kind: Kind, rate: float, compiled: Compiled,
    dtype: torch.dtype | None,
) -> Callable[[], None]:  # fmt: skip
    device = batch[0].device.type
    optimizer = torch.optim.AdamW(model.parameters(), rate, fused=True)

    def forward(x: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return kind.loss(model(x), wanted)

    run = compiled(forward)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            made = run(*batch)
        torch.autograd.backward(made)
        optimizer.step()

    return step


def _steps(step: Callable[[], None]) -> None:
    for _ in range(TOGETHER):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
