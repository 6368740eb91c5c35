"""Rows of targets: what an instruction says that it computes is a matmul, and what `mma` means by it."""

import numpy as np
import pytest

from compiler.execution import named
from compiler.interpret import tile as interpret
from compiler.interpret.scalar import Array
from compiler.ir import dtype as dt
from compiler.ir import tile, tile_text
from compiler.ir.expr import dim, static
from compiler.ir.statement import Kernel, Program
from compiler.ir.tensor import Tensor, row_major
from compiler.ir.text import show
from compiler.targets import cpu, nvidia
from compiler.targets.layout import is_bijection, threads
from compiler.targets.target import Instruction, Target
from compiler.tests.meaning import fresh_seed, random_arrays

TARGETS = (cpu.BASELINE, cpu.AVX2, cpu.AVX512, *nvidia.TARGETS)
WIDTHS = (8, 24, 64, 136, 256)  # of the many that wgmma has
ROWS = {r.name: r for t in TARGETS for r in t.instructions if r.needs != "wgmma" or r.n in WIDTHS}
ANY = 4  # how deep `semantics` makes an instruction that takes any k


def tensors(row: Instruction) -> tuple[Tensor, ...]:
    """acc, a and b as the first layout has them."""
    sizes = {"m": row.m, "n": row.n, "k": row.k or ANY}
    out = []
    kinds = (("acc", "mn", row.acc_type), ("a", row.layouts[0][0], row.a_type), ("b", row.layouts[0][1], row.b_type))
    for name, axes, dtype in kinds:
        shape = tuple(dim(sizes[x]) for x in axes)
        out.append(Tensor(name, dt.DTYPES[dtype], shape, row_major(shape)))
    return tuple(out)


def said(row: Instruction) -> Program:
    """The instruction's own text as a program that adds to its input acc."""
    acc, a, b = tensors(row)
    words = {t.name: f"{t.name}: {t.dtype}[{', '.join(show(n) for n in t.shape)}]" for t in (acc, a, b)}
    head = f'def f({words["a"]}, {words["b"]}, *, {words["acc"]}):\n    with kernel("f", [a, b, acc], writes=[acc]):\n'
    text = head + "".join(" " * 8 + line + "\n" for line in row.semantics.splitlines())
    return tile_text.parse(text).replace(inputs=(acc, a, b))


def meant(row: Instruction) -> Program:
    """One `mma` of the row on whole tiles."""
    acc, a, b = tensors(row)
    c, left, right = (tile.Slice(t.name, (dim(0),) * 2, tuple(static(n) for n in t.shape)) for t in (acc, a, b))
    body = (tile.Mma(row.name, c, left, right, row.layouts[0]),)
    return Program("f", (acc, a, b), (acc,), (), (Kernel("f", (a, b, acc), ("acc",), body),))


def product(row: Instruction, acc: Array, a: Array, b: Array) -> Array:
    wide = np.float64 if row.acc_type[0] == "f" else np.int64
    left = a.astype(wide) if row.layouts[0][0] == "mk" else a.astype(wide).T
    right = b.astype(wide) if row.layouts[0][1] == "kn" else b.astype(wide).T
    return np.asarray(acc + left @ right)


@pytest.mark.parametrize("name", ROWS)
def test_an_instruction_is_what_it_says(name: str) -> None:
    row, seed = ROWS[name], fresh_seed()
    arrays = random_arrays(tensors(row), seed)
    want = product(row, *arrays)
    for program in (said(row), meant(row)):
        tile.verify(program)
        (made,) = interpret.run(program, arrays)
        np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-5, err_msg=f"seed {seed}")


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_rows_belong_to_their_target(target: Target) -> None:
    names = [row.name for row in target.instructions]
    assert len(set(names)) == len(names)
    for row in target.instructions:
        assert not row.needs or row.needs in target.features
        assert {row.a_space, row.b_space, row.acc_space} <= set(tile.SPACES)
        assert all(a in ("mk", "km", "k") and b in ("kn", "nk") for a, b in row.layouts)
    for t in target.transfers:
        assert t.needs in target.features and t.name in tile.COPIES


@pytest.mark.parametrize("target", nvidia.TARGETS, ids=lambda t: t.name)
def test_fragments_fill_their_tiles(target: Target) -> None:
    for row in target.instructions:
        wanted = {"acc": (row.m, row.n), "a": (row.m, row.k), "b": (row.k, row.n)}
        for operand, space, layout in (
            ("acc", row.acc_space, row.acc_layout),
            ("a", row.a_space, row.a_layout),
            ("b", row.b_space, row.b_layout),
        ):
            assert (layout is not None) == (space == "registers"), row.name
            if layout is not None:
                assert layout.shape == wanted[operand], row.name
                assert threads(layout) == row.threads and is_bijection(layout), row.name
    for moved in target.fragments:
        assert moved.needs in target.features
        assert threads(moved.layout) == target.warp and is_bijection(moved.layout), moved.name


def test_features_grow_with_the_capability() -> None:
    assert set(nvidia.features(80, False)) < set(nvidia.features(90, False)) < set(nvidia.features(90, True))
    assert "wgmma" in nvidia.features(90, True)
    assert "wgmma" not in nvidia.features(90, False) and "wgmma" not in nvidia.features(120, True)
    assert {"tma", "stmatrix", "cluster"} <= set(nvidia.SM_120.features)


def test_every_copy_but_a_plain_one_has_a_row() -> None:
    assert {t.name for t in nvidia.SM_90A.transfers} == set(tile.COPIES) - {"plain"}


def test_the_kinds_of_cpu_that_a_machine_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    for here, others in ((cpu.BASELINE, ()), (cpu.AVX2, ("cpu:avx2",)), (cpu.AVX512, ("cpu:avx2", "cpu:avx512"))):
        monkeypatch.setattr(named, "_this_cpu", lambda here=here: here)
        assert named.cpus() == ("cpu:baseline", *others)
