"""PyTorch's database as cases: one entry through all of it, what is wrong is seen, and the page."""

from typing import Any

import pytest
import torch

from conformance import rows
from conformance.fuzz import runs
from conformance.fuzz.runs import Run
from conformance.opinfo import check, entries, ties
from conformance.run import databases

OPTIONS = {"target": "cpu", "threads": 1, "seed": 3, "samples": 2}


def run(name: str, dtype: str) -> rows.OpInfo:
    return check.check(name, dtype, OPTIONS, lambda where: None)


def test_an_entry_passes_and_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert {("sub", "f32"), ("sub", "f32.grad"), ("sub", "i64"), ("all", "bool")} <= set(entries.list_entries())
    row = run("sub", "f32.grad")
    assert row.verdict == "pass", row.detail
    refused = run("linalg.eigvalsh", "f32")
    assert (refused.verdict, refused.missing) == ("unsupported", ("aten._linalg_eigh.default",)), refused
    made = runs.call

    def off(function: Any, tensors: Any, needs: Any) -> Run:
        found = made(function, tensors, needs)
        compiled = hasattr(function, "_torchdynamo_orig_callable")
        return Run(tuple(x + 1e-3 for x in found.outputs), found.inputs) if compiled else found

    monkeypatch.setattr(runs, "call", off)
    wrong = run("sub", "f32")
    assert wrong.verdict == "wrong" and "are wrong" in wrong.detail, wrong


def test_what_is_not_finite_is_judged_as_what_it_is() -> None:
    nan, inf = float("nan"), float("inf")
    eager = Run((torch.tensor([nan, inf, 1.0]),), ())
    for given, right in (([nan, inf, 1.0], True), ([0.0, inf, 1.0], False), ([nan, 1.0, 1.0], False)):
        for values in (given, [*given[:2], nan]):
            found = check._difference(Run((torch.tensor(values),), ()), eager, eager)
            assert (not found) == (right and values == given), (values, found)


def test_any_of_equal_elements_may_be_named_once() -> None:
    x = torch.tensor([[3, 1, 3, 2]])
    sample = entries.Sample(lambda tensors: tensors[0].topk(2), (x,), (False,))
    eager = Run((torch.tensor([[3, 3]]), torch.tensor([[2, 0]])), (x,))
    for named, right in (([0, 2], True), ([2, 0], True), ([0, 0], False), ([0, 1], False), ([0, 9], False)):
        made = Run((torch.tensor([[3, 3]]), torch.tensor([named])), (x,))
        assert (not check._difference(ties.replace_tied_indices(made, [sample], [eager]), eager, eager)) == right, named


def test_memory_that_nobody_has_written_may_hold_anything() -> None:
    eager = Run((torch.ones(2), torch.ones(3)), ())
    made = ties.replace_unwritten(Run((torch.zeros(2), torch.zeros(4)), ()), [eager])
    assert torch.equal(made.outputs[0], eager.outputs[0]) and made.outputs[1].shape == (4,)


def test_complex_results_are_judged_by_their_parts() -> None:
    eager = Run((torch.tensor([1 + 2j, 3 - 1e-9j]),), ())
    for off, right in ((0j, True), (1e-7j, True), (1e-2j, False), (1e-2 + 0j, False)):
        assert (not check._difference(Run((eager.outputs[0] + off,), ()), eager, eager)) == right, off


def test_the_page_ranks_what_is_missing() -> None:
    made = [
        rows.OpInfo(name="a", dtype="f32", target="cpu", verdict="pass"),
        rows.OpInfo(name="b", dtype="f32", target="cpu", verdict="unsupported", missing=("aten.x",), detail="no x"),
        rows.OpInfo(name="c", dtype="f32", target="cpu", verdict="unsupported", missing=("aten.x", "aten.y")),
        rows.OpInfo(name="d", dtype="f32", target="cpu", verdict="none"),
    ]
    text = databases.page(databases.SOURCES[0], made)
    assert "33.3%" in text and text.index("aten.x") < text.index("aten.y") and "no x" in text
