"""`--mlcomp-instructions` from outside: which items there are, and that what was not run is said aloud."""

import pytest

pytest_plugins = ["pytester"]


def test_items_of_a_row(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_other="def test_other(): raise AssertionError('not asked for')")
    run = pytester.runpytest_subprocess(
        "-p", "conformance.plugin", "--mlcomp-instructions", "-v", "-k", "ldmatrix and x4 and not sm_"
    )
    run.stdout.fnmatch_lines(
        ["*ldmatrix.x4::layout*PASSED*", "*ldmatrix.x4::emulated*PASSED*", "*ldmatrix.x4.trans::emulated*PASSED*"]
    )
    run.stdout.no_fnmatch_line("*test_other*")
    outcomes = run.parseoutcomes()
    assert outcomes["passed"] + outcomes.get("skipped", 0) == 6 and run.ret == pytest.ExitCode.OK
    if outcomes.get("skipped"):
        run.stdout.fnmatch_lines(["*instructions not run*", "2 checks: *GPU*"])
