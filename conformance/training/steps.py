"""Races of training steps, compiled by mlcomp and in PyTorch's modes, in paired rounds within one process."""

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
Compile = Callable[..., Callable[..., torch.Tensor]]
# PyTorch's name of a mode -> function that compiles a step in it.
RIVALS: Mapping[str, Compile] = {
    "eager": lambda f: f,
    "default": partial(torch.compile, fullgraph=True),
    "reduce-overhead": partial(torch.compile, fullgraph=True, mode="reduce-overhead"),
    "max-autotune": partial(torch.compile, fullgraph=True, mode="max-autotune"),
}
STEPS_PER_WAIT = 4  # steps between two waits for the device, as in real training
WARM_UPS = 3


def our_modes(device: str) -> Mapping[str, str]:
    """Return mlcomp's modes by contestant name; on GPUs also reduce-overhead, in which programs own their memory."""
    return {OURS: "default"} | ({f"{OURS} reduce-overhead": "reduce-overhead"} if device == "cuda" else {})


def contestants(
    name: str, size: Size, device: str, dtype: torch.dtype | None, rivals: Sequence[str]
) -> duel.Contestants:
    """Return the contestants, compiled and warmed up: TOGETHER steps each on copies of one model and the same batch.

    A step is forward (under autocast to `dtype` if that is given), backward and AdamW.
    """
    kind = MODELS[name]
    model, (x, targets) = kind.make(size).to(device), kind.batch(size)
    batch = x.to(device), targets.to(device)
    modes = {mode_name: {**OPTIONS, "mode": mode} for mode_name, mode in our_modes(device).items()}
    compilers: dict[str, Compile] = {
        mode_name: partial(torch.compile, backend="mlcomp", fullgraph=True, options=options)
        for mode_name, options in modes.items()
    }
    compilers |= {rival: RIVALS[rival] for rival in rivals}
    calls = {
        mode_name: partial(_run_steps, _step(copy.deepcopy(model), batch, kind, size.rate, compiled, dtype))
        for mode_name, compiled in compilers.items()
    }
    for call in calls.values():
        for _ in range(WARM_UPS):
            call()
    return calls


def race(calls: duel.Contestants, seed: int = 0) -> duel.Samples:
    """Race the contestants; the samples are seconds per step."""
    protocol = duel.Protocol(budget_ns=6_000_000_000, sample_ns=4_000_000)
    samples = duel.race(calls, time.perf_counter_ns, np.random.default_rng(seed), protocol)
    return duel.Samples(samples.names, samples.seconds / STEPS_PER_WAIT, samples.repeats, samples.looks)


def _step(
    model: nn.Module, batch: Batch, kind: Kind, rate: float, compiled: Compile,
    dtype: torch.dtype | None,
) -> Callable[[], None]:  # fmt: skip
    device = batch[0].device.type
    optimizer = torch.optim.AdamW(model.parameters(), rate, fused=True)

    def forward(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return kind.loss(model(x), targets)

    run = compiled(forward)

    def step() -> None:
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        optimizer.zero_grad()
        with torch.autocast(device, dtype, enabled=dtype is not None):
            loss = run(*batch)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def _run_steps(step: Callable[[], None]) -> None:
    for _ in range(STEPS_PER_WAIT):
        step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
