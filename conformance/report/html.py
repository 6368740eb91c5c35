"""`index.html`: the report as one self-contained page, rendered by its script from embedded data.

The data are deflated JSON in base64, which contains no characters special to HTML. Texts of stages are in separate
blocks of adjacent rows, which compress well together; a block is inflated when one of its rows is opened.
"""

import base64
import html
import json
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from conformance import rows
from conformance.report.writer import Run
from conformance.rows import BAD, BENCH_VERDICTS, CHECK_VERDICTS, Bench, Check, SelfTest
from conformance.shapes.cases import DTYPES, STAGES, stages_of

NAME = "index.html"
BLOCK = 32  # rows whose texts are compressed together
TEXTS = 3_500_000  # most characters of compressed texts; those of the least interesting rows are left out
PLACEHOLDER = re.compile("@@([a-z]+)@@")


def page(run: Run, comparison: str = "", lost: Sequence[str] = (), history: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return the page of a run.

    `comparison` summarises the comparison with a baseline, `lost` are the cases that passed only there.
    """
    positions, blocks = _texts([*run.cases, *run.benches])
    data = {
        "facts": _facts(run),
        "counts": _counts(run),
        "unfit": run.unfit,
        "against": comparison,
        "gone": list(lost),
        "cases": [_case(row, positions.get(id(row))) for row in run.cases],
        "benches": [_bench(row, positions.get(id(row))) for row in run.benches],
        "kernels": [rows.reported(kernel) for gate in run.gates for kernel in gate.kernels],
        "selftest": run.selftest and _selftest(run.selftest),
        "history": list(history),
        "dtypes": list(DTYPES),
        "order": list(STAGES),
    }
    parts = {
        "title": html.escape(str(run.env["device"])),
        "data": _deflate(data),
        "texts": "\n".join(blocks),
        "style": _asset("style.css"),
        "script": _asset("page.js"),
    }
    return PLACEHOLDER.sub(lambda match: parts[match[1]], _asset("template.html"))


@cache
def _asset(name: str) -> str:
    return (files("conformance.report") / "page" / name).read_text(encoding="utf-8")


def _deflate(data: object) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")


def _texts(found: Iterable[Check | Bench]) -> tuple[dict[int, tuple[int, int]], list[str]]:
    """Return for each row, by id(), its block and position in the block; and the blocks.

    Failed rows come first, then benchmarks, since the texts after TEXTS characters are left out.
    """
    with_texts = [(row, row.verdict, texts) for row in found if (texts := _texts_of(row))]
    with_texts.sort(key=lambda entry: (entry[1] not in BAD, not isinstance(entry[0], Bench)))
    positions: dict[int, tuple[int, int]] = {}
    blocks: list[str] = []
    remaining = TEXTS
    for start in range(0, len(with_texts), BLOCK):
        block_rows = with_texts[start : start + BLOCK]
        block = _deflate([texts for *_, texts in block_rows])
        remaining -= len(block)
        if remaining < 0:
            break
        positions |= {id(row): (len(blocks), index) for index, (row, *_) in enumerate(block_rows)}
        blocks.append(block)
    return positions, blocks


def _texts_of(row: Check | Bench) -> Mapping[str, str]:
    if isinstance(row, Check):
        return row.texts
    return {stages_of(row.target)[-1]: row.source} if row.source else {}


def _facts(run: Run) -> list[str]:
    env = run.env
    facts = (
        f"{run.when:%Y-%m-%d %H:%M} UTC", f"tier {run.tier}", f"seed {run.seed}", f"{run.seconds:.0f} s", env["cpu"],
        env["gpu"] or "no GPU", f"Python {env['python']}", f"torch {env['torch']}", env["toolchain"],
        f"commit {env['commit'] or 'unknown'}",
    )  # fmt: skip
    return [str(text) for text in facts if text]


def _counts(run: Run) -> list[tuple[str, int]]:
    verdicts = Counter([row.verdict for row in run.cases] + [row.verdict for row in run.benches])
    return [(verdict, verdicts[verdict]) for verdict in (*CHECK_VERDICTS, *BENCH_VERDICTS) if verdicts[verdict]]


def _case(row: Check, place: tuple[int, int] | None) -> dict[str, Any]:
    stages = [[s.stage, s.verdict, rows.to_json(s.err_over_tol), s.executor, s.seconds, s.message] for s in row.stages]
    return _item(row, place) | {
        "stages": stages, "stage": row.first_bad_stage, "pass": row.first_bad_pass, "files": row.repro,
        "error": rows.to_json(rows.worst_error(row.stages)), "fallbacks": list(row.fallbacks), "detail": row.detail,
        "what": rows.remark((row.bad and row.bad.message) or row.detail),
    }  # fmt: skip


def _bench(row: Bench, place: tuple[int, int] | None) -> dict[str, Any]:
    extra = {key: rows.to_json(getattr(row, key)) for key in ("over", "budget")}
    return {**_item(row, place), **rows.reported(row), **extra, "what": rows.remark(row.detail)}


def _item(row: Check | Bench, place: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "key": f"{row.file}::{rows.name(row)}", "name": rows.shown_name(row), "id": row.id, "op": row.op,
        "suite": row.suite, "dtype": row.dtype, "target": row.target, "verdict": row.verdict, "seconds": row.seconds,
        "command": row.command, "loss": row.first_loss, "reason": row.reason, "texts": place,
    }  # fmt: skip


def _selftest(row: SelfTest) -> dict[str, Any]:
    planted = Counter((mutant.target, mutant.stage) for mutant in row.rows)
    caught = Counter((mutant.target, mutant.stage) for mutant in row.rows if mutant.caught)
    order = sorted(planted, key=lambda key: (key[0], STAGES.index(key[1])))
    return {
        "planted": row.planted, "caught": row.caught,
        "alarms": [f"{a.case} on {a.target}, {a.stage or 'capture'}: {a.message}" for a in row.alarms],
        "stages": [[" ".join(key), planted[key], caught[key]] for key in order],
        "missed": [f"{m.target} {m.stage}, {m.case}: {m.mutation}" for m in row.rows if not m.caught],
    }  # fmt: skip
