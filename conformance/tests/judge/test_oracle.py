"""Verdicts: what is within a bound passes, known miscompiles do not, special values are judged by class."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import compiler
from conformance.judge import oracle, subject
from conformance.judge.oracle import Bounded

SEED = int(np.random.SeedSequence().entropy) % 2**32  # type: ignore[arg-type]


def test_moments_are_the_same_wherever_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LEAST_ON_GPU", 0)
    draw = np.random.default_rng(SEED)
    for k in (1, 7, 100):
        x, y = draw.normal(size=(3, 5, k)), np.broadcast_to(draw.normal(size=(k, 9)), (3, k, 9))
        found, expected = subject.moments_on_gpu(x, y), compiler.moments(x, y)
        np.testing.assert_allclose(found.total, x @ y, atol=1e-12)
        for name in ("total", "absolute", "squares", "partial"):
            np.testing.assert_allclose(getattr(found, name), getattr(expected, name), atol=1e-12, err_msg=str(SEED))


def agrees(reference: torch.Tensor, program: object, inputs: Sequence[torch.Tensor]) -> oracle.Verdict:
    """Whether a reference in f64 is what a Tensor IR program means, rounding in f64 and of its literals aside."""
    return oracle.judge(reference, oracle.bounds(program, inputs, algebra=True)[0], "f64")


def bounded(values: list[float], worst: float = 0.0, deviation: float | None = None) -> Bounded:
    v = np.array(values)
    if not worst:
        return Bounded(v)
    usual = worst if deviation is None else deviation
    return Bounded(v, np.full(v.shape, worst), np.full(v.shape, usual**2), np.zeros(v.shape))


@pytest.mark.parametrize(
    ("got", "expected", "worst", "deviation", "ok"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, None, True),
        ([1.0, 2.001], [1.0, 2.0], 0.01, None, True),
        ([1.0, 2.02], [1.0, 2.0], 0.01, None, False),
        ([1.0, 2.009], [1.0, 2.0], 0.01, 0.001, False),  # 9 deviations
        ([np.nan], [np.nan], 0.0, None, True),
        ([np.nan], [1.0], 0.5, None, False),
        ([1.0], [np.nan], 0.5, None, False),
        ([np.nan], [1.0], np.inf, None, True),  # undecided
        ([np.inf], [np.inf], 0.0, None, True),
        ([-np.inf], [np.inf], 0.0, None, False),
        ([3e38], [np.inf], 0.0, None, False),
        ([np.inf], [3.4e38], 1e37, None, True),
        ([np.inf], [3e37], 1e36, None, False),
        ([np.inf], [1e39], np.inf, None, True),
        ([5.0], [1e39], np.inf, None, False),
        ([5.0], [1e9], np.inf, None, True),
        ([1e-45], [0.0], 0.0, None, True),
        ([1e-44], [0.0], 0.0, None, False),
        ([], [], 0.0, None, True),
    ],
)
def test_judge(got: list[float], expected: list[float], worst: float, deviation: float | None, ok: bool) -> None:
    with np.errstate(over="ignore"):
        verdict = oracle.judge(np.array(got, np.float32), bounded(expected, worst, deviation), "f32")
    assert verdict.ok == ok
    assert (verdict.err_over_tol <= 1) == ok
    assert bool(verdict.message) == (not ok)


def test_judge_names_the_worst_element() -> None:
    verdict = oracle.judge(torch.tensor([[1.0, 2.0], [3.5, 4.1]]), bounded([[1, 2], [3, 4]], 0.25), "f32")  # type: ignore[list-item]
    assert verdict.worst == (1, 0) and verdict.err_over_tol == pytest.approx(2, rel=0.02)
    assert verdict.message == "element [1, 0] is 3.5, expected 3 within 0.253; 1 of 4 elements are wrong"
    assert "shape [2], expected [3]" in oracle.judge(torch.zeros(2), bounded([0, 0, 0]), "f32").message


def test_denormals_may_be_flushed_only_where_allowed() -> None:
    tiny = bounded([1e-39])
    assert not oracle.judge(np.zeros(1, np.float32), tiny, "f32").ok
    assert oracle.judge(np.zeros(1, np.float32), tiny, "f32", flush=True).ok


def test_another_formula_for_a_small_difference_is_the_same_function() -> None:
    """PyTorch multiplies mean and value apart, where Tensor IR multiplies their small difference."""
    g = torch.Generator().manual_seed(SEED)
    mean, var, weight = (torch.rand(3, generator=g) + 0.5 for _ in range(3))
    x = mean.reshape(1, 3, 1) + 1e-5 * torch.randn(40, 3, 9, generator=g)
    captured = compiler.capture(lambda x, m, v, w: F.batch_norm(x, m, v, w), [x, mean, var, weight])
    (right,) = compiler.reference(captured.program, [x, mean, var, weight])
    equations = compiler.lower(captured.program, compiler.target("cpu"), until="tensor").stages["tensor"]
    verdict = agrees(right, equations, [x, mean, var, weight])
    assert verdict.ok, (SEED, verdict.message)
    assert not agrees(right * (1 + 1e-8), equations, [x, mean, var, weight]).ok, SEED


def test_integers_are_exact_unless_a_comparison_is_undecided() -> None:
    assert oracle.judge(torch.tensor([1, 2]), Bounded(np.array([1, 2])), "i64").ok
    assert not oracle.judge(torch.tensor([1, 3]), Bounded(np.array([1, 2])), "i64").ok
    open_ = Bounded(np.array([1, 2]), np.array([0.0, 1.0]), np.array([0.0, 1 / 36]), np.zeros(2))
    assert oracle.judge(torch.tensor([1, 3]), open_, "i64").ok
    assert not oracle.judge(torch.tensor([2, 3]), open_, "i64").ok
    assert oracle.exact(torch.tensor([True]), torch.tensor([True])).ok
    assert not oracle.exact(torch.tensor([2**53]), torch.tensor([2**53 + 1])).ok


def test_quick_compare_uses_the_reference_only_when_it_must() -> None:
    generator = torch.Generator().manual_seed(SEED)
    # sums of 8 positive products differ by at most 9 roundings, and the tolerance is about 20
    a, b = torch.rand(64, 8, generator=generator) + 0.5, torch.rand(8, 64, generator=generator) + 0.5
    asked: list[int] = []

    def reference() -> torch.Tensor:
        asked.append(1)
        return a.double() @ b.double()

    good = (a.double() @ b.double()).float()
    assert oracle.quick_compare(good, a @ b, reference)[0] and not asked
    assert oracle.quick_compare((good,), [a @ b])[0]
    bad = good.clone()
    bad[3, 5] += 0.01
    ok, ratio, message = oracle.quick_compare(bad, a @ b, reference)
    assert not ok and ratio > 1 and "element [3, 5]" in message and asked
    assert not oracle.quick_compare(good.masked_fill(good > 25, float("nan")).fill_(float("nan")), a @ b, reference)[0]
    assert not oracle.quick_compare(good.bfloat16(), a @ b)[0]
    assert not oracle.quick_compare(torch.tensor([1, 2]), torch.tensor([1, 3]), lambda: torch.tensor([1.0, 2.0]))[0]
    low = oracle.quick_compare(good.bfloat16(), (a @ b).bfloat16(), reference)
    assert low[0], low


PROGRAMS: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "softmax": (lambda x: torch.softmax(x, -1), ((16, 128),)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), ((16, 128),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (128,), w, b), ((16, 128), (128,), (128,))),
    "matmul": (lambda a, b: a @ b, ((16, 128), (128, 24))),
    "matmul bias silu": (lambda a, b, c: F.silu(a @ b / 11 + c), ((16, 128), (128, 24), (24,))),
    "sum": (lambda x: x.sum(-1), ((16, 128),)),
    "swiglu": (lambda x, a, b: F.silu(x @ a / 11) * (x @ b / 11), ((16, 128), (128, 24), (128, 24))),
    "cumsum": (lambda x: x.cumsum(-1), ((16, 128),)),
}


def tensor_program(function: Callable[..., torch.Tensor], inputs: list[torch.Tensor]) -> object:
    captured = compiler.capture(function, inputs)
    program: object = compiler.lower(captured.program, compiler.target("cpu"), until="tensor").stages["tensor"]
    return program


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_correct_kernels_pass_and_mutants_do_not(name: str, dtype: torch.dtype) -> None:
    function, shapes = PROGRAMS[name]
    generator = torch.Generator().manual_seed(SEED)
    inputs = [torch.randn(*s, generator=generator).to(dtype) for s in shapes]
    program = tensor_program(function, inputs)
    (bound,) = oracle.bounds(program, inputs)
    short = oracle.NAMES[dtype]

    def fused(*xs: torch.Tensor) -> torch.Tensor:
        """What a correct kernel gives: f32 inside, one rounding at its end."""
        return function(*(x.float() for x in xs)).to(dtype)

    right = fused(*inputs)
    verdict = oracle.judge(right, bound, short)
    assert verdict.ok, f"seed {SEED}: {verdict}"
    wide = function(*(x.double() for x in inputs))
    assert agrees(wide, program, inputs).ok, f"seed {SEED}"
    first = inputs[0].clone()
    first[:, -1] = 0
    shifted = right.clone()
    shifted[3] = right[4]
    mutants = {"drops the last k": fused(first, *inputs[1:]), "row from its neighbour": shifted}
    if dtype is torch.float32:
        off = right.clone()
        off.view(-1)[right.abs().argmax()] *= 1.001
        mutants |= {"one element off": off, "rounds to bf16": right.bfloat16().float()}
    for what, mutant in mutants.items():
        assert not oracle.judge(mutant, bound, short).ok, f"{what} is missed, seed {SEED}"


def test_integer_valued_data_must_match_exactly() -> None:
    generator = torch.Generator().manual_seed(SEED)
    a, b = (torch.randint(-8, 9, s, generator=generator).float() for s in ((16, 200), (200, 8)))
    program = tensor_program(lambda a, b: (a @ b).relu(), [a, b])
    (bound,) = oracle.bounds(program, [a, b])
    right = (a @ b).relu()
    assert oracle.judge(right, bound, "f32").ok
    assert not oracle.judge(torch.nextafter(right, right + 1), bound, "f32").ok
