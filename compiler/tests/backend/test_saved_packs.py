"""Saved tensors that a forward program hands over to its backward program in packs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.utils.checkpoint import checkpoint

from compiler.backend import saved_packs
from compiler.execution.executable import Executable
from compiler.execution.views import packed_outputs
from compiler.frontend.results import View
from compiler.ir.expr import Const, const, static
from compiler.runtime.launcher import Buffer
from compiler.runtime.packs import Pack
from compiler.tests.meaning import fresh_seed

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def seed() -> int:
    seed = fresh_seed()
    torch.manual_seed(seed)
    return seed


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of tensors in each pack that is made by copying."""
    found: list[int] = []
    copy = saved_packs.packed

    def packed(tensors: Sequence[Tensor], *layout: Any) -> Tensor:
        found.append(len(tensors))
        return copy(tensors, *layout)

    monkeypatch.setattr(saved_packs, "packed", packed)
    yield found


def packed_shapes(made: Executable) -> list[tuple[int, ...]]:
    """The shapes of the results in packs."""
    packed = {k for pack in made.captured.packed_results for k, _ in pack.pieces}
    results = [v for k, v in enumerate(made.captured.views or ()) if k in packed and isinstance(v, View)]
    return sorted(tuple(map(static, v.shape)) for v in results)


def run(f: Any, *inputs: Tensor, **options: Any) -> list[Tensor]:
    """The results of a compiled function, and the gradients of their sums by those inputs that have any."""
    compiled: Any = torch.compile(f, backend="mlcomp", options={"fallback": "error", **options})
    return gradients(compiled, *inputs)


def gradients(f: Any, *inputs: Tensor) -> list[Tensor]:
    results = f(*inputs)
    wanted = [x for x in inputs if x.requires_grad]
    return [*results, *torch.autograd.grad([x.sum() for x in results], wanted)]


def equal(ours: Sequence[Tensor], eager: Sequence[Tensor], seed: int) -> None:
    for a, b in zip(ours, eager, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, msg=lambda text: f"seed {seed}: {text}")


def layers(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
    return (((x @ w).sin() @ v).cos().exp(),)


def operands() -> tuple[Tensor, Tensor, Tensor]:
    x, w, v = ((torch.randn(*s) / 2).requires_grad_() for s in ((3, 4), (4, 5), (5, 6)))
    return x, w, v


@pytest.mark.parametrize("target", [None, "sm_90a"])
def test_saved_tensors_are_one(made: list[Executable], copies: list[int], target: str | None, seed: int) -> None:
    inputs, saved = operands(), list[tuple[int, ...]]()

    def note(x: Tensor) -> Tensor:
        saved.append(tuple(x.shape))
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        ours = run(layers, *inputs, **({"target": target} if target else {}))
    equal(ours, gradients(layers, *inputs), seed)
    forward, backward = made
    (pack,) = forward.captured.packed_results
    assert (pack.numel,) in saved and not copies and len(pack.pieces) > 1
    assert [p.numel for p in backward.captured.packed_inputs] == [pack.numel]


def attention(which: Sequence[int]) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor]]:
    """An attention whose queries, keys and values are those of three parts of one product."""

    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
        parts = [part.reshape(2, 3, 2, -1).transpose(1, 2) for part in (x @ w).chunk(3, 2)]
        queries, keys, values = (parts[n] for n in which)
        y = nn.functional.scaled_dot_product_attention(queries, keys, values)
        return ((y.transpose(1, 2).flatten(2) @ v).cos().exp(),)

    return f


def attention_operands(width: int) -> list[Tensor]:
    return [(torch.randn(*s) / 2).requires_grad_() for s in ((2, 3, 4), (4, 6 * width), (2 * width, 6))]


@pytest.mark.parametrize("target", [None, "sm_90a"])
@pytest.mark.parametrize("which", [(0, 1, 2), (1, 2, 2), (2, 2, 2)])
def test_saved_views_share_memory_in_a_pack(
    made: list[Executable], copies: list[int], which: tuple[int, ...], target: str | None, seed: int
) -> None:
    inputs, saved = attention_operands(4), list[Tensor]()

    def note(x: Tensor) -> Tensor:
        saved.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        ours = run(attention(which), *inputs, **({"target": target} if target else {}))
    equal(ours, gradients(attention(which), *inputs), seed)
    assert not copies and packed_shapes(made[0]).count((2, 2, 3, 4)) == len({*which}) + 1  # and the result
    assert all(x.dim() < 4 for x in saved)


def test_saved_views_that_a_gpu_cannot_read_at_once_are_in_no_pack(made: list[Executable], seed: int) -> None:
    inputs = attention_operands(3)  # keys begin 24 bytes after queries
    equal(run(attention((0, 1, 2)), *inputs), gradients(attention((0, 1, 2)), *inputs), seed)
    assert packed_shapes(made[0]).count((2, 2, 3, 3)) == 1  # the result


def view(source: int, offset: int, *shape: int, row: int = 8) -> View:
    """A result of this shape, with rows of `row` elements, in a buffer of 3 rows of 8."""
    return View(source, numbers(8, 1), numbers(0)[0], numbers(*shape), numbers(row, 1), numbers(offset)[0])


def numbers(*values: int) -> tuple[Const, ...]:
    return tuple(map(const, values))


@pytest.mark.parametrize(
    ("results", "pieces", "outputs"),
    [
        ((view(0, 0, 3, 4), view(0, 4, 3, 4)), {0: 32, 1: 36}, ((0, 32),)),
        ((view(0, 4, 3, 4), view(1, 0, 3, 8)), {0: 36, 1: 0}, ((0, 32), (1, 0))),
        ((view(0, 0, 3, 4), view(0, 4, 3, 4)), {0: 32}, ()),  # the other result is outside
        ((view(0, 0, 3, 4), view(0, 4, 3, 4)), {0: 0, 1: 32}, ()),  # they share no memory in the pack
        ((view(0, 4, 3, 4),), {0: 0}, ()),  # the memory would begin before the pack
        ((view(0, 0, 3, 4),), {0: 48}, ()),  # ... and end after it
        ((view(0, 0, 3, 4), view(1, 0, 3, 8)), {0: 0, 1: 16}, ((1, 16),)),  # ... and hold another result
    ],
)
def test_outputs_are_in_a_pack_if_their_memory_fits(
    results: tuple[View, ...], pieces: dict[int, int], outputs: tuple[tuple[int, int], ...]
) -> None:
    buffers = [Buffer(str(k), "f32", (3, 8), (8, 1)) for k in range(2)]
    packs, within = packed_outputs([Pack(64, tuple(pieces.items()))], buffers, results, {})
    assert packs == ((Pack(64, outputs),) if outputs else ())
    assert within == {k for k, x in enumerate(results) if x.source in dict(outputs)}


def test_what_is_returned_is_in_no_pack(made: list[Executable], seed: int) -> None:
    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        returned = (x @ w).exp()
        return returned, ((returned @ v).sin() @ v.t()).cos()

    inputs = operands()
    equal(run(f, *inputs), gradients(f, *inputs), seed)
    assert packed_shapes(made[0]) == [(3, 5), (3, 6), (3, 6)]  # operands of sin and cos; `returned` is saved too
    assert not any(x.captured.packed_results for x in made[1:])


def test_a_value_with_a_returned_view_is_in_no_pack(made: list[Executable], seed: int) -> None:
    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        y = (x @ w).exp()
        return y[1:], ((y @ v).sin() @ v.t()).cos()

    inputs = operands()
    equal(run(f, *inputs), gradients(f, *inputs), seed)
    assert packed_shapes(made[0]) == [(3, 5), (3, 6), (3, 6)]


def test_nothing_is_packed_if_an_input_is_read_from_the_beginning_of_its_memory(made: list[Executable]) -> None:
    x, w = torch.randn(3, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)

    def f(x: Tensor, w: Tensor) -> tuple[Tensor]:
        y = x @ w
        z = checkpoint(lambda y: y.as_strided((3, 4), (1, 3), 0).cos() * y, y, use_reentrant=False)
        return ((z @ w).sin() @ w,)

    run(f, x, w)
    assert not made[0].captured.packed_results


@pytest.mark.parametrize("bound", [64 << 10, 40])
def test_large_tensors_are_saved_alone(
    made: list[Executable], bound: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_packs, "MOST_BYTES_ON_CPU", bound)
    inputs = operands()
    equal(run(layers, *inputs), gradients(layers, *inputs), seed)
    assert bool(made[0].captured.packed_results) == (bound > 40)


MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "a copy": torch.clone,
    "amid its memory": lambda x: torch.cat([x.new_zeros(3), x])[3:],
    "with gaps": lambda x: torch.stack([x, x], 1)[:, 0],
}


@pytest.mark.parametrize("move", MOVES)
def test_hooks_may_move_packs(move: str, seed: int) -> None:
    inputs = operands()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: MOVES[move](x) if x.dim() == 1 else x):
        ours = run(layers, *inputs)
    equal(ours, gradients(layers, *inputs), seed)


@pytest.mark.filterwarnings("ignore::compiler.backend.SpecialisationWarning")
def test_programs_for_other_strides_have_packs(made: list[Executable], seed: int) -> None:
    """The backward program refuses the weights, which a hook transposes in memory."""
    inputs = operands()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x.t().contiguous().t() if x.dim() == 2 else x):
        ours = run(layers, *inputs)
    equal(ours, gradients(layers, *inputs), seed)
    assert len(made) == 3 and all(x.captured.packed_inputs for x in made[1:])


@pytest.mark.parametrize("made_in_pack", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_what_a_program_did_not_put_into_a_pack_is_copied(made_in_pack: tuple[int, ...]) -> None:
    values = [torch.randn(3), torch.randn(2, 2).t(), torch.randn(4)]
    pieces: list[saved_packs.Piece] = [((3,), (1,), 0), ((2, 2), (1, 2), 8), ((4,), (1,), 16)]
    parts: list[Tensor | None] = [*values]
    whole = torch.zeros(24)
    for k in made_in_pack:
        whole.as_strided(*pieces[k]).copy_(values[k])
        parts[k] = whole if k == made_in_pack[0] else None
    made = saved_packs._whole(parts, pieces, 24)
    assert (made is whole) == bool(made_in_pack)
    assert all(torch.equal(made.as_strided(*piece), x) for piece, x in zip(pieces, values, strict=True))


def in_parts(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
    y = (x @ w).sin()
    positive = (y.detach() > 0).view(torch.uint8)  # refused: a program does not read bits as another type
    return (((y @ v).cos() @ v.t()).exp() * positive,)


@pytest.mark.filterwarnings("ignore::compiler.backend.FallbackWarning")
def test_graphs_in_parts_have_no_packs(made: list[Executable], copies: list[int], seed: int) -> None:
    inputs, compiled = operands(), torch.compile(in_parts, backend="mlcomp")
    equal(gradients(compiled, *inputs), gradients(in_parts, *inputs), seed)
    assert made and not copies and not any(x.captured.packed_inputs for x in made)


@pytest.mark.filterwarnings("ignore::compiler.backend.FallbackWarning")
def test_what_runs_in_parts_all_the_same_is_copied(
    copies: list[int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_packs, "_runs_in_parts", lambda _: False)
    inputs, compiled = operands(), torch.compile(in_parts, backend="mlcomp")
    equal(gradients(compiled, *inputs), gradients(in_parts, *inputs), seed)
    assert copies


def test_batches_of_tangents_run_in_eager(seed: int) -> None:
    inputs, tangents = operands(), torch.randn(7, 3, 6)

    def jacobian(f: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(f(*inputs)[0], inputs, tangents, is_grads_batched=True)

    compiled: Any = torch.compile(layers, backend="mlcomp")
    equal(jacobian(compiled), jacobian(layers), seed)


def test_statistics_are_written_and_gradients_accumulate(made: list[Executable], seed: int) -> None:
    parts = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.Softplus()]
    model = nn.Sequential(*parts)
    start, x = {k: v.clone() for k, v in model.state_dict().items()}, torch.randn(2, 3, 8, 8)
    values: list[list[Tensor]] = []
    for f in (model, torch.compile(model, backend="mlcomp", options={"fallback": "error"})):
        model.load_state_dict(start)
        model.zero_grad()
        for _ in range(2):
            loss = f(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        values.append([p.grad for p in model.parameters() if p.grad is not None] + [*model.buffers()])
        values[-1] = [t.clone() for t in values[-1]]
    for ours, eager in zip(values[1], values[0], strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-3, atol=1e-2, msg=lambda text: f"seed {seed}: {text}")
    assert made[0].captured.packed_results


class Indexed(torch.autograd.Function):
    """cos, with a gradient that reads rows of a saved tensor at saved places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(x @ x.t(), x @ x.flip(0).t(), places)
        return x.cos()

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor, None]:
        first, second, places = ctx.saved_tensors
        return first[places] @ tangent + second @ tangent, None


@pytest.mark.parametrize("target", [None, "sm_90a"])
def test_invalid_data_beside_a_pack_is_told(made: list[Executable], target: str | None) -> None:
    x, w = torch.randn(4, 5, requires_grad=True), torch.randn(5, 5, requires_grad=True)
    options = {"target": target} if target else {}

    def f(x: Tensor, w: Tensor, places: Tensor) -> Any:
        return Indexed.apply(((x @ w).sin() @ w).cos(), places)  # type: ignore[no-untyped-call]

    compiled: Any = torch.compile(f, backend="mlcomp", options={"fallback": "error", **options})
    result = compiled(x, w, torch.tensor([1, 0, 3, 99]))
    with pytest.raises(IndexError, match="index 99 is out of range"):
        result.sum().backward()
    assert made[-1].captured.packed_inputs


class Saves(torch.autograd.Function):
    """cos, with a gradient that is a saved value, whatever the tangent."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x @ torch.eye(4))
        return x.cos()

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> Tensor:
        (saved,) = ctx.saved_tensors
        assert isinstance(saved, Tensor)
        return saved


def test_a_gradient_may_be_a_saved_tensor(seed: int) -> None:
    x, w, v = operands()

    def f(x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor]:
        y: Tensor = Saves.apply(x)  # type: ignore[no-untyped-call]
        return (((y @ w).sin() @ v).cos(),)

    equal(run(f, x, w, v), gradients(f, x, w, v), seed)


def test_views_of_pieces_are_no_results_of_a_program() -> None:
    """Such a graph keeps its pack as an input, of which eager makes the view."""
    graph = Graph()
    whole, other = graph.placeholder("whole"), graph.placeholder("other")
    piece = graph.call_function(torch.ops.aten.as_strided.default, (whole, (2, 3), (3, 1), 4))
    turned = graph.call_function(torch.ops.aten.t.default, (piece,))
    made = graph.call_function(torch.ops.aten.mul.Tensor, (piece, other))
    whole.meta[saved_packs.PACKED] = (((2, 3), (3, 1), 4),)
    whole.meta["val"], other.meta["val"] = torch.empty(12, device="meta"), torch.empty(2, 3, device="meta")
    for results, opens in (((made,), True), ((made, turned), False)):
        copied, copies = Graph(), dict[Node, Node]()
        copied.graph_copy(graph, copies)
        copied.output(tuple(copies[n] for n in results))
        module = GraphModule({}, copied)
        opened, origins, packs = saved_packs.opened_inputs(module)
        assert (opened is not module) == opens and origins == (0, 1)
        assert packs == ((Pack(12, ((0, 4),)),) if opens else ())
