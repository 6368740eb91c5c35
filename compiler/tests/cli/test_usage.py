"""Options of the command line that are refused, and those that every command takes."""

from __future__ import annotations

import pytest

from compiler import cli
from compiler.cli import suite

SOFTMAX = "torch.softmax(torch.randn(8, 33), -1)"


@pytest.mark.parametrize("command", [*suite.COMMANDS])
def test_debug_before_and_after_a_command_of_the_suite_is_not_passed_on(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(suite, "run", lambda module, words: started.append((module, words)))
    for words in (["--debug", command, "x"], [command, "--debug", "x"], [command, "x", "--debug"]):
        cli.main(words)
    assert started == [(suite.COMMANDS[command][0], ["x"])] * 3


@pytest.mark.parametrize(
    ("command", "option", "number"),
    [
        *[("tune", option, number) for option in ("--trials", "--redraw") for number in ("0", "-3")],
        *[("tune", "--budget", number) for number in ("0", "nan")],
        *[("explain", "--memory-limit", number) for number in ("0", "-1")],
    ],
)
@pytest.mark.parametrize("program", [["mine.toml"], ["-c", SOFTMAX]])
def test_limits_that_allow_nothing_are_refused(
    program: list[str], command: str, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, *program, option, number]) == 2
    assert f"{option}: {number} is not a number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(("option", "value"), [("--only", "N64"), ("--redraw", "2")])
def test_options_of_shape_files_are_refused_with_an_expression(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["tune", "-c", SOFTMAX, option, value]) == 2
    assert f"{option}: an expression has no benchmarks; name shape files" in capsys.readouterr().err
