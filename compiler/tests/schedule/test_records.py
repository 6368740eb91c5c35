"""Stored schedules: lines that sort and come back as they were; files that cannot be used say why, and where."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from compiler.schedule import records
from compiler.schedule.records import Record, RecordError

RECORD = Record(
    "ab12", "add_3x5_f32", "cpu", "a CPU", "def f(): ...", 'bind("i", blocks)\n', 1.5e-6, (1.2, 1.1, 1.3),
    {"torch": "2"},
)  # fmt: skip


def test_records_come_back_sorted_and_the_last_of_a_kernel_counts() -> None:
    other = replace(RECORD, key="aa00")
    text = records.show([RECORD, other, replace(RECORD, seconds=1e-6)])
    assert records.parse(text, "x") == [other, replace(RECORD, seconds=1e-6)]
    assert text == records.show(records.parse(text, "x"))
    assert len(text.splitlines()) == 2


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("<<<<<<< HEAD", "a conflict of a merge; keep one of both sides"),
        ("not json", "not a stored schedule: remove the line, or tune its kernel again"),
        ("[]", "not a stored schedule"),
        ('{"format": 99}', "format 99, and this mlcomp reads 1: tune again"),
        ('{"format": 1, "key": "ab"}', "a stored schedule has key, name, target"),
        (records.show([RECORD]).strip(), "add_3x5_f32 is in line 1 already; remove one of the two"),
    ],
)
def test_a_file_that_cannot_be_used_says_why_and_where(line: str, problem: str) -> None:
    with pytest.raises(RecordError) as said:
        records.parse(records.show([RECORD]) + line, "here.jsonl")
    assert str(said.value).startswith("here.jsonl, line 2: ")
    assert problem in str(said.value)


def test_what_changes_a_compilation_is_in_the_digest_of_records() -> None:
    one = records.Stored((RECORD,))
    assert one.digest == records.Stored((replace(RECORD, seconds=2.0, versions={}),)).digest
    assert one.digest != records.Stored((replace(RECORD, schedule="pass"),)).digest
    assert records.NOTHING.digest == ""
    assert json.loads(records.show([RECORD]))["format"] == records.FORMAT
