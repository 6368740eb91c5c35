"""Results of `torch.compile(f, backend="mlcomp")` as they lie in memory: strides, offsets, what shares memory."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from compiler import frontend
from compiler.backend import mlcomp
from compiler.execution import executable
from compiler.execution.views import with_views
from compiler.frontend.results import View
from compiler.ir.expr import dim
from compiler.runtime.launcher import Buffer
from compiler.tests.meaning import fresh_seed

Shape = tuple[int, ...]
Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    yield


def compiled(function: Function, **options: Any) -> Function:
    made: Function = torch.compile(function, backend=mlcomp, options={"fallback": False}, **options)
    return made


def placed(tensors: list[Tensor]) -> list[tuple[Any, ...]]:
    """Where each lies: its type and shape, strides along axes that are stepped along, offset, whose memory it has."""
    memories = [t.untyped_storage().data_ptr() for t in tensors]
    out = []
    for t in tensors:
        strides = tuple(s for n, s in zip(t.shape, t.stride(), strict=True) if n != 1) if t.numel() else ()
        out.append((t.dtype, t.shape, strides, t.storage_offset(), memories.index(t.untyped_storage().data_ptr())))
    return out


def agree(function: Function, *calls: tuple[Any, ...], **options: Any) -> None:
    """Compiled once, values and places of the results of each call, gradients too, are those of eager."""
    own = compiled(function, **options)
    for inputs in calls:
        leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        found: list[tuple[list[Tensor], list[Tensor]]] = []
        for f in (own, function):
            made = pytree.tree_leaves(f(*inputs))
            pushed = [y for y in made if y.requires_grad]
            grads = list(torch.autograd.grad([y.square().sum() for y in pushed], leaves)) if pushed else []
            found.append((made, grads))
        torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
        assert placed([*inputs, *found[0][0]]) == placed([*inputs, *found[1][0]])


VIEWS: dict[str, Function] = {
    "halves": lambda x: (x * 2).chunk(2),
    "rows": lambda x: (x * 2).unbind(0)[::2],
    "parts": lambda x: (x * 2).split_with_sizes([1, x.shape[0] - 1]),
    "after and whole": lambda x: (lambda y: (y[len(y) // 2 :], y))(x * 2),
    "whole and after": lambda x: (lambda y: (y, y[1:], y[1:].t()))(x * 2),
    "steps": lambda x: (x * 2)[::2, 1:4],
    "a column": lambda x: (x * 2)[:, 3],
    "a row": lambda x: (x * 2).select(0, 1),
    "turned": lambda x: (x * 2).t(),
    "turned twice": lambda x: (lambda y: (y.t(), y.t()))(x * 2),
    "joined axes": lambda x: (x * 2).view(-1, 2, 3).transpose(0, 1).flatten(1),
    "expanded": lambda x: x.sum(0).expand(3, 6),
    "expanded and not": lambda x: (lambda y: (y, y.expand(3, 6)))(x.sum(0)),
    "expanded number": lambda x: x.sum().expand(2, 3),
    "diagonal": lambda x: (x[:5, :5] * 2).diagonal(1),
    "windows": lambda x: (x * 2).unfold(1, 3, 2),
    "of a product": lambda x: (x @ x.t()).unsqueeze(0)[..., :2],
    "of a softmax": lambda x: x.softmax(-1)[1:].t(),
    "a detached one": lambda x: (lambda y: (y, y.detach()))(x * 2),
    "flipped": lambda x: x.flip(0)[1:],
    "of nothing": lambda x: (x * 2)[:0],
    "of two": lambda x: (lambda y, z: (y[1:], z[1:], y[:1], z.t()))(x * 2, x + 1),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("gradients", [False, True])
def test_views_of_what_is_computed(name: str, gradients: bool) -> None:
    agree(VIEWS[name], (torch.randn(5, 6, requires_grad=gradients),))


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["halves", "parts", "after and whole", "whole and after", "expanded", "steps"])
def test_views_at_several_sizes(name: str, gradients: bool) -> None:
    calls = [(torch.randn(n, 6, requires_grad=gradients),) for n in (5, 6, 9, 4)]
    agree(VIEWS[name], *calls)
    torch._dynamo.reset()
    agree(VIEWS[name], *calls, dynamic=True)


def test_views_of_inputs_at_several_sizes() -> None:
    agree(lambda x: (x.chunk(2), x.unbind(0)[1], x + 1), *((torch.randn(n, 6),) for n in (5, 6, 9)))
    torch._dynamo.reset()
    agree(lambda x: x.chunk(2), *((torch.randn(n, 6),) for n in (5, 6, 9)), dynamic=True)


def test_updates_are_seen_through_every_result() -> None:
    y, z = compiled(lambda x: (lambda y: (y, y[1:]))(x * 2))(torch.ones(3))
    y.zero_()
    assert z.tolist() == [0.0, 0.0]


def test_results_whose_elements_have_gaps_between_them() -> None:
    def f(x: Tensor) -> Tensor:
        return torch.empty_strided((2, 3), (8, 2)).copy_(x[:2, :3]) * 2

    agree(f, (torch.randn(5, 6),))
    agree(lambda x: (x * 2).as_strided((2, 2), (3, 2), 1), (torch.randn(5, 6),))


@pytest.mark.parametrize("gradients", [False, True])
def test_what_is_broadcast_may_be_a_part_of_what_varies(gradients: bool) -> None:
    calls = [(torch.randn(n, requires_grad=gradients),) for n in (3, 4, 7, 2)]
    agree(lambda x: (lambda a, b: a + b)(*x.chunk(2)) if x.shape[0] % 2 == 0 else x * 2, *calls, dynamic=True)
    torch._dynamo.reset()
    agree(lambda x: (lambda a, b: a * b)(*x.chunk(2)) if x.shape[0] < 5 else x[6:] - x, *calls, dynamic=True)
    torch._dynamo.reset()
    agree(lambda x: torch.where(x[1:] > 0, x[: x.shape[0] - 2], 1), (torch.randn(3),), dynamic=True)


WRITTEN: dict[str, Function] = {
    "rows": lambda x: (lambda y: (y, y[1:].mul_(3))[0].sum(0))(x * 2),
    "turned": lambda x: (lambda y: (y, y.mT.tanh_())[0])(x * 2),
    "a diagonal": lambda x: (lambda y: (y, y.diagonal().mul_(3))[0])(x * 2),
    "columns of a turned one": lambda x: (lambda y: (y[:, ::2].mul_(3), y))((x * 2).t().contiguous()),
    "a part of a row": lambda x: (lambda y: (y, y.view(-1)[3:9].mul_(2).unsqueeze(0)))(x * 2),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITTEN)
def test_gradients_pass_through_what_was_written_in_part(name: str, dynamic: bool) -> None:
    agree(WRITTEN[name], *((torch.randn(n, 6, requires_grad=True),) for n in (5, 9)), dynamic=dynamic)


@pytest.mark.parametrize("dynamic", [False, True])
def test_arguments_within_other_memory_are_written_to(dynamic: bool) -> None:
    def sliced() -> Tensor:
        return torch.randn(6, 11)[:, 2:-1]

    def f(x: Tensor, y: Tensor) -> Tensor:
        x[:, 1:3] = y[:, 1:3]
        x[0] = 0
        return x.slice_scatter(y[:2], 0, 1, 3)

    for _ in range(2):
        x, y = sliced(), sliced()
        wanted = x.clone()
        right = f(wanted, y)
        made = compiled(f, dynamic=dynamic)(x, y)
        assert torch.equal(x, wanted) and torch.equal(made, right)


def test_what_is_copied_from_an_argument_begins_its_own_memory() -> None:
    """Torch traces some copies as views: these have an offset into the memory of the argument."""
    x = torch.randn(5, 6)
    graph = make_fx(lambda x: torch.ops.aten._unsafe_view(x[3:], [12]), tracing_mode="fake")(x)
    (made,) = executable.build_captured(frontend.from_graph(graph)).launch(x)
    assert torch.equal(made, x[3:].reshape(12)) and made.storage_offset() == 0
    assert made.untyped_storage().nbytes() == 48


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_selected_element_begins_its_own_memory(dynamic: bool) -> None:
    """An element of sorted ones is contiguous where it lies, but eager returns no part of a larger tensor."""

    def function(x: Tensor, k: int) -> Any:
        return x.kthvalue(k, -1)

    compiled = torch.compile(function, backend="mlcomp", dynamic=dynamic, options={"fallback": False})
    for x in (torch.randn(5), torch.randn(4, 5)):
        for k in (1, 3):
            for made, expected in zip(compiled(x, k), function(x, k), strict=True):
                assert torch.equal(made, expected) and made.storage_offset() == 0


def test_numbers_among_the_results() -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        return (x * 2)[1:].shape[0], x + 1, x.shape[1] // 2

    own = compiled(f, dynamic=True)
    for n in (5, 6):
        x = torch.randn(n, 7)
        made = own(x)
        assert made[::2] == (n - 1, 3)
        torch.testing.assert_close(made[1], x + 1)


def test_a_program_whose_outputs_lie_otherwise() -> None:
    """What kernels give is brought to the strides that torch promised."""
    made = [Buffer("y", "f32", (2, 3), (3, 1)), Buffer("z", "f32", (3, 2), (2, 1))]
    views = [_view(0, (8, 2), (2, 3), (8, 2), 0), _view(0, (8, 2), (2,), (8,), 2), _view(1, (0, 1), (3, 2), (0, 1), 0)]
    y, z = torch.randn(2, 3), torch.randn(1, 2).expand(3, 2)
    first, second, third = with_views(lambda: (y, z.contiguous()), made, views, {})()
    assert (first.stride(), second.storage_offset(), third.stride()) == ((8, 2), 2, (0, 1))
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert torch.equal(first, y) and torch.equal(second, y[:, 1]) and torch.equal(third, z)


def _view(source: int, memory: Shape, shape: Shape, strides: Shape, offset: int) -> View:
    at, wide, steps = (tuple(map(dim, x)) for x in (memory, shape, strides))
    return View(source, at, dim(0), wide, steps, dim(offset))


def attention(query: Tensor, key: Tensor, places: Tensor, relative: Tensor) -> Tensor:
    """Scores by content and by distance, which are gathered at indices that all heads share."""
    batch, heads, length, size = query.shape
    content = (query @ key.transpose(-1, -2)).view(batch * heads, length, length)
    distance = query.reshape(-1, length, size) @ places.t().expand(batch * heads, size, 2 * length)
    index = (relative + length).clamp(0, 2 * length - 1).expand(batch * heads, length, length)
    return (content + distance.gather(-1, index)).softmax(-1)


def test_what_backward_keeps_is_where_it_is_in_eager() -> None:
    agree(lambda x: F.normalize(x), (torch.randn(4, 6, requires_grad=True),))
    query, key = (torch.randn(2, 3, 4, 8, requires_grad=True) for _ in range(2))
    relative = torch.arange(4)[:, None] - torch.arange(4)
    agree(attention, (query, key, torch.randn(8, 8, requires_grad=True), relative))


# Arguments ------------------------------------------------------------------------------------------------------------


def test_arguments_that_do_not_lie_as_torch_says() -> None:
    """A lazily negated view says that it has the strides of complex numbers; its elements are somewhere else."""
    z = torch.randn(4, 8, dtype=torch.complex64)
    own = torch.compile(lambda x: x * 2, backend=mlcomp)
    with pytest.warns(UserWarning, match=r"recompiles a graph .*argument 0.*expected .* strides \(16, 2\)"):
        made = own(z.conj().imag)
    torch.testing.assert_close(made, z.conj().imag * 2)


def test_arguments_that_no_kernel_can_read_go_through_eager() -> None:
    x = torch.randn(4, 5)
    own = torch.compile(torch.sigmoid, backend=mlcomp)
    with pytest.warns(UserWarning, match=r"in eager: .*argument 0.*layout torch\._mkldnn"):
        made = own(x.to_mkldnn())
    torch.testing.assert_close(made.to_dense(), x.sigmoid(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("beta", "alpha"), [(0.6, 1), (2.5, 1.7), (-1.9, 0.3)])
def test_factors_of_whole_numbers_are_whole(beta: float, alpha: float) -> None:
    a, b, c = (torch.randint(-5, 9, shape) for shape in ((3,), (3, 4), (4,)))
    agree(lambda a, b, c: torch.addmv(a, b, c, beta=beta, alpha=alpha), (a, b, c))
    agree(lambda a, b: torch.addmm(a, b, b.t(), beta=beta, alpha=alpha), (a, b))


def test_names_within_a_kernel_are_not_those_of_what_it_reads() -> None:
    """Backward has an argument `sub_1` here, and a kernel that takes a value called `sub` again."""

    def f(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(F.rms_norm(x.var(2), (8,), weight).triu(2), target)
        return torch.add(loss, loss, alpha=2), loss

    x, weight = torch.randn(8, 8, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    target = torch.randint(0, 8, (8,))
    found = []
    for run in (f, torch.compile(f, backend=mlcomp, options={"fallback": False})):
        found.append(torch.autograd.grad(torch.stack(run(x, weight, target)).sum(), [x, weight]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_gradients_of_results_that_have_elements_at_one_place() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        twice = x + x
        return twice.unfold(0, 4, 1), (x * 3).expand(2, -1)

    x = torch.randn(9, requires_grad=True)
    pushed = [torch.randn(6, 4), torch.randn(2, 9)]
    found = [torch.autograd.grad(f(x), x, pushed) for f in (compiled(function), function)]
    torch.testing.assert_close(*found)


COUNTED: dict[str, Callable[[Tensor], Tensor]] = {
    "memory": lambda x: torch.as_strided(x, (2, 2), (2, 1), 0) * 2 + 1,
    "part": lambda x: torch.as_strided(x, (2, 2), (2, 1), 4) * 2 + 1,
    "of a view": lambda x: torch.as_strided(x[2:], (2, 2), (2, 1), 2) * 2 + 1,
    "size": lambda x: torch.as_strided(x, (2, x.shape[0] // 4), (2, 1), 0) * 2 + 1,
    "own": lambda x: torch.as_strided(x, (2, 2), (2, 1)) * 2 + 1,
    "put": lambda x: torch.as_strided_scatter(x * 2, torch.ones(2, 2), (2, 2), (2, 1), 1),
    "copied": lambda x: torch.as_strided_copy(x, (2, 2), (2, 1), 5),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COUNTED)
def test_offsets_count_from_the_beginning_of_a_memory(name: str) -> None:
    """Torch does not check where in its memory an argument begins."""
    memory = torch.arange(40.0)
    for run in range(2):  # the second as by a process that finds what the first has kept
        torch._dynamo.reset()
        own = torch.compile(COUNTED[name], backend="mlcomp")
        for first in ((0, 4, 8), (4, 0, 8))[run]:
            for x in (memory[first : first + 8], memory[first : first + 12]):
                torch.testing.assert_close(own(x), COUNTED[name](x))


def test_offsets_within_an_input_are_compiled() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        beside = torch.as_strided(x[1:], (2, 2), (1, 3), 4) * 2
        return (
            beside,
            torch.as_strided_copy(x, (2, 3), (2, 1), 1),
            torch.as_strided_scatter(x, beside, (2, 2), (1, 2), 3),
        )

    x = torch.randn(4, 3, requires_grad=True)
    found = [
        (made := f(x), torch.autograd.grad([y.sin().sum() for y in made], x))
        for f in (torch.compile(function, backend="mlcomp", options={"fallback": "error"}), function)
    ]
    torch.testing.assert_close(*found)


COMPLEX: dict[str, Callable[[Tensor], Any]] = {
    "rows": lambda x: (lambda y: (y[0], y, y * 2))(torch.fft.rfft(x + 1)),
    "parts": lambda x: (lambda y: (y, y.mT, y.real, torch.view_as_real(y)))(torch.polar(x, x + 1) + 1),
    "pairs": lambda x: (lambda y: (y, torch.view_as_complex(y.view(-1, 2))))(x.sin() * 2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COMPLEX)
def test_views_of_complex_results(name: str) -> None:
    """What is written to one of the results is seen through the others."""
    torch._dynamo.reset()
    x, found = torch.randn(4, 6, generator=torch.Generator().manual_seed(fresh_seed())), []
    for f in (torch.compile(COMPLEX[name], backend="mlcomp"), COMPLEX[name]):
        made = f(x)
        made[0].mul_(3)
        found.append(made)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert placed(list(found[0])) == placed(list(found[1]))


def test_bilinear_forms_of_integers_are_of_their_type() -> None:
    x, y, w = (torch.randint(5, shape, dtype=torch.int32) for shape in ((4, 3), (4, 2), (6, 3, 2)))
    made = torch.compile(F.bilinear, backend="mlcomp")(x, y, w)
    assert made.dtype is torch.int32 and torch.equal(made, F.bilinear(x, y, w))
