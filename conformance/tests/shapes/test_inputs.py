"""Inputs: the same data for the same seed, storage as the layout says, and values as the distribution promises."""

import dataclasses
import random
from pathlib import Path

import pytest
import torch

from conformance.shapes import distributions, draw, files, inputs
from conformance.shapes.cases import DTYPES, FLOATS, Arg, Case, Value

SEED = random.randrange(2**32)
CASE = """format = 1
[[case]]
name = "linear"
expr = \"\"\"
y = x @ w.mT
y.to(acc) * scale
\"\"\"
args.x = { shape = ["M", "K"] }
args.w = { shape = ["N", "K"] }
constants = ["w"]
consts = { acc = "f64" }
params.scale = [0.5]
dims.M = [3]
dims.N = [5]
dims.K = [4]
layouts = ["contig", "strided(-1,2)"]
inputs = ["integers"]
"""


@pytest.fixture
def case(tmp_path: Path) -> Case:
    (tmp_path / "mine.toml").write_text(CASE)
    return files.expand(files.load(tmp_path / "mine.toml"), "full")[1]


def drawn(kind: str, shape: tuple[int, ...], dtype: str, seed: int = SEED, **options: Value) -> torch.Tensor:
    source = torch.Generator().manual_seed(seed)
    return draw.tensor({"kind": kind, **options}, draw.Draw(shape, inputs.DTYPES[dtype], source))


def test_the_same_seed_makes_the_same_data(case: Case) -> None:
    one, two, other = inputs.make(case, SEED), inputs.make(case, SEED), inputs.make(case, SEED + 1)
    assert list(one) == ["x", "w"]
    assert all(torch.equal(one[name], two[name]) for name in one), SEED
    assert not all(torch.equal(one[name], other[name]) for name in one), SEED
    renamed = dataclasses.replace(case, id="another", line=case.line + 9)
    assert not all(torch.equal(one[name], tensor) for name, tensor in inputs.make(renamed, SEED).items()), SEED


def test_the_program_is_its_text_with_literals(case: Case) -> None:
    assert inputs.source(case) == ("def linear(x, w):\n    y = x @ w.mT\n    return y.to(torch.float64) * 0.5")
    tensors = inputs.make(case, SEED)
    result = inputs.function(case)(*tensors.values())
    assert torch.equal(result, (tensors["x"] @ tensors["w"].T).double() * 0.5), SEED


def test_constants_become_weights(case: Case) -> None:
    tensors = inputs.make(case, SEED)
    function, rest = inputs.bind(case, tensors)
    assert isinstance(function, torch.nn.Module) and rest == (tensors["x"],)
    assert torch.equal(function(*rest), inputs.function(case)(*tensors.values()))
    exported = torch.export.export(function, rest)
    assert torch.equal(exported.module()(*rest), function(*rest))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", distributions.OPTIONS)
def test_every_distribution_at_every_size(kind: str, dtype: str) -> None:
    needed: dict[str, dict[str, Value]] = {
        "index": {"below": 9}, "invalid_index": {"below": 9}, "choice": {"values": (1, 0)}
    }  # fmt: skip
    options = distributions.for_dtype({"kind": kind, **needed.get(kind, {})}, dtype)
    if options is None:
        return
    for shape in ((), (0,), (1,), (5,), (3, 0, 2), (40, 33)):
        made = drawn(shape=shape, dtype=dtype, **options)
        assert made.shape == shape and made.dtype is inputs.DTYPES[dtype] and made.is_contiguous()
        if kind not in ("specials", "extremes") and dtype in FLOATS:
            assert made.double().isfinite().all(), (kind, shape, SEED)


def test_the_tables_of_kinds_agree() -> None:
    assert draw.KINDS.keys() == distributions.OPTIONS.keys()


@pytest.mark.parametrize("dtype", ["f64", "f32", "bf16", "f16"])
def test_open_limits_hold_after_rounding(dtype: str) -> None:
    assert drawn("unit", (20000,), dtype).double().abs().max() < 1, SEED
    prob = drawn("prob", (20000,), dtype).double()
    assert prob.min() > 0 and prob.max() < 1, SEED
    uniform = drawn("uniform", (20000,), dtype, low=1.0, high=2.0).double()
    assert uniform.min() >= 1 and uniform.max() < 2, SEED
    denormal = drawn("denormal", (20000,), dtype)
    assert 0 < denormal.abs().double().max() < torch.finfo(inputs.DTYPES[dtype]).smallest_normal, SEED


def test_specials_hold_every_class_and_end_with_one() -> None:
    made = drawn("specials", (300, 70), "f32")
    assert made.isnan().any() and made.isposinf().any() and made.isneginf().any() and (made == 0).any()
    last = made[-1, -1]
    assert not last.isfinite() or last == 0 or last.abs() > 1e30 or last.abs() < 1e-30
    clean = made.isfinite().all(dim=1)
    assert clean.sum() > 200, "rows without a special value show a wrong neighbour"
    for dtype in FLOATS:
        signs = drawn("specials", (300, 70), dtype).double()
        assert {bool(sign) for sign in signs[signs.isnan()].signbit()} == {False, True}, "NaN of both signs"
        assert {bool(sign) for sign in signs[signs == 0].signbit()} == {False, True}, "zeros of both signs"
    firsts = {str(drawn("specials", (1, 1), "f64", seed=n).item()) for n in range(40)}
    assert len(firsts) > 4, "two arguments with the same one everywhere"
    whole = drawn("specials", (40,), "i8")
    assert {-128, 127} <= set(whole.tolist())


def test_extremes_hold_the_ends_and_what_lies_beside() -> None:
    for dtype in ("i64", "i32", "i16", "i8", "u8"):
        info = torch.iinfo(inputs.DTYPES[dtype])
        found = set(drawn("extremes", (4000,), dtype).tolist())
        assert {info.min, info.min + 1, 0, 1, 127, info.max - 1, info.max} <= found, (dtype, SEED)
    for dtype in FLOATS:
        made = drawn("extremes", (4000,), dtype)
        assert made.isnan().any() and {1.0, -1.5, torch.finfo(made.dtype).max} <= set(made.tolist()), (dtype, SEED)


def test_indices_are_valid_and_unique_where_asked() -> None:
    made = drawn("index", (6, 50), "i64", below=7, unique_along=0)
    assert made.min() >= 0 and made.max() < 7
    assert all(len(set(column.tolist())) == 6 for column in made.T), SEED
    negative = drawn("index", (1000,), "i32", below=7, negative=True)
    assert -7 <= negative.min() < 0 <= negative.max() < 7


@pytest.mark.parametrize("wraps", [False, True])
def test_some_indices_are_invalid_where_that_is_asked(wraps: bool) -> None:
    for dtype in ("i64", "i32", "u8"):
        for shape in ((), (1,), (40, 5)):
            made = drawn("invalid_index", shape, dtype, below=7, wraps=wraps).long()
            valid = (made >= (-7 if wraps else 0)) & (made < 7)
            assert not valid.all(), SEED
        assert valid.any(), SEED


def test_other_promises() -> None:
    assert torch.equal(drawn("one_hot", (9, 5), "f32").sum(-1), torch.ones(9))
    ascending = drawn("sorted", (4, 50), "f32")
    assert (ascending.diff(dim=-1) >= 0).all()
    torch.testing.assert_close(drawn("simplex", (4, 50), "f64").sum(-1), torch.ones(4, dtype=torch.float64))
    huge = drawn("huge", (100,), "f16").double().abs()
    assert huge.min() > 65504 / 17 and huge.max() < 65504 * 0.51
    assert drawn("integers", (100,), "u8").max() <= 3


@pytest.mark.parametrize(
    "layout, stride, offset",
    [
        ("contig", (20, 5, 1), 0),
        ("transposed(0,1)", (5, 15, 1), 0),
        ("transposed(0,-1)", (1, 3, 12), 0),
        ("permuted", (1, 3, 12), 0),
        ("strided(-1,2)", (40, 10, 2), 0),
        ("strided(0,3)", (60, 5, 1), 0),
        ("expanded(0)", (0, 5, 1), 0),
        ("offset(3)", (20, 5, 1), 3),
    ],
)
@pytest.mark.parametrize("dtype", ["f32", "bool", "u8"])
def test_layouts_have_real_storage(layout: str, stride: tuple[int, ...], offset: int, dtype: str) -> None:
    case = next_case(Arg("x", (3, 4, 5), dtype, layout, {"kind": "bool" if dtype == "bool" else "integers"}))
    made = inputs.make(case, SEED)["x"]
    assert made.shape == (3, 4, 5) and made.storage_offset() == offset
    assert made.stride() == stride
    copy = inputs.clone_storage(made)
    assert torch.equal(copy, made) and copy.stride() == stride and copy.storage_offset() == offset
    assert copy.untyped_storage().data_ptr() != made.untyped_storage().data_ptr()


def test_gaps_are_poisoned() -> None:
    case = next_case(Arg("x", (4, 4), "f32", "strided(1,2)", {"kind": "ones"}))
    made = inputs.make(case, SEED)["x"]
    assert made.as_strided((32,), (1,), 0).isnan().sum() == 16


def test_layout_changes_no_value() -> None:
    arg = Arg("x", (6, 7), "f32")
    plain, moved = (next_case(dataclasses.replace(arg, layout=layout)) for layout in ("contig", "permuted"))
    assert torch.equal(inputs.make(plain, SEED)["x"], inputs.make(moved, SEED)["x"])


def test_modules_have_seeded_weights() -> None:
    case = dataclasses.replace(
        next_case(Arg("x", (2, 4), "f32")), module="torch.nn:Linear", init={"in_features": 4, "out_features": 3},
        expr="module(x)",
    )  # fmt: skip
    tensor = torch.ones(2, 4)
    before = torch.random.get_rng_state()
    assert torch.equal(inputs.function(case)(tensor), inputs.function(case)(tensor))
    assert torch.equal(before, torch.random.get_rng_state()), "the global generator is left alone"


def next_case(arg: Arg) -> Case:
    return Case(
        id="one", file="f.toml", line=1, suite="f", op="one", expr=arg.name, args=(arg,), dims={}, params={}, consts={},
        dtype=arg.dtype, layout=arg.layout, distribution="normal", targets=("cpu",), tier="smoke",
    )  # fmt: skip
