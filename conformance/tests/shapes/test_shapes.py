"""Shape files: what they expand to, what their ids promise, and how they refuse."""

import doctest
import functools
import importlib.util
import itertools
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pytest

from conformance.shapes import combine, files
from conformance.shapes.cases import TIERS, from_json, runs_on, seed, to_json, xfail_for
from conformance.shapes.specs import ShapeFile

Write = Callable[[str], ShapeFile]

SOFTMAX = """format = 1
[defaults]
dtypes = ["f32", "bf16"]

[[case]]
name = "softmax"
expr = "F.softmax(x, dim=dim)"
args.x = { shape = ["B", "M", "N"] }
params.dim = [-1, 0, [0, 1]]
dims.B = [1, 3]
dims.M = { range = [1, 129], step = 32 }
dims.N = { around = [64, 128], delta = [-1, 0, 1] }
dims.zero = ["M"]
where = "not (dtype == 'bf16' and N == 63)"
layouts = ["contig", "transposed(0,1)", "strided(-1, 2)", "expanded(0)", "offset(3)"]
inputs = ["normal", "huge", "specials"]
xfail."cpu.bf16" = { stage = "kernel", reason = "no bf16 yet" }

[case.perf]
dims = [{ M = 4096 }, { B = 8, dim = 0 }]
dtypes = ["bf16"]
budget.cpu = { min_speedup = 1.0 }
"""
ONE = 'format = 1\n[[case]]\nname = "a"\nexpr = "x + 1"\nargs.x = { shape = ["N"] }\ndims.N = [4, 5]\n'


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(text: str) -> ShapeFile:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return files.load(path)

    return writer


def test_tiers_grow(write: Write) -> None:
    file = write(SOFTMAX)
    smoke, full, nightly = (files.expand(file, tier) for tier in TIERS)
    assert len({case.dtype for case in smoke}) == len(smoke) == len({case.dtype for case in nightly})
    assert {case.id for case in smoke} < {case.id for case in full} < {case.id for case in nightly}
    assert smoke[0].id == "softmax[B1-M1-N63-dim_m1.f32.contig.normal]"
    assert 30 <= len(full) < 60, "pairwise keeps 2 x 5 x 6 x 3 x 2 x 5 x 3 = 5400 combinations small"


def test_gradients_are_rows_of_their_own(write: Write) -> None:
    text = ONE.replace(
        'expr = "x + 1"', 'expr = "x + y"\ndtypes = ["f32", "bf16", "i32"]\ninputs = ["normal", "specials"]'
    )
    text += 'args.y = { shape = ["N"] }\n'
    plain = [case.id for case in files.expand(write(text), "full")]
    rows = files.expand(write(text + "grad = true\n"), "full")
    assert [case.id for case in rows if not case.grad] == plain
    found = {case.id: case.tier for case in rows if case.grad}
    assert found == {
        "a.grad[N4.f32.contig.normal]": "smoke", "a.grad[N5.bf16.contig.normal]": "full",
    }  # fmt: skip
    assert all(
        case.grad == ("x", "y") and "specials" not in case.id and "i32" not in case.id for case in rows if case.grad
    )
    (one,) = {case.grad for case in files.expand(write(text + 'grad = ["y"]\n')) if case.grad}
    assert one == ("y",)


def test_every_pair_meets_in_a_row(write: Write) -> None:
    rows = files.expand(write(SOFTMAX), "full")
    chosen = [
        {**row.dims, **row.params, "dtype": row.dtype, "layout": row.layout, "in": row.distribution} for row in rows
    ]
    factors = {key: {row[key] for row in chosen} - {0} for key in ("B", "M", "N", "dim", "dtype", "layout", "in")}
    factors["dim"].add(0)
    for one, other in itertools.combinations(factors, 2):
        missing = set(itertools.product(factors[one], factors[other])) - {(row[one], row[other]) for row in chosen}
        assert missing <= {(63, "bf16")}, (one, other)


def absent(bad: Collection[combine.Row], row: combine.Row) -> bool:
    return row not in bad


def test_pairwise_on_random_factors_and_filters() -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for _ in range(20):
        counts = [draw.randint(1, 4) for _ in range(draw.randint(2, 5))]
        bad = {tuple(draw.randrange(count) for count in counts) for _ in range(draw.randint(0, 5))}
        rows = combine.pairwise(counts, functools.partial(absent, bad))
        every = [row for row in itertools.product(*map(range, counts)) if row not in bad]
        assert len(set(rows)) == len(rows) and set(rows) <= set(every), f"seed {seed}"

        def pairs(table: Iterable[combine.Row]) -> set[object]:
            return {pair for row in table for pair in itertools.combinations(enumerate(row), 2)}

        assert pairs(rows) == pairs(every), f"seed {seed}: {counts} without {bad}"


def test_ids_are_words_that_pytest_can_select(write: Write) -> None:
    for case in files.expand(write(SOFTMAX), "nightly"):
        assert re.fullmatch(r"[\w:+.\-\[\]]+", case.id), case.id


def test_a_new_case_and_a_new_value_leave_ids_and_seeds_alone(write: Write) -> None:
    before = {case.id: seed(case, "x", 7) for case in files.expand(write(ONE), "full")}
    longer = ONE.replace("[4, 5]", "[9, 4, 5]") + '[[case]]\nname = "b"\nexpr = "x"\nargs.x = { shape = [2] }\n'
    after = {case.id: seed(case, "x", 7) for case in files.expand(write(longer), "full")}
    assert set(after) - set(before) == {"a[N9.f32.contig.normal]", "b[f32.contig.normal]"}
    assert all(after[name] == value for name, value in before.items())
    assert len(set(after.values())) == len(after)


def test_cases_travel_as_json(write: Write) -> None:
    file = write(SOFTMAX)
    for case in (*files.expand(file, "full"), *files.benches(file, "full")):
        back = from_json(json.loads(json.dumps(to_json(case))))
        assert back == case and type(back) is type(case) and hash(back) == hash(case)


def test_perf_rows(write: Write) -> None:
    first, second = files.benches(write(SOFTMAX), "full")
    assert first.id == "softmax[B1-M4096-N63-dim_m1.bf16.contig.normal]", "where does not apply to perf rows"
    assert second.params == {"dim": 0} and second.args[0].shape == (8, 1, 63)
    assert second.vs == ("eager", "compile") and second.budget == {"cpu": {"min_speedup": 1.0}}


PERF_TIERS = {
    "": ["smoke", "full", "full"],
    'tier = "smoke"\n': ["smoke", "smoke", "smoke"],
    'tier = "nightly"\n': ["nightly", "nightly", "nightly"],
}


@pytest.mark.parametrize("word", PERF_TIERS)
def test_benchmarks_have_tiers_of_their_own(write: Write, word: str) -> None:
    rows = "[case.perf]\ndims = [{ N = 6 }, { N = 7 }, { N = 8 }]\n" + word
    file = write(ONE + 'tier = "nightly"\n' + rows)
    for at, tier in enumerate(TIERS):
        kept = [6 + row for row, of in enumerate(PERF_TIERS[word]) if TIERS.index(of) <= at]
        assert [case.dims["N"] for case in files.benches(file, tier)] == kept
    own = write(ONE + rows.replace("{ N = 7 }", '{ N = 7, tier = "smoke" }'))
    assert 7 in [case.dims["N"] for case in files.benches(own)]


@pytest.mark.parametrize(
    ("family", "names"),
    [("", ["mine"] * 2), ('family = "row"', ["row"] * 2), ('family = "rows{N}.{how}"', ["rows6.m1", "rows7.m1"])],
)
def test_benchmarks_belong_to_a_family(write: Write, family: str, names: list[str]) -> None:
    text = ONE.replace("x + 1", "x + how") + "params.how = [-1]\nperf = { dims = [{ N = 6 }, { N = 7 }] }\n"
    file = write(text.replace("format = 1\n", f"format = 1\n[defaults]\n{family}\n"))
    assert [case.family for case in files.benches(file, "full")] == names


def test_zero_rows_are_one_per_named_dim(write: Write) -> None:
    empty = [case for case in files.expand(write(SOFTMAX), "full") if case.dims["M"] == 0]
    assert len(empty) == 1 and empty[0].args[0].shape == (1, 0, 63)


def test_xfail_is_for_its_dtype_and_target(write: Write) -> None:
    for case in files.expand(write(SOFTMAX), "full"):
        assert (xfail_for(case, "cpu:avx2") is not None) == (case.dtype == "bf16")
        assert xfail_for(case, "cuda") is None


def test_shapes_from_params_fixed_dtypes_and_formula_options(write: Write) -> None:
    file = write(
        'format = 1\n[[case]]\nname = "take"\nexpr = "x.to(to)[i]"\nparams.s = [[], [5], [2, 3]]\nparams.to = ["f16"]\n'
        'args.x = { shape = ["2*N", 3], low = 0, high = 4 }\nargs.i = { shape = "s", dtype = "i64", '
        'inputs = { kind = "index", below = "2*N", unique_along = 0 } }\ndims.N = [4]\n'
    )
    cases = files.expand(file, "full")
    assert [case.args[1].shape for case in cases] == [(), (5,), (2, 3)]
    assert cases[0].args[0].inputs == {"kind": "uniform", "low": 0, "high": 4}
    assert cases[0].args[1].inputs["below"] == 8 and cases[0].args[1].dtype == "i64"


def test_layouts_go_to_args_that_can_take_them(write: Write) -> None:
    file = write(
        'format = 1\n[[case]]\nname = "a"\nexpr = "x + b + w"\nargs.x = { shape = [4, 4] }\nargs.b = { shape = [4] }\n'
        'args.w = { shape = [4, 4] }\nconstants = ["w"]\nlayouts = ["contig", "permuted", "offset(1)"]\n'
    )
    layouts = {case.layout: [arg.layout for arg in case.args] for case in files.expand(file, "full")}
    assert layouts["permuted"] == ["permuted", "contig", "contig"]
    assert layouts["offset(1)"] == ["offset(1)", "offset(1)", "contig"]
    assert files.expand(file)[0].constants == ("w",)


def test_zip_ops_and_targets(write: Write) -> None:
    file = write(
        'format = 1\n[[case]]\nops = ["sin", "cos"]\nexpr = "torch.{op}(x)"\nargs.x = { shape = ["M", "N"] }\n'
        'dims.M = [1, 2, 3]\ndims.N = [4, 5, 6]\ncombine = "zip"\nwhere = "target == \'cpu\' or M > 1"\n'
    )
    cases = files.expand(file, "full")
    assert [case.args[0].shape for case in cases if case.op == "cos"] == [(1, 4), (2, 5), (3, 6)]
    assert [case.targets for case in cases][:2] == [("cpu",), ("cpu", "cuda")]
    assert runs_on(cases[0], "cpu:avx512") and not runs_on(cases[0], "cuda")


def test_cross_is_bounded(write: Write) -> None:
    many = "[" + ",".join(map(str, range(1, 90))) + "]"
    text = ONE.replace('["N"]', '["N", "M"]').replace("[4, 5]", many) + f"dims.M = {many}\n"
    assert len(files.expand(write(text), "nightly")) <= 89 * 89
    with pytest.raises(files.ShapeFileError, match="7921 rows"):
        files.expand(write(text + 'combine = "cross"\n'), "full")


def test_types_are_timed_by_kind_of_target(write: Write) -> None:
    file = write(ONE + 'perf = { dtypes = { "*" = ["f32"], cuda = ["f32", "bf16"] } }\nfamily = "a.{dtype}"\n')
    found = {row.dtype: (row.targets, row.family) for row in files.benches(file)}
    assert found == {"f32": (("cpu", "cuda"), "a.f32"), "bf16": (("cuda",), "a.bf16")}


def test_rows_that_are_timed_can_be_checked_around_their_sizes(write: Write) -> None:
    perf = 'perf = { dims = [{ N = 32 }, { N = 64, tier = "nightly" }], dtypes = { cpu = ["f32"], cuda = ["bf16"] }, '
    file = write(ONE + perf + 'checked = { around = { N = [-1, 1] }, targets = ["cuda"] } }\n')
    rows = files.expand(file, "nightly")
    around = [row for row in rows if row.dims["N"] > 30]
    assert [(row.dims["N"], row.dtype, row.targets, row.tier) for row in around] == [
        (n, "bf16", ("cuda",), "nightly") for n in (31, 33, 63, 65)
    ]
    assert not any(row.dims["N"] > 30 for row in files.expand(file, "full"))


def test_what_is_said_once_of_perf_holds_for_each_case_that_has_it(write: Write) -> None:
    other = '[[case]]\nname = "other"\nexpr = "x"\nargs.x = { shape = [2] }\n'
    file = write(ONE.replace("[[case]]", '[defaults.perf]\ndtypes = ["f16"]\n[[case]]') + "perf = {}\n" + other)
    assert [(row.op, row.dtype) for row in files.benches(file)] == [(file.cases[0].op, "f16")]


def test_a_dynamic_dim_makes_one_row_that_is_checked_at_all_its_values(write: Write) -> None:
    text = ONE.replace("N = [4, 5]", "N = [4, 5, 9]\ndims.K = [7, 8]\ndims.M = [6, 2]").replace("x + 1", "x + y")
    text += 'args.y = { shape = ["K", "2*M + 1", "N"] }\ndynamic = { N = { min = 1 }, M = { max = 30 } }\n'
    first, second = files.expand(write(text), "full")
    assert (first.id, second.id) == ("a[Ndyn-K7-Mdyn.f32.contig.normal]", "a[Ndyn-K8-Mdyn.f32.contig.normal]")
    assert first.dynamic is not None and first.dynamic.ranges == {"N": (1, None), "M": (2, 30)}
    assert [dims for dims, _ in first.dynamic.points] == [{"N": 4, "M": 6}, {"N": 5, "M": 2}, {"N": 9, "M": 6}]
    assert first.dynamic.points[1][1][1].shape == (7, 5, 5) and first.args[1].axes == ("", "2*M + 1", "N")
    assert from_json(json.loads(json.dumps(to_json(first)))) == first


REFUSED = {
    'exprs = "x"': (7, "no key 'exprs'; did you mean 'expr'?"),
    "args.y = { shape = [1], dtpye = 'i64' }": (7, "did you mean 'dtype'?"),
    "args.y = { shape = [1] }": (7, "does not use this argument"),
    "args.F = { shape = [1] }": (7, "is reserved in expressions"),
    "dims.K = [3]": (7, "this name is unused"),
    "dims.M = { range = [3, 9], stop = 2 }": (7, "or { range"),
    "dims.M = []": (7, "or { range"),
    'dims.zero = ["n"]': (7, "'n' is not a dim; did you mean 'N'?"),
    'dtypes = ["fp32"]': (7, "did you mean 'f32'?"),
    'layouts = ["strided(2)"]': (7, "strided(n,n)"),
    'inputs = ["norml"]': (7, "did you mean 'normal'?"),
    'inputs = [{ kind = "index" }]': (7, "'index' needs 'below'"),
    'where = "n > 1"': (7, "names 'n'"),
    'where = "open(N)"': (7, "names 'open'"),
    'where = "N.real > 0"': (7, "only arithmetic"),
    'where = "N > 9"': (2, "no row is left"),
    "tolerance = { mode = 'fixed', rtol = 0.1 }": (7, "needs rtol, atol and a reason"),
    "tolerance = { rtol = 0.1 }": (7, 'are only for mode = "fixed"'),
    'torch = "newest"': (7, "is not a version specifier"),
    'xfail."cpu.f23" = { reason = "x" }': (7, "TARGET.DTYPE"),
    'xfail."cpu.f32" = { stage = "kernel" }': (7, "needs a `reason`"),
    'inputs = [{ kind = "uniform", low = 2 }]': (7, "inputs.low: 2 is above `high`, which is 1.0"),
    'inputs = [{ kind = "uniform", high = inf }]': (7, "inputs.high: inf is not a finite number"),
    'inputs = [{ kind = "integers", low = "N", high = 4 }]': (7, "inputs: low: 5 is above `high`, which is 4"),
    'inputs = [{ kind = "normal", std = 0 }]': (7, "inputs.std: 0 is not above 0"),
    'inputs = [{ kind = "normal", std = -1 }]': (7, "inputs.std: -1 is not above 0"),
    'inputs = [{ kind = "normal", mean = nan }]': (7, "inputs.mean: nan is not a finite number"),
    'inputs = [{ kind = "bool", p = 1.5 }]': (7, "inputs.p: 1.5 is not a probability"),
    'inputs = [{ kind = "choice", values = [] }]': (7, "inputs.values: a non-empty list of numbers is needed, not []"),
    'inputs = [{ kind = "index", below = 2.5 }]': (7, "inputs.below: 2.5 is not a whole number"),
    'inputs = [{ kind = "invalid_index", below = true }]': (7, "inputs.below: True is not a whole number"),
    'inputs = [{ kind = "index", below = "N / 2" }]': (7, "inputs: below: 2.0 is not a whole number"),
    'inputs = [{ kind = "index", below = 3, unique_along = 0.5 }]': (7, "inputs.unique_along: 0.5 is not a whole"),
    'inputs = [{ kind = "index", below = 3, negative = 1 }]': (7, "inputs.negative: 1 is not true or false"),
    'inputs = [{ kind = "invalid_index", below = 3, wraps = 0 }]': (7, "inputs.wraps: 0 is not true or false"),
    'inputs = [{ kind = "sorted", descending = "N" }]': (7, "inputs: descending: 4 is not true or false"),
    "init = { n = 3 }": (7, "arguments for the constructor of a `module`, and there is none"),
    "ops = []": (7, "a list of words for {op} is needed, not []"),
    'ops = ["sin", "cos"]': (7, "there is no {op} in `expr`"),
    "timeout = 0": (7, "0 is not a number above 0"),
    "timeout = -1": (7, "-1 is not a number above 0"),
    'tolerance = { mode = "fixed", rtol = inf, atol = 0, reason = "x" }': (7, "inf is not a number of at least 0"),
    'perf = { vs = ["eagr"] }': (7, "'eagr' is not a system to time against; did you mean 'eager'?"),
    'perf = { vs = ["Inducter"] }': (7, "'Inducter' is not a system to time against; did you mean 'inductor'?"),
    'perf = { vs = [" "] }': (7, "' ' is not a system to time against; known are"),
    "dtypes = []": (7, "a list of dtypes is needed, not []"),
    "layouts = []": (7, "a list of layouts is needed, not []"),
    'combine = "pairs"': (7, "did you mean 'pairwise'?"),
    'targets = ["gpu"]': (7, "is not a target"),
    'tier = "smok"': (7, "did you mean 'smoke'?"),
    'constants = ["X"]': (7, "did you mean 'x'?"),
    "perf = { dims = [{ M = 1 }] }": (7, "'M' is not a dim or param"),
    "perf = { tier = 'smoky' }": (7, "did you mean 'smoke'?"),
    "perf = { dims = [{ N = 1, tier = 'ful' }] }": (7, "did you mean 'full'?"),
    "perf = { dtypes = { cuda = ['f32'] } }": (7, "there is no list for 'cpu'; add one, or one for \"*\""),
    "perf = { dtypes = { gpu = ['f32'] } }": (7, "'gpu' is not a kind of target"),
    "perf = { dtypes = { cuda = ['fp32'] } }": (7, "did you mean 'f32'?"),
    "perf = { checked = { around = { n = [1] } } }": (7, "'n' is not a dim; did you mean 'N'?"),
    "perf = { checked = { around = { N = 1 } } }": (7, "a list of whole numbers to add to N"),
    "perf = { checked = { arund = { N = [1] } } }": (7, "did you mean 'around'?"),
    "perf = { checked = { targets = ['gpu'] } }": (7, "is not a target"),
    "perf = { dims = [{ N = 1 }], checked = { around = { N = [-2] } } }": (5, "holds -1 for {'N': -1}"),
    "family = 'a b'": (7, "names of dims or params in braces"),
    "family = 'rows{M}'\nperf = {}": (7, "names 'M', no dim or param; known are 'N'"),
    "dims.tier = 3": (7, "is reserved in expressions"),
    '[[case]]\nname = "a"\nexpr = "1"': (8, "the case in line 2 has the same name"),
    '[[case]]\nname = "b"': (7, "needs an `expr`"),
    '[[case]]\nexpr = "1"': (7, "needs a `name`"),
    '[[case]]\nname = "b c"\nexpr = "1"': (8, "pytest -k"),
    '[[case]]\nname = "b"\nexpr = "x +"': (9, "is not Python"),
    '[[case]]\nname = "b"\nexpr = "y.sum()"': (9, "uses 'y'"),
    '[[case]]\nname = "b"\nexpr = """\ny = 2\n"""': (9, "has no value"),
    '[[case]]\nname = "b"\nexpr = "x"\nargs.x = { shape = ["N"] }': (10, "names 'N'"),
    '[[case]]\nname = "b"\nexpr = "x"\nargs.x = { shape = ["M-2"] }\ndims.M = 1': (10, "holds -1 for {'M': 1}"),
    '[[case]]\nname = "b"\nexpr = "x"\nargs.x = { shape = [3] }\nlayouts = ["permuted"]': (7, "no row is left"),
    "dynamic.n = {}": (7, "'n' is not a dim; did you mean 'N'?"),
    "dynamic.N = { mx = 9 }": (7, "no key 'mx'; did you mean 'max'?"),
    "dynamic.N = { max = 4 }": (7, "5 is not between 2 and 4"),
    "dynamic.N = { min = 0 }": (7, "`min` is at least 1"),
    "dynamic.N = {}\nperf = {}": (8, "`dynamic` cannot be combined with `perf`"),
    "grad = ['y']": (7, "'y' is not an argument, or is a weight"),
    "grad = true\ndtypes = ['i32']": (7, "no row of a floating type"),
    '[[case]]\nname = "b"\nexpr = "x"\ngrad = true\nargs.x = { shape = [3], dtype = "i64" }': (
        10,
        "is of a floating type",
    ),
    "dynamic.N = {}\ngrad = true": (8, "`grad` cannot be combined with"),
    "name = 3 4": (7, "is not TOML"),
    "args.x.dtype = 'i64'": (7, "an inline table { } is closed"),
}


@pytest.mark.parametrize("extra", REFUSED)
def test_refusals_name_the_line_and_the_remedy(write: Write, tmp_path: Path, extra: str) -> None:
    line, message = REFUSED[extra]
    with pytest.raises(files.ShapeFileError) as caught:
        file = write(ONE + extra + "\n")
        assert files.expand(file, "full")
        files.benches(file)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'mine.toml'}:{line}: ")


@pytest.mark.parametrize(
    ("default", "own", "line", "message"),
    [
        ("timeout = 0", "", 3, "case 'a': defaults.timeout: 0 is not a number above 0"),
        ("timeout = 0", "timeout = 0", 9, "case 'a': timeout: 0 is not a number above 0"),
        ("tolerance.rtol = inf", "", 3, "case 'a': defaults.tolerance.rtol: inf is not a number"),
        ("perf.vs = ['eagr']", "perf.inputs = 'normal'", 3, "case 'a': defaults.perf.vs: 'eagr' is not"),
        ("perf.dtypes = ['f32']", "perf.vs = ['eagr']", 9, "case 'a': perf.vs: 'eagr' is not"),
        ("perf.dtypes = { cuda = ['f23'] }", "perf = {}", 3, "case 'a': defaults.perf.dtypes.cuda: 'f23' is not"),
        ("dtypes = ['f32']", "perf = { dtypes = ['f23'] }", 9, "case 'a': perf.dtypes: 'f23' is not a dtype"),
        ("perf = { dims = [{ M = 3 }] }", "perf = {}", 3, "case 'a': defaults.perf.dims.M: 'M' is not a dim"),
    ],
)
def test_a_wrong_default_is_refused_at_its_own_line(
    write: Write, tmp_path: Path, default: str, own: str, line: int, message: str
) -> None:
    with pytest.raises(files.ShapeFileError) as caught:
        write(ONE.replace("[[case]]", f"[defaults]\n{default}\n[[case]]") + own + "\n")
    assert str(caught.value).startswith(f"{tmp_path / 'mine.toml'}:{line}: {message}")


@pytest.mark.parametrize("limits", ["low = 2, high = 1", "low = 'N', high = 4", "low = -inf", "high = -3", "low = nan"])
def test_limits_of_an_argument_are_in_order(write: Write, tmp_path: Path, limits: str) -> None:
    with pytest.raises(files.ShapeFileError) as caught:
        files.expand(write(ONE.replace('["N"]', f'["N"], {limits}')), "full")
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'mine.toml'}:5: case 'a': args.x: "), said


@pytest.mark.parametrize(
    "text",
    ["", "format = 2\n", ONE.replace("1", "true", 1), ONE.replace("1", "1.0", 1), "format = 1\n", "\x00", "[[case]\n"],
)
def test_a_file_that_is_no_shape_file(write: Write, text: str) -> None:
    with pytest.raises(files.ShapeFileError):
        write(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9")
    with pytest.raises(files.ShapeFileError, match="UTF-8"):
        files.load(tmp_path / "latin.toml")
    with pytest.raises(files.ShapeFileError, match="cannot be read"):
        files.load(tmp_path / "absent.toml")


def test_the_readme_example_works(write: Write) -> None:
    readme = (files.find_shapes() / "README.md").read_text()
    example = re.search(r"```toml\n(.*?)```", readme, re.DOTALL)
    assert example is not None
    file = write(example[1])
    assert files.expand(file, "full") and len(files.benches(file, "full")) == 1


@pytest.mark.parametrize("path", sorted(files.find_shapes().rglob("*.toml")), ids=lambda path: path.stem)
def test_shipped_files_load_and_expand(path: Path) -> None:
    file = files.load(path)
    if not file.cases and importlib.util.find_spec("transformers") is None:
        assert "[[case]]" not in path.read_text()
        pytest.skip("it has models alone, and the extra `models` is not installed")
    assert files.expand(file, "full")
    files.benches(file, "nightly")


DOCUMENTED = (
    "cases", "combine", "distributions", "expand", "expressions", "schema", "files", "toml_values",
    "toml_values",
)  # fmt: skip


@pytest.mark.parametrize("name", DOCUMENTED)
def test_docstring_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"conformance.shapes.{name}")).failed == 0


def test_reading_shape_files_needs_no_torch() -> None:
    script = "import sys, conformance.shapes.files; sys.exit('torch' in sys.modules or 'compiler' in sys.modules)"
    root = Path(__file__).resolve().parents[3]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, timeout=60).returncode == 0


def test_a_foreign_compiler_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "__init__.py").write_text("")
    root = Path(__file__).resolve().parents[3]
    script = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(root)!r}]; import conformance"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "rename the other `compiler` folder" in done.stderr
