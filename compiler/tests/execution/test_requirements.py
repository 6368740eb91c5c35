"""Data that eager refuses: indices and targets out of range, integers divided by 0, at every stage and target."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import compiler
from compiler import frontend
from compiler.execution import executable
from compiler.ir import kernel_text
from compiler.passes.requirements import requirements
from compiler.runtime import guarded

N = 5  # rows of x, of which indices are some
BAD = (N, -1, -N - 1, 10**9, -(10**9))
# Each of x: f32[5, 4], i: i64[2], and v: f32[2, 4].
INDEXED = """
    x[i]
    x[:, i]
    x[i, i]
    x[i.int()]
    F.embedding(i, x)
    F.embedding(i.int(), x)
    x.index_select(0, i)
    x.index_select(1, i)
    x.gather(0, i[:, None])
    x.gather(1, i[:, None])
    x.take(i)
    x.take_along_dim(i[:, None], 0)
    x.take_along_dim(i)
    x.index_put((i,), v)
    x.index_put((i,), v, accumulate=True)
    x.put(i, v[:, 0])
    x.scatter(0, i[:, None], v)
    x.scatter(0, i[:, None], 2.0)
    x.scatter_add(0, i[:, None], v)
    x.scatter_reduce(0, i[:, None], v, "amax")
    x.scatter_reduce(0, i[:, None], v, "mean", include_self=False)
    x.index_add(0, i, v)
    x.index_copy(0, i, v)
    x.index_fill(0, i, 1.0)
    F.one_hot(i, 5)
    F.nll_loss(v, i)
    F.nll_loss(v, i, ignore_index=-1)
    F.nll_loss(v[:, :, None], i[:, None], reduction="none")
    F.cross_entropy(v, i)
    F.cross_entropy(v, i, label_smoothing=0.1)
    F.max_unpool1d(v[:, None, :2], i[None, None].expand(2, 1, 2), 2)
    F.multi_margin_loss(v, i)
    x[:1].sum(0)[i]
    x.sum().gather(0, i)
    x.sum().gather(0, i.repeat(50))
    (x * 2)[:1][i]
    x[:1].expand(3, 4)[i] * 2
    x[:1].expand(3, 4).gather(0, i[:, None]) * 2
    x[:1].sum(1).take(i) * v[:, 0]
    x[:1].index_add(0, i, v)
    x[:1].index_copy(0, i, v)
    x[:1].index_fill(0, i, 1.0)
    x[:1].index_put((i,), v)
    x[:1].scatter(0, i[:, None], v)
    x[:1].scatter_add(0, i[:, None], v)
    x[:1].sum(1).put(i, v[:, 0])
    torch.where(v[:, 0] > 9, x[:, 0][i], 0.0)
    (v[:, 0] > 9) & (x[:, 0][i] > 0)
    F.pad(x[i], (1, 1))
    x[i].sum()
    x[i] @ torch.ones(4, 3)
"""
DIVIDED = """
    a // b
    a % b
    torch.fmod(a, b)
    torch.div(a, b, rounding_mode="trunc")
    torch.div(a, b, rounding_mode="floor")
    7 // b
    7 % b
    a // b[3]
    a % 0
    (a // b).sum()
"""


def _lines(table: str) -> list[str]:
    return [line.strip() for line in table.strip().splitlines()]


@pytest.fixture
def seed() -> int:
    number = random.randrange(2**32)
    torch.manual_seed(number)
    return number


def _function(expression: str, names: str) -> Callable[..., Any]:
    made: Callable[..., Any] = eval(f"lambda {names}: {expression}", {"torch": torch, "F": F})
    return made


def _raised(function: Callable[..., Any], inputs: Sequence[torch.Tensor]) -> Exception | None:
    try:
        function(*inputs)
    except Exception as error:
        return error
    return None


def _stage(captured: frontend.Captured, names: str, stage: str) -> Callable[..., Any]:
    lowering = compiler.lower(captured.program, compiler.target("cpu"), until=stage)
    given = [n.strip() for n in names.split(",")]

    def run(*inputs: torch.Tensor) -> Any:
        known = dict(zip(given, inputs, strict=True)) | captured.constants
        return executable.execute(lowering, stage, [known[i.name] for i in captured.program.inputs])

    return run


@pytest.mark.filterwarnings("ignore:The reduce argument of torch.scatter:UserWarning")
@pytest.mark.parametrize("stage", ["tensor", "kernel"])
@pytest.mark.parametrize("expression", _lines(INDEXED))
def test_an_index_that_eager_refuses_raises_what_eager_raises(expression: str, stage: str, seed: int) -> None:
    function, x, v = _function(expression, "x, i, v"), torch.randn(N, 4), torch.randn(2, 4)
    good = torch.tensor([0, 0] if "[:1]" in expression or "x.sum()" in expression else [0, 1])
    run = _stage(frontend.capture(function, (x, good, v)), "x, i, v", stage)
    assert _raised(run, (x, good, v)) is None
    for bad in BAD:
        index = torch.tensor([0, bad])
        wanted, got = _raised(function, (x, index, v)), _raised(run, (x, index, v))
        where = f"{expression} with {bad}, seed {seed}: {wanted!r}, and ours {got!r}"
        assert type(got) is type(wanted), where
        if wanted is not None:
            assert "aten." in str(got) and str(bad) in str(got) and "out of range" in str(got), where


@pytest.mark.parametrize("stage", ["tensor", "kernel"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16, torch.uint8], ids=str)
@pytest.mark.parametrize("expression", _lines(DIVIDED))
def test_integers_divided_by_zero_raise_what_eager_raises(
    expression: str, dtype: torch.dtype, stage: str, seed: int
) -> None:
    function = _function(expression, "a, b")
    a, b = torch.randint(1, 100, (37,), dtype=dtype), torch.randint(1, 100, (37,), dtype=dtype)
    run = _stage(frontend.capture(function, (a, b)), "a, b", stage)
    assert (_raised(run, (a, b)) is None) == (_raised(function, (a, b)) is None)
    b[3] = 0
    with pytest.raises(RuntimeError, match=r"aten\..*the divisor is 0.*ZeroDivisionError"):
        run(a, b)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_an_index_that_rows_share_is_checked_once_ahead_of_them(dynamic: bool, seed: int) -> None:
    x, i = torch.randn(9, 12), torch.randint(0, 12, (21,))
    sizes = ({0: torch.export.Dim("r", min=2)}, {0: torch.export.Dim("c", min=2)}) if dynamic else None
    function = _function("x[:, i] * 2", "x, i")
    fast = compiler.compile(function, [x, i], dynamic_shapes=sizes)
    text = fast.lowering.show("kernel")
    assert text.index("valid =") < text.index("parallel") and text.count("require(valid, valid)") == 1
    torch.testing.assert_close(fast(x, i), function(x, i), msg=f"seed {seed}")
    for at in range(21):
        wrong = i.clone()
        wrong[at] = random.choice((12, -13, 10**9))
        with pytest.raises(IndexError, match=f"{int(wrong[at])} is out of range"):
            fast(x, wrong)


@pytest.mark.parametrize("target", ["cpu", "cpu:avx2", "cpu:baseline", "sm_90a"])
def test_compiled_code_raises_and_writes_nothing_elsewhere(target: str, seed: int) -> None:
    machine = compiler.target(target)
    if compiler.execution.named.missing(machine):
        pytest.skip("not a machine for that")
    x, i = torch.randn(7), torch.randint(0, 7, (37,))
    for expression in (
        "x[i].sum()",
        "x.gather(0, i)",
        "x.scatter_add(0, i, i.float())",
        "i // (i + 1)",
        "F.one_hot(i, 7)",
    ):
        function = _function(expression, "x, i")
        fast = compiler.compile(function, [x, i], target=machine)
        torch.testing.assert_close(fast(x, i), function(x, i), msg=f"{expression}, seed {seed}")
        wrong = i.clone()
        wrong[36] = -1 if "//" in expression else -(10**12)
        with pytest.raises(Exception, match="aten") as ours:
            fast(x, wrong)
        assert type(ours.value) is type(_raised(function, (x, wrong))), expression
        given = {"x": x, "i": wrong} | fast.captured.constants
        outcome = executable.execute_guarded(fast.lowering, [given[t.name] for t in fast.captured.program.inputs])
        assert outcome.complaints == (guarded.INVALID,), expression


# Of x: f32[9, 12], w: f32[12, 4], v: f32[n], and i: i64[n]: what asks several turns or vectors at once.
SEVERAL = """
    x[0].scatter_add(0, i, v)
    x[:2].scatter_add(1, i.expand(2, -1), v.expand(2, -1))
    x[0].scatter_reduce(0, i, v, "amax")
    x.index_put((i % 9, i), v, accumulate=True)
    x[0].index_put((i,), v)
    x[i % 9, i]
    x.take(i)
    x[0].bfloat16()[i]
    x[0][i.int()]
    x[0].gather(0, i)
    w[i]
    w.gather(0, i[:, None].expand(-1, 4))
"""


@pytest.mark.parametrize("target", compiler.cpus())
@pytest.mark.parametrize("expression", _lines(SEVERAL))
def test_a_bad_index_raises_wherever_it_is_among_those_asked_at_once(expression: str, target: str, seed: int) -> None:
    function = _function(expression, "x, w, v, i")
    x, w = torch.randn(9, 12), torch.randn(12, 4)

    def data(n: int) -> tuple[torch.Tensor, ...]:
        return x, w, torch.randn(n), torch.randint(0, 12, (n,)) if "put" not in expression else torch.arange(n) % 12

    static = {n: compiler.compile(function, data(n), target=target) for n in (0, 1, 199)}
    sizes = [None, None, *[{0: torch.export.Dim("n", min=2)}] * 2]
    dynamic = compiler.compile(function, data(70), target=target, dynamic_shapes=sizes)
    bad = (*BAD, -12, 11, 12, -13, 2**31, 2**32, 2**32 + 3, -(2**32) + 3, 2**62)
    for n in (0, 1, 31, 32, 33, 64, 199):
        given = data(n)
        fast = static.get(n, dynamic)
        for _ in range(12):
            where = f"{expression} of {n} on {target}, seed {seed}"
            wanted, got = _raised(function, given), _raised(fast, given)
            assert type(got) is type(wanted), f"{where}: {wanted!r}, and ours {got!r}"
            if wanted is None:
                torch.testing.assert_close(fast(*given), function(*given), msg=where, rtol=1e-5, atol=1e-5)
            given = data(n)
            if n:
                given[3][random.randrange(n)] = random.choice(bad)


def test_torch_compile_raises_at_every_size(seed: int) -> None:
    def loss(w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(w[t], t)

    fast = torch.compile(loss, backend="mlcomp", dynamic=True)
    w = torch.randn(9, 9, requires_grad=True)
    for n in (5, 6, 33):
        t = torch.randint(0, 9, (n,))
        torch.testing.assert_close(fast(w, t), loss(w, t), msg=f"seed {seed}")
        t[n - 1] = 9
        with pytest.raises(IndexError, match="index 9 is out of range for dimension 0 of size 9"):
            fast(w, t)


def test_what_a_program_asserts_of_its_data_holds_or_raises(seed: int) -> None:
    def asserting(x: torch.Tensor) -> torch.Tensor:
        torch._assert_async((x > 0).all(), "not all are positive")
        return x.bfloat16() * 2

    x = torch.rand(100) + 1
    for fast in (compiler.compile(asserting, [x]), torch.compile(asserting, backend="mlcomp")):
        torch.testing.assert_close(fast(x), asserting(x), msg=f"seed {seed}")
        with pytest.raises(RuntimeError, match=r"aten\._assert_async\.msg: not all are positive"):
            fast(-x)
    classes = torch.compile(lambda i: F.one_hot(i, 5), backend="mlcomp")
    with pytest.raises(RuntimeError, match="Class values must be smaller than num_classes"):
        classes(torch.tensor([0, 5]))


def test_unknown_ways_to_check_are_refused() -> None:
    with pytest.raises(compiler.CompilerError, match="check_indices must be one of async, sync, off, not 'never'"):
        compiler.compile(torch.neg, [torch.ones(3)], check_indices="never")


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_data_may_go_unchecked_which_is_said(target: str, seed: int) -> None:
    x, i = torch.randn(9, 33), torch.randint(-9, 9, (40,))
    with pytest.warns(compiler.UncheckedWarning, match="reads or writes any memory"):
        fast = compiler.compile(lambda x, i: (x[i], i // (i + 99)), [x, i], target=target, check_indices="off")
    assert "require" not in fast.lowering.show("kernel") and "failed" not in fast.source
    for ours, eager in zip(fast(x, i), (x[i], i // (i + 99)), strict=True):
        torch.testing.assert_close(ours, eager, msg=f"seed {seed}")


BEFORE = """def f(x: f32[10, 32], i: i64[7], *, y: f32[7, 32]):
    with function("f", [x, i, y], writes=[y]):
        for j in range(0, 7, 1, parallel):
            for k in range(0, 32, 16):
                y[j * 32 + k] = x[require((i[j] >= 0) & (i[j] < 10), i[j]) * 32 + k, f32x16]
            if j < 3:
                y[j] = 0.0 if j < 1 else x[require(i[0] != 0, i[0])]
"""
AFTER = """def f(x: f32[10, 32], i: i64[7], *, y: f32[7, 32]):
    with function("f", [x, i, y], writes=[y]):
        for j in range(0, 7, 1, parallel):
            asked: i64 = i[j]
            checked: i64 = require((asked >= 0) & (asked < 10), asked)
            for k in range(0, 32, 16):
                y[j * 32 + k] = x[checked * 32 + k, f32x16]
            if j < 3:
                y[j] = 0.0 if j < 1 else x[require(i[0] != 0, i[0])]
"""
AROUND = """def f(n: size[0, 99, 9], x: f32[10, 32], i: i64[7], *, y: f32[n, 7]):
    with function("f", [x, i, y], writes=[y], checks=[8, 0, 0, 0]):
        for j in range(0, n, 1, parallel):
            for k in range(0, 7, 1):
                y[j * 7 + k] = x[j * 32 + require((i[k] >= 0) & (i[k] < 32), i[k])]
"""
AHEAD = """def f(n: size[0, 99, 9], x: f32[10, 32], i: i64[7], *, y: f32[n, 7]):
    with function("f", [x, i, y], writes=[y], checks=[8, 0, 0, 0]):
        valid: bool = True
        if 0 < n:
            for k in range(0, 7, 1):
                asked: i64 = i[k]
                valid = valid & ((asked >= 0) & (asked < 32))
        if require(valid, valid):
            for j in range(0, n, 1, parallel):
                for k in range(0, 7, 1):
                    asked: i64 = i[k]
                    checked: i64 = asked
                    y[j * 7 + k] = x[j * 32 + checked]
"""


def test_what_a_loop_does_not_change_is_checked_ahead_of_it_if_it_runs() -> None:
    assert kernel_text.show(requirements(kernel_text.parse(AROUND))) == AHEAD


def test_requirements_are_checked_before_loops_that_do_not_change_them() -> None:
    assert kernel_text.show(requirements(kernel_text.parse(BEFORE))) == AFTER
