"""Equal kernels of a program are lowered, written and built once: names do not count, and all else does."""

import re
from collections import Counter
from typing import Any

import pytest
import torch

import compiler
from compiler import frontend, pipeline
from compiler.execution import named
from compiler.ir import isomorphism
from compiler.ir.stages import IRS
from compiler.ir.statement import Kernel
from compiler.render import cuda, header
from compiler.schedule import heuristic, steps
from compiler.schedule.steps import Schedule
from compiler.tests.called import placed
from compiler.tests.meaning import fresh_seed


def layers(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Four equal products with a softmax after each, two of which go back and forth, and one that is another."""
    a = torch.softmax(x @ w, -1)
    b = torch.softmax(a @ v, -1)
    c = torch.softmax(b @ w, -1)
    d = torch.softmax(w @ c, -1)
    return a, b, c, d, torch.softmax(d @ w, 0)


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_equal_kernels_are_one_function(target: str) -> None:
    torch.manual_seed(fresh_seed())
    inputs = [torch.randn(24, 24) for _ in range(3)]
    given = placed(inputs, compiler.target(target))
    compiled = compiler.compile(layers, given, target)
    found = re.findall(r"^(?:static|extern \"C\" __global__) void .*?(\w+)\(", compiled.source, re.MULTILINE)
    own = [name for name in found if name != "mlc_entry"]
    assert len(own) < compiled.kernels, (own, compiled.kernels)
    for ours, eager in zip(compiled(*given), layers(*inputs), strict=True):
        torch.testing.assert_close(ours.cpu(), eager, rtol=1e-3, atol=1e-4)


def test_what_differs_in_more_than_names_is_another() -> None:
    def programs(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sum(1), y.sum(1), (x * 2).sum(1), x.sum(0), x.amax(1)

    captured = frontend.capture(programs, [torch.randn(8, 8), torch.randn(8, 8)])
    functions = pipeline.lower(captured.program, named.target("cpu")).stages["kernel"].functions
    firsts = isomorphism.firsts(functions)
    assert len(functions) - len(set(firsts.values())) <= 1
    for f in functions:
        other = isomorphism.renamed(f, {n: f"{n}_x" for n in isomorphism.names(f)})
        assert isomorphism.shape_of(f) is isomorphism.shape_of(other)


def test_a_text_by_itself_launches_what_it_holds() -> None:
    """What stands at its head says which of its functions each launch is of, equal ones and others."""

    def programs(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = torch.softmax(x, -1)
        b = torch.softmax(a @ x, -1)
        return a, (x * 2).softmax(1), x.t().softmax(0), b, torch.softmax(b @ x, -1)

    program = frontend.capture(programs, [torch.randn(16, 16)]).program
    lowering = pipeline.lower(program, named.target("sm_90a"))
    called = cuda.names(lowering.stages["kernel"])
    assert cuda.names(header.parse(lowering.stages["cuda"])) == called
    assert 1 < len(set(called)) < len(called), called


def blocks(x: torch.Tensor, mask: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Equal layers, of which each has a matmul, a softmax and what is between them."""
    for w in weights:
        x = torch.softmax(x @ w + mask, -1) * x.sigmoid()
    return x


def lowered(n: int, target: str, **options: object) -> pipeline.Lowering:
    torch.manual_seed(fresh_seed())
    inputs = [torch.randn(24, 40) for _ in range(2)] + [[torch.randn(40, 40) for _ in range(n)]]
    return pipeline.lower(frontend.capture(blocks, inputs).program, named.target(target), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["cpu:avx2", "sm_90a"])
def test_what_all_layers_become_is_what_each_becomes_by_itself(target: str) -> None:
    """A trace sees each kernel go down the passes; without one those of a kind go as one, and no text tells."""
    made, alone = lowered(4, target), lowered(4, target, trace=lambda application: None)
    assert {name: steps.show(x) for name, x in made.schedules.items()} == {
        name: steps.show(x) for name, x in alone.schedules.items()
    }
    assert list(made.stages) == list(alone.stages)
    for stage, program in made.stages.items():
        if stage in IRS:
            IRS[stage].verify(program)
        if stage != "kernel":  # where functions keep the names that the first of their kind has inside
            assert made.show(stage) == alone.show(stage), stage
    assert [f.params for f in made.stages["kernel"].functions] == [f.params for f in alone.stages["kernel"].functions]
    assert made.stages["kernel"].temps == alone.stages["kernel"].temps


def test_a_kind_of_kernels_is_scheduled_once_in_this_program_and_in_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    choose = heuristic.choose

    def counting(kernel: Kernel, *others: Any) -> Schedule:
        asked.append(kernel.name)
        return choose(kernel, *others)

    monkeypatch.setattr(heuristic, "choose", counting)
    three = lowered(3, "cpu:avx2")
    assert 0 < len(asked) < len(three.stages["loop"].kernels), asked
    asked.clear()
    more = lowered(9, "cpu:avx2")
    assert not asked and len(more.stages["loop"].kernels) > len(three.stages["loop"].kernels), asked


def test_temporaries_of_a_schedule_are_of_each_kernel_its_own() -> None:
    """Parts of a reduction lie in a temporary that a kernel's schedule makes, and its tickets in another."""

    def sums(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x - x.sum() / x.numel()).cos()
        return x

    x = torch.randn(1 << 16)
    program = frontend.capture(sums, [x]).program
    made = pipeline.lower(program, named.target("sm_90a"))
    kernel = made.stages["kernel"]
    new = {t.name for t in kernel.temps} - {t.name for t in made.stages["loop"].temps}
    names = [t.name for t in kernel.temps]
    assert len(new) >= 2 and len(set(names)) == len(names), names
    users = Counter(p.name for f in kernel.functions for p in f.params)
    alone = pipeline.lower(program, named.target("sm_90a"), trace=lambda application: None).stages["kernel"]
    assert {n: users[n] for n in new} == {n: c for n, c in Counter(
        p.name for f in alone.functions for p in f.params).items() if n in new}  # fmt: skip
