"""`mlcomp merge reports/shards/* [--report DIR]`: join the reports of the shards of a run."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conformance.history import journal
from conformance.history.journal import HistoryError
from conformance.report import html, pages, tables, writer
from conformance.report.writer import ReportError
from conformance.run import regressions, shards
from conformance.run.shards import ShardError


def merge(folders: Sequence[Path], reports: Path) -> int:
    """Write the joined report; returns 1 if any shard failed, or the whole run does by --mlcomp-fail-on."""
    head, run = shards.join([shards.load(folder) for folder in folders])
    run = replace(run, benches=regressions.correct_verdicts(run.benches))
    documents, status = pages.documents(run), head.status
    print(tables.terminal(run))
    comparison = regressions.counts(run, head.baseline) if head.baseline else ""
    if comparison:
        documents["regressions.md"] = regressions.page(run, head.baseline, head.gone)
        print(f"mlcomp: {comparison}")
        if failures := regressions.failures(run, head.fail_on, head.gone):
            status = status or 1
            print("\n".join(failures))
    device = str(run.env["device"]).replace(" + ", "+")
    history = reports / "history" / f"{device}.jsonl"
    if head.record:
        journal.append(history, journal.entry_line(run))
    documents[html.NAME] = html.page(run, comparison, head.gone, journal.figures(history))
    writer.write(reports / device, documents)
    print(f"mlcomp: reports are in {reports / device}")
    return status


def main(words: Sequence[str]) -> int:
    """Merge reports; return the status of the whole run, or 2 if the parts do not form a whole run."""
    parser = argparse.ArgumentParser(
        prog="mlcomp merge",
        description="Merge the reports of the shards of a run into one, and exit with the status of the whole run.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="the report folder of a shard")
    parser.add_argument(
        "--report", type=Path, default=Path("reports"), help="folder of the merged report (default: reports)"
    )
    options = parser.parse_args(words)
    try:
        return merge(options.folders, options.report)
    except (ShardError, ReportError, HistoryError) as error:
        print(f"mlcomp: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
