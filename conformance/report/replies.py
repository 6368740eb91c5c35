"""Convert replies of the child process to rows with their final verdicts."""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from conformance import rows
from conformance.isolation.executor import Reply, Status
from conformance.rows import BAD, BENCH_VERDICTS, CHECK_VERDICTS, COMPILE, EAGER
from conformance.shapes.cases import DTYPES, Case, Xfail, xfail_for

T = TypeVar("T")
RunRow = TypeVar("RunRow", bound=rows.Check | rows.Bench)

GATE = "mlcomp-gate"  # name of the gate item of a file
CLIFF = 0.5  # of eager's speed; a kernel that is significantly slower has a bug, not a tuning problem
COMPILE_CLIFF = 5.0  # in units of Inductor's compile time
MIN_CAUGHT = 0.95  # share of planted miscompiles that the checks must catch
# Verdicts that an xfail may expect.
EXPECTABLE = frozenset({"fail", "unsupported"})


def describe(case: Case, target: str, file: str) -> rows.Item:
    """Return the identity of an item, before it runs."""
    return rows.Item(
        id=case.id, file=file, suite=case.suite, op=case.op, target=target, dtype=case.dtype,
        params={**case.dims, **case.params},
    )  # fmt: skip


def check(item: rows.Item, reply: Reply) -> rows.Check:
    """Return the row of a check item."""
    result, (verdict, detail) = _value(rows.CaseResult, reply, CHECK_VERDICTS[:5])
    if result is None:
        stage = reply.at if reply.status in (Status.CRASH, Status.TIMEOUT) else ""
        result = rows.CaseResult(verdict=verdict, detail=detail, first_bad_stage=stage or None)
    return rows.Check(**vars(item), **vars(result), seconds=round(reply.seconds, 4), first_loss=reply.first_loss)


def join_checks(results: Sequence[rows.Check]) -> rows.Check:
    """Join rows of the same case: the first bad one, or else the first, with the stages of all."""
    return replace(
        next((row for row in results if row.verdict in BAD), results[0]),
        stages=tuple(stage for result in results for stage in result.stages),
        detail="\n".join(dict.fromkeys(result.detail for result in results if result.detail)),
        seconds=sum(result.seconds for result in results),
    )


def bench(item: rows.Item, family: str, reply: Reply) -> rows.Bench:
    """Return the row of a benchmark, with all remarks in its detail."""
    result, (verdict, detail) = _value(rows.RaceResult, reply, (*BENCH_VERDICTS, "fail", "unsupported"))
    result = result or rows.RaceResult(verdict=verdict, message=detail)
    row = rows.Bench(
        **vars(item), **vars(result), family=family, seconds=round(reply.seconds, 4), first_loss=reply.first_loss
    )
    cliff_texts = cliffs(result)
    remarks = [f"cliff: {text}" for text in cliff_texts] + [result.message]
    for why in dict.fromkeys(result.skipped.values()):
        names = ", ".join(name for name, reason in result.skipped.items() if reason == why)
        remarks.append(f"{names} left out: {why}")
    remarks += [f"budget {rule.name} = {rule.limit:g} missed" for rule in row.missed]
    return replace(row, cliffs=cliff_texts, detail="; ".join(filter(None, remarks)))


def as_ambiguous(row: rows.Bench) -> rows.Bench:
    """Return the row on an unfit machine: its times remain, but FASTER and SLOWER become AMBIGUOUS."""
    if row.verdict not in ("FASTER", "SLOWER"):
        return row
    return replace(row, verdict="AMBIGUOUS", detail="; ".join(filter(None, (row.detail, "on an unfit machine"))))


def cliffs(row: rows.RaceResult) -> tuple[str, ...]:
    """Return why a benchmark is a cliff: whole interval below CLIFF, or compile time above COMPILE_CLIFF × Inductor's.

    Compile times are not compared if Inductor took its result from a cache.

    >>> cliffs(rows.RaceResult(over={"eager": rows.Speedup(speedup=0.02, ci=(0.015, 0.03))}))
    ('0.02 of the speed of eager, below 0.5',)
    >>> cliffs(rows.RaceResult(compile_seconds=61.0, rival_compile_seconds={"compile": 4.0}))
    ('compiled in 61 s, Inductor in 4 s: more than 5 times as long',)
    """
    complaints = []
    eager = row.over.get(EAGER)
    if eager is not None and eager.ci and eager.ci[1] < CLIFF:
        complaints.append(f"{eager.speedup:.2g} of the speed of eager, below {CLIFF:g}")
    our_seconds, inductor_seconds = row.compile_seconds, row.rival_compile_seconds.get(COMPILE)
    if (
        our_seconds
        and inductor_seconds
        and COMPILE not in row.cached
        and our_seconds > COMPILE_CLIFF * inductor_seconds
    ):
        complaints.append(
            f"compiled in {our_seconds:.3g} s, Inductor in {inductor_seconds:.3g} s: "
            f"more than {COMPILE_CLIFF:g} times as long"
        )
    return tuple(complaints)


def fitness(reply: Reply) -> rows.Fitness:
    """Return the row of the fitness item."""
    result, _ = _value(rows.Fitness, reply)
    return result or rows.Fitness(message=f"the race of equals did not finish: {reply.message}")


def gate(file: str, reply: Reply) -> rows.Gate:
    """Return the row of a gate item."""
    result, (verdict, detail) = _value(rows.Gate, reply, ("pass", "fail"))
    return replace(result or rows.Gate(verdict=verdict, detail=detail), file=file, seconds=round(reply.seconds, 4))


def selftest(reply: Reply) -> rows.SelfTest:
    """Return the row of the self-test; it fails on a false alarm or if too few miscompiles were caught."""
    row, _ = _value(rows.SelfTest, reply)
    if row is None:
        detail = f"the self-test did not finish: {reply.message or reply.value}\n{reply.output}".strip()
        return rows.SelfTest(verdict="fail", detail=detail)
    complaints = []
    if not row.planted:
        complaints.append("nothing was planted")
    elif row.caught < MIN_CAUGHT * row.planted:
        complaints.append(f"{row.caught} of {row.planted} planted miscompiles caught, below {MIN_CAUGHT:.0%}")
    if row.alarms:
        complaints.append(f"{row.false_alarms} sound cases refused")
    return replace(row, verdict="fail" if complaints else "pass", detail="; ".join(complaints))


def fuzz(item: rows.Fuzz, reply: Reply, second_reply: Reply | None = None) -> rows.Fuzz:
    """Return the row of a random program; `second_reply` is the search for the bad stage after the process was lost."""
    item = replace(item, seconds=round(reply.seconds, 4))
    if (result := _value(rows.Fuzz, reply)[0]) is not None:
        return _with_identity(item, result)
    if second_reply is None:  # the program could not be drawn, or what judges it failed
        return replace(item, verdict="fail", kind="internal", detail=f"{reply.message}\n{reply.output}".strip())
    blamed = _value(rows.Fuzz, second_reply)[0] or replace(item, verdict="fail")
    stage = blamed.first_bad_stage or second_reply.at or reply.at
    detail = f"{reply.message}, at: {reply.at}\n{reply.output}".strip()
    result = replace(_with_identity(item, blamed), verdict="fail", kind=str(reply.status), first_bad_stage=stage)
    return replace(result, detail=detail)


def lost_by_torch(item: rows.Fuzz, eager_reply: Reply) -> rows.Fuzz:
    """Return the row of a random program with which eager alone loses its process."""
    return replace(item, verdict="torch", kind=str(eager_reply.status), detail=f"eager alone: {eager_reply.message}")


def with_text(item: rows.Fuzz, eager_reply: Reply) -> rows.Fuzz:
    """Return the row with the text of the program that eager ran."""
    ran = _value(rows.Fuzz, eager_reply)[0]
    return item if ran is None else replace(item, line=ran.line, arguments=ran.arguments)


def with_reduced(row: rows.Fuzz, reply: Reply) -> rows.Fuzz:
    """Return the row with the reduced program, or why there is none."""
    if reply.status is not Status.DONE or not isinstance(reply.value, dict):
        return replace(row, reduced=f"not reduced: {reply.message}")
    value = reply.value
    return replace(row, reduced=f"{value['line']}\n  # {value['arguments']}\n  {value['regression']}".rstrip())


def _with_identity(item: rows.Fuzz, result: rows.Fuzz) -> rows.Fuzz:
    return replace(result, target=item.target, command=item.command, seconds=item.seconds)


def opinfo(item: rows.OpInfo, reply: Reply) -> rows.OpInfo:
    """Return the row of an OpInfo entry or ONNX test."""
    result = _value(rows.OpInfo, reply)[0]
    if result is None:
        verdict = "error" if reply.status is Status.RAISED else str(reply.status)
        result = replace(item, verdict=verdict, detail=f"{reply.message}, at: {reply.at}\n{reply.output}".strip())
    seconds = round(reply.seconds, 2)
    return replace(result, target=item.target, command=item.command, seconds=seconds, source=item.source)


def lost_item(nodeid: str, message: str) -> rows.Row:
    """Return the row of an item whose pytest worker was lost."""
    file, _, name = nodeid.partition("::")
    reply = Reply(Status.CRASH, None, f"the pytest worker was lost: {message}")
    if name == GATE:
        return gate(file, reply)
    case_id, _, target = name.removesuffix("]").removesuffix("-bench").rpartition("-")
    case_id += "]" if "[" in case_id else ""
    dtype = next((word for word in re.split(r"[.\-\[\]]", case_id) if word in DTYPES), "")
    suite, op = Path(file).stem, case_id.partition("[")[0]
    item = rows.Item(id=case_id, file=file, suite=suite, op=op, target=target, dtype=dtype)
    return bench(item, suite, reply) if name.removesuffix("]").endswith("-bench") else check(item, reply)


def _value(kind: type[T], reply: Reply, verdicts: tuple[str, ...] = ()) -> tuple[T | None, tuple[str, str]]:
    """Return the row in a reply, whose verdict must be one of `verdicts` if given; else None, verdict and detail."""
    match reply.status:
        case Status.DONE:
            try:
                if isinstance(reply.value, dict) and (not verdicts or reply.value.get("verdict") in verdicts):
                    return rows.from_json(kind, reply.value), ("", "")
                detail = f"the runner returned no verdict out of {', '.join(verdicts)}"
            except TypeError as error:
                detail = f"the runner returned no row: {error}"
            return None, ("fail", detail)
        case Status.RAISED:
            return None, ("fail", f"{reply.message}\n{reply.output}".strip())
        case Status.CRASH | Status.TIMEOUT:
            stage_text = f" in stage {reply.at}" if reply.at else ""
            verdict = str(reply.status)
            return None, (verdict, f"{verdict}{stage_text}: {reply.message}\n{reply.output}".strip())


def expect(row: RunRow, case: Case) -> RunRow:
    """Apply the case's xfail to the row: an expected failure becomes `xfail`, a missing one `fail` if it is strict."""
    expected = xfail_for(case, row.target)
    if expected is None:
        return row
    if row.verdict not in BAD:
        if not expected.strict:
            return row
        detail = f"expected to fail ({expected.reason}), but it passes: take its xfail out of the shape file"
        return replace(row, verdict="fail", detail=detail)
    if _is_expected(row, expected):
        return replace(row, verdict="xfail", reason=expected.reason)
    detail = f"expected to fail in stage {expected.stage or 'any'} ({expected.reason}), but not like this\n{row.detail}"
    return replace(row, detail=detail)


def _is_expected(row: rows.Check | rows.Bench, expected: Xfail) -> bool:
    """Return whether a bad row is the expected failure. An error of the shape file itself, which has no stage, is not;
    neither is a crash or hang. Benchmarks name no stage."""
    if row.verdict not in EXPECTABLE:
        return False
    if isinstance(row, rows.Bench):
        return not row.invalid_case
    if row.first_bad_stage is None:
        return row.verdict == "unsupported" and expected.stage is None
    return expected.stage in (None, row.first_bad_stage)


def properties(row: rows.Row) -> list[tuple[str, object]]:
    """Return the short fields of a row as properties for other reports, such as JUnit's.

    >>> properties(rows.Fitness(fit=True))
    []
    """
    match row:
        case rows.Check():
            error = rows.worst_error(row.stages)
            values = {"stage": row.first_bad_stage, "pass": row.first_bad_pass, "err_over_tol": error}
        case rows.Bench():
            interval = row.ci and "{:.4g} {:.4g}".format(*row.ci)
            values = {"speedup": row.speedup, "interval": interval, "ours_us": row.ours_us, "roofline": row.roofline}
            values["against_baseline"] = row.against.verdict or None
        case _:
            return []
    return [(f"mlcomp_{key}", value) for key, value in {"verdict": row.verdict, **values}.items() if value is not None]


def shown_path(path: Path, folder: Path) -> str:
    """Return the path relative to the folder if it is inside, else unchanged.

    >>> shown_path(Path("/a/shapes/x.toml"), Path("/a")), shown_path(Path("/b/x.toml"), Path("/a"))
    ('shapes/x.toml', '/b/x.toml')
    """
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
