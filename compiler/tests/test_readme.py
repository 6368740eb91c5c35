"""README.md is true: its commands run and print what it shows, its shape file and its Python work, its tables hold.

In a ```console block a line `$ command` is followed by its output, where a first or last line `…` stands for what is
left out. What depends on the machine is compared with its numbers masked. `pytest compiler/tests/test_readme.py
--update` writes down what the commands print now, in place of what was shown and abridged as it was; that runs `make`
too, whose commands are otherwise only looked at (`-k "not make"` leaves them alone).
"""

from __future__ import annotations

import contextlib
import difflib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import compiler
from compiler import cli
from compiler.pipeline import pass_table
from conformance.plugin import OPTIONS

ROOT = Path(compiler.__file__).parents[1]
README = ROOT / "README.md"
SHAPE_FILE = "shapes/mine.toml"
LEFT_OUT = "…"
# Figures, folders named after the device, and the filling of pytest's lines.
_VARIES = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?|(?<=reports/)\S+|(?<==)=+")


@dataclass(frozen=True)
class Block:
    """A fenced block; `start` is the line after its fence, counted from 0."""

    language: str
    start: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Command:
    """A command of a console block; its output stands in lines `start` to `start + len(shown)`."""

    words: str
    start: int
    shown: tuple[str, ...]


def blocks(*languages: str) -> list[Block]:
    """The blocks in these languages, in order."""
    found, opened = [], None
    lines = README.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines):
        if line.startswith("```"):
            if opened is not None:
                found.append(Block(lines[opened][3:], opened + 1, tuple(lines[opened + 1 : number])))
            opened = number if opened is None else None
    return [block for block in found if block.language in languages]


def commands(block: Block) -> list[Command]:
    at = [n for n, line in enumerate(block.lines) if line.startswith("$ ")]
    ends = [*at[1:], len(block.lines)]
    return [
        Command(block.lines[n][2:], block.start + n + 1, block.lines[n + 1 : end])
        for n, end in zip(at, ends, strict=True)
    ]


def name(block: Block) -> str:
    return re.sub(r"\W+", "-", block.lines[0].removeprefix("$ "))[:60].strip("-")


CONSOLE = blocks("console")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with README's shape file, where the commands run; what they build stays in it."""
    path = tmp_path / SHAPE_FILE
    path.parent.mkdir()
    path.write_text("\n".join(blocks("toml")[0].lines), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for variable in ("PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path


@pytest.mark.parametrize("number", range(len(CONSOLE)), ids=map(name, CONSOLE))
def test_commands_print_what_is_shown(number: int, project: Path, pytestconfig: pytest.Config) -> None:
    update = pytestconfig.getoption("update")
    for which, command in enumerate(commands(CONSOLE[number])):
        if command.words.startswith("make ") and not update:
            shell(command.words.replace("make", "make -n", 1), ROOT)
            continue
        made = abridged(run(command.words, project, warm=not update), command.shown)
        if update:
            replace(commands(blocks("console")[number])[which], made)
            continue
        exact = command.words.startswith(("mlcomp show", "mlcomp passes"))
        shown, found = (lines if exact else tuple(map(masked, lines)) for lines in (command.shown, made))
        difference = "\n".join(difflib.unified_diff(shown, found, "README.md", "printed now", lineterm=""))
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


def replace(command: Command, made: tuple[str, ...]) -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    lines[command.start : command.start + len(command.shown)] = made
    README.write_text("\n".join(lines) + "\n", encoding="utf-8")


# ---- blocks without output


def plain() -> Iterator[str]:
    for block in blocks("sh"):
        yield from (line for line in block.lines if line and not line.startswith("#"))


@pytest.mark.parametrize("words", list(plain()))
def test_plain_commands_are_right(words: str, project: Path) -> None:
    """Those that take long are only looked at."""
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
            assert "collected" in shell(f"{words} --collect-only -q -p no:cacheprovider", folder)
        case "mlcomp":
            run(words, project)
        case other:
            pytest.fail(f"nothing is known about {other}; show it in a console block")


@pytest.mark.parametrize("block", blocks("python"), ids=lambda block: f"line{block.start}")
@pytest.mark.filterwarnings("error::compiler.backend.FallbackWarning")
def test_python_runs(block: Block, project: Path) -> None:
    code = compile("\n" * block.start + "\n".join(block.lines), str(README), "exec")
    exec(code, {"__name__": "__readme__"})


def test_the_table_of_passes_is_what_the_command_prints(pytestconfig: pytest.Config) -> None:
    text = README.read_text(encoding="utf-8")
    first = pass_table().splitlines()[0]
    (shown,) = re.findall(rf"^{re.escape(first)}\n(?:\|.*\n)+", text, flags=re.MULTILINE)
    if pytestconfig.getoption("update"):
        README.write_text(text.replace(shown, pass_table() + "\n"), encoding="utf-8")
    else:
        assert shown == pass_table() + "\n"


def test_every_option_is_explained() -> None:
    text = README.read_text(encoding="utf-8")
    missing = [f"--mlcomp-{option}" for option in OPTIONS if f"`--mlcomp-{option}" not in text]
    assert missing == ["--mlcomp-runner"], "--mlcomp-runner is internal; every other option has a row"


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links and all((ROOT / link).exists() for link in links), links
