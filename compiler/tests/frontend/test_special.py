"""Decompositions of our own into torch's ops, against eager, on the ranges where they change."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from compiler.frontend import decompositions, special

FINITE = [0.0, -0.0, 0.5, 1.0, -1.0, 1 - 2**-53, 2.0, 10.0, 20.0, -20.5, 88.0, 1e38, -3e38]
EDGES = [*FINITE, math.inf, -math.inf, math.nan]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_special_functions(dtype: torch.dtype) -> None:
    every = torch.tensor(
        [*torch.linspace(-25.03, 25, 1001), *torch.linspace(-0.999, 0.999, 201), *EDGES], dtype=torch.float64
    )
    x = every.to(dtype) if dtype.is_floating_point else torch.arange(1, 30)
    for op, how in special.special_decompositions().items():
        print(op)
        fewer = "modified" in str(op) or "ndtri" in str(op)  # for i0 and i1 by other names
        if fewer and dtype is torch.bfloat16:  # which eager has not
            continue
        orders = [0, 1] if op is torch.ops.aten.polygamma.default else [None]
        for order in orders:
            args = (x,) if order is None else (order, x[x > 0])
            want, got = op(*args), how(*args)
            near = {torch.float32: 2e-6, torch.float64: 1e-12, torch.bfloat16: 1e-2}[got.dtype]
            near = max(near, 1e-8) if order else near  # eager's trigamma has few terms
            if op is torch.ops.aten.digamma.default:  # beside its poles and zeros both are off
                inside = x > 0
                want, got = want[inside], got[inside]
            torch.testing.assert_close(got, want, rtol=near, atol=near, equal_nan=True)
            assert got.dtype == want.dtype


# Lower and upper function to 17 digits, computed with 40.
GAMMA = {
    (0.5, 1.1): (0.861989262431340456, 0.138010737568659544), (1e-3, 1e-3): (0.99368764670886029, 0.00631235329113971),
    (25.57, 18.01): (0.0540486676177908412, 0.945951332382209159),
    (3.0, 0.2): (0.0011484812448621326, 0.998851518755137867),
    (30.0, 120.0): (1.0, 2.25446219640636719e-23), (1e4, 10100.0): (0.841348750447179622, 0.158651249552820378),
}  # fmt: skip


def test_incomplete_gamma_functions() -> None:
    lower, upper = (decompositions()[getattr(torch.ops.aten, name).default] for name in ("igamma", "igammac"))
    points = torch.tensor(list(GAMMA), dtype=torch.float64).T
    for n, how in enumerate((lower, upper)):
        want = torch.tensor([found[n] for found in GAMMA.values()], dtype=torch.float64)
        torch.testing.assert_close(how(*points), want, rtol=1e-13, atol=0)
    edges = torch.tensor([0.0, -0.0, 0.5, 30.0, 1e30, math.inf, -math.inf, math.nan, -1.0])
    every = torch.cartesian_prod(edges, edges).T
    for op, how in ((torch.igamma, lower), (torch.igammac, upper)):
        torch.testing.assert_close(how(*every), op(*every), rtol=1e-4, atol=1e-30, equal_nan=True)
    whole = torch.ones(3, dtype=torch.int64)
    assert lower(whole, whole) is NotImplemented


def test_places_among_edges_and_counts() -> None:
    edges = torch.tensor([-1.0, 0.0, 0.0, 2.5])
    x = torch.tensor([[-2.0, -1.0, 0.0], [1.0, 2.5, math.nan]])
    table = decompositions()
    for right in (False, True):
        want = torch.searchsorted(edges, x, right=right)
        assert torch.equal(table[torch.ops.aten.searchsorted.Tensor](edges, x, right=right), want)
        assert torch.equal(table[torch.ops.aten.bucketize.Tensor](x, edges, right=right), want)
    rows, places = torch.rand(2, 5), torch.rand(2, 3)
    order = rows.argsort(-1)
    found = table[torch.ops.aten.searchsorted.Tensor](rows, places, sorter=order, side="right", out_int32=True)
    assert torch.equal(found, torch.searchsorted(rows, places, sorter=order, side="right", out_int32=True))
    for given in ((x, 4), (x, 4, -1, 2), (torch.full((3,), 2.0), 3), (torch.rand(50), 7, 0.2, 0.9)):
        if given[0].isfinite().all() or len(given) > 2:
            assert torch.equal(table[torch.ops.aten.histc.default](*given), torch.histc(*given)), given


@pytest.mark.parametrize("x", [torch.rand(3, 4, 5).mT, torch.rand(4, 5, 3, 2)[..., 0].movedim(0, 2), torch.rand(1, 9)])
def test_results_lie_as_those_of_the_op(x: torch.Tensor) -> None:
    aten, zeros = torch.ops.aten, torch.zeros(x.shape[0], dtype=torch.int64)
    called: list[tuple[Any, tuple[Any, ...]]] = [
        *((aten.logcumsumexp.default, (x, axis)) for axis in range(x.dim())),
        *((aten.kthvalue.default, (x, x.shape[axis], axis, keep)) for axis in range(x.dim()) for keep in (False, True)),
        *((aten.mode.default, (x, axis)) for axis in range(x.dim())), (aten.nanmedian.dim, (x, 0)),
        (aten.bucketize.Tensor, (x, torch.rand(3).sort().values)), (aten.frexp.Tensor, (x,)),
        (aten.nextafter.default, (x, x * 2)), (aten.angle.default, (x,)),
        (aten.index_reduce.default, (x, 0, zeros, x, "amax")),
    ]  # fmt: skip
    for op, args in called:
        made, want = (pytree.tree_leaves(how(*args)) for how in (decompositions()[op], op))
        print(op, args[1:])
        lies = [[(strides(y), y.storage_offset()) for y in found] for found in (made, want)]
        assert lies[0] == lies[1]


def strides(x: torch.Tensor) -> list[int]:
    """The steps along the axes that have any."""
    return [step for n, step in zip(x.shape, x.stride(), strict=True) if n > 1]


def test_bags_of_embeddings(seed: int) -> None:
    torch.manual_seed(seed)
    op = torch.ops.aten._embedding_bag_forward_only.default
    weight, indices, scales = torch.randn(6, 3), torch.tensor([1, 2, 2, 5, 0, 2]), torch.randn(6)
    for starts, mode, last, padding in itertools.product(([0, 2, 2], [0, 0, 6]), (0, 1, 2), (False, True), (-1, 2)):
        given = (weight, indices, torch.tensor(starts), False, mode, False, None if mode else scales)
        if not last or starts[-1] == 6:
            found = decompositions()[op](*given, last, padding)[0]
            torch.testing.assert_close(found, op(*given, last, padding)[0], msg=str((starts, mode, last, padding)))
    for wrong in ([1, 2], [0, 7]):
        for run in (op, decompositions()[op]):
            with pytest.raises(RuntimeError, match=r"offsets"):
                run(weight, indices, torch.tensor(wrong))


def test_counts_of_16_bits_are_those_of_f32() -> None:
    x = torch.rand(3000).bfloat16()  # eager counts in bf16, up to 256
    found = decompositions()[torch.ops.aten.histc.default](x, 3)
    assert torch.equal(found, torch.histc(x.float(), 3).bfloat16())


@pytest.mark.parametrize("bins", [7, 10, 30])
def test_elements_on_edges_are_in_the_bins_that_eager_says(bins: int) -> None:
    low, high = -0.1, 0.6
    x = torch.tensor([round(low + (high - low) * k / bins, 4) for k in range(bins + 1)])

    def counts(x: torch.Tensor) -> torch.Tensor:
        return torch.histc(x, bins, low, high)

    compiled = torch.compile(counts, backend="mlcomp", dynamic=False, options={"fallback": False})
    assert torch.equal(compiled(x), counts(x))


def test_other_definitions() -> None:
    table, aten = decompositions(), torch.ops.aten
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(table[aten.angle.default](x), x.angle())
    weight = torch.randn(5, 3, 3)
    torch.testing.assert_close(
        table[aten._trilinear.default](x, weight, y, [1, 3], [0], [1, 2], [2, 3]),
        aten._trilinear(x, weight, y, [1, 3], [0], [1, 2], [2, 3]),
    )
    strided = table[aten.as_strided_copy.default](x, [2, 2], [1, 2])
    assert strided.is_contiguous() and torch.equal(strided, aten.as_strided_copy(x, [2, 2], [1, 2]))


def test_selections_by_order() -> None:
    table, aten = decompositions(), torch.ops.aten
    x = torch.randn(4, 7).masked_fill(torch.rand(4, 7) < 0.3, math.nan)
    x[0] = math.nan
    for given in ((x, 1), (x, 0, True), (torch.tensor(2.0), 0)):
        want, got = aten.nanmedian.dim(*given), table[aten.nanmedian.dim](*given)
        torch.testing.assert_close(got[0], want[0], equal_nan=True)
    torch.testing.assert_close(table[aten.nanmedian.default](x), x.nanmedian())
    y = torch.randn(3, 5)
    torch.testing.assert_close(tuple(table[aten.kthvalue.default](y, 2, 0, True)), tuple(y.kthvalue(2, 0, True)))
    few = torch.tensor([[math.nan, 1.0, 1.0, math.nan], [2.0, math.nan, 3.0, 1.0], [2.0, 4.0, 2.0, 4.0]])
    for given in ((few, 1, True), (torch.randint(0, 3, (4, 5)), 0)):
        torch.testing.assert_close(tuple(table[aten.mode.default](*given)), tuple(torch.mode(*given)), equal_nan=True)
    for size in (0, 3, 20):
        holes = torch.randint(0, 2, (2, 5))
        found = table[aten.nonzero_static.default](holes, size=size, fill_value=-3)
        wanted = torch.nonzero_static(holes, size=size, fill_value=-3)
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, check_stride=True)
    y[1, 2], y[2, 0] = -math.inf, 90.0
    rows = torch.randn(3, 70) * 40
    rows[:2] = rows[:2].masked_fill(torch.rand(2, 70) < 0.1, -math.inf)
    rows[1, 50:] = rows[1, 50:].masked_fill(torch.rand(20) < 0.1, math.inf)
    for sums_of, dim in itertools.product(
        (y, rows, rows[:, :1], rows.bfloat16(), torch.full((2, 3), -math.inf)), (0, 1)
    ):
        torch.testing.assert_close(table[aten.logcumsumexp.default](sums_of, dim), sums_of.logcumsumexp(dim))


def test_simulated_quantization() -> None:
    table, aten = decompositions(), torch.ops.aten
    x = torch.randn(4, 3, 5) * 40
    x[0, 0] = torch.tensor([math.nan, math.inf, -math.inf, 1e30, 0.25])
    zeros = torch.tensor([1, 0, -4], dtype=torch.int32)
    for y, on in itertools.product((x, x.half()), (0, 1)):
        scale, zero, switch = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32), torch.tensor([on])
        for op, given in (
            (aten.fake_quantize_per_tensor_affine_cachemask.default, (y, 2 / 3, -7, -128, 127)),
            (aten.fake_quantize_per_channel_affine_cachemask.default, (y, torch.rand(3) + 0.1, zeros, 1, -8, 7)),
            (
                aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default,
                (y, scale, zero, switch, 0, 15),
            ),
        ):
            found, wanted = table[op](*given), op(*given)
            torch.testing.assert_close(tuple(found), tuple(wanted), rtol=0, atol=0, equal_nan=True, msg=str(op))


def test_places_of_triangles() -> None:
    table, aten = decompositions(), torch.ops.aten
    for rows, columns, offset in ((4, 4, 0), (5, 3, -1), (3, 6, 2), (0, 3, 0), (4, 4, -9)):
        for op in (aten.tril_indices.default, aten.triu_indices.default):
            assert torch.equal(table[op](rows, columns, offset), op(rows, columns, offset))


def test_distances_rows_and_samples() -> None:
    table, aten = decompositions(), torch.ops.aten
    x = torch.randn(5, 3)
    torch.testing.assert_close(table[aten._pdist_forward.default](x, 1.5), torch.nn.functional.pdist(x, 1.5))
    i = torch.tensor([[0, 3], [3, 1]])
    torch.testing.assert_close(
        table[aten.embedding_renorm.default](x, i, 0.5, 2.0), aten.embedding_renorm(x, i, 0.5, 2.0)
    )
    volume, grid = torch.randn(2, 2, 3, 4, 5), torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
    for given in [(n, padding, corners) for n in (0, 1) for padding in (0, 1, 2) for corners in (False, True)]:
        want = aten.grid_sampler_3d(volume, grid, *given)
        torch.testing.assert_close(table[aten.grid_sampler_3d.default](volume, grid, *given), want, msg=str(given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_and_neighbours_of_floating_numbers(dtype: torch.dtype) -> None:
    table, aten = decompositions(), torch.ops.aten
    powers = 2.0 ** torch.arange(-149, 128)
    x = torch.cat([torch.randn(400) * torch.logspace(-40, 35, 400), powers, -powers, torch.tensor(EDGES)]).to(dtype)
    mantissa, exponent = table[aten.frexp.Tensor](x)
    want = torch.frexp(x)
    torch.testing.assert_close(mantissa, want[0], rtol=0, atol=0, equal_nan=True)
    assert torch.equal(exponent, want[1])
    y = x[torch.randperm(len(x))]
    found = table[aten.nextafter.default](x, y)
    torch.testing.assert_close(found, torch.nextafter(x, y), rtol=0, atol=0, equal_nan=True)


def test_segments() -> None:
    table, aten = decompositions(), torch.ops.aten
    x, lengths = torch.randn(2, 6, 3), torch.tensor([[2, 0, 3, 1], [6, 0, 0, 0]])
    for reduce in ("sum", "mean", "max", "min", "prod"):
        for initial in (None, 0.5):
            given = {"lengths": lengths, "axis": 1, "initial": initial}
            want = aten.segment_reduce(x, reduce, **given)
            found = table[aten.segment_reduce.default](x, reduce, **given)
            torch.testing.assert_close(found, want, equal_nan=True, msg=f"{reduce} {initial}")


def test_gradients_of_segments() -> None:
    table, aten = decompositions(), torch.ops.aten
    backward = aten._segment_reduce_backward.default
    x = torch.tensor([2.0, 2.0, 0.0, 3.0, 0.0, 0.0, math.nan, 5.0, 0.0, -1.0, math.nan, math.nan])
    x = torch.stack([x, x.flip(0)], -1)
    cases: list[dict[str, Any]] = [
        {"lengths": torch.tensor([2, 0, 2, 3, 2, 1, 2])}, {"offsets": torch.tensor([0, 3, 3, 6, 12])},
    ]  # fmt: skip
    for reduce in ("sum", "mean", "max", "min", "prod"):
        for given in cases:
            for initial in (None, 0.5):
                made = aten.segment_reduce(x, reduce, initial=initial, **given)
                args = (torch.rand(made.shape), made, x, reduce)  # eager shares positive gradients only
                want = backward(*args, initial=initial, **given)
                found = table[backward](*args, initial=initial, **given)
                torch.testing.assert_close(found, want, equal_nan=True, msg=f"{reduce} {initial} {found} {want}")


@pytest.mark.parametrize("size", [(4, 5), (3, 4, 5)])
def test_samples_at_places_that_are_no_number(size: tuple[int, ...]) -> None:
    table, aten, rank = decompositions(), torch.ops.aten, len(size)
    op = aten.grid_sampler_2d.default if rank == 2 else aten.grid_sampler_3d.default
    x, odd = torch.randn(1, 2, *size), torch.tensor([math.nan, math.inf, -math.inf])
    grid = torch.rand(1, 3 * rank, *(rank - 1) * [1], rank) * 1.8 - 0.9
    for k in range(rank):
        grid.view(-1, rank)[3 * k : 3 * k + 3, k] = odd
    for given in [(n, padding, corners) for n in (0, 1) for padding in (0, 1, 2) for corners in (False, True)]:
        torch.testing.assert_close(table[op](x, grid, *given), op(x, grid, *given), equal_nan=True, msg=str(given))


@pytest.mark.parametrize("op", [torch.ops.aten.erfinv.default, torch.ops.aten.special_ndtri.default])
def test_quantiles_up_to_the_ends(op: Any) -> None:
    near_zero, near_one = 2.0 ** -torch.arange(1.0, 150.0), 1 - 2.0 ** -torch.arange(1.0, 24.0)
    x = torch.cat([near_zero, near_one, -near_zero, -near_one])
    torch.testing.assert_close(
        special.special_decompositions()[op](x), op(x.double()).float(), rtol=1e-6, atol=0, equal_nan=True
    )
