"""The pages are true: their commands run and print what they show, their shape file and their Python work, their
tables hold what the code says, and what they name exists.

In a ```console block a line `$ command` is followed by its output, where a first or last line `…` stands for what is
left out. What depends on the machine is compared with its numbers masked. `pytest compiler/tests/test_readme.py
--update` writes down what the commands print now, in place of what was shown and abridged as it was, and what the
tables hold now; that runs `make` too, whose commands are otherwise only looked at (`-k "not make"` leaves them alone).
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import compiler
from compiler import cli
from compiler.ir import tile
from compiler.pipeline import pass_table
from compiler.schedule import steps
from conformance.plugin import OPTIONS

ROOT = Path(compiler.__file__).parents[1]
README = "README.md"
PAGES = (README, "CHANGELOG.md", "compiler/README.md", "conformance/README.md", "shapes/README.md")
LONGEST = 200  # lines of the first page
SHAPE_FILE = "shapes/mine.toml"
LEFT_OUT = "…"
# Figures, folders named after the device, and the filling of pytest's lines.
_VARIES = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?|(?<=reports/)\S+|(?<==)=+")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `start` is the line after its fence, counted from 0."""

    page: str
    language: str
    start: int
    lines: tuple[str, ...]

    @property
    def name(self) -> str:
        """The page and the first words, for the name of a test."""
        folder = self.page.removesuffix(README).rstrip("/") or "top"
        return f"{folder}-{re.sub(r'[^a-zA-Z0-9_]+', '-', self.lines[0].removeprefix('$ '))[:60].strip('-')}"


@dataclass(frozen=True)
class Command:
    """A command of a console block; its output stands in lines `start` to `start + len(shown)`."""

    words: str
    start: int
    shown: tuple[str, ...]


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(*languages: str) -> list[Block]:
    """The blocks in these languages of all pages, in order."""
    return [block for page in PAGES for block in _blocks(page) if block.language in languages]


def _blocks(page: str) -> Iterator[Block]:
    opened = None
    lines = text_of(page).splitlines()
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if opened is not None:
                yield Block(page, lines[opened][3:], opened + 1, tuple(lines[opened + 1 : number]))
            opened = number if opened is None else None


def commands(block: Block) -> list[Command]:
    at = [n for n, line in enumerate(block.lines) if line.startswith("$ ")]
    ends = [*at[1:], len(block.lines)]
    return [
        Command(block.lines[n][2:], block.start + n + 1, block.lines[n + 1 : end])
        for n, end in zip(at, ends, strict=True)
    ]


CONSOLE = blocks("console")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the first page's shape file, where the commands run; what they build stays in it."""
    path = tmp_path / SHAPE_FILE
    path.parent.mkdir()
    path.write_text("\n".join(blocks("toml")[0].lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for variable in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.parametrize("number", range(len(CONSOLE)), ids=[block.name for block in CONSOLE])
def test_commands_print_what_is_shown(number: int, project: Path, pytestconfig: pytest.Config) -> None:
    update, page = pytestconfig.getoption("update"), CONSOLE[number].page
    for which, command in enumerate(commands(CONSOLE[number])):
        if command.words.startswith("make ") and not update:
            shell(command.words.replace("make", "make -n", 1), ROOT)
            continue
        if not update and torch.cuda.is_available() and any(line.startswith("no GPU:") for line in command.shown):
            pytest.skip("the pages show what machines without a GPU print")
        made = abridged(run(command.words, project, warm=not update), command.shown)
        if update:
            replace(page, commands(blocks("console")[number])[which], made)
            continue
        exact = command.words.startswith(("mlcomp show", "mlcomp passes"))
        shown, found = (lines if exact else tuple(map(masked, lines)) for lines in (command.shown, made))
        difference = "\n".join(difflib.unified_diff(shown, found, page, "printed now", lineterm=""))
        assert not difference, f"$ {command.words}\n{difference}\n`pytest {Path(__file__).name} --update` accepts it"


def run(words: str, folder: Path, warm: bool = True) -> list[str]:
    """What a command prints; if `warm`, `mlcomp` runs in this process, which has loaded PyTorch already."""
    if not (warm and words.startswith("mlcomp ")):
        return shell(words, ROOT if words.startswith("make ") else folder).splitlines()
    own, rest = split(words)
    made = io.StringIO()
    status: object
    with contextlib.redirect_stdout(made):
        try:
            status = cli.main(shlex.split(own)[1:])
        except SystemExit as ended:  # as argparse ends for --version
            status = ended.code
    assert status == 0, f"{words}: exit status {status}"
    return (shell(f"cat {rest}", folder, made.getvalue()) if rest else made.getvalue()).splitlines()


def split(words: str) -> tuple[str, str]:
    """A command line before and from its first pipe or redirection.

    >>> split("mlcomp show -c 'a | b' | head -3")
    ("mlcomp show -c 'a | b' ", '| head -3')
    """
    end = next((m.start() for m in re.finditer(r"""'[^']*'|"[^"]*"|([|>])""", words) if m[1]), len(words))
    return words[:end], words[end:]


def shell(words: str, folder: Path, given: str = "") -> str:
    done = subprocess.run(["bash", "-c", words], cwd=folder, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: exit status {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


def abridged(lines: list[str], shown: tuple[str, ...]) -> tuple[str, ...]:
    """The lines with as many left out, at the end that what is shown leaves out."""
    lines = [line.rstrip() for line in lines]
    if shown[:1] == (LEFT_OUT,):
        return (LEFT_OUT, *lines[len(lines) - len(shown) + 1 :])
    return (*lines[: len(shown) - 1], LEFT_OUT) if shown[-1:] == (LEFT_OUT,) else tuple(lines)


def masked(line: str) -> str:
    """A line without what varies.

    >>> masked("1 kernel, compiled in 12.5 ms, reports/some-cpu")
    '#kernel, compiled in #ms, reports/#'
    """
    return re.sub(r"# +", "#", re.sub(r"=+", "=", _VARIES.sub("#", line)))


def replace(page: str, command: Command, made: tuple[str, ...]) -> None:
    lines = text_of(page).splitlines()
    lines[command.start : command.start + len(command.shown)] = made
    (ROOT / page).write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- blocks without output


def plain() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.lines if line and not line.startswith("#")]
    return list(dict.fromkeys(lines))


@pytest.mark.parametrize("words", plain())
def test_plain_commands_are_right(words: str, project: Path) -> None:
    """Those that take long are only looked at."""
    if "onnx" in words:
        pytest.importorskip("onnx", reason="the extra onnx is not installed")
    match words.split()[0]:
        case "make":
            shell(words.replace("make", "make -n", 1), ROOT)
        case "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            arguments = shlex.split(words)
            assert arguments[1:4] == ["install", "-e", ".[test]"] and "test" in extras
            assert arguments[4] == "-c" and (ROOT / arguments[5]).is_file()
        case "pytest":
            folder = project if SHAPE_FILE in words else ROOT
            # Of the suite one file is enough to see that the words are known.
            whole = re.search(r"\.toml|shapes|fuzz|opinfo|onnx|bisect|instructions", words) is None
            more = "--collect-only -q -p no:cacheprovider" + " shapes/ops/softmax.toml" * whole
            assert "collected" in shell(f"{words} {more}", folder)
        case "mlcomp" if words.split()[1] == "tune" or "shapes/" in words:
            with pytest.raises(SystemExit, match="0"), contextlib.redirect_stdout(io.StringIO()):
                cli.main([*shlex.split(words)[1:], "--help"])
        case "mlcomp":
            run(words, project)
        case other:
            pytest.fail(f"nothing is known about {other}; show it in a console block")


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: block.page.replace("/", "-") + f"-{block.start}")
@pytest.mark.filterwarnings("error::compiler.backend.FallbackWarning")
def test_python_runs(block: Block, project: Path) -> None:
    code = compile("\n" * block.start + "\n".join(block.lines), str(ROOT / block.page), "exec")
    exec(code, {"__name__": "__readme__"})


@pytest.mark.parametrize("block", blocks("toml"), ids=lambda block: block.page.replace("/", "-") + f"-{block.start}")
def test_shape_files_are_right(block: Block, tmp_path: Path) -> None:
    """A fragment lacks the first line."""
    text = "\n".join(block.lines)
    path = tmp_path / "shown.toml"
    path.write_text(text if block.lines[0].startswith("format") else f"format = 1\n{text}", encoding="utf-8")
    assert cli.main(["validate", str(path)]) == 0


# ---- tables that the code knows


def option_table() -> str:
    """Every option of the plugin but those for its own tests."""
    lines = ["| option | |", "|---|---|"]
    for name, option in OPTIONS.items():
        if option["help"] is not argparse.SUPPRESS:
            value = "|".join(option["choices"]) if "choices" in option else str(option.get("metavar", ""))  # type: ignore[arg-type]
            value = value.replace("|", "\\|")
            lines.append(f"| `--mlcomp-{name}{f' {value}' if value else ''}` | {option['help']} |")
    return "\n".join(lines)


def step_table() -> str:
    """Every step of a schedule with the page's own example, and the first sentence that its class says of it."""
    examples = dict(re.findall(r"^\| `((\w+)\(.*\))` \|", text_of("compiler/README.md"), flags=re.MULTILINE))
    shown = {word: text for text, word in examples.items()}
    lines = ["| example | what it does |", "|---|---|"]
    for word, step in steps.STEPS.items():
        said = " ".join((step.__doc__ or "").split("\n\n")[0].split())
        lines.append(f"| `{shown.get(word, f'{word}(…)')}` | {said} |")
    return "\n".join(lines)


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "passes": ("compiler/README.md", pass_table),
    "steps": ("compiler/README.md", step_table),
    "options": ("conformance/README.md", option_table),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_hold_what_the_code_says(name: str, pytestconfig: pytest.Config) -> None:
    page, made = TABLES[name][0], TABLES[name][1]() + "\n"
    text = text_of(page)
    (shown,) = re.findall(rf"^{re.escape(made.splitlines()[0])}\n(?:\|.*\n)+", text, flags=re.MULTILINE)
    if pytestconfig.getoption("update"):
        (ROOT / page).write_text(text.replace(shown, made), encoding="utf-8")
    else:
        assert shown == made


def test_every_step_has_an_example_that_is_one() -> None:
    examples = re.findall(r"^\| `(\w+\(.*\))` \|", text_of("compiler/README.md"), flags=re.MULTILINE)
    parsed = [steps.parse(text).steps[0] for text in examples]
    assert [steps.show_step(step) for step in parsed] == examples
    assert [steps.word(type(step)) for step in parsed] == list(steps.STEPS)


def test_every_level_is_named() -> None:
    text = text_of("compiler/README.md")
    missing = [word for level, args in tile.LEVELS.items() for word in (level, *args) if f"`{word}`" not in text]
    assert not missing


# ---- what the pages name


def test_speedups_of_the_first_page_are_those_of_the_reports() -> None:
    gpu, whole, cpu = ((ROOT / link).read_text() for link in re.findall(r"\]\((reports/[\w/.-]+)\)", text_of(README)))
    found = dict(re.findall(r"^\| kernels84 (bf16|f32) +\|(?:[^|]*\|){4} +([\d.]+) \|", gpu, re.MULTILINE))
    every = re.search(r"^\| all +\|(?:[^|]*\|){4} +([\d.]+) \|", cpu, re.MULTILINE)
    assert every is not None
    assert f"[{found['bf16']} in bf16, {found['f32']} in f32](reports/h200-kernels84/speedup.md)" in text_of(README)
    assert f"[{every[1]}](reports/amd-epyc-benchmarks/speedup.md)" in text_of(README)
    mean = re.search(r"^Geometric mean ([\d.]+)\.$", whole, re.MULTILINE)
    assert mean is not None
    assert f"[{float(mean[1]):.2f}](reports/h200-models/summary.md)" in text_of(README)


def test_the_first_page_is_short() -> None:
    assert len(text_of(README).splitlines()) <= LONGEST


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text, folder = text_of(page), (ROOT / page).parent
    links = re.findall(r"\]\(([^):]+)\)", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    headings = {re.sub(r"[^\w -]", "", line.lstrip("# ").lower()).replace(" ", "-") for line in text.splitlines()}
    assert all(link[1:] in headings if link[0] == "#" else (folder / link).exists() for link in links), links
    if page == README:
        assert set(PAGES) - {README} <= set(links)


@pytest.mark.parametrize(
    "words", sorted({found for page in PAGES for found in re.findall(r"`(mlcomp [a-z]+)[^`]*`", text_of(page))})
)
def test_commands_that_are_named_exist(words: str) -> None:
    with pytest.raises(SystemExit, match="0"), contextlib.redirect_stdout(io.StringIO()):
        cli.main([*words.split()[1:], "--help"])


@pytest.mark.parametrize("page", PAGES)
def test_what_is_named_exists(page: str) -> None:
    """Options, and paths of this repository."""
    text = text_of(page)
    options = set(re.findall(r"--mlcomp-([a-z-]+[a-z])", text))
    assert options <= set(OPTIONS)
    paths = re.findall(r"`((?:compiler|conformance|shapes)/[\w./-]*)`", text)
    assert not [path for path in paths if path != SHAPE_FILE and not (ROOT / path).exists()]
