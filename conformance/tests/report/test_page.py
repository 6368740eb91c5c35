"""The page of a run: one file without network, whatever the rows say; looked at in a browser where there is one."""

import base64
import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from conformance.report import html
from conformance.rows import SelfTest, Stage
from conformance.tests.report.test_report import ENV, bench, check, gate, planted, run

BROWSER = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
SCRIPT = Path(html.__file__).parent / "page" / "page.js"
READER = Path(__file__).parent / "reader.js"
HOSTILE = "wrong <b id=planted>& </script><!-- @@data@@ \u2028 ' \" `${x}` é"
STAGES = ("torch", "tensor", "loop", "tile", "kernel", "cpp")


def texts(n: int) -> dict[str, str]:
    return {stage: f"{stage} of {n}\n{HOSTILE}" for stage in (*STAGES, "schedule")}


def cases(count: int, **more: Any) -> tuple[Any, ...]:
    rng = random.Random(count)
    stages = tuple(Stage(stage=s, verdict="pass", err_over_tol=0.5, executor="native", seconds=0.01) for s in STAGES)
    return tuple(
        check(f"op{n // 4}", dtype=("f32", "i64")[n % 2], id=f"op{n // 4}[N{n}]", stages=stages, seconds=rng.random(),
              texts=texts(n), **more)
        for n in range(count)
    )  # fmt: skip


def whole() -> str:
    """The page of a run that has something of everything, hostile in all of it."""
    bad = check("worst", "fail", id=f"worst[{HOSTILE}]", first_bad_stage="tile", detail=HOSTILE, texts=texts(99))
    timed = tuple(bench(f"b{n}", 0.5 + n, ci=(0.4 + n, 0.6 + n), roofline=0.5, source=HOSTILE) for n in range(3))
    made = dataclasses.replace(run((*cases(8), bad), timed, SelfTest(rows=planted(3, 1))), gates=(gate(),))
    return html.page(
        dataclasses.replace(made, env={**ENV, "device": HOSTILE}), HOSTILE, [HOSTILE], [{"n": 1}, {"n": 2}]
    )


class Parsed(HTMLParser):
    """The elements of a page, and what stands in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.inside: dict[str, str] = {}
        self.script: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self.script = (dict(attrs).get("id") or "code") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self.script is not None:
            self.inside[self.script] = self.inside.get(self.script, "") + data


def inflated(text: str) -> Any:
    return json.loads(zlib.decompress(base64.b64decode(text)))


def test_the_page_is_one_file_whatever_the_rows_say() -> None:
    page = Parsed(whole())
    assert page.tags.count("script") == 3 and "b" not in page.tags
    links = [value for key, value in page.attributes if key in ("src", "href", "srcset", "action")]
    assert not links and "default-src 'none'" in dict(page.attributes)["content"]  # type: ignore[operator]
    assert not re.search(r"https?://(?!www\.w3\.org/)", page.inside["code"]), "the script asks nobody for anything"
    data, blocks = inflated(page.inside["data"]), page.inside["texts"].split("\n")
    (bad,) = [row for row in data["cases"] if row["verdict"] == "fail"]
    assert (bad["detail"], data["against"], data["gone"]) == (HOSTILE, HOSTILE, [HOSTILE])
    block, at = bad["texts"]
    assert inflated(blocks[block])[at] == texts(99)
    assert [row["speedup"] for row in data["benches"]] == [0.5, 1.5, 2.5]


def test_texts_are_left_out_of_a_page_that_has_no_room_those_of_passing_cases_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = (*cases(96), check("worst", "fail", texts=texts(99)))
    full = html.page(run(found))
    monkeypatch.setattr(html, "TEXTS", len(Parsed(full).inside["texts"]) // 2)
    page = Parsed(html.page(run(found))).inside
    data = inflated(page["data"])["cases"]
    kept = [row["op"] for row in data if row["texts"]]
    assert "worst" in kept and 0 < len(kept) < len(data) == 97
    assert len(page["texts"]) <= html.TEXTS


def test_five_thousand_rows_weigh_less_than_five_megabytes() -> None:
    page = html.page(run(cases(500)))
    assert html.TEXTS + 10 * (len(page) - len(Parsed(page).inside["texts"])) < 5e6


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_is_javascript() -> None:
    subprocess.run(["node", "--check", str(SCRIPT)], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_largest_numbers_have_an_exponent() -> None:
    figure = re.search(r"^const figure = .*?;$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL)
    assert figure is not None
    numbers = "[0.5, 4096, 123.4, 123456.7, 1234567.8, -1.234e46]"
    script = f"{figure[0]} console.log({numbers}.map(figure).join())"
    shown = subprocess.run(["node", "-e", script], check=True, capture_output=True, text=True).stdout
    assert shown == "0.500,4096,123,123457,1.23e+6,-1.23e+46\n"


@pytest.mark.skipif(BROWSER is None, reason="no browser is installed (Debian: apt-get install chromium-headless-shell)")
def test_a_browser_shows_it_and_keys_and_links_work(tmp_path: Path) -> None:
    assert BROWSER is not None
    (tmp_path / "index.html").write_text(
        whole().replace("</body>", f"<script>{READER.read_text()}</script></body>"), encoding="utf-8"
    )
    key = f"shapes/mine.toml::worst[{HOSTILE}-cpu]"
    link = "#row=" + "".join(f"%{byte:02X}" for byte in key.encode())
    words = ["--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'browser'}", "--virtual-time-budget=20000"]
    shown = subprocess.run(
        [BROWSER, "--headless", *words, "--dump-dom", f"file://{tmp_path}/index.html{link}"],
        capture_output=True, text=True, timeout=120, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    found = re.search(r'<pre id="said">([^<]*)</pre>', shown.stdout)
    assert found is not None, shown.stderr[-2000:]
    said = json.loads(base64.b64decode(found[1]))
    assert said == {
        "linked": f"worst[{HOSTILE}-cpu]", "message": HOSTILE, "planted": 0, "first": texts(99)["tile"],
        "cpp": texts(99)["cpp"], "closed": 0, "searched": 4, "sorted": "ascending", "walked": 1, "opened": True,
        "hash": True, "covered": 2, "shaded": True, "charts": 2, "marks": 3,
        "sections": ["regressions", "speed", "history", "cases", "stages", "coverage", "selftest"],
    }  # fmt: skip
