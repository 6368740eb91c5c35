"""A case and what came of running it in; its report row out, with the verdict that the run counts.

A row is JSON-ready, because it travels from a worker to the controller.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance.isolation.executor import Reply, Status
from conformance.shapes.cases import DTYPES, BenchCase, Case, xfail_for

Row = dict[str, Any]

CHECK_VERDICTS = ("pass", "fail", "crash", "timeout", "unsupported", "xfail")
BENCH_VERDICTS = ("FASTER", "SLOWER", "SAME", "AMBIGUOUS")
BAD = frozenset({"fail", "crash", "timeout", "unsupported"})
# A crash or hang is never what an expected failure means.
GATE = "mlcomp-gate"  # the item of a file
CLIFF = 0.5  # of eager's speed, and certainly below it: no matter of tuning but a bug
COMPILE_CLIFF = 5.0  # times as long as Inductor takes to compile the same
MIN_CAUGHT = 0.95  # share of planted miscompiles that the checks must catch
EXPECTABLE = frozenset({"fail", "unsupported"})
_STAGE = {"verdict": "fail", "err_over_tol": None, "executor": None, "seconds": None, "message": ""}


def describe(case: Case, target: str, file: str) -> Row:
    """What a row says before anything has run."""
    kind = {"kind": "bench", "family": case.family} if isinstance(case, BenchCase) else {"kind": "check"}
    return kind | {
        "id": case.id, "file": file, "suite": case.suite, "op": case.op, "target": target, "dtype": case.dtype,
        "params": {**case.dims, **case.params},
    }  # fmt: skip


def check_row(known: Row, reply: Reply) -> Row:
    """The row of a check item."""
    empty: Row = {"verdict": "fail", "first_bad_stage": None, "first_bad_pass": None, "stages": [], "detail": ""}
    value = _value(reply, CHECK_VERDICTS[:5])
    row = known | empty | value
    row["stages"] = [_STAGE | stage for stage in row["stages"]]
    if reply.status in (Status.CRASH, Status.TIMEOUT) and reply.at:
        row["first_bad_stage"] = reply.at
    return finite(row | {"seconds": round(reply.seconds, 4), "first_loss": reply.first_loss})


def joined(found: Sequence[Row]) -> Row:
    """One row of several about the same case: the first bad one with the stages of all."""
    row = next((row for row in found if row["verdict"] in BAD), found[0])
    return row | {
        "stages": [stage for one in found for stage in one["stages"]],
        "detail": "\n".join(dict.fromkeys(one["detail"] for one in found if one["detail"])),
        "seconds": sum(one["seconds"] for one in found),
    }


def bench_row(known: Row, reply: Reply) -> Row:
    """The row of a bench item: times in microseconds, ratios over the best of PyTorch, raw samples in seconds."""
    empty: Row = dict.fromkeys(("ours_us", "eager_us", "compile_us", "speedup", "ci", "roofline"))
    value = _value(reply, (*BENCH_VERDICTS, "fail", "unsupported"))
    row = known | empty | {"samples": {}, "suspect": False} | value
    remarks = [row.get("detail") or row.pop("message", "")]
    remarks += [f"{name} left out: {why}" for name, why in row.get("skipped", {}).items()]
    remarks += [f"budget {rule['name']} = {rule['limit']:g} missed" for rule in missed_budgets(row)]
    row["cliffs"] = cliffs(row)
    row["detail"] = "; ".join(filter(None, [*(f"cliff: {text}" for text in row["cliffs"]), *remarks]))
    return finite(row | {"seconds": round(reply.seconds, 4), "first_loss": reply.first_loss})


def undecided(row: Row) -> Row:
    """A benchmark of a machine that was unfit to judge speed: its times stand, its verdict would be a guess."""
    if row["verdict"] not in ("FASTER", "SLOWER"):
        return row
    return row | {"verdict": "AMBIGUOUS", "detail": "; ".join(filter(None, (row["detail"], "on an unfit machine")))}


def cliffs(row: Row) -> list[str]:
    """What is slow beyond any tuning: a call beside eager's, the whole interval of it; compiling beside Inductor's.

    Compilers that found what they made in their own caches have no time to compare.

    >>> cliffs({"over": {"eager": {"speedup": 0.02, "ci": [0.015, 0.03]}}})
    ['0.02 of the speed of eager, below 0.5']
    >>> cliffs({"compile_seconds": 61.0, "rival_compile_seconds": {"compile": 4.0}})
    ['compiled in 61 s, Inductor in 4 s: more than 5 times as long']
    """
    found = []
    eager = row.get("over", {}).get("eager", {})
    if eager.get("ci") and eager["ci"][1] < CLIFF:
        found.append(f"{eager['speedup']:.2g} of the speed of eager, below {CLIFF:g}")
    ours, theirs = row.get("compile_seconds"), (row.get("rival_compile_seconds") or {}).get("compile")
    if ours and theirs and "compile" not in row.get("cached", ()) and ours > COMPILE_CLIFF * theirs:
        found.append(f"compiled in {ours:.3g} s, Inductor in {theirs:.3g} s: more than {COMPILE_CLIFF:g} times as long")
    return found


def missed_budgets(row: Row) -> list[Row]:
    """The limits that a benchmark breaks beyond doubt."""
    return [rule for rule in row.get("budget", ()) if rule["verdict"] == "missed"]


def fitness_row(reply: Reply) -> Row:
    """The row of the race of equals."""
    row: Row = {"kind": "fitness", "fit": False, "message": f"the race of equals did not finish: {reply.message}"}
    return finite(row | reply.value) if reply.status is Status.DONE and isinstance(reply.value, dict) else row


def gate_row(file: str, reply: Reply) -> Row:
    """The row of a file's cases as they are compiled for GPUs."""
    row: Row = {"kind": "gate", "file": file, "cases": 0, "kernels": []}
    return finite(row | _value(reply, ("pass", "fail")) | {"seconds": round(reply.seconds, 4)})


def selftest_row(reply: Reply) -> Row:
    """The row of the self-test: how many miscompiles were planted and caught, and how many sound cases were refused."""
    row: Row = {"kind": "selftest", "planted": 0, "caught": 0, "false_alarms": 0, "rows": [], "verdict": "pass"}
    if reply.status is not Status.DONE or not isinstance(reply.value, dict):
        detail = f"the self-test did not finish: {reply.message or reply.value}\n{reply.output}".strip()
        return row | {"verdict": "fail", "detail": detail}
    row |= reply.value
    complaints = []
    if not row["planted"]:
        complaints.append("nothing was planted")
    elif row["caught"] < MIN_CAUGHT * row["planted"]:
        complaints.append(f"{row['caught']} of {row['planted']} planted miscompiles caught, below {MIN_CAUGHT:.0%}")
    if row["false_alarms"]:
        complaints.append(f"{row['false_alarms']} sound cases refused")
    return finite(row | {"verdict": "fail" if complaints else "pass", "detail": "; ".join(complaints)})


def fuzz_row(known: Row, reply: Reply, again: Reply | None = None) -> Row:
    """The row of a random program; `again` is the search for the stage of one that was lost."""
    row: Row = known | {
        "line": "",
        "arguments": "",
        "verdict": "fail",
        "kind": "",
        "detail": "",
        "why": "",
        "repro": "",
    }
    row |= {"first_bad_stage": None, "first_bad_pass": None, "seconds": round(reply.seconds, 4)}
    if reply.status is Status.DONE and isinstance(reply.value, dict):
        return finite(row | reply.value)
    if again is None:  # the program could not be drawn, or what judges it failed
        return row | {"kind": "internal", "detail": f"{reply.message}\n{reply.output}".strip()}
    found = again.value if again.status is Status.DONE and isinstance(again.value, dict) else {}
    stage = found.get("first_bad_stage") or again.at or reply.at
    detail = f"{reply.message}, at: {reply.at}\n{reply.output}".strip()
    return finite(row | found | {"kind": str(reply.status), "detail": detail, "first_bad_stage": stage})


def lost_row(nodeid: str, message: str) -> Row:
    """The row of an item that took its whole pytest worker with it."""
    file, _, name = nodeid.partition("::")
    if name == GATE:
        return gate_row(file, Reply(Status.CRASH, None, f"the pytest worker was lost: {message}"))
    kind = "bench" if name.removesuffix("]").endswith("-bench") else "check"
    case_id, _, target = name.removesuffix("]").removesuffix("-bench").rpartition("-")
    case_id += "]" if "[" in case_id else ""
    words = re.split(r"[.\-\[\]]", case_id)
    suite, dtype = Path(file).stem, next((word for word in words if word in DTYPES), "")
    known = {
        "kind": kind, "id": case_id, "file": file, "suite": suite, "family": suite, "op": case_id.partition("[")[0],
        "target": target, "dtype": dtype,
    }  # fmt: skip
    reply = Reply(Status.CRASH, None, f"the pytest worker was lost: {message}")
    return bench_row(known, reply) if kind == "bench" else check_row(known, reply)


def _value(reply: Reply, verdicts: tuple[str, ...]) -> Row:
    match reply.status:
        case Status.DONE if isinstance(reply.value, dict) and reply.value.get("verdict") in verdicts:
            return {key: value for key, value in reply.value.items() if key not in ("kind", "file")}
        case Status.DONE:
            return {"verdict": "fail", "detail": f"the runner returned no verdict out of {', '.join(verdicts)}"}
        case Status.RAISED:
            return {"verdict": "fail", "detail": f"{reply.message}\n{reply.output}".strip()}
        case Status.CRASH | Status.TIMEOUT:
            where = f" in stage {reply.at}" if reply.at else ""
            verdict = str(reply.status)
            return {"verdict": verdict, "detail": f"{verdict}{where}: {reply.message}\n{reply.output}".strip()}


def expect(row: Row, case: Case) -> Row:
    """The row after its expected failure has been weighed: an expected one is `xfail`, a missing one `fail`."""
    expected = xfail_for(case, row["target"])
    if expected is None:
        return row
    if row["verdict"] not in BAD:
        if not expected.strict:
            return row
        detail = f"expected to fail ({expected.reason}), but it passes: take its xfail out of the shape file"
        return row | {"verdict": "fail", "detail": detail}
    stage = row.get("first_bad_stage")
    if row["verdict"] in EXPECTABLE and (expected.stage is None or stage in (None, expected.stage)):
        return row | {"verdict": "xfail", "reason": expected.reason}
    detail = (
        f"expected to fail in stage {expected.stage or 'any'} ({expected.reason}), but not like this\n{row['detail']}"
    )
    return row | {"detail": detail}


def finite(row: Row) -> Row:
    """The row as JSON can say it: NaN and infinities, which it cannot, become None."""
    return {key: _finite(value) for key, value in row.items()}


def _finite(value: Any) -> Any:
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value


def item_name(row: Mapping[str, Any]) -> str:
    """What pytest calls the item of a row; a bracket closes last, as in pytest's own names.

    >>> item_name({"kind": "bench", "id": "relu[N4.f32]", "target": "cpu"})
    'relu[N4.f32-cpu-bench]'
    """
    words = (row["id"].removesuffix("]"), row["target"], *(["bench"] if row["kind"] == "bench" else []))
    return "-".join(words) + ("]" if "[" in row["id"] else "")


def shown_path(path: Path, folder: Path) -> str:
    """The path as one would type it in a folder.

    >>> shown_path(Path("/a/shapes/x.toml"), Path("/a")), shown_path(Path("/b/x.toml"), Path("/a"))
    ('shapes/x.toml', '/b/x.toml')
    """
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
