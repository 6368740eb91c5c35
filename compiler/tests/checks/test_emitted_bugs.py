"""Kernels of every family as the compiler emits them, with one synchronisation less or looser: check mode reports it.

Every run takes other places; the seed is in the test's output. Nothing is excepted but arrivals, of which the last ones
in a ring tell nobody anything: so a synchronisation that a kernel does not need fails here too.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from compiler import frontend, pipeline
from compiler.interpret import scalar
from compiler.ir import kernel
from compiler.pipeline import Lowering
from compiler.schedule import space
from compiler.schedule.space.members import Planned
from compiler.schedule.steps import Schedule, show
from compiler.targets import nvidia
from compiler.tests import run_threads
from compiler.tests.meaning import fresh_seed

TARGETS = {t.name: t for t in nvidia.TARGETS}
PLANTED = 2  # in each kernel, in each run
ORDERS = (0, 1, 5, 9)  # of threads and blocks: a mistake may need one in which it shows


def bf16(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


Family = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...], str]
FAMILIES: dict[str, Family] = {
    "softmax": (lambda x: F.softmax(x, -1), (torch.randn(32, 3000),), "sm_90a"),
    "layer_norm": (lambda x: F.layer_norm(x, (1000,)), (torch.randn(5, 1000),), "sm_90a"),
    "sum of all": (lambda x: x.sum(), (torch.randn(40, 1000),), "sm_90a"),
    "sum of columns": (lambda x: x.sum(0), (torch.randn(700, 70),), "sm_90a"),
    "transpose": (lambda x: x.t().contiguous() + 1, (torch.randn(100, 130),), "sm_90a"),
    "product, mma.sync": (lambda a, b: a @ b, (bf16(130, 200), bf16(200, 140)), "sm_80"),
    "product, wgmma": (lambda a, b: a @ b, (bf16(640, 1024), bf16(1024, 640)), "sm_90a"),
    "product, residual": (lambda a, b, c: a @ b + c, (bf16(64, 5120), bf16(5120, 64), bf16(64, 64)), "sm_90a"),
    "product, multicast": (lambda a, b: a @ b, (bf16(256, 1280), bf16(1280, 128)), "sm_90a"),
    "product, f32": (lambda a, b: a @ b, (torch.randn(70, 90), torch.randn(90, 80)), "sm_90a"),
    "product, split sum": (F.linear, (bf16(32, 4096), bf16(128, 4096)), "sm_80"),
    "attention, mma.sync": (F.scaled_dot_product_attention, tuple(bf16(1, 2, 100, 64) for _ in range(3)), "sm_80"),
    "attention, wgmma": (F.scaled_dot_product_attention, tuple(bf16(1, 2, 200, 64) for _ in range(3)), "sm_90a"),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (bf16(1, 16, 9, 9), bf16(24, 16, 3, 3)), "sm_90a"),
}

STEPS = {"product, multicast": "multicast("}  # the step that a family's schedule has, if not the heuristic's schedule

_DROPPED = re.compile(
    r"mlc_(block|warp|cluster|named)_barrier\(|mlc_cp_async_(wait|commit)|mlc_mbarrier_(wait|expect)\(|mlc_fence_|"
    r"mlc_wgmma_(commit|wait)|mlc_bulk_(wait|commit)|mlc_tma_(wait|commit)|mlc_cluster_leave|mlc_wait_dependencies"
)
_LOOSER = re.compile(r"(_wait\w*)<(\d+)>")
_ONE_BLOCK = re.compile(r"(mlc_tma_load_multicast\(.*, )3, ")
_FEWER = re.compile(r"lane < 2\b")
_EXCHANGE = re.compile(r"^(  \w.*)scratch_f32_\d+\)")  # nothing else lies between it and the one before
_PARITY = re.compile(r"(mlc_mbarrier_wait\(.*), (.*)\);")


def looser(text: str) -> Iterator[tuple[str, str]]:
    """What is done to which line, and the text with it done."""
    lines = text.splitlines()
    for n, line in enumerate(lines):
        edits = []
        if _DROPPED.match(line.strip()):
            edits.append(("dropped", ""))
        if _LOOSER.search(line):
            edits.append(("one more left under way", _LOOSER.sub(lambda m: f"{m[1]}<{int(m[2]) + 1}>", line)))
        if _PARITY.search(line):
            edits.append(("waits for the other parity", _PARITY.sub(r"\1, (\2) ^ 1);", line)))
        if _ONE_BLOCK.search(line):
            edits.append(("to one block of two", _ONE_BLOCK.sub(r"\g<1>1, ", line)))
        if _FEWER.search(line):
            edits.append(("signalled to one block of two", _FEWER.sub("lane < 1", line)))
        if _EXCHANGE.search(line):
            edits.append(("through the memory of another exchange", _EXCHANGE.sub(r"\1scratch_f32)", line)))
        for how, new in edits:
            yield f"{how}: line {n + 1}, {line.strip()}", "\n".join([*lines[:n], new, *lines[n + 1 :], ""])


@functools.cache
def lowered(family: str) -> Lowering:
    function, inputs, target = FAMILIES[family]
    program = frontend.capture(function, inputs, ()).program
    made = pipeline.lower(program, TARGETS[target])
    if family not in STEPS:
        return made
    (nest,) = made.stages["loop"].kernels
    every = space.space(nest, (), TARGETS[target])
    return pipeline.lower(program, TARGETS[target], schedules={nest.name: _first_with(STEPS[family], every)})


def _first_with(step: str, members: Iterator[Planned]) -> Schedule:
    return next(x.schedule for x in members if step in show(x.schedule))


def reports(family: str, text: str) -> list[str]:
    program: kernel.Program = lowered(family).stages["kernel"]
    given = [scalar.from_memory(_words(x), t.dtype) for x, t in zip(FAMILIES[family][1], program.inputs, strict=True)]
    for order in ORDERS:
        _, outcome = run_threads.run_text(text, program, given, seed=order)
        if outcome.reports:
            return [str(report) for report in outcome.reports]
    return []


def _words(x: torch.Tensor) -> np.ndarray:
    return (x.view(torch.int16) if x.dtype is torch.bfloat16 else x).numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_synchronisation_of_what_is_emitted_is_needed_and_missed(family: str) -> None:
    text = str(lowered(family).stages["cuda"])
    assert not reports(family, text)
    places = list(looser(text))
    assert places, "this kernel has nothing that its threads wait for"
    draw = random.Random(seed := fresh_seed())
    for what, planted in draw.sample(places, min(PLANTED, len(places))):
        assert reports(family, planted), f"seed {seed}: nothing is reported with {what}"
