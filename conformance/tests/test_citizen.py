"""The suite among pytest's own features: what failed last, what parts of a run may overwrite, what is left behind."""

import tomllib

import pytest

from conformance.tests.pretence import ROOT, case, mlcomp, shape_file

pytest_plugins = ["pytester"]


@pytest.mark.parametrize(
    ("option", "ran"),
    [
        ("--lf", {"failed": 1, "deselected": 3}),
        ("--ff", {"failed": 1, "passed": 3}),
        ("--sw", {"failed": 1, "deselected": 2}),
    ],
)
def test_what_failed_last_is_found_again(box: pytest.Pytester, option: str, ran: dict[str, int]) -> None:
    shape_file(box, case("first"), case("second"), case("wrong"), case("last"))
    first = mlcomp(box, "mine.toml", *(["--sw"] if option == "--sw" else []))
    first.assert_outcomes(failed=1, passed=2 if option == "--sw" else 3)
    again = mlcomp(box, "mine.toml", option, "-v")
    again.assert_outcomes(**ran)
    order = [line for line in again.outlines if line.startswith("mine.toml::")]
    assert order[0].startswith("mine.toml::wrong[N4.f32.contig.normal-cpu] FAILED")


def test_the_license_is_there_and_named() -> None:
    assert "Apache License\n                           Version 2.0" in (ROOT / "LICENSE").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
