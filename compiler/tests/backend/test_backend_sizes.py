"""Sizes, strides and numbers that differ between calls: one program for all of them, or a warning."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compiler import frontend
from compiler.backend import FallbackWarning, SpecialisationWarning
from compiler.execution import executable
from compiler.tests.backend.agreement import agree, seeded

pytestmark = pytest.mark.usefixtures("fresh")


def test_sizes_of_each_call() -> None:
    seed = seeded()
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    agree(model, *((torch.randn(n, 6),) for n in (2, 3, 5, 1, 3)), seed=seed)


def test_sizes_that_are_never_fixed() -> None:
    seed = seeded()

    def f(x: Tensor) -> tuple[Tensor, int]:
        return x.reshape(-1).cumsum(0) + torch.arange(x.numel()) * x.shape[0], x.shape[1]

    agree(f, *((torch.randn(n, m),) for n, m in ((2, 3), (4, 5), (7, 2))), seed=seed, dynamic=True)


@pytest.mark.filterwarnings("error::compiler.backend.SpecialisationWarning")
def test_attention_over_an_empty_batch_of_any_length() -> None:
    """Random program 301132.6143: no rows times an unknown length are none, not an unknown number."""
    seed = seeded()
    calls = [(torch.randn(0, n, 4), torch.randn(0, m, 4), torch.randn(0, m, 4)) for n, m in ((4, 17), (5, 9))]
    agree(nn.functional.scaled_dot_product_attention, *calls, seed=seed, dynamic=True)


def test_one_program_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = seeded()
    made: list[frontend.Captured] = []
    build = executable.build_captured

    def counted(captured: frontend.Captured, *rest: Any, **options: Any) -> executable.Executable:
        made.append(captured)
        return build(captured, *rest, **options)

    monkeypatch.setattr(executable, "build_captured", counted)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.LayerNorm(8)).eval()
    x = torch.randn(7, 6)
    torch._dynamo.mark_dynamic(x, 0)
    agree(model, (x,), *((torch.randn(n, 6),) for n in (2, 3, 50)), seed=seed)
    assert len(made) == 1 and len(made[0].program.sizes) == 1


def test_views_and_numbers_that_depend_on_sizes_are_passed_on() -> None:
    seed = seeded()

    def f(x: Tensor) -> tuple[Tensor, Tensor, int]:
        return x.view(x.shape[0], -1, 2).transpose(0, 1)[1:], x + 1, x.shape[0] * 2

    agree(f, *((torch.randn(n, 6),) for n in (4, 5, 7)), seed=seed, dynamic=True)


def test_what_needs_a_number_is_compiled_for_each_size_with_a_warning() -> None:
    seed = seeded()
    with pytest.warns(SpecialisationWarning, match=r"aten._upsample_bilinear2d_aa.*must be known"):
        agree(
            lambda x: nn.functional.interpolate(x[None, None], (3, 3), mode="bilinear", antialias=True),
            *((torch.randn(n, 6),) for n in (4, 5, 7)),
            seed=seed,
            dynamic=True,
        )


@pytest.mark.filterwarnings("ignore::compiler.backend.SpecialisationWarning")
def test_what_is_compiled_for_each_size_lies_as_torch_has_traced_it_for_all() -> None:
    seed = seeded()

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        pooled = nn.functional.interpolate(x, (2, 2), mode="bilinear", antialias=True)  # which needs the sizes
        turned = pooled.mT + 1
        # What torch predicts of these sizes, for the other operand is a number: dense rows.
        return torch.copysign(pooled.mT, y), turned[1:], turned.mT, (pooled * 2)[1:], pooled

    given = [(torch.randn(n, 3, 5, n), torch.tensor(-1.0)) for n in (4, 6)]
    compiled = torch.compile(f, backend="mlcomp", dynamic=True, options={"fallback": False})
    for x, y in given:
        made, want = compiled(x, y), f(x, y)
        torch.testing.assert_close(made, want, msg=f"seed {seed}")
        places = [[(a.stride(), a.storage_offset()) for a in results] for results in (made, want)]
        assert places[0] == places[1], seed


def _rotary(x: Tensor) -> Tensor:
    places = torch.arange(x.shape[0] * 2 + 1, dtype=torch.float32)
    return torch.outer(places, 1 / 10000 ** (torch.arange(0, 8, 2) / 8)).cos()


@pytest.mark.parametrize(
    "function",
    [
        _rotary,
        lambda x: torch.ones(x.shape[0], x.shape[0]).triu(1) * 2,
        lambda x: torch.full((3,), x.shape[0] + 1) * 2,
        lambda x: x + torch.tensor(x.shape[0]),
        lambda x: x.roll(x.shape[0] // 2, 0) + x.flatten().roll(x.shape[0] + 5).view_as(x),
        lambda x: x / (x.shape[0] / 3 + 1) + x * x.shape[0] ** -0.5 - x.shape[0] ** 0.5,
        lambda x: x[: int(x.shape[0] * 0.5)] * x.shape[0] ** 0.5,
        lambda x: torch.baddbmm(x[None] @ x.t(), x[None], x.t()[None], alpha=x.shape[1] ** -0.5, beta=x.shape[0] / 7),
        lambda x: x.quantile(0.5, 0) * 2,
        lambda x: x.median(0).values + x.flatten().median(),
        lambda x: nn.functional.interpolate(x[None, None], scale_factor=2.0, mode="bilinear"),
        lambda x: nn.functional.adaptive_avg_pool2d(x[None], (3, 4)),
    ],
)
@pytest.mark.filterwarnings("error::compiler.backend.SpecialisationWarning")
def test_what_is_computed_from_sizes(function: Callable[[Tensor], Tensor]) -> None:
    seed = seeded()
    agree(function, *((torch.randn(n, 6),) for n in (9, 4, 7, 16)), seed=seed, dynamic=True)


@pytest.mark.filterwarnings("error::compiler.backend.SpecialisationWarning")
def test_gradients_of_pools_whose_windows_depend_on_sizes() -> None:
    seed = seeded()
    torch._dynamo.reset()

    def pooled(x: Tensor) -> Tensor:
        x = x[None]
        return nn.functional.adaptive_avg_pool2d(x, (3, 4)).sum() + nn.functional.adaptive_max_pool2d(x, (2, 5)).sum()

    compiled = torch.compile(pooled, backend="mlcomp", dynamic=True, options={"fallback": "error"})
    for rows in (9, 5, 7):
        x = torch.randn(rows, 8).requires_grad_()
        found, right = (torch.autograd.grad(f(x), x)[0] for f in (compiled, pooled))
        torch.testing.assert_close(found, right, msg=f"{rows} rows, seed {seed}")


def test_strides_of_each_call() -> None:
    x = torch.randn(4, 6)
    agree(
        lambda x: x * 2 + x.sum(0),
        (x,), (x.t().contiguous().t(),), (torch.randn(8, 6)[::2],), (torch.randn(1, 6).expand(4, 6),),
    )  # fmt: skip


def test_numbers_among_the_arguments() -> None:
    x = torch.randn(3)
    agree(lambda x, k: x * k, (x, 2), (x, 3), (x, 0.5), (x, 0.25))


@pytest.mark.filterwarnings("error::compiler.backend.SpecialisationWarning")
def test_a_varying_number_of_the_first_elements_of_one() -> None:
    agree(lambda x, k: x.sum(0, keepdim=True).topk(k), *((torch.randn(n), 1) for n in (5, 9, 4)), dynamic=True)


@pytest.mark.filterwarnings("error::compiler.backend.FallbackWarning")
def test_whole_numbers_that_change_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    build = executable.build_captured

    def built(*given: Any, **options: Any) -> Any:
        made.append(given)
        return build(*given, **options)

    monkeypatch.setattr(executable, "build_captured", built)
    x = torch.randn(3, 4)
    agree(lambda x, k: x * (k + 1) + torch.full((2, 1, 1), k), *((x, k) for k in (2, 5, 9, 300)))
    assert len(made) == 2  # for the first one, and for all
    agree(lambda x, k: x * (k + 1), *((x, k) for k in (2, 5, -3, 0, 7, -1, 1)))
    agree(lambda x, k: x * (k + 1), *((x, k) for k in (-2, -5, 3, 0, 7, -1, 1)))


def _written_at(x: Tensor, k: int) -> Tensor:
    made = x.clone()
    made[k - 3] = 2
    made[:, k - 4] += x[k]
    return made


@pytest.mark.filterwarnings("error::compiler.backend.SpecialisationWarning")
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda x, k: x[k] * x[0][k], id="an element"),
        pytest.param(lambda x, k: x[-k] * x[k - 3], id="an element from either end"),
        pytest.param(lambda x, k: x[k - 3 :] * 2, id="a slice from either end"),
        pytest.param(_written_at, id="a write"),
        pytest.param(lambda x, k: x**k, id="a power"),
        pytest.param(lambda x, k: ((x * 3).long() ** k, (x > 0) ** k, k ** (x > 0).int()), id="a power of integers"),
        pytest.param(lambda x, k: x * torch.linspace(-k, k + 1, 8), id="even steps"),
    ],
)
def test_numbers_that_say_where_and_how_often(function: Callable[[Tensor, int], Tensor]) -> None:
    seed = seeded()
    x = torch.randn(8, 8)
    agree(function, *((x, k) for k in (4, 5, 6, 2, 7, 3)), seed=seed)


def test_an_exponent_that_integers_do_not_have() -> None:
    compiled = torch.compile(lambda x, k: x ** (k - 3), backend="mlcomp", options={"fallback": "error"})
    x = torch.tensor([1, 2, -3], dtype=torch.int8)
    for k in (5, 6, 4, 9):
        assert torch.equal(compiled(x, k), x ** (k - 3))
    for k in (2, 200):
        with pytest.raises(RuntimeError, match=r"aten\.pow.*(negative integer powers|without overflow)"):
            compiled(x, k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_of_which_all_sizes_vary(dtype: torch.dtype) -> None:
    seed = seeded()
    compiled = torch.compile(
        torch.mm, backend="mlcomp", fullgraph=True, dynamic=True, options={"target": "sm_90a", "fallback": False}
    )
    for m in (19, 33, 2):
        a, b = torch.randint(-3, 4, (7, m)).to(dtype), torch.randint(-3, 4, (m, 16)).to(dtype)
        assert torch.equal(compiled(a, b), a @ b), f"seed {seed}, {m} terms"


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian], ids=["median", "nanmedian"])
def test_the_median_of_nothing_where_sizes_vary(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(lambda x: function(x) + 1, backend="mlcomp", dynamic=True)
    with pytest.warns(FallbackWarning, match="median"):
        assert compiled(torch.zeros(0, 3)).isnan()


@pytest.mark.parametrize(
    "reduced", [lambda x: x.sum(1), lambda x: x.softmax(1), lambda x: x @ x.mT], ids=["sum", "softmax", "matmul"]
)
def test_an_axis_that_shrinks_as_a_size_grows(reduced: Callable[[Tensor], Tensor]) -> None:
    """With the sizes times 8, which some decisions are made for, the axis would have a negative length."""

    def function(columns: Tensor, rows: Tensor) -> Tensor:
        return reduced(columns[:, rows.shape[0] :])

    compiled: Any = torch.compile(function, backend="mlcomp", dynamic=True, options={"fallback": "error"})
    columns = torch.randn(4, 30)
    for n in (25, 20, 29, 30):
        torch.testing.assert_close(compiled(columns, torch.zeros(n)), function(columns, torch.zeros(n)))
