"""What is kept of runs is whole whenever its writers are killed; KILLS in the environment says how often."""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from pathlib import Path

from conformance.history import baseline, journal, revisions
from conformance.report import writer as reports
from conformance.tests.history import killed

KILLS = int(os.environ.get("KILLS", "4"))
WRITES = """
import itertools, json, sys
from pathlib import Path
from conformance.history import baseline, journal
from conformance.report import writer
from conformance.rows import BaselineComparison, Bench

place = Path(sys.argv[1])
known = dict(file="x.toml", suite="x", op="add", target="cpu", dtype="f32", family="x", verdict="SAME")
for n in itertools.count():
    text = "x" * 30000
    run = {"when": f"{n}", "env": {}, "cases": {}, "benches": {}, "text": text}
    journal.append(place / "history.jsonl", json.dumps(run))
    report = json.dumps({"n": n, "text": text})
    writer.write(place / "report", {"run.json": report, "benchmark.json": report})
    made = [Bench(id=f"{k}[N4]", source=text, against=BaselineComparison(identity="d"), **known) for k in "ab"]
    baseline.save(place / "main", (), made, {"n": n, "env": {}}, {"cpu": f"// file a.h\\nint a{n};\\n"})
    print(n, flush=True)
"""


def test_nothing_is_half_written(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(KILLS):
        command = [sys.executable, "-c", WRITES, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline(), "what was killed keeps the next one from writing"
            time.sleep(draw.uniform(0, 0.05))
            writer.kill()
        journal.read(tmp_path / "history.jsonl")
        for name in ("run.json", "benchmark.json"):
            assert json.loads((tmp_path / "report" / name).read_text())["text"]
        found = baseline.find("main", tmp_path, tmp_path, revisions.TextRequest((), ("cpu",)))
        kernels = sorted((tmp_path / "main/kernels").glob("*.json"))
        assert kernels and found.folder is not None and found.verdicts() == {}
        for path in kernels:
            entry = json.loads(path.read_text())
            assert (found.folder / "kernels" / entry["text"]).read_text() == "x" * 30000
            assert (found.folder / "headers" / f"{entry['headers']}.txt").read_text().startswith("// file a.h")
    reports.write(tmp_path / "report", {"run.json": "{}"})
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == ["benchmark.json", "run.json"]


def test_whole_runs_that_are_killed_leave_what_is_whole(tmp_path: Path) -> None:
    seed = secrets.randbits(32)
    assert not [one for some in killed.attempts(tmp_path, KILLS // 2, seed, workers=(2,)) for one in some], seed


LOWERS = """
import sys
from pathlib import Path
from conformance.history import revisions

revisions.records([revisions.Revision("some", "", Path(sys.argv[1]))], revisions.TextRequest((), ("cpu",)), 1)
"""


def test_a_compiler_of_a_revision_ends_with_who_asked_it(tmp_path: Path) -> None:
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler/__init__.py").write_text("import time\ntime.sleep(600)\n")
    (tmp_path / "tmp").mkdir()
    environment = {**os.environ, killed.MARK: str(tmp_path), "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", LOWERS, str(tmp_path)], env=environment) as asking:
        deadline = time.monotonic() + 30
        while not (begun := [one for one in killed.running(tmp_path) if "history.texts" in one]):
            assert time.monotonic() < deadline, "it was never begun"
            time.sleep(0.02)
        asking.kill()
    assert len(begun) == 1
    assert killed.still_running(tmp_path) == [] and not list((tmp_path / "tmp").glob("mlcomp-*/"))
