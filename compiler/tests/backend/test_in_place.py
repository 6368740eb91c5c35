"""Caches that `torch.compile(f, backend="mlcomp")` writes where they lie: values, order, and how much is stored."""

import copy as copy_module
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from compiler.errors import InvalidData
from compiler.execution.executable import Executable
from compiler.ir import loop
from compiler.ir.expr import static
from compiler.ir.statement import Stmt, Store
from compiler.tests.meaning import fresh_seed

TARGETS = ("cpu", "sm_90a")
Result = tuple[Any, ...]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    yield


def stores(program: Any, dtype: str, rank: int) -> int:
    """How many elements of this type are stored to buffers of this rank, all kernels together."""
    shapes = {p.name: p for k in program.kernels for p in k.params}

    def count(body: tuple[Stmt, ...], times: int) -> int:
        total = 0
        for s in body:
            if isinstance(s, Store) and (shapes[s.buffer].dtype.name, len(shapes[s.buffer].shape)) == (dtype, rank):
                total += times
            elif isinstance(s, loop.For):
                total += count(s.body, times * static(s.extent))
        return total

    return sum(count(k.body, 1) for k in program.kernels)


def step(caches: list[Tensor], at: Tensor, x: Tensor) -> Tensor:
    """Layers of attention over a cache that each writes to first."""
    for cache in caches:
        cache.index_copy_(2, at, torch.sin(x))
        x = x + F.scaled_dot_product_attention(x, cache, cache)
    return x


def by_index(caches: list[Tensor], at: Tensor, x: Tensor) -> Tensor:
    for cache in caches:
        cache[:, :, at] = torch.sin(x)
        x = x + torch.softmax(x @ cache.mT, -1) @ cache
    return x


def by_slice(caches: list[Tensor], at: Tensor, x: Tensor) -> Tensor:
    for cache in caches:
        cache[0:1, :, 5:6] = torch.sin(x)
        x = x + torch.softmax(x @ cache.mT, -1) @ cache
    return x


def parts(caches: list[Tensor], at: Tensor, x: Tensor) -> Tensor:
    """Rows of slices, every other element, a list within a slice, a slice from another place of itself."""
    first, second = caches
    first[:, 1, 2:7:2] = x[:, 0]
    first[:, :1, at] = x[:, :1] * 2
    second[0][:, at] = x[0]
    second.narrow(2, 0, 7).copy_(second[:, :, 1:].clone())
    return first @ second.mT


def twice(caches: list[Tensor], at: Tensor, x: Tensor) -> Result:
    """Read before, between two writes, and behind."""
    out = []
    for cache in caches:
        out.append(cache.sum(2))
        cache.index_copy_(2, at, x)
        out.append(cache.amax(2))
        cache.index_add_(2, at + 1, x)
        out.append(cache.cumsum(2))
    return tuple(out)


def crossed(caches: list[Tensor], at: Tensor, x: Tensor) -> Result:
    """Each is written from what the other was."""
    first, second = caches
    old = first.clone()
    first.index_copy_(2, at, second[:, :, 1:2])
    second.index_copy_(2, at, old[:, :, 2:3])
    return first * 2, old


def late(caches: list[Tensor], at: Tensor, x: Tensor) -> Result:
    """What it was is asked for behind the write: a copy of it must be kept."""
    first, second = caches
    old = first.softmax(-1)
    first.index_copy_(2, at, x)
    return first @ old.mT, old, second.copy_(x.expand(second.shape))


def returned(caches: list[Tensor], at: Tensor, x: Tensor) -> Result:
    """Results in the memory of what is written."""
    first, second = caches
    first.index_copy_(2, at, x)
    view = first[:, 1:]
    second.copy_(torch.roll(second, 1, 2))
    return view, first, second.mT, view + 1


FUNCTIONS = (step, by_index, parts, twice, crossed, late, returned)


def dense(*shape: int) -> Tensor:
    return torch.randn(shape)


def swapped(*shape: int) -> Tensor:
    b, h, n, d = shape
    return torch.randn(b, n, h, d).transpose(1, 2)


def cut(*shape: int) -> Tensor:
    b, h, n, d = shape
    return torch.randn(b, h + 1, n + 3, d)[:, 1:, 1:-2]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_what_is_written_in_place_is_what_eager_writes(function: Callable[..., Any], target: str) -> None:
    with torch.device("cuda" if target != "cpu" and torch.cuda.is_available() else "cpu"):
        _agree(function, target)


def _agree(function: Callable[..., Any], target: str) -> None:
    ours = torch.compile(function, backend="mlcomp", options={"fallback": "error", "target": target}, dynamic=False)
    first = FUNCTIONS.index(function)  # each with two of the layouts
    caches = [(dense, swapped, cut)[(first + n) % 3](1, 2, 8, 4) for n in range(2)]
    mine, his = ([_copied(x) for x in caches] for _ in range(2))
    for position in (3, 6):
        at, x = torch.tensor([position]), torch.randn(1, 2, 1, 4)
        with torch.no_grad():
            found, wanted = ours(mine, at, x), function(his, at, x)
        torch.testing.assert_close((found, mine), (wanted, his), rtol=1e-4, atol=1e-5)
    # Nor is anything changed beside them.
    for a, b in zip(mine, his, strict=True):
        torch.testing.assert_close(_memory(a), _memory(b), rtol=1e-4, atol=1e-5)


def _memory(x: Tensor) -> Tensor:
    return torch.empty(0, device=x.device).set_(x.untyped_storage())


def _copied(x: Tensor) -> Tensor:
    """A view like that of a copy of its memory."""
    return _memory(x).clone().as_strided(x.shape, x.stride(), x.storage_offset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [step, by_index, by_slice], ids=lambda f: f.__name__)
def test_a_step_stores_what_it_writes_and_no_more(
    function: Callable[..., Any], dtype: torch.dtype, made: list[Executable]
) -> None:
    """Two layers, one new position each: 8 elements of 64."""
    caches = [torch.randn(1, 2, 8, 4, dtype=dtype) for _ in range(2)]
    places = [x.data_ptr() for x in caches]
    at, x = torch.tensor([5]), torch.randn(1, 2, 1, 4, dtype=dtype)
    with torch.no_grad():
        torch.compile(function, backend="mlcomp", options={"fallback": "error"})(caches, at, x)
    (program,) = made
    kind = {torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    assert stores(program.lowering.stages["loop"], kind, 4) == 2 * math.prod(x.shape)
    assert len(program.code.stages["kernel"].outputs) == 1, "the caches are no results"
    assert places == [x.data_ptr() for x in caches]


def test_an_index_out_of_range_is_refused() -> None:
    cache, x = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
    ours = torch.compile(step, backend="mlcomp", options={"fallback": "error"})
    with torch.no_grad(), pytest.raises((IndexError, InvalidData, RuntimeError)):
        ours([cache], torch.tensor([8]), x)


def _diagonal_of_rows_that_overlap(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x.as_strided((3, 8), (1, 1))
    diagonal = rows.diagonal(1)
    diagonal.add_(1)
    rows[2].neg_()
    return rows, diagonal


def _columns_that_overlap(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    x.as_strided((4, 3), (1, 2)).select(1, 2).zero_()
    return (x,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("function", [_diagonal_of_rows_that_overlap, _columns_that_overlap])
def test_views_that_hold_elements_several_times_are_written_through(
    function: Callable[..., tuple[torch.Tensor, ...]], dtype: torch.dtype
) -> None:
    """torch hands over a scatter of the whole view, of which all copies of an element but one are the old ones."""
    seed = fresh_seed()
    x = (4 * torch.randn(30, generator=torch.Generator().manual_seed(seed))).to(dtype)
    ours, theirs = x.clone(), x.clone()
    made = torch.compile(function, backend="mlcomp", options={"fallback": "error"})(ours)
    assert all(map(torch.equal, (*made, ours), (*function(theirs), theirs))), f"seed {seed}"
    assert torch.equal(ours.signbit(), theirs.signbit()), f"seed {seed}"


@pytest.mark.parametrize("target", TARGETS)
def test_a_step_of_an_optimizer_replaces_what_it_reads(target: str, copied: list[list[torch.dtype]]) -> None:
    ours, theirs = ([torch.nn.Parameter(torch.linspace(-1, 1, n)) for n in (64, 7)] for _ in range(2))
    optimizers = [torch.optim.AdamW(p, 0.1, foreach=True) for p in (ours, theirs)]
    step = torch.compile(optimizers[0].step, backend="mlcomp", options={"fallback": "error", "target": target})
    for _ in range(3):
        for p in (*ours, *theirs):
            p.grad = p.detach().sin()
        copied.clear()
        step()
        assert not copied
        optimizers[1].step()
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(("target", "copies"), [("sm_90a", 0), ("cpu", 1)])
def test_statistics_of_a_batch_are_updated_in_place(target: str, copies: int, copied: list[list[torch.dtype]]) -> None:
    """On a CPU the floating ones are copied after the check of the labels: a call that fails changes no argument."""
    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.Linear(8 * 16, 5)
    )
    ours = copy_module.deepcopy(theirs)
    x, labels = torch.randn(2, 3, 6, 6), torch.tensor([1, 4])
    options: dict[str, Any] = {"fallback": "error", "target": target}
    loss = torch.compile(lambda x, labels: F.cross_entropy(ours(x), labels), backend="mlcomp", options=options)
    for _ in range(2):
        copied.clear()
        torch.autograd.backward(loss(x, labels))
        assert len(copied) == copies
        torch.autograd.backward(F.cross_entropy(theirs(x), labels))
        torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()), rtol=1e-4, atol=1e-5)
    if target == "cpu":
        before = copy_module.deepcopy(ours.state_dict())
        with pytest.raises((IndexError, InvalidData, RuntimeError)):
            loss(x, torch.tensor([1, 5]))
        torch.testing.assert_close(dict(ours.state_dict()), dict(before), rtol=0, atol=0)
