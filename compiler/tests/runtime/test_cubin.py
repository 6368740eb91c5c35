"""Cubins: what is compiled once, what is compiled anew, and what every kind of trouble says and leaves behind."""

import ctypes
import dataclasses
import errno
import logging
import os
import random
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from compiler.errors import CacheError, ToolchainError
from compiler.runtime import cubin, detect, nvrtc, workers
from compiler.runtime.cubin import Compiler, build_cubin, build_cubins

ADD = """\
extern "C" __global__ void __launch_bounds__(256) add(const float* __restrict__ x, float* __restrict__ y, long n) {
  long i = blockIdx.x * 256L + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
"""
ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Each test starts as a fresh process would."""
    cubin._built.clear()
    yield
    cubin._built.clear()


def real() -> list[Compiler]:
    return [c for c in (cubin.nvrtc_compiler(), cubin.nvcc_compiler()) if c is not None]


@pytest.fixture(params=real(), ids=lambda c: c.name)
def compiler(request: pytest.FixtureRequest) -> Compiler:
    """Each CUDA compiler of this machine."""
    chosen: Compiler = request.param
    return chosen


class Fake:
    """A compiler that answers at once and counts."""

    def __init__(self, code: int = 0, image: bytes = ELF, messages: str = "ptxas info\n") -> None:
        self.calls, self.answer = 0, (code, image, messages)
        self.tool = Compiler("fake", "1", self.compile)

    def compile(self, *_: object) -> tuple[int, bytes, str]:
        self.calls += 1
        return self.answer


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def test_a_real_cubin_with_its_report(compiler: Compiler, tmp_path: Path) -> None:
    made = build_cubin(ADD, "sm_80", cache=tmp_path, compiler=compiler)
    assert made.image.startswith(ELF) and made.arch == "sm_80"
    assert "Compiling entry function 'add' for 'sm_80'" in made.log and "registers" in made.log
    assert "Compile time" not in made.log
    cubin._built.clear()
    assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=compiler) == made


def test_a_text_compiled_before_is_reported_on_again(compiler: Compiler, tmp_path: Path) -> None:
    """Beside a GPU NVRTC would take the cubin from the driver's cache, and ptxas would say nothing."""
    text = ADD.replace("1.0f", f"{random.getrandbits(20)}.0f")
    for folder in ("one", "two"):
        cubin._built.clear()
        made = build_cubin(text, "sm_80", cache=tmp_path / folder, compiler=compiler)
        assert "Compiling entry function 'add' for 'sm_80'" in made.log


@pytest.mark.parametrize(("version", "told"), [((12, 8), False), ((12, 9), True), ((13, 0), True)])
def test_nvrtc_is_told_to_use_no_cache_where_it_has_one(version: tuple[int, int], told: bool) -> None:
    said: list[bytes] = []

    def numbers(major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = version
        return 0

    def compiled(_program: object, count: int, options: Any) -> int:
        said.extend(options[:count])
        return 6

    def nothing(*_: object) -> int:
        return 0

    library = SimpleNamespace(
        nvrtcVersion=numbers, nvrtcCreateProgram=nothing, nvrtcCompileProgram=compiled, nvrtcGetProgramLogSize=nothing,
        nvrtcGetProgramLog=nothing, nvrtcGetErrorString=lambda _: b"refused", nvrtcDestroyProgram=nothing,
    )  # fmt: skip
    code, image, log = nvrtc.compile(cast(ctypes.CDLL, library), ADD, "add.cu", ("--fmad=true",))
    assert (code, image, log) == (6, b"", "refused") and said == [b"--fmad=true", *[b"--no-cache"] * told]


def test_headers_are_found(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "mlc").mkdir()
    (tmp_path / "mlc" / "one.cuh").write_text("#define ONE 1.0f\n")
    text = '#include "mlc/one.cuh"\n' + ADD.replace("1.0f", "ONE")
    made = build_cubin(text, "sm_90a", cache=tmp_path / "cache", include=(tmp_path,), compiler=compiler)
    assert made.image.startswith(ELF)


def test_a_refused_text_is_quoted_by_line_and_kept(compiler: Compiler, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        build_cubin(ADD.replace("x[i] +", "z[i] +"), "sm_90a", cache=tmp_path, compiler=compiler)
    message = str(caught.value)
    assert f"{compiler.name} refused a kernel for sm_90a" in message
    assert "kernel.cu(3): error" in message and '"z" is undefined' in message and ".build-" not in message
    (kept,) = (tmp_path / "refused").iterdir()
    assert "z[i]" in kept.read_text() and str(kept) in message
    assert not list(tmp_path.rglob("*.cubin")) and not list(tmp_path.rglob(".build-*"))


def test_an_instruction_that_the_architecture_lacks_is_refused(compiler: Compiler, tmp_path: Path) -> None:
    text = ADD.replace("if (i < n)", 'asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); if (i < n)')
    with pytest.raises(ToolchainError, match=r"setmaxnreg.*sm_80|sm_80(.|\n)*setmaxnreg"):
        build_cubin(text, "sm_80", cache=tmp_path, compiler=compiler)


def test_flags_keep_the_arithmetic_of_the_standard() -> None:
    for flags in (cubin.kernel_flags(), cubin.kernel_flags(line_info=True), cubin.kernel_flags(contract=False)):
        assert "fast" not in " ".join(flags) and "ftz" not in " ".join(flags)
    assert "--fmad=false" in cubin.kernel_flags(contract=False)


def test_a_hit_compiles_nothing(tmp_path: Path) -> None:
    fake = Fake()
    first = build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool)
    assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool) is first
    cubin._built.clear()
    assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool) == first
    assert fake.calls == 1
    assert entries(tmp_path) == [first.path.with_suffix(".cu").name, first.path.name]
    first.path.unlink()
    assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool) == first and fake.calls == 2


def test_parts_are_compiled_side_by_side_and_what_one_is_refused_for_is_said(tmp_path: Path) -> None:
    texts, start = [f"{ADD}// {n}\n" for n in range(2)], threading.Barrier(2)

    def compile(source: str, *_: object) -> tuple[int, bytes, str]:
        start.wait(60)
        return (1, b"", "kernel.cu(3): error: no such name\n") if source.endswith("bad\n") else (0, ELF, source[-2:])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "usable_cores", lambda: 2)
        made = build_cubins(texts, "sm_80", cache=tmp_path, compiler=Compiler("fake", "1", compile))
        assert [x.log for x in made] == ["0\n", "1\n"] and len({x.path for x in made}) == 2
        with pytest.raises(ToolchainError, match="no such name"):
            build_cubins(["good\n", "bad\n"], "sm_80", cache=tmp_path, compiler=Compiler("fake", "1", compile))


@pytest.mark.skipif(cubin.nvrtc_compiler() is None, reason="no NVRTC here")
def test_nvrtc_runs_in_processes_that_have_begun(tmp_path: Path) -> None:
    here = [build_cubin(text, "sm_80", cache=tmp_path / "here") for text in (ADD, ADD.replace("add", "plus"))]
    cubin._built.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "usable_cores", lambda: workers.MIN_CORES)
        workers.start(workers.MIN_CALLS)
        try:
            patch.setattr(workers._Worker, "call", counted := Counted(workers._Worker.call))
            there = build_cubins((ADD, ADD.replace("add", "plus")), "sm_80", cache=tmp_path / "there")
            with pytest.raises(ToolchainError, match="unknown"):
                build_cubins([ADD, ADD.replace("+ 1.0f", "+ unknown")], "sm_80", cache=tmp_path / "there")
        finally:
            workers.stop()
    assert [(x.image, x.log) for x in there] == [(x.image, x.log) for x in here]
    assert counted.found == [True, True, True]


class Counted:
    """Whether calls of a function found anything."""

    def __init__(self, function: Callable[..., object]) -> None:
        self.function, self.found = function, list[bool]()

    def __get__(self, instance: object, owner: type) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            made = self.function(instance, *arguments)
            self.found.append(made is not None)
            return made

        return call


def test_everything_that_matters_is_in_the_key(tmp_path: Path) -> None:
    for name, text in (("one", "#define N 1"), ("two", "#define N 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.cuh").write_text(text)
    tool = Fake().tool
    requests = [
        (ADD, "sm_80", cubin.KERNEL_FLAGS, (), tool),
        (ADD + " ", "sm_80", cubin.KERNEL_FLAGS, (), tool),
        (ADD, "sm_86", cubin.KERNEL_FLAGS, (), tool),
        (ADD, "sm_80", cubin.kernel_flags(contract=False), (), tool),
        (ADD, "sm_80", cubin.KERNEL_FLAGS, (tmp_path / "one",), tool),
        (ADD, "sm_80", cubin.KERNEL_FLAGS, (tmp_path / "two",), tool),
        (ADD, "sm_80", cubin.KERNEL_FLAGS, (), dataclasses.replace(tool, version="2")),
        (ADD, "sm_80", cubin.KERNEL_FLAGS, (), dataclasses.replace(tool, name="other")),
    ]
    assert len({cubin.key(*request) for request in requests}) == len(requests)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"\xff" + b[1:], lambda b: b""])
def test_a_damaged_entry_is_built_again_with_a_warning(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    fake = Fake()
    made = build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool)
    made.path.write_bytes(damage(made.path.read_bytes()))
    cubin._built.clear()
    with caplog.at_level(logging.WARNING, "mlcomp"):
        assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool) == made
    assert fake.calls == 2 and str(made.path) in caplog.text


def test_many_at_once_leave_one_entry(tmp_path: Path) -> None:
    start, fake = threading.Barrier(4), Fake()

    def one(_: int) -> Path:
        start.wait()
        return build_cubin(ADD, "sm_80", cache=tmp_path, compiler=fake.tool).path

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(one, range(4)))
    assert len(paths) == 1 and len(entries(tmp_path)) == 2


def test_a_cache_that_is_no_folder_or_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="MLCOMP_CACHE"):
        build_cubin(ADD, "sm_80", cache=tmp_path / "file", compiler=Fake().tool)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with pytest.raises(CacheError, match="permi"):
        # Root may write anywhere but into the kernel's own file system.
        build_cubin(ADD, "sm_80", cache=closed if os.geteuid() else Path("/sys/mlcomp"), compiler=Fake().tool)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CacheError, match="no space left"):
        full = Fake(1, b"", "fatal: x.ptx: No space left on device").tool
        build_cubin(ADD, "sm_80", cache=tmp_path, compiler=full)
    with monkeypatch.context() as patch:

        def replace(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "replace", replace)
        with pytest.raises(CacheError, match="no space left"):
            build_cubin(ADD, "sm_80", cache=tmp_path, compiler=Fake().tool)
    assert entries(tmp_path) == [] and not list(tmp_path.rglob(".build-*"))
    assert build_cubin(ADD, "sm_80", cache=tmp_path, compiler=Fake().tool).image == ELF, "the next one works"


def test_without_a_compiler_it_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cubin, "nvrtc_compiler", lambda: None)
    monkeypatch.setattr(cubin, "nvcc_compiler", lambda: None)
    with pytest.raises(ToolchainError, match=r"no CUDA compiler.*pip install nvidia-cuda-nvrtc"):
        build_cubin(ADD, "sm_80")


@pytest.mark.parametrize("arch", ["sm90", "90a", "sm_9x", "cpu", ""])
def test_an_architecture_is_checked_before_anything_runs(arch: str) -> None:
    with pytest.raises(ToolchainError, match="no architecture"):
        build_cubin(ADD, arch, compiler=Fake().tool)


def test_an_nvcc_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "nvcc"
    path.write_text('#!/bin/sh\ncase "$1" in --version) echo V13.0.1; exit 0;; esac\nkill -9 $$\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    tool = cubin.nvcc_compiler(str(path))
    assert tool is not None and tool.version == "V13.0.1"
    with pytest.raises(ToolchainError, match=r"signal 9.*out of memory(.|\n)*try again: .*sm_80"):
        build_cubin(ADD, "sm_80", cache=tmp_path / "cache", compiler=tool)


def test_the_newest_nvrtc_that_has_its_builtins_is_found(tmp_path: Path) -> None:
    for folder, names in {
        "a": ("libnvrtc.so.12",),
        "b": ("libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc.alt.so.13"),
    }.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("")
    where = (tmp_path / "a", tmp_path / "b", tmp_path / "none")
    assert nvrtc.find(where) is None
    (tmp_path / "b" / "libnvrtc-builtins.so.13.0").write_text("")
    found = nvrtc.find(where)
    assert found is not None and [p.name for p in found] == ["libnvrtc.so.13", "libnvrtc-builtins.so.13.0"]
