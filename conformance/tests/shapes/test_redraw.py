"""Benchmarks at random sizes: how many, how large, and when they are the same."""

import random
from pathlib import Path

import pytest

from conformance.shapes.cases import BenchCase
from conformance.shapes.files import ShapeFileError, benches, load
from conformance.shapes.redraw import redrawn

SEED = random.SystemRandom().randrange(2**31)
HEAD = """format = 1
[[case]]
name = "mm"
expr = "x @ y"
args.x = { shape = ["M", "K"] }
args.y = { shape = ["K", "N"] }
"""
DIMS = "dims = { M = 3, K = 4, N = 5 }\n"
PERF = "[case.perf]\ndims = [{ M = 100, K = 64, N = 2048 }, { M = 400, K = 64, N = 2048 }]\n"


def drawn(folder: Path, text: str, count: int, seed: int) -> list[BenchCase]:
    path = folder / "t.toml"
    path.write_text(text)
    return list(benches(redrawn(load(path, "full"), count, seed), "full"))


def test_large_sizes_are_drawn_around_those_of_the_file_and_small_ones_stay(tmp_path: Path) -> None:
    made = drawn(tmp_path, HEAD + DIMS + PERF, 40, SEED)
    assert len({case.id for case in made}) == 40
    assert {case.family for case in made} == {"redrawn.f32"}
    assert all(50 <= case.dims["M"] <= 800 and 1024 - 64 <= case.dims["N"] <= 4096 + 64 for case in made), SEED
    assert {case.dims["K"] for case in made} == {64}
    assert any(case.dims["M"] % 8 for case in made) and not any(case.dims["N"] % 8 for case in made), SEED
    assert {bool(case.dims["N"] % 64) for case in made} == {True, False}, SEED


def test_the_same_seed_draws_the_same_whatever_else_the_file_has(tmp_path: Path) -> None:
    text = HEAD + DIMS + PERF
    first = [case.id for case in drawn(tmp_path, text, 5, SEED)]
    more = text + text.partition("\n")[2].replace('"mm"', '"again"')
    assert [case.id for case in drawn(tmp_path, more, 5, SEED)][:5] == first
    assert [case.id for case in drawn(tmp_path, text, 5, SEED + 1)] != first


def test_a_condition_holds_for_what_is_drawn_or_the_case_is_named(tmp_path: Path) -> None:
    made = drawn(tmp_path, HEAD + DIMS + 'where = "M % 3 == 0"\n' + PERF, 10, SEED)
    assert [case for case in made if case.dims["M"] % 3] == []
    with pytest.raises(ShapeFileError, match=r"case mm: 0 of 200 random sizes .* meet `where`; 2 are needed"):
        drawn(tmp_path, HEAD + DIMS + 'where = "M < 5"\n' + PERF, 2, 0)


def test_a_case_of_small_sizes_keeps_its_own(tmp_path: Path) -> None:
    made = drawn(tmp_path, HEAD + DIMS + "[case.perf]\ndims = [{ M = 7 }, { M = 9 }]\n", 5, 0)
    assert [case.dims["M"] for case in made] == [7, 9]
