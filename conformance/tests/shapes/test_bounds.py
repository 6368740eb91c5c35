"""Shape files that ask for too much end in an error with its line, before they have taken time or memory."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.shapes import files, toml_values

ONE = 'format = 1\n[[case]]\nname = "a"\nexpr = "x + 1"\nargs.x = { shape = ["N"] }\ndims.N = [4, 5]\n'
NUMBERS = ", ".join(map(str, range(20_000)))
BRACKETS = 50_000
MEMORY = 2 << 30  # bytes that one of these may take beyond what this process has
# A change to the file above, or lines after it; the line of the error and what it says.
HOSTILE: dict[str, tuple[tuple[str, str] | str, int, str]] = {
    "power in a shape": (('["N"]', '["9**9**9 + N"]'), 5, "is too large"),
    "power in a filter": ('where = "9**9**9 > N"', 7, "is too large"),
    "long tuple": ('where = "len((1,) * 10**10) > N"', 7, "the limit is 10000"),
    "long text": ("where = \"len('a' * 10**10) > N\"", 7, "the limit is 10000"),
    "wide format": ("where = \"'%1000000000d' % N > '1'\"", 7, "a text has no remainder"),
    "size below 0": (('["N"]', '["N - 5"]'), 5, "sizes are whole numbers >= 0"),
    "no list of sizes": (('["N"]', '"2 * N"'), 5, "must yield a list of sizes"),
    "long filter": (f'where = "N{" + N" * 500_000} > 0"', 7, "the limit is 2000"),
    "deep filter": (f'where = "{"-" * 1900}N < 0"', 7, "cannot be parsed as a Python expression"),
    "long program": (('"x + 1"', f'"x{" + x" * 2_500_000}"'), 4, "the limit is 50000"),
    "deep program": (('"x + 1"', f'"{"-" * 4000}x"'), 4, "cannot be parsed as Python"),
    "long range": (("[4, 5]", "{ range = [1, 1000000000] }"), 6, "exceed the limit of 1000"),
    "many around": (("[4, 5]", f"{{ around = [{NUMBERS}], delta = [{NUMBERS}] }}"), 6, "exceed the limit of 1000"),
    "long list": (("[4, 5]", f"[{NUMBERS}]"), 6, "exceed the limit of 1000"),
    "long param": (("x + 1", f'x + a"\nparams.a = [{NUMBERS}]\nop = "a'), 5, "exceed the limit of 1000"),
    "many pairs": (("[4, 5]", '{ range = [1, 99] }\ndims.M = { range = [1, 900] }\nwhere = "M > N"'), 2, "89100 rows"),
    "digits": (("[4, 5]", "9" * 5000), 6, "cannot be parsed"),
    "brackets": (("[4, 5]", "[" * BRACKETS + "]" * BRACKETS), 6, "cannot be parsed"),
    "dots": ("a." * BRACKETS + "b = 1", 7, "more than 50 parts"),
}


@pytest.fixture
def limited() -> Iterator[None]:
    """A process in which what is too much is refused by the system, not by its out-of-memory killer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("name", HOSTILE)
def test_what_asks_for_too_much_is_refused_at_its_line(tmp_path: Path, name: str) -> None:
    change, line, message = HOSTILE[name]
    path = tmp_path / "mine.toml"
    path.write_text(ONE + change + "\n" if isinstance(change, str) else ONE.replace(*change))
    with pytest.raises(files.ShapeFileError, match=message) as caught:
        files.expand(files.load(path), "full")
    assert caught.value.line == line
    assert len(str(caught.value)) < 3000


def test_formulas_within_the_bounds_mean_what_they_meant(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    shape = '["2**(N - 1) * 3 % 100", "len((1, 2) * N)", "-N % 3"]'
    path.write_text(ONE.replace('["N"]', shape))
    assert [row.args[0].shape for row in files.expand(files.load(path), "full")] == [(24, 8, 2), (48, 10, 1)]


def test_lines_are_looked_for_once_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("format = 1\n" + "\n".join(ONE.partition("\n")[2].replace('"a"', f'"a{n}"') for n in range(50)))
    before = toml_values.key_lines.cache_info().misses
    assert len(files.load(path).cases) == 50
    assert toml_values.key_lines.cache_info().misses == before + 1


def test_the_nightly_tier_draws_rows_from_more_than_can_be_counted(tmp_path: Path) -> None:
    names = [f"p{n}" for n in range(40)]
    path = tmp_path / "mine.toml"
    params = "".join(f"params.{name} = [1, 2, 3, 4, 5]\n" for name in names)
    path.write_text(ONE.replace("x + 1", " + ".join(["x", *names])) + params)
    assert len(files.expand(files.load(path), "nightly")) > 1000
