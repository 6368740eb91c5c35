"""Judge emitted texts of a case during a bisection: whether the results are right, or the time against another text.

It runs in a child process, which a wrong kernel may crash. The texts are built by this compiler, each with its own
headers, and called in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

import compiler
from conformance.bench import benchmark, duel, emitted, stored
from conformance.isolation.lock import Quiet
from conformance.judge import device, oracle
from conformance.shapes import cases

Text = Mapping[str, Any]  # "text" and "headers"
BUDGET_FACTOR = 8.0  # time budget in units of that of a full benchmark: a search can afford to wait


def value(case_json: Mapping[str, Any], target: str, text: Text, seed: int) -> str:
    """Return what is wrong with the results of a text; "" if they are right."""
    subject, call = _prepare(case_json, target, text, seed)
    try:
        with torch.no_grad():
            is_right, error_ratio, message = oracle.quick_compare(
                call(*subject.inputs), subject.function(*subject.inputs), subject.reference
            )
    except Exception as error:  # an error while running counts as a wrong result
        return f"{type(error).__name__}: {error}"
    return "" if is_right else f"{message} (error over tolerance {error_ratio:.3g})"


def speed(
    case_json: Mapping[str, Any],
    target: str,
    good: Text,
    text: Text,
    seed: int,
    threshold: float,
    confidence: float,
    quiet: Quiet,
) -> tuple[float, float, float]:
    """Return the time of a text over that of the good one with its interval, raced until that excludes the bar."""
    device_type = "cuda" if device.runs_on_local_gpu(target) else "cpu"
    subject, first = _prepare(case_json, target, good, seed)
    _, second = _prepare(case_json, target, text, seed)

    def ratio_of(samples: duel.Samples) -> duel.Ratio:
        return duel.ratio(samples, "text", "good", confidence)

    def is_decided(samples: duel.Samples) -> bool:
        ratio = ratio_of(samples)
        return ratio.low > threshold or ratio.high < threshold

    longest = stored.longer_protocol(replace(duel.FULL, budget_ns=int(BUDGET_FACTOR * duel.FULL.budget_ns)))
    clock = None if device_type == "cuda" else time.thread_time_ns
    with torch.no_grad(), benchmark.reuse_memory(), quiet():
        ratio = ratio_of(stored.race({"good": first, "text": second}, subject.inputs, clock, seed, longest, is_decided))
    return ratio.median, ratio.low, ratio.high


def _prepare(case_json: Mapping[str, Any], target: str, text: Text, seed: int) -> tuple[benchmark.Subject, Any]:
    torch.set_num_threads(1)
    device_type = "cuda" if device.runs_on_local_gpu(target) else "cpu"
    subject = benchmark.prepare(cases.from_json(case_json), seed, device_type)
    with torch.no_grad():
        template = compiler.compile(subject.function, subject.inputs, target)
    text_with_headers = emitted.self_contained(text["text"], text["headers"])
    call = compiler.rebuild(template, text_with_headers)
    return subject, partial(call)
