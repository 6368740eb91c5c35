"""What a sanitizer says, told apart by case: the sanitizer is a function that writes to its file."""

import doctest
from pathlib import Path

import pytest

from conformance import rows
from conformance.judge import sanitizer
from conformance.judge.sanitizer import MissedControl, Watch
from conformance.report import replies


class Pretended:
    """A sanitizer that reports controls, some time after they ran, and what a case makes it say before."""

    def __init__(self, log: Path, sees: bool = True) -> None:
        self.log, self.sees = log, sees
        self.say("========= COMPUTE-SANITIZER")

    def say(self, *lines: str) -> None:
        with self.log.open("a") as file:
            file.writelines(f"{line}\n" for line in lines)

    def report(self, what: str, at: str) -> None:
        self.say(f"========= {what}", f"=========     at {at}", "=========     by thread (1,0,0) in block (0,0,0)")
        self.say("=========")

    def launch(self, number: int) -> None:
        if self.sees:
            self.report("Invalid __global__ write of size 4 bytes", f"{sanitizer.control(number)}+0x30 in <unknown>:3")
        raise RuntimeError("unspecified launch failure")


def watched(folder: Path, **how: bool) -> tuple[Pretended, Watch]:
    pretended = Pretended(folder / "said.txt", **how)
    return pretended, Watch("memcheck", pretended.log, pretended.launch, patience=0.05)


def test_each_case_has_its_own_findings(tmp_path: Path) -> None:
    said, watch = watched(tmp_path)
    assert watch.findings() == ()
    said.report("Invalid __global__ read of size 16 bytes", "softmax(const float *, float *)+0x2c0 in kernel.cu:31")
    (found,) = watch.findings()
    assert found == (
        "kernel.cu:31: Invalid __global__ read of size 16 bytes; at softmax(const float *, float *)+0x2c0; "
        "by thread (1,0,0) in block (0,0,0)"
    )
    for _ in range(3 * sanitizer.CONTROLS):
        assert watch.findings() == ()


def test_races_are_findings_with_both_places(tmp_path: Path) -> None:
    said, watch = watched(tmp_path)
    said.say("========= Error: Race reported between Write access at sum+0x90 in kernel.cu:14")
    said.say("=========     and Read access at sum+0xd0 in kernel.cu:16 [96 hazards]", "=========")
    (found,) = watch.findings()
    assert found.startswith("kernel.cu:14: Error: Race reported between Write access at sum+0x90; and Read access")
    assert "kernel.cu:16 [96 hazards]" in found


def test_a_sanitizer_that_sees_nothing_is_found_out(tmp_path: Path) -> None:
    _, watch = watched(tmp_path, sees=False)
    with pytest.raises(MissedControl, match=r"did not report the fault planted in mlcomp_control_0; it said: nothing"):
        watch.findings()


def test_many_findings_are_told_in_part(tmp_path: Path) -> None:
    said, watch = watched(tmp_path)
    for thread in range(100):
        said.report("Invalid __shared__ read of size 4 bytes", f"scan+0x{thread:x} in kernel.cu:9")
    assert len(watch.findings()) == 20


def test_the_command_names_tool_and_file(tmp_path: Path) -> None:
    made = sanitizer.command("racecheck", tmp_path / "said.txt")
    assert made[made.index("--tool") + 1] == "racecheck" and str(tmp_path / "said.txt") in made


def test_the_row_of_a_case_has_the_stages_of_all_tools() -> None:
    def row(verdict: str, detail: str) -> rows.Check:
        known = rows.Item(id="a[f32]", file="a.toml", suite="a", op="a", target="cuda", dtype="f32")
        stages = (rows.Stage(stage="cuda"),)
        return rows.Check(**vars(known), verdict=verdict, stages=stages, detail=detail, seconds=1.0)

    joined = replies.join_checks([row("pass", ""), row("fail", "a race")])
    assert (joined.verdict, joined.detail, joined.seconds, len(joined.stages)) == ("fail", "a race", 2.0, 2)
    assert replies.join_checks([row("pass", ""), row("pass", "")]).verdict == "pass"


def test_docstring_examples() -> None:
    assert doctest.testmod(sanitizer).failed == 0
