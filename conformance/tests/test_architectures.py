"""Small models of the transformers package, counted by what becomes of them."""

import importlib.util

import pytest

from conformance import architectures
from conformance.architectures import Row


def test_the_page_counts_verdicts_and_gives_reasons() -> None:
    rows = [Row("a", "f32", "whole", 1.0), Row("b", "f32", "parts", 2.0, "no lowering for x|y", 1)]
    shown = architectures.page(rows)
    counts = next(line for line in shown.splitlines() if line.startswith("| f32"))
    assert [cell.strip() for cell in counts.split("|")[2:-1]] == ["1", "1", "0", "0", "0"]
    assert "no lowering for x/y" in shown and "| a " not in shown


def test_the_list_has_each_architecture_once() -> None:
    assert len(set(architectures.NAMES)) == len(architectures.NAMES) >= 100


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="the extra `models` is not installed")
def test_a_mixture_of_experts_is_compiled_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert architectures.main(["^mixtral$"]) == 0
    counts = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| f32"))
    assert counts.split("|")[2].strip() == "1"
