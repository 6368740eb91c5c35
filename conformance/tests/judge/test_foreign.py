"""The judge of other torch.compile backends: each of many kinds of wrong ones is caught, and right ones are not."""

import dataclasses
import random
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

from conformance.judge import foreign, ladder
from conformance.rows import CaseResult
from conformance.shapes.cases import Arg, Case, Dynamic, to_json
from conformance.shapes.files import expand, find_shapes, load
from conformance.tests import wrong_backends

SEED = random.SystemRandom().randrange(2**31)
SHAPE = (6, 33)


def case(expr: str, shape: tuple[int, ...] = SHAPE, layout: str = "contig", data: str = "normal", **more: Any) -> Case:
    args = tuple(Arg(name, shape, "f32", layout, {"kind": data}) for name in ("x", "y"))
    made = Case(
        id="case[f32]", file="case.toml", line=1, suite="case", op="case", expr=expr, args=args, dims={}, params={},
        consts={}, dtype="f32", layout=layout, distribution=data, targets=("cpu",), tier="full",
    )  # fmt: skip
    return dataclasses.replace(made, **more)


def dynamic(expr: str, sizes: tuple[int, int]) -> Case:
    """A case whose first axis varies."""
    args = tuple(Arg(name, (sizes[0], 33), "f32", axes=("N", "")) for name in ("x", "y"))
    points = tuple(({"N": n}, tuple(dataclasses.replace(arg, shape=(n, 33)) for arg in args)) for n in sizes)
    return case(expr, args=args, dims={"N": sizes[0]}, dynamic=Dynamic({"N": (1, 99)}, points))


def check(made: Case, backend: str) -> CaseResult:
    options = {"target": "cpu", "stages": (), "seed": SEED, "threads": 1, "backend": backend, "dump": None}
    return ladder.check(to_json(made), options)


LARGE = case("x * y + x", (512, 256)).args
# What shows a kind of wrongness, where any program would not.
TELLING = {
    "denormals flushed": case("x + y * 0, x * 1.5", data="denormal"),
    "NaN taken for zero": case("x + y, x * 1.5", data="specials"),
    "infinity taken for a large number": case("x + y, x * 1.5", (70, 70), data="specials"),
    "strides ignored": case("x + y, x * 1.5", layout="transposed(0,1)"),
    "mutation forgotten": case("x.add_(y)", mutates=("x",)),
    "input handed out as result": case("x * 1, y + 0"),
    "input handed out later": case("x * 1, y + 0"),
    "wrong when large": case("x * y + x", enlarged=(({}, LARGE),)),
    "identity if nearly normalised": case("F.layer_norm(x, (4096,)) + y * 0", (2, 4096)),
    "wrong at size 1": case("x * y + x", (1, 33)),
    "wrong at size 0": case("x.sum(0) + y.sum(0)", (0, 33)),
    "steps ignored": case("x + y, x * 1.5", layout="strided(-1,2)"),
    "offset ignored": case("x + y, x * 1.5", layout="offset(3)"),
    "NaN told by its bits": case("x * 1.5, y + 1", (70, 70), data="specials"),
    "weight written to": case("nn.Linear(33, 33)(x) + y"),
    "weight written to at first": case("nn.Linear(33, 33)(x) + y"),
    "compiled again": dynamic("x * y + x", (6, 9)),
    "sign of zero lost": case("1 / x, y * 1.5", (70, 70), data="specials"),
}
PLAIN = case("x * y + x, (x - y) * 3")
HALVES = tuple(Arg(name, (33, 70), "bf16", "contig", {"kind": "normal"}) for name in ("x", "y"))
# What only a judge who does not know how Dynamo hands programs over would call wrong: layers that it leaves out unless
# asked, and an op that it takes apart, so that its steps round.
RIGHT = (
    PLAIN,
    *TELLING.values(),
    case("x.t(), y[1:], x.view(-1)"),
    case("nn.LSTM(33, 8)(x)[0]"),
    case("torch.addcdiv(x, y, x * x + 1, value=-2)", args=HALVES, dtype="bf16"),
)


@pytest.fixture
def registered(request: pytest.FixtureRequest) -> str:
    name = f"wrong {request.param}"
    if name not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=wrong_backends.backend(request.param), name=name)
    return name


@pytest.mark.parametrize("registered", wrong_backends.KINDS, indirect=True)
def test_a_wrong_backend_is_caught(registered: str) -> None:
    row = check(TELLING.get(registered.removeprefix("wrong "), PLAIN), registered)
    assert (row.verdict, row.first_bad_stage) == ("fail", "cpp"), (SEED, row)
    assert row.detail and "Error:" not in row.detail.replace("RuntimeError: out of memory", ""), row


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "mlcomp"])
@pytest.mark.parametrize("made", RIGHT)
def test_a_right_backend_passes(backend: str, made: Case) -> None:
    row = check(made, backend)
    assert row.verdict == "pass", (SEED, row)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("one buffer for every call", "output 0 of call 1 was changed by a later call"),
        ("first input written to", "compiling it: argument 0 was written to"),
        ("other strides", "call 1: output 0 has strides [1, 6], eager's [33, 1]"),
        ("results remembered by address", "in the storage of the first with new data in it: output 0: element"),
        ("result stored in an input", "compiling it: argument 1 was written to"),
        ("input handed out as result", "call 1: output 0 lies in the memory of argument 0, eager's does not"),
        ("computed when used", "call 1: output 0 is a Lazy, which may put off its work"),
        ("work skipped", "on the data of call"),
        ("every fiftieth call", "on the data of call"),
        ("clock replaced", "time.perf_counter_ns was replaced by something else"),
        ("random numbers drawn", ": the state of random numbers changed"),
        ("denormals flushed for all", "compiling it: the treatment of denormals changed"),
        ("default dtype changed", "compiling it: the default dtype changed"),
    ],
)
def test_the_message_says_what_was_wrong(kind: str, said: str) -> None:
    name = f"wrong {kind}, told"
    if name not in registry._COMPILER_FNS:
        registry.register_backend(compiler_fn=wrong_backends.backend(kind), name=name)
    assert said in check(TELLING.get(kind, PLAIN), name).detail


def test_what_a_program_writes_to_its_arguments_is_checked_in_every_stage() -> None:
    made = case("x.add_(y)\nx.t()", mutates=("x",))
    row = ladder.check(to_json(made), {"target": "cpu", "seed": SEED})
    assert row.verdict == "pass", (SEED, row)


def test_every_case_whose_sizes_have_names_has_a_row_for_which_small_buffers_do_not_do() -> None:
    file = load(find_shapes() / "ops" / "softmax.toml")
    rows = [row for row in expand(file, "full", enlarged=True) if row.enlarged]
    assert len(rows) == len(file.cases)
    for row in rows:
        for _, args in row.enlarged:
            assert sum(torch.Size(arg.shape).numel() for arg in args) > 100_000
    assert not any(row.enlarged for row in expand(file, "full"))


def test_a_large_row_of_too_many_results_is_not_taken() -> None:
    few, many = torch.zeros(foreign.MOST_RESULTS, 1), torch.zeros(foreign.MOST_RESULTS + 1, 1)
    assert foreign._is_small(lambda x: x.split(1), (few,))
    assert not foreign._is_small(lambda x: x.split(1), (many,))


def test_a_large_row_of_too_many_pairs_is_not_taken() -> None:
    few, many = torch.zeros(1 << 8, 1), torch.zeros((1 << 13) + 1, 1)
    assert foreign._is_small(lambda x: (x - x.t()).amax(), (few,))
    assert not foreign._is_small(lambda x: (x - x.t()).amax(), (many,))
