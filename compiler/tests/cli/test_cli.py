"""The command line: what it prints, where, with which exit status, and how it puts what went wrong."""

from __future__ import annotations

import errno
import os
import pty
import re
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest
import torch

import compiler
from compiler import cli, pipeline
from compiler.cli import explain
from compiler.execution import expression, named
from compiler.ir.stages import IRS
from compiler.runtime import build, detect, store
from compiler.tests import opaque as _opaque  # noqa: F401
from compiler.tests.kernel_samples import SCALE

ROOT = Path(compiler.__file__).parents[1]
SOFTMAX = "F.softmax(torch.randn(4, 40), 1)"
LIGHT = "import sys; from compiler import cli; cli.main(sys.argv[1:]); print('torch' in sys.modules, file=sys.stderr)"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own, and nothing remembered of any other."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("MLCOMP_CACHE", str(folder))
    monkeypatch.setattr(build, "_built", {})
    return folder


@pytest.fixture
def loops(tmp_path: Path) -> Path:
    path = tmp_path / "scale.loop"
    path.write_text(SCALE)
    return path


def start(*words: object, **how: object) -> subprocess.Popen[str]:
    """The command as a process of its own."""
    command = [sys.executable, "-m", "compiler.cli", *map(str, words)]
    return subprocess.Popen(command, cwd=ROOT, text=True, **how)  # type: ignore[call-overload, no-any-return]


# ---- what goes well


@pytest.mark.parametrize("stage", compiler.STAGES)
def test_show_prints_every_stage(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "-c", SOFTMAX, "--ir", stage, "--target", "cpu:avx2"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("// f" if stage == "cpp" else "def f(x0: f32[4, 40]") and out.endswith("\n")
    assert err == ""
    if stage != "cpp":
        program = IRS[stage].parse(out)
        assert IRS[stage].show(program).rstrip("\n") == out.rstrip("\n")


def test_show_prints_assembly(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "--from", str(loops), "--ir", "asm"]) == 0
    assert "mlc_entry:" in capsys.readouterr().out


def test_modules_in_an_expression_have_weights(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        cli.main(["show", "-c", "nn.Sequential(nn.Linear(3, 4), nn.ReLU())(torch.randn(2, 3))", "--ir", "torch"]) == 0
    )
    assert "constant(f32[4, 3])" in capsys.readouterr().out


def test_applications_stand_between_markers(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "--from", str(loops), "-vv", "--ir", "tile"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, last = lines.index(">>> tile:schedule"), lines.index("<<< tile:schedule")
    inside = lines[first + 1 : last]
    assert any(line.startswith("-") and "serial" in line for line in inside), inside
    assert any(line.startswith("+") and "vector" in line for line in inside), inside
    assert ">>> tile:loop-to-tile" in lines[:first]


def test_one_v_lists_the_passes_beside_the_program(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "--from", str(loops), "-v", "--ir", "tile"]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[1] for line in err.splitlines()] == [
        "loop:fuse-attention",
        "loop:order-kernels",
        "tile:loop-to-tile",
        "tile:schedule",
    ]
    assert out.startswith("def f(")


def test_an_edited_schedule_is_applied(loops: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = tmp_path / "steps.txt"
    steps.write_text('split("j", 8, into=("j0", "j1"))\n')
    assert cli.main(["show", "--from", str(loops), "--schedule", str(steps)]) == 0
    assert "serial(8)" in capsys.readouterr().out


PRODUCT = "F.softmax(torch.randn(33, 40), -1) @ torch.randn(40, 50)"


def test_schedules_of_several_kernels_are_printed_edited_and_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["show", "-c", PRODUCT, "--ir", "schedule"]) == 0
    text = capsys.readouterr().out
    assert text.count("with kernel(") == 2
    mine = tmp_path / "mine.schedule"
    mine.write_text(text)
    assert cli.main(["show", "-c", PRODUCT, "--schedule", str(mine), "--ir", "schedule"]) == 0
    assert capsys.readouterr().out == text
    mine.write_text('with kernel("softmax_33x40_f32"):\n    bind("i", blocks)\n')
    assert cli.main(["run", "-c", PRODUCT, "--schedule", str(mine)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(": ok")


def test_run_refuses_a_schedule_that_does_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.schedule"
    mine.write_text('with kernel("softmax_33x40_f32"):\n    bind("q", blocks)\n')
    assert cli.main(["run", "-c", PRODUCT, "--schedule", str(mine)]) == 1
    said(capsys, "kernel softmax_33x40_f32 has no loop q")


def test_explain_names_regions_kernels_and_what_is_eager(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "-c", "torch.ops.tests.opaque(torch.rand(3, 4).exp() + 1).sin() * 2"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "graph 0: 5 calls, 1 in eager",
        "  region 0: 2 calls, exp_add_3x4_f32",
        "    no temporaries",
        "  region 1: 2 calls, sin_mul_3x4_f32",
        "    no temporaries",
        "  eager: unsupported: tests.opaque.default(f32[3, 4]): no lowering for this op (1 call)",
    ]


def test_of_sizes_that_vary_explain_says_that_they_do() -> None:
    rows = torch.export.Dim("rows", min=2, max=99)
    captured = compiler.capture(lambda x: x.sort(0)[0].cumsum(0), [torch.randn(5, 4)], dynamic_shapes=[{0: rows}])
    said = list(explain.temporaries(compiler.lower(captured.program, compiler.target("cpu")), verbose=True))
    assert said == ["temporaries: their sizes depend on those of the inputs"]


def test_run_compares_and_races(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-c", SOFTMAX, "--bench"]) == 0
    counted, compared, raced = capsys.readouterr().out.splitlines()
    assert counted.startswith("1 kernel, captured in ")
    assert compared.endswith(": ok")
    assert raced.startswith("eager ") and raced.endswith("x")


def test_run_with_latency_says_how_long_the_parts_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-c", SOFTMAX, "--latency"]) == 0
    *_, new, again, call = capsys.readouterr().out.splitlines()
    parts = r"[\d.]+ ms \(capture [\d.]+, passes [\d.]+, build [\d.]+, load [\d.]+\)"
    assert re.fullmatch(f"new, in a warm process: {parts}", new) and re.fullmatch(f"the same again: {parts}", again)
    assert re.fullmatch(r"a call: [\d.]+ us", call)


def test_latency_is_for_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-c", SOFTMAX, "--latency", "--target", "sm_90a"]) == 1
    assert "--latency with target sm_90a: it works only for CPU targets" in capsys.readouterr().err


without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_gpu
def test_run_without_a_gpu_says_that_it_emulates_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-c", SOFTMAX, "--target", "sm_80"]) == 0
    out = capsys.readouterr().out
    assert "no GPU: the CUDA code for sm_80 runs on the CPU, emulated" in out and out.rstrip().endswith(": ok")


@without_gpu
@pytest.mark.parametrize("words", [["--bench", "--target", "cuda"], ["--profile", "--target", "cuda"], ["--profile"]])
def test_what_needs_a_gpu_is_refused_without_one(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "-c", SOFTMAX, *words]) == 1
    assert f"{words[0]} with target" in capsys.readouterr().err


def test_versions(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["--version"])
    assert end.value.code == 0
    out = capsys.readouterr().out
    assert re.fullmatch(r"mlcomp \d+\.\d+\.\d+ \(Python \S+, torch \S+, g\+\+ \d.*\)\n", out)
    assert metadata.version("torch") in out and metadata.version("pytest-mlcomp") in out


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["passes"]) == 0
    assert all(f"| {p.name} |" in line for p, line in zip(pipeline.PIPELINE, passes(capsys), strict=True))
    assert cli.main(["targets"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if line.startswith("cpu")] == [
        "cpu"
    ] * 4
    assert cli.main(["targets", "-v"]) == 0
    assert "  panel.1x8.f32\n" in capsys.readouterr().out


def passes(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()[2:]


@pytest.mark.parametrize("words", [["passes"], ["targets"], ["cache"], ["show", "--from", "FILE", "--ir", "cpp"]])
def test_commands_that_run_nothing_do_not_load_pytorch(words: list[str], loops: Path) -> None:
    words = [str(loops) if word == "FILE" else word for word in words]
    done = subprocess.run([sys.executable, "-c", LIGHT, *words], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr == "False\n"


# ---- output


def test_a_reader_that_leaves_ends_the_command_quietly(loops: Path) -> None:
    process = start("show", "--from", loops, "-vv", "--ir", "cpp", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait() == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_an_error(loops: Path) -> None:
    with open("/dev/full", "w") as full:
        process = start("show", "--from", loops, stdout=full, stderr=subprocess.PIPE)
    assert process.communicate()[1] == "mlcomp: no space left on device\n"
    assert process.returncode == 1


@pytest.mark.parametrize("plain", [False, True])
def test_colour_is_for_terminals(loops: Path, plain: bool) -> None:
    surroundings = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | ({"NO_COLOR": "1"} if plain else {})
    ours, theirs = pty.openpty()
    process = start("show", "--from", loops, "-vv", stdout=theirs, env=surroundings)
    os.close(theirs)
    text = b""
    try:
        while part := os.read(ours, 65536):
            text += part
    except OSError as problem:  # how Linux says that nobody writes to the terminal any more
        assert problem.errno == errno.EIO
    os.close(ours)
    assert process.wait() == 0
    assert (b"\033[3" in text) is not plain


def test_no_colour_in_a_pipe(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "--from", str(loops), "-vv"]) == 0
    assert "\033" not in capsys.readouterr().out


# ---- what is refused

REFUSED: dict[str, tuple[list[str], int, list[str]]] = {
    "syntax": (["-c", "F.relu(torch.randn(3)"], 1, ["not an expression: '(' was never closed", "      ^"]),
    "empty": (["-c", ""], 1, ["not an expression"]),
    "statement": (["-c", "x = 3"], 1, ["not an expression: invalid syntax"]),
    "no tensor": (["-c", "3"], 1, ["computes no tensor: 3"]),
    "not data": (["-c", "torch.randn(3).numpy()"], 1, ["gives no tensor but ndarray"]),
    "unknown op": (["-c", "torch.linalg.svd(torch.randn(3, 3))"], 1, ["unsupported: aten._linalg_svd", "f32[3, 3]"]),
    "misspelt": (["-c", "F.rellu(torch.randn(3))"], 1, ["PyTorch does not run", "no attribute 'rellu'"]),
    "dtype": (
        ["-c", "torch.randn(3, dtype=torch.complex64) * 2"],
        1,
        ["unsupported: complex numbers", "inputs and results are real"],
    ),
    "shapes": (["-c", "torch.randn(3, 3) @ torch.randn(4, 4)"], 1, ["PyTorch does not run", "3x3 and 4x4"]),
    "input": (["-c", "torch.randn(-3) + 1"], 1, ["PyTorch does not run torch.randn(-3)", "negative dimension"]),
    "module": (["-c", "nn.Linear(3)(torch.randn(3))"], 1, ["PyTorch does not run nn.Linear(3)", "out_features"]),
    "inputs in a loop": (
        ["-c", "torch.stack([torch.randn(3) for _ in range(2)])"],
        1,
        ["torch.randn(3) is called in a loop"],
    ),
    "modules in a loop": (
        ["-c", "sum(nn.Linear(3, 3)(torch.ones(3)) for _ in range(2))"],
        1,
        ["nn.Linear(3, 3) is called in a loop"],
    ),
    "data": (
        ["-c", "torch.randn(3).sum().item()"],
        1,
        ["unsupported: aten._local_scalar_dense", "depends on the data"],
    ),
    "random": (["-c", "torch.rand_like(torch.randn(3))"], 1, ["unsupported: aten.rand_like", "is random"]),
    "target": (["-c", SOFTMAX, "--target", "tpu"], 1, ["unknown target 'tpu': the targets are cpu, "]),
    "nothing": ([], 2, ["no program given"]),
    "suffix": (["--from", "program.txt"], 2, ["--from program.txt: the suffix must name the stage: .torch, .tensor"]),
    "no file": (["--from", "nosuch.tile"], 1, ["nosuch.tile: no such file or directory"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    words, status, parts = REFUSED[name]
    assert cli.main(["show", *words]) == status
    said(capsys, *parts)


def said(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    """One paragraph on standard error, nothing on standard output."""
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("mlcomp: ") and "Traceback" not in err and "\n\n" not in err
    assert all(part in err for part in parts), err


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2.0", "two", "line 5, column 32: two is not defined here"),
        ("parallel(40)", "paralel(40)", "line 4, column 13: not a statement: for j in paralel(40): …"),
        ("[x, y]", "[x, y", "line 2, column "),
        ("x[i, j]", "x[i]", "kernel scale: x is f32 of rank 2, loaded as f32 of rank 1"),
        ("y[i, j]", "x[i, j]", "kernel scale: stores to x, which is not among its writes"),
        ("kernel", "\0", "not a text: it has a zero byte in line 2"),
        (SCALE, "", "expected exactly one `def`"),
    ],
)
def test_an_edited_text_that_is_wrong_names_its_place(
    old: str, new: str, message: str, loops: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loops.write_text(SCALE.replace(old, new, 1))
    assert cli.main(["show", "--from", str(loops)]) == 1
    said(capsys, f"{loops}: ", message)


def test_a_stage_before_the_text_is_refused(loops: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "--from", str(loops), "--ir", "tensor"]) == 2
    said(capsys, "starts after --ir tensor; choose stage loop or a later one")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('split("k", 4, into=("k0", "k1"))', 'split("k", 4, into=("k0", "k1")): kernel scale has no loop k'),
        ('slit("j", 4)', "line 1: slit('j', 4) is not a step"),
    ],
)
def test_a_schedule_that_does_not_fit_is_refused(
    text: str, message: str, loops: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = tmp_path / "steps.txt"
    steps.write_text(text)
    assert cli.main(["show", "--from", str(loops), "--schedule", str(steps)]) == 1
    said(capsys, message)


def test_code_for_another_machine_is_not_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(named, "missing", lambda target: ("avx2", "fma") if target.name != "cpu" else ())
    assert cli.main(["run", "-c", SOFTMAX, "--target", "cpu:avx2"]) == 1
    said(capsys, "this machine cannot run code for cpu:avx2: it has no avx2, fma")


def test_a_bug_is_called_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> str:
        raise AttributeError("no such thing")

    monkeypatch.setattr(pipeline, "pass_table", broken)
    assert cli.main(["passes"]) == 1
    said(
        capsys,
        "internal error, which is a bug in mlcomp: AttributeError: no such thing. Run the same command with --debug",
    )
    with pytest.raises(AttributeError):
        cli.main(["passes", "--debug"])


@pytest.mark.parametrize("words", [["show", "--debug"], ["--debug", "show"]])
def test_debug_shows_tracebacks(words: list[str]) -> None:
    with pytest.raises(compiler.CompilerError, match="no tensor"):
        cli.main([*words, "-c", "3"])


@pytest.mark.parametrize("words", [[], ["shw"], ["show", "--ir", "ptx"], ["run", "--seed", "x"]])
def test_a_command_that_makes_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert "usage: mlcomp" in capsys.readouterr().err


# ---- the machine is not as it should be


@pytest.mark.parametrize("words", [["run"], ["show", "--ir", "asm"]])
def test_no_compiler(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    detect.toolchain.cache_clear()
    build._machine.cache_clear()
    assert cli.main([*words, "-c", SOFTMAX]) == 1
    said(capsys, "no C++ compiler: `g++` is not on PATH; install one (Debian, Ubuntu: `apt-get install g++`")


def test_no_compiler_is_needed_to_look(loops: Path, tmp_path: Path) -> None:
    process = start("show", "--from", loops, "--ir", "cpp", stdout=subprocess.DEVNULL, env={"PATH": str(tmp_path)})
    assert process.wait() == 0


def test_a_cache_folder_that_is_none(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.write_text("a file")
    assert cli.main(["run", "-c", SOFTMAX]) == 1
    said(capsys, f"cannot use the kernel cache folder {cache}: not a directory", "set MLCOMP_CACHE=DIR")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_folder_without_permission(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.mkdir(mode=0o500)
    assert cli.main(["run", "-c", SOFTMAX]) == 1
    said(capsys, f"cannot use the kernel cache folder {cache}: permission denied", "set MLCOMP_CACHE=DIR")


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        assert cli.main(["run", "-c", SOFTMAX]) == 1
    said(capsys, f"cannot use the kernel cache folder {cache}: no space left on device", "Free space there")
    assert not [path for path in cache.rglob("*") if path.is_file()], "something half-written is left"
    assert cli.main(["run", "-c", SOFTMAX]) == 0


def test_a_damaged_entry_is_built_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert cli.main(["run", "-c", "torch.randn(5) * 3.25"]) == 0
    (entry,) = (path for path in cache.rglob("*.so") if _is_kernel(path))
    whole = entry.read_bytes()
    short = entry.with_suffix(".short")
    short.write_bytes(whole[: len(whole) // 2])
    os.replace(short, entry)  # not in place: this process still runs the old one
    monkeypatch.setattr(build, "_built", {})
    assert cli.main(["run", "-c", "torch.randn(5) * 3.25"]) == 0
    assert capsys.readouterr().out.count(": ok\n") == 2
    assert f"{entry} is damaged or forged" in caplog.text
    assert entry.stat().st_size == len(whole)


def _is_kernel(path: Path) -> bool:
    return "mlc_entry" in path.with_suffix(".cpp").read_text()


# ---- Ctrl-C


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(expression, "capture", interrupted)
    assert cli.main(["show", "-c", SOFTMAX]) == 130
    said(capsys, "interrupted")


def test_an_interrupt_while_loading_ends_the_process() -> None:
    program = """
import os, signal, time
from compiler.cli import sources
with sources.interruptible_import():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except BaseException:
        print("swallowed")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mlcomp: interrupted\n")


def test_an_interrupt_while_compiling_leaves_nothing_half_done(cache: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    slow = tmp_path / "g++"
    slow.write_text(f'#!/bin/sh\ncase "$1" in -dump*) echo 12;; *) : > "{begun}"; exec sleep 60;; esac\n')
    slow.chmod(0o755)
    surroundings = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    process = start("run", "-c", "torch.randn(3) + 1", env=surroundings, stdout=-1, stderr=-1, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, out, err) == (130, "", "mlcomp: interrupted\n")
    left = [path for path in cache.rglob("*") if path.is_file()]  # what was lowered, and is whole
    assert [(path.suffix, store.inspect(path)) for path in left] == [(".json", "intact")]
