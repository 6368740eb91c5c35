"""Compose tables: what meets what, at which sizes, under which names, and how a table is refused."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from conformance.shapes import files, inputs
from conformance.shapes.cases import TIERS, Case

Write = Callable[[str], Path]
FILES = sorted((files.find_shapes() / "compose").glob("*.toml"))
TABLE = """format = 1

[[compose]]
name = "meet"
shape = ["M", "N"]
sizes = [[7, 8], [1, 3], [33, 2]]
dtypes = ["f32", "f64"]
triples = 5

[compose.producers]
transpose = { expr = "x.t()", args = { x = ["N", "M"] } }
pad = { expr = "F.pad(x, (2, 0))", args = { x = ["M", "N - 2"] } }
pick = { expr = "x[i]", args = { x = ["M + 1", "N"], i = { shape = ["M"], dtype = "i64", inputs = { kind = "index", below = "M + 1" } } } }
expand = { expr = "x.expand(M, N)", args = { x = ["N"] }, dtypes = ["f64"] }

[compose.consumers]
add = { expr = "p + b", args = { b = ["N"] } }
product = { expr = "p @ y", args = { y = ["N", 5] }, where = "N > 2" }
"""  # noqa: E501


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def writer(text: str) -> Path:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return path

    return writer


def expanded(path: Path, tier: str = "nightly") -> dict[str, Case]:
    return {case.id.partition("[")[0]: case for case in files.expand(files.load(path, tier), tier)}


def value(case: Case) -> torch.Tensor:
    made: torch.Tensor = inputs.function(case)(*inputs.make(case).values())
    return made


def test_every_producer_meets_every_consumer(write: Write) -> None:
    cases = expanded(write(TABLE))
    pairs = [name for name in cases if name.count(".") == 2]
    assert len(pairs) == 8 and len(cases) == 13
    assert re.fullmatch(r"meet\.transpose\.add\[M\d+-N\d+\.f(32|64)\.contig\.normal\]", cases["meet.transpose.add"].id)
    for name, case in cases.items():
        m, n = case.dims["M"], case.dims["N"]
        assert value(case).shape == ((m, 5) if name.endswith("product") else (m, n)), case.id


def test_what_a_part_asks_for_holds(write: Write) -> None:
    for name, case in expanded(write(TABLE)).items():
        assert case.dtype == "f64" or "expand" not in name
        assert case.dims["N"] > 2 or not (name.endswith("product") or "pad" in name)


def test_one_producer_is_what_another_takes(write: Write) -> None:
    triples = {
        name: case for name, case in expanded(write(TABLE.replace("= 5", "= 50"))).items() if name.count(".") == 3
    }
    assert len(triples) == 24 and not any(name.startswith("meet.transpose.expand") for name in triples)
    case = triples["meet.transpose.pick.add"]
    m, n = case.dims["M"], case.dims["N"]
    assert [arg.shape for arg in case.args] == [(n, m + 1), (m,), (n,)]
    given = inputs.make(case)
    torch.testing.assert_close(value(case), given["x"].t()[given["i"]] + given["b"])
    both = triples["meet.pick.pick.add"]
    assert [arg.name for arg in both.args] == ["x", "i", "i_1", "b"]
    assert [arg.inputs["below"] for arg in both.args if arg.name.startswith("i")] == [
        both.dims["M"] + 2, both.dims["M"] + 1,
    ]  # fmt: skip


def test_tiers_grow_and_the_smallest_has_every_part(write: Write) -> None:
    path = write(TABLE.replace("triples = 5", "triples = 5\npairs = 5"))
    smoke, full, nightly = (expanded(path, tier) for tier in TIERS)
    assert len(smoke) == 4 and len(full) == 10 and len(nightly) == 13
    assert smoke.keys() < full.keys() < nightly.keys()
    assert {word for name in smoke for word in name.split(".")[1:]} == {
        "transpose", "pad", "pick", "expand", "add", "product",
    }  # fmt: skip


def test_a_new_part_changes_no_other_composition(write: Write) -> None:
    table = TABLE.replace("triples = 5", "")
    before = {case.id for case in expanded(write(table)).values()}
    more = 'plain = { expr = "x", args = { x = ["M", "N"] } }'
    longer = table.replace("[compose.producers]", f"[compose.producers]\n{more}")
    after = {case.id for case in expanded(write(longer)).values()}
    assert before < after and len(after) == len(before) + 2


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("triples = 5", "tripels = 5", 8, "a compose table has no key 'tripels'; did you mean 'triples'?"),
        ("triples = 5", "triples = -1", 8, "triples: -1 is not a number of compositions"),
        ('name = "meet"', "", 3, "every compose table needs a `name`"),
        ("[33, 2]]", "[33]]", 6, "a size above 0 for each of M, N"),
        ('"x.t()"', '"p.t()"', 11, "a producer needs 'x' among its `args`"),
        ('"p + b"', '"q + b"', 17, "a consumer must use 'p'"),
        ('"p + b"', '"p +"', 17, "the expression is not Python"),
        ('"p + b", args', '"p + b", arg', 17, "a part has no key 'arg'; did you mean 'args'?"),
        ("b = [", "p = [", 17, "'p' is reserved here"),
        ('["N", "M"]', '["N", "K"]', 3, "names 'K'"),
        ('where = "N > 2"', 'where = "N >"', 3, "is not an expression"),
        ('"f64"]\ntriples', '"f63"]\ntriples', 7, "'f63' is not a dtype"),
    ],
)
def test_a_table_that_cannot_be_is_refused_with_its_line(
    write: Write, old: str, new: str, line: int, message: str
) -> None:
    assert old in TABLE
    with pytest.raises(files.ShapeFileError) as caught:
        files.load(write(TABLE.replace(old, new, 1)))
    assert message in str(caught.value) and caught.value.line == line, caught.value


def test_our_tables_are_as_large_as_promised_and_eager_runs_them() -> None:
    pairs = triples = 0
    for path in FILES:
        cases = list(expanded(path, "full").values())
        triples += sum(case.id.partition("[")[0].count(".") == 3 for case in cases)
        pairs += sum(case.id.partition("[")[0].count(".") == 2 for case in cases)
        for case in random.sample(cases, 25):
            value(case)
    assert pairs >= 600 and triples >= 100
