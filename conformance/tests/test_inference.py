"""Whole models without gradients: what is right, what is wrong, and processes of which one fails."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from conformance.bench import apart
from conformance.inference import command
from conformance.inference.models import MODELS, Call, call, small_version


def test_a_model_is_called_and_judged() -> None:
    (row,) = (row for kind, row in command.work(job("unet"), contextlib.nullcontext) if kind == "results")
    assert row[0] == "unet" and row[-1] == "right"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_result_that_is_farther_from_a_wider_types_than_eagers_is_wrong(dtype: torch.dtype) -> None:
    made = call(small_version(MODELS["unet"]), "cpu", dtype)
    off = Call(made.model, lambda m: made.run(m.model) + 1 if isinstance(m, Off) else made.run(m), made.reset_caches)
    assert command._errors(made, made.model)[1:] != ["0", "right"] and command._errors(made, made.model)[-1] == "right"
    assert command._errors(off, Off(made.model))[-1] == "WRONG"


class Off(nn.Module):
    """A model whose results are off by 1."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


def job(name: str) -> command.Job:
    return command.Job(name, small_version(MODELS[name]), "cpu", "bf16", (), 0)


def test_decoding_begins_at_the_same_place_in_every_call() -> None:
    pytest.importorskip("transformers")
    made = call(small_version(MODELS["tinyllama-decode"]), "cpu", torch.float32)
    results = []
    for _ in range(3):
        made.reset_caches(torch.float32)
        results.append(made.run(made.model))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@dataclass(frozen=True)
class Task:
    name: str


def failing(task: Task, turn: apart.Turn) -> Iterator[tuple[str, apart.Row]]:
    yield "begun", [task.name]
    if task.name == "bad":
        raise ValueError("no such thing")
    with turn():
        yield "timed", [task.name]


def test_others_are_timed_when_a_process_fails() -> None:
    good, bad = apart.run([Task("good"), Task("bad")], failing)
    assert good == {"begun": ["good"], "timed": ["good"]}
    assert bad == {"begun": ["bad"], "problem": ["bad", "ValueError: no such thing"]}


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["gpt9"])
    assert "unknown: gpt9; there are tinyllama-prefill" in capsys.readouterr().err
