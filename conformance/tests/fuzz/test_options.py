"""Options beside those of random programs: what would do nothing is refused."""

import pytest

from conformance.tests.pretence import case, mlcomp, shape_file

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mlcomp-fuzz", "30"), "--mlcomp-fuzz: --mlcomp-fuzz-only runs one program alone; remove the option"),
        (("--mlcomp-fuzz-corpus", "kept"), "--mlcomp-fuzz-corpus: --mlcomp-fuzz-only runs one program alone; *"),
        (("--mlcomp-tier", "full"), "--mlcomp-tier: it does nothing in a run without shape files; name some, or *"),
        (("--mlcomp-bench", "quick"), "--mlcomp-bench: it does nothing in a run without shape files; *"),
        (("--mlcomp-vs", "eager"), "--mlcomp-vs: it does nothing in a run without shape files; *"),
        (("--mlcomp-save-baseline",), "--mlcomp-save-baseline: it does nothing in a run without shape files; *"),
        (("--mlcomp-gate",), "--mlcomp-gate: it does nothing in a run without shape files; *"),
        (("--mlcomp-ops", "abs"), "--mlcomp-ops: no database of ops is asked for; *"),
    ],
)
def test_options_that_do_nothing_beside_one_program_are_refused(
    box: pytest.Pytester, words: tuple[str, ...], said: str
) -> None:
    result = mlcomp(box, "--mlcomp-fuzz-only", "0", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*{said}"])


@pytest.mark.parametrize(("words", "passed"), [(("--mlcomp-fuzz", "1"), 3), (("--mlcomp-opinfo",), 4)])
def test_options_of_shape_files_are_refused_where_none_is_named(
    box: pytest.Pytester, words: tuple[str, ...], passed: int
) -> None:
    shape_file(box, case("fine"))
    result = mlcomp(box, *words, "--mlcomp-tier", "full")
    result.stderr.fnmatch_lines(["*--mlcomp-tier: it does nothing in a run without shape files; *"])
    mlcomp(box, "mine.toml", *words, "--mlcomp-tier", "full", workers=2).assert_outcomes(passed=passed)
