"""What steps make is called as nothing else of a kernel is."""

from __future__ import annotations

import pytest
import torch

from compiler import frontend, pipeline
from compiler.ir import loop_text
from compiler.passes.loop_to_tile import loop_to_tile
from compiler.passes.tile.fresh_names import fresh_names, own_temporaries
from compiler.passes.tile.steps import apply
from compiler.schedule.steps import NameTaken, parse, show, temporaries_made
from compiler.targets import cpu, nvidia
from compiler.tests.meaning import fresh_seed, same_meaning

# What a matmul's loop j is split into is called as a loop of it, and as a value beside it.
PRODUCT = """
def matmul(a: f32[130, 520], b: f32[520, 900], *, y: f32[130, 900]):
    with kernel("matmul", [a, b, y], writes=[y]):
        for j in parallel(130):
            for j1 in parallel(900):
                c: f32 = 0.0
                for k in reduce(520):
                    c += a[j, k] * b[k, j1]
                k0 = c + 1.0
                y[j, j1] = max(k0, 0.0)
"""
TAKEN = {
    "a loop": ('split("j", 4, into=("j0", "j1"))', "j1"),
    "a scalar": ('split("j", 4, into=("c", "j2"))', "c"),
    "a value": ('collapse("j", "j1", into="k0")', "k0"),
    "a buffer": ('split("j", 4, into=("j0", "y"))', "y"),
    "its own": ('split("j", 4, into=("j0", "j0"))', "j0"),
    "what another step made": ('split("j", 4, into=("j0", "j2"))\nsplit("j1", 4, into=("j2", "j3"))', "j2"),
    "what a stem makes": ('split("j", 4, into=("j0", "j1_first"))\ndistribute("c", ("j1",), into=("j1",))', "j1_first"),
}


@pytest.mark.parametrize("how", TAKEN)
def test_a_name_that_is_taken_is_refused(how: str) -> None:
    steps, name = TAKEN[how]
    program = loop_to_tile(loop_text.parse(PRODUCT))
    with pytest.raises(NameTaken, match=f"the name {name} is already used in kernel matmul; choose another name"):
        apply(program, program.kernels[0], parse(steps))


def test_what_a_step_replaces_leaves_its_name() -> None:
    program = loop_to_tile(loop_text.parse(PRODUCT))
    made = apply(program, program.kernels[0], parse('split("j", 4, into=("j", "i"))'))
    same_meaning(("tile", program), ("tile", made), fresh_seed())


def test_a_stem_becomes_longer_where_one_of_its_names_is_taken() -> None:
    given = loop_text.parse(PRODUCT.replace("k0", "j1_first"))
    steps = parse('distribute("c", ("j1",), into=("j1",))\nbind("j1_last", vector, width=8)')
    made = fresh_names(given, given.kernels[0], steps)
    assert show(made) == 'distribute("c", ("j1",), into=("j1_",))\nbind("j1__last", vector, width=8)\n'


def test_a_stem_stays_where_the_loop_that_it_is_like_is_called_otherwise() -> None:
    given = loop_text.parse(PRODUCT.replace("k0", "j10"))
    steps = 'split("j1", 4, into=("{0}", "j11"))\ndistribute("c", ("{0}", "j11"), into=("j10", "i"))\n'
    assert show(fresh_names(given, given.kernels[0], parse(steps.format("j10")))) == steps.format("j10_")


def test_a_heuristic_finds_other_names() -> None:
    given = loop_text.parse(PRODUCT)
    made = pipeline.lower(given, cpu.AVX2, source="loop", until="tile")
    (text,) = map(show, made.schedules.values())
    assert made.fallbacks == () and "tensorize" in text, text
    assert "k0_" in text, text
    same_meaning(("loop", given), ("tile", made.stages["tile"]), fresh_seed())


def both_weights(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> list[object]:
    """The gradients of the weights of two convolutions of one `x`, as a residual block that halves its image has."""

    def gradient(g: torch.Tensor, w: torch.Tensor, pad: int) -> object:
        args = [0], [2, 2], [pad, pad], [1, 1], False, [0, 0], 1, [False, True, False]
        return torch.ops.aten.convolution_backward(g, x, w, *args)[1]

    return [gradient(a, w, 1), gradient(b, v, 0)]


@pytest.mark.parametrize("watched", [False, True])
def test_kernels_that_copy_one_buffer_have_a_copy_each(watched: bool) -> None:
    shapes = [(32, 256, 14, 14), (32, 64, 14, 14), (32, 128, 28, 28), (256, 128, 3, 3), (64, 128, 1, 1)]
    program = frontend.capture(both_weights, [torch.empty(shape) for shape in shapes]).program
    trace = (lambda *seen, **more: None) if watched else None
    stages = pipeline.lower(program, nvidia.SM_90A, until="kernel", trace=trace).stages
    own: dict[str, set[str]] = {}
    for k in stages["tile"].kernels:
        own.setdefault(k.whole, set()).update(p.name for p in k.params if "permuted" in p.name)
    first, second = own.values()
    assert len(first) == len(second) == 2 and not first & second, own
    copies = {t.name: t.shape for t in stages["kernel"].temps}
    seen = {p.name: p.shape for f in stages["kernel"].functions for p in f.params}
    assert {name: seen[name] for name in first | second}.items() <= copies.items()
    assert len({copies[name] for name in first | second if name.startswith("x_")}) == 2  # of other sizes


def test_copies_of_kernels_that_are_given_schedules_are_apart_from_others() -> None:
    kernel = loop_text.parse(PRODUCT).kernels[0]
    given = parse('permute("a", "a_permuted", (1, 0), into=("a0", "a1"))\nbind("a0", "vector")')
    taken = {"a_permuted", "a_permuted_"}
    made = own_temporaries(kernel, given, taken)
    assert temporaries_made(made) == {"a_permuted__1"} and "a_permuted__1" in taken
    assert show(made) == show(given).replace('"a_permuted"', '"a_permuted__1"')
    assert own_temporaries(kernel, given, set()) is given
