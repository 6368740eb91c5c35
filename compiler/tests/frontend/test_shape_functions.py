"""Ops that PyTorch declares with other strides or sizes than their kernels give them have those of their kernels."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import compiler

OPS: list[Callable[..., torch.Tensor]] = [
    torch.copysign, torch.floor_divide, torch.heaviside, torch.logaddexp, torch.logical_and, torch.logical_or,
    torch.logical_xor, torch.special.xlog1py, torch.xlogy,
]  # fmt: skip


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, backend="mlcomp", options={"fallback": "error"})


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.__name__)
def test_pointwise_results_have_the_strides_of_eager(op: Callable[..., torch.Tensor]) -> None:
    rows, columns = torch.rand(5, 3) + 0.5, (torch.rand(3, 5) + 0.5).t()
    for a, b in ((rows, columns), (columns, rows), (rows[0], columns), (columns, rows[:, :1])):
        torch._dynamo.reset()
        expected, result = op(a, b), compiled(op)(a, b)
        assert result.stride() == expected.stride()
        torch.testing.assert_close(result, expected)


def test_numbers_have_no_strides() -> None:
    x = torch.arange(-3, 3)
    assert torch.equal(compiled(lambda x: x // -2)(x), x // -2)


def test_strides_are_those_of_eager_for_sizes_that_vary() -> None:
    function = compiled(lambda a, b: torch.xlogy(a, b.abs() + 0.5))
    for n in (5, 7):
        a, b = torch.rand(3, n).t(), torch.rand(n, 3)
        torch._dynamo.mark_dynamic(a, 0)
        torch._dynamo.mark_dynamic(b, 0)
        assert function(a, b).stride() == torch.xlogy(a, b).stride() == (1, n)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", [(7, 5), (7, 5, 3), (4, 5, 3, 2)])
def test_batch_norms_of_a_cpu_are_contiguous(shape: tuple[int, ...], training: bool) -> None:
    mean, variance = torch.zeros(5), torch.ones(5)
    x = torch.randn(shape).transpose(0, 1).contiguous().transpose(0, 1)
    assert not x.is_contiguous()

    def norm(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, mean.clone(), variance.clone(), training=training)

    result = compiled(norm)(x)
    assert result.is_contiguous()
    torch.testing.assert_close(result, norm(x))
    if training:
        assert compiled(lambda x: F.batch_norm(x, None, None, training=True))(x).is_contiguous()


def test_batch_norms_keep_channels_last() -> None:
    x = torch.randn(4, 5, 3, 2).to(memory_format=torch.channels_last)
    result = compiled(lambda x: F.batch_norm(x, None, None, training=True))(x)
    assert result.is_contiguous(memory_format=torch.channels_last)


MOVES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "roll": lambda x: x.roll((1, -2), (1, 3)),
    "roll of all": lambda x: x.roll(1),
    "roll of none": lambda x: x.roll((1, 0), (1, 3)),
    "channel_shuffle": lambda x: F.channel_shuffle(x, 2),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), (2, 2)),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_have_the_strides_of_eager(name: str) -> None:
    for x in (torch.randn(2, 6, 8, 4).to(memory_format=torch.channels_last), torch.randn(2, 4, 6, 8).mT):
        result, expected = compiled(MOVES[name])(x), MOVES[name](x)
        assert torch.equal(result, expected) and result.stride() == expected.stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_logsigmoid_of_a_cpu_is_contiguous(dynamic: bool) -> None:
    function = torch.compile(F.logsigmoid, backend="mlcomp", dynamic=dynamic, options={"fallback": False})
    for x in (torch.randn(7, 5).t(), torch.randn(4, 5, 3)[..., 1], torch.randn(7, 5)):
        x = x.requires_grad_()
        result, expected = function(x), F.logsigmoid(x)
        assert result.is_contiguous() and expected.is_contiguous()
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (result, expected)))


@pytest.mark.parametrize("shape", [(1,), (3, 1), (1, 1)])
def test_norms_along_the_last_dimension_of_size_1_lose_it(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    result = compiled(lambda x: torch.linalg.vector_norm(x, 2, -1))(x)
    torch.testing.assert_close(result, x.abs().squeeze(-1))


def test_exported_norms_lose_their_dimension() -> None:
    """0.5 is an order of which PyTorch exports no simpler form."""

    class Norm(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            norm: torch.Tensor = torch.linalg.vector_norm(x, 0.5, -3)
            return norm

    x = torch.randn(1, 8, 5)
    torch.testing.assert_close(compiler.compile(Norm(), (x,))(x), Norm()(x))
