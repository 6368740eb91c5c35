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


PARTS = [
    ("mine.toml",),
    ("-k", "fine"),
    ("-m", "mlcomp_check"),
    ("--deselect", "mine.toml::fine[N4.f32.contig.normal-cpu]"),
    ("--mlcomp-stages", "torch"),
    ("--lf",),
]


@pytest.mark.parametrize("words", PARTS, ids=" ".join)
def test_a_part_of_the_suite_leaves_the_reports_of_the_whole_alone(
    box: pytest.Pytester, words: tuple[str, ...]
) -> None:
    shape_file(box, case("fine"))
    shape_file(box, case("wrong"), name="other.toml")
    reports = box.path / "reports"
    mlcomp(box, bare=True).assert_outcomes(passed=1, failed=1)
    (device,) = (path.name for path in reports.iterdir())
    before = {path: path.read_text() for path in (reports / device).iterdir() if path.is_file()}
    assert len(before) == 5 and not device.startswith(".")
    mlcomp(box, *words, bare=True)
    assert {path: path.read_text() for path in before} == before
    assert {path.name for path in reports.iterdir()} == {device, ".last"}
    assert (reports / ".last" / ".gitignore").read_text() == "*\n" and (reports / ".last" / "run.json").exists()
    repro = f"reports/{device}/repro"
    assert repro not in (reports / ".last" / "run.json").read_text()


def test_a_run_that_stopped_early_leaves_the_reports_of_the_whole_alone(box: pytest.Pytester) -> None:
    shape_file(box, case("wrong"), case("fine"))
    stopped = mlcomp(box, "-x", bare=True)
    stopped.assert_outcomes(failed=1)
    assert not (box.path / "reports").exists() and "left as they were" in stopped.stdout.str()


def test_a_run_without_arguments_takes_the_shape_files_of_its_folder(box: pytest.Pytester) -> None:
    shape_file(box, case("fine"))
    shape_file(box, case("last"), name="shapes/other.toml")
    (box.path / "settings.toml").write_text("[tool]\nformat = 'none'\n")
    mlcomp(box, bare=True).assert_outcomes(passed=2)
    mlcomp(box, "mine.toml", bare=True, workers=2).assert_outcomes(passed=1)
