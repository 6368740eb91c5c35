"""A page of 5,000 rows, opened in a headless browser again and again, in; how long until its first screen, out.

    python -m conformance.tests.report.opened [TIMES]

Times are from the beginning of navigation. What else the machine does counts too.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from conformance.report import html
from conformance.tests.report import test_page
from conformance.tests.report.test_report import bench, run

ROWS, TIMED = 4500, 500
PROBE = """<script>(async () => {
  const until = async (test) => { while (!test()) await new Promise((go) => setTimeout(go, 5)); };
  const drawn = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
  const { dataset } = document.documentElement, said = {};
  await until(() => dataset.ready); await drawn(); said.first = performance.now();
  await until(() => dataset.whole); await drawn(); said.whole = performance.now();
  console.log("opened " + said.first.toFixed(0) + " " + said.whole.toFixed(0));
})()</script></body>"""


def page() -> str:
    """A page of so many cases and benchmarks, whose texts leave no room."""
    with pytest.MonkeyPatch.context() as patch:
        stages = (*test_page.STAGES, "schedule")
        patch.setattr(test_page, "texts", lambda _: {stage: os.urandom(90).hex() for stage in stages})
        timed = tuple(bench(f"b{n}", 0.5 + n % 7, ci=(0.4, 8.0), roofline=0.5) for n in range(TIMED))
        return html.page(run(test_page.cases(ROWS), timed))


def opened(file: Path, home: Path) -> tuple[int, int]:
    """Milliseconds until the first screen is drawn, and until all is."""
    assert test_page.BROWSER is not None, "no browser is installed (Debian: apt-get install chromium-headless-shell)"
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--remote-debugging-port=0"]
    command = [test_page.BROWSER, *words, f"--user-data-dir={home}", f"file://{file}"]
    environment = {**os.environ, "HOME": str(home)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as browser:
        assert browser.stderr is not None
        found = next(filter(None, (re.search(r"opened (\d+) (\d+)", line) for line in browser.stderr)), None)
        browser.kill()
    assert found is not None, "the browser ended before it had drawn the page"
    return int(found[1]), int(found[2])


def main(words: list[str]) -> None:
    """Open it, and say how long that took each time."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "index.html"
        text = page()
        file.write_text(text.replace("</body>", PROBE), encoding="utf-8")
        took = [opened(file, Path(folder) / "browser") for _ in range(int(words[0]) if words else 7)]
    first, whole = (statistics.median(every) for every in zip(*took, strict=True))
    print(f"{ROWS + TIMED} rows, {len(text) / 1e6:.1f} MB: first screen {first:.0f} ms, all {whole:.0f} ms")
    print(json.dumps(took))


if __name__ == "__main__":
    main(sys.argv[1:])
