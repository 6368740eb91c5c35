"""Few long rows on a machine of many cores: each sweep is a kernel that all of the machine takes part in."""

import math
import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from compiler import frontend, pipeline
from compiler.ir import loop_text
from compiler.ir.expr import static
from compiler.schedule.steps import Bind, SplitReduction
from compiler.targets import cpu, nvidia
from compiler.targets.target import Target
from compiler.tests.called import called
from compiler.tests.meaning import fresh_seed


def normalised(x: torch.Tensor) -> torch.Tensor:
    """By what a batch gives, as a module does while it is trained."""
    return F.batch_norm(x, None, None, training=True)


def blocks(shape: tuple[int, ...], target: Target, order: torch.memory_format = torch.contiguous_format) -> list[int]:
    program = frontend.capture(normalised, [torch.empty(shape, memory_format=order)]).program
    functions = pipeline.lower(program, target, until="kernel").stages["kernel"].functions
    return [math.prod(static(n) for n in f.grid) for f in functions]


def prefetches(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], target: Target) -> list[str]:
    """The loops that prefetch, each with the distance in bytes, as the schedule and the text have it."""
    lowering = pipeline.lower(frontend.capture(function, [torch.empty(shape)]).program, target)
    bound = [
        (b.loop, str(distance))
        for schedule in lowering.schedules.values()
        for b in schedule.steps
        if isinstance(b, Bind) and (distance := dict(b.args).get("ahead"))
    ]
    found = re.findall(r"_(?:ahead<.*?|owned\(.*), (\d+)l\)", lowering.show("cpp"))
    assert set(found) == {distance for _, distance in bound}
    return [f"{name} {distance}" for name, distance in bound]


@pytest.mark.parametrize("shape", [(204800, 32), (64, 32, 56, 56)])
def test_columns_of_a_batch_are_shared_out(shape: tuple[int, ...]) -> None:
    assert all(n >= nvidia.SM_90A.cores for n in blocks(shape, nvidia.SM_90A)), blocks(shape, nvidia.SM_90A)


def test_channels_within_pixels_are_columns() -> None:
    """As many as are a line of memory go to a block: 256 are few."""
    for order, kernels in ((torch.channels_last, 3), (torch.contiguous_format, 1)):
        assert len(blocks((32, 256, 28, 28), nvidia.SM_90A, order)) == kernels


def kernels(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> list[str]:
    program = frontend.capture(function, [*inputs]).program
    return [k.name for k in pipeline.lower(program, nvidia.SM_90A, until="loop").stages["loop"].kernels]


def test_temporaries_lie_like_the_inputs_beside_them() -> None:
    """The gradient of a batch norm: a convolution makes what it multiplies with images, which will lie like these."""

    def gradient(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = F.conv2d(g, w)
        return made - (made * x).sum((0, 2, 3), keepdim=True)

    g, w = torch.empty(32, 64, 28, 28), torch.empty(128, 64, 1, 1)
    for order, count in ((torch.channels_last, 3), (torch.contiguous_format, 2)):
        x = torch.empty((32, 128, 28, 28), memory_format=order)
        assert len(kernels(gradient, x, g, w)) == count, order


def test_few_long_rows_are_no_epilogue_of_short_sums() -> None:
    def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * x.sum(1, keepdim=True)

    assert len(kernels(scaled, torch.empty(8, 64), torch.empty(8, 1 << 18))) == 2
    assert len(kernels(scaled, torch.empty(8, 64), torch.empty(8, 1 << 12))) == 1


def test_where_rows_are_short_or_cores_are_few_they_are_read_once() -> None:
    assert len(blocks((1024, 32), nvidia.SM_90A)) == 1
    assert len(blocks((204800, 32), cpu.AVX2)) == 1


def test_what_is_shared_out_is_right() -> None:
    torch.manual_seed(fresh_seed())
    for x in (torch.randn(1 << 16, 4) + 3, torch.randn(2, 16, 64, 66).to(memory_format=torch.channels_last)):
        torch.testing.assert_close(called(normalised, [x], "sm_90a"), normalised(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(25088, 128), (20000, 36), (30030, 64)])
def test_many_parts_are_added_up_by_all_threads(shape: tuple[int, int]) -> None:
    """Of some hundred parts, threads that shared a column before share its parts."""
    torch.manual_seed(fresh_seed())
    x = torch.randint(-9, 10, shape).float()
    lowering = pipeline.lower(frontend.capture(lambda x: x.sum(0), [x]).program, nvidia.SM_90A)
    (schedule,) = lowering.schedules.values()
    splits = [s for s in schedule.steps if isinstance(s, SplitReduction)]
    assert [s.space for s in splits] == ["device", "shared", "shared"]
    assert splits[0].parts > 64 and splits[2].accumulator == splits[0].total
    assert torch.equal(called(lambda x: x.sum(0), [x], "sm_90a"), x.sum(0)), "sums of integers are exact"


# The gradient of a loss, by its scores: rows lie along the classes, only the labels and the logarithms from row to row.
LOSS = """
def loss(x: bf16[4096, 5027], label: i64[4096], high: f32[4096], log: f32[4096], *, y: bf16[4096, 5027]):
    with kernel("loss", [x, label, high, log, y], writes=[y]):
        for i in parallel(4096):
            at = where(label[i] != -100, label[i], 0)
            total: f32 = 0.0
            for r in reduce(5027):
                total += where(r == at, -1.0, 0.0)
            for j in parallel(5027):
                y[i, j] = bf16(where(j == at, -1.0, 0.0) - exp(f32(x[i, j]) - high[i] - log[i]) * total)
"""


def test_what_is_read_once_a_row_does_not_make_columns_of_rows() -> None:
    text = pipeline.lower(loop_text.parse(LOSS), nvidia.SM_90A, source="loop", until="cuda").show("cuda")
    assert 'bind("j", lanes' in text and "columns" not in text


def test_rows_across_memory_are_shared_by_warps_however_many_lie_side_by_side() -> None:
    torch.manual_seed(fresh_seed())
    x = torch.randn(4, 96, 72)

    def normalised_across(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x.transpose(1, 2), (96,))

    program = frontend.capture(normalised_across, [x]).program
    assert 'bind("ij1", columns' in pipeline.lower(program, nvidia.SM_90A, until="cuda").show("cuda")
    torch.testing.assert_close(called(normalised_across, [x], "sm_90a"), normalised_across(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("waits", "ahead"), [(1.0, True), (dict(cpu.COSTS)["exposed"], False)])
def test_rows_that_come_from_memory_are_asked_for_ahead_where_they_are_waited_for(waits: float, ahead: bool) -> None:
    program = frontend.capture(lambda x: x.sum(-1), [torch.empty(1024, 1024)]).program
    target = cpu.AVX512.replace(costs=tuple({**cpu.COSTS, "exposed": waits}.items()))
    (schedule,) = pipeline.lower(program, target).schedules.values()
    assert ("ahead" in str(schedule)) == ahead, str(schedule)


@pytest.mark.parametrize(
    ("function", "shape", "ahead"),
    [
        (lambda x: torch.softmax(x, -1), (16384, 512), ["r_1 2048"]),
        (lambda x: torch.softmax(x.bfloat16(), -1), (16384, 1000), ["r_1 4000"]),
        (lambda x: F.rms_norm(x, (2048,)), (4096, 2048), ["j 8192"]),
        (lambda x: x.sum(-1), (16384, 512), []),  # read only once
        (lambda x: torch.softmax(x, -1), (512, 512), []),  # in the last-level cache
        (lambda x: torch.softmax(x, -1), (128, 131072), []),  # a row is as large as the caches of a core
        (lambda x: torch.softmax(x.t(), -1), (512, 16384), []),  # rows are not contiguous
    ],
)
def test_the_next_row_is_prefetched_while_a_row_from_memory_is_read_again(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], ahead: list[str]
) -> None:
    assert prefetches(function, shape, cpu.AVX512) == ahead


INTEL = cpu.target(("avx512f", "avx2", "fma", "f16c", "sse2"), name="cpu:intel", vendor="GenuineIntel")


@pytest.mark.parametrize(
    ("function", "shape", "ahead"),
    [
        (lambda x: torch.softmax(x, -1), (1024, 2048), ["r_1 8192", "j 4096"]),
        (lambda x: x.log_softmax(-1), (1024, 2048), ["r_1 8192", "j 4096"]),
        (lambda x: F.cross_entropy(x, x[:, 0].long()), (1024, 1024), ["r_1 4096"]),  # also reads a column by index
        (lambda x: F.layer_norm(x, (1024,)), (1024, 1024), ["j 4096"]),  # sums compute too little to wait behind
        (lambda x: torch.softmax(x, -1), (64, 1024), []),  # in the second-level cache
        (lambda x: x.sum(-1), (1024, 1024), ["r 4096"]),  # read only once: of the same row
        (lambda x: x.exp(), (1024, 1024), ["ij1 4096"]),
        (lambda x: x.exp(), (64, 1024), []),
    ],
)
def test_from_a_slow_last_level_cache_all_is_prefetched_that_is_waited_for(
    function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...], ahead: list[str]
) -> None:
    assert prefetches(function, shape, INTEL) == ahead
