"""The build cache: what is built once, what is built anew, and what every kind of trouble says and leaves behind."""

import ctypes
import errno
import logging
import os
import re
import signal
import stat
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compiler.errors import CacheError, ToolchainError
from compiler.runtime import build, detect, store

FIVE = 'extern "C" __attribute__((visibility("default"))) int five() { return 5; }\n'


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """Each test starts as a fresh process would."""
    build._built.clear()
    yield
    build._built.clear()


def five(path: Path) -> int:
    return int(ctypes.CDLL(str(path)).five())


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.rglob("*") if path.is_file())


def script(path: Path, body: str) -> str:
    """A stand-in for a compiler that answers the version questions and else does `body`."""
    path.write_text(f'#!/bin/sh\ncase "$1" in -dump*) echo 1.0; exit 0;; esac\n{body}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_builds_and_finds_again(tmp_path: Path) -> None:
    path = build.build(FIVE, cache=tmp_path)
    assert five(path) == 5
    written = path.stat().st_mtime_ns
    assert build.build(FIVE, cache=tmp_path) == path
    build._built.clear()
    assert build.build(FIVE, cache=tmp_path) == path
    assert path.stat().st_mtime_ns == written, "a hit must not compile"
    assert entries(tmp_path) == [path.with_suffix(".cpp").name, path.name], "an entry is an object and its text"


@pytest.mark.parametrize("level", ["-O1", "-O0"])
@pytest.mark.parametrize("flags", [build.KERNEL_FLAGS, ("-O3", "-shared", "-fPIC")], ids=["kernel", "other"])
def test_a_compiler_that_crashes_optimises_less(flags: tuple[str, ...], level: str, tmp_path: Path) -> None:
    crash = 'echo "kernel.cpp:1:1: internal compiler error: in vect, at vect.cc:1"; exit 1'
    compiler = script(tmp_path / "crashing", f'case "$*" in *{level}*) exec g++ "$@";; *) {crash};; esac')
    with pytest.warns(UserWarning, match=rf"crashing failed by a bug of its own.*{level}"):
        path = build.build(FIVE, flags, compiler=compiler, cache=tmp_path / "cache")
    assert five(path) == 5
    compiler = script(tmp_path / "hopeless", crash)
    with pytest.raises(ToolchainError, match=r"hopeless refused a kernel(.|\n)*internal compiler error: in vect"):
        build.build(FIVE, flags, compiler=compiler, cache=tmp_path / "cache")


def test_a_hit_needs_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = build.build(FIVE, cache=tmp_path)
    build._built.clear()
    monkeypatch.setattr(build, "_run", lambda *_: pytest.fail("compiled again"))
    assert build.build(FIVE, cache=tmp_path) == path


def test_everything_that_matters_is_in_the_key(tmp_path: Path) -> None:
    for name, text in (("one", "#define N 1"), ("two", "#define N 2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.h").write_text(text)
    requests = [
        (FIVE, build.KERNEL_FLAGS, "g++", ()),
        (FIVE + " ", build.KERNEL_FLAGS, "g++", ()),
        (FIVE, build.kernel_flags(contract=False), "g++", ()),
        (FIVE, build.KERNEL_FLAGS, "g++", (tmp_path / "one",)),
        (FIVE, build.KERNEL_FLAGS, "g++", (tmp_path / "two",)),
        (FIVE, build.KERNEL_FLAGS, script(tmp_path / "other", "exit 1"), ()),
    ]
    assert len({build.key(*request) for request in requests}) == len(requests)


def test_headers_are_found(tmp_path: Path) -> None:
    (tmp_path / "five.h").write_text("enum { FIVE = 5 };")
    text = '#include "five.h"\n' + FIVE.replace("return 5", "return FIVE")
    assert five(build.build(text, cache=tmp_path / "cache", include=(tmp_path,))) == 5


def test_without_a_cache_the_folder_is_this_process(tmp_path: Path) -> None:
    assert five(build.build(FIVE)) == 5


def test_no_fast_math() -> None:
    flags = " ".join(build.KERNEL_FLAGS)
    assert "fast-math" not in flags and "associative" not in flags and "finite" not in flags


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_entry_is_built_again_with_a_warning(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = build.build(FIVE, cache=tmp_path)
    content = path.read_bytes()
    middle = len(content) // 2
    broken = {"cut": content[:middle], "flip": content[:middle] + b"\xff" + content[middle + 1 :], "empty": b""}[damage]
    if broken == content:
        broken = content[:middle] + b"\x00" + content[middle + 1 :]
    path.write_bytes(broken)
    build._built.clear()
    with caplog.at_level(logging.WARNING, "mlcomp"):
        assert five(build.build(FIVE, cache=tmp_path)) == 5
    assert [record.levelname for record in caplog.records] == ["WARNING"] and str(path) in caplog.text
    caplog.clear()
    build._built.clear()
    build.build(FIVE, cache=tmp_path)
    assert not caplog.records


def test_many_at_once_leave_one_entry(tmp_path: Path) -> None:
    start = threading.Barrier(4)

    def one(_: int) -> Path:
        start.wait()
        return build.build(FIVE, cache=tmp_path)

    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(one, range(4)))
    assert len(paths) == 1 and five(paths.pop()) == 5
    assert len(entries(tmp_path)) == 2


def test_a_refused_text_is_quoted_and_kept(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError) as caught:
        build.build("int f( {", cache=tmp_path)
    message = str(caught.value)
    assert "kernel.cpp:1:" in message and "error:" in message
    kept = [Path(word) for word in message.split() if word.endswith(".cpp")]
    assert kept and kept[0].read_text() == "int f( {"
    assert not list(tmp_path.rglob("*.so")) and not list(tmp_path.rglob(".build-*"))
    again = message[message.index("try again: ") + len("try again: ") :]
    answer = subprocess.run(again.split(), capture_output=True, text=True)
    assert answer.returncode != 0 and "error:" in answer.stderr, "the command in the message reproduces the error"


def test_an_undefined_function_is_named_at_build_time(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="undefined reference to `nowhere'"):
        build.build('extern "C" int nowhere(); int f() { return nowhere(); }', cache=tmp_path)


def test_libraries_are_linked_where_they_are_needed(tmp_path: Path) -> None:
    visible = 'extern "C" __attribute__((visibility("default")))'
    text = f'extern "C" double cbrt(double);\n{visible} double root(double x) {{ return cbrt(x); }}\n'
    path = build.build(text, cache=tmp_path)
    root = ctypes.CDLL(str(path)).root
    root.restype, root.argtypes = ctypes.c_double, (ctypes.c_double,)
    assert abs(root(27.0) - 3.0) < 1e-12 and b"libm.so" in path.read_bytes()
    copy = f"{visible} void copy(char* a, const char* b, long n) {{ __builtin_memcpy(a, b, n); }}\n"
    path = build.build(copy, cache=tmp_path)
    made = ctypes.create_string_buffer(5)
    ctypes.CDLL(str(path)).copy(made, b"four", ctypes.c_long(4))
    assert made.value == b"four" and b"libm.so" not in path.read_bytes(), "memcpy is in every process"


def test_a_compiler_that_was_killed(tmp_path: Path) -> None:
    compiler = script(tmp_path / "cc", "kill -9 $$")
    with pytest.raises(ToolchainError, match=r"signal 9.*out of memory"):
        build.build(FIVE, compiler=compiler, cache=tmp_path / "cache")


def test_no_compiler(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"no-such-g\+\+.*not on PATH; install one .*apt-get install g\+\+"):
        build.build(FIVE, compiler="no-such-g++", cache=tmp_path)
    assert entries(tmp_path) == []


def test_a_cache_that_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="MLCOMP_CACHE") as caught:
        build.build(FIVE, cache=tmp_path / "file")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_read_only_cache_still_serves_and_says_so_when_it_must_write(tmp_path: Path) -> None:
    path = build.build(FIVE, cache=tmp_path)
    build._built.clear()
    tmp_path.chmod(0o555)
    try:
        assert build.build(FIVE, cache=tmp_path) == path
        with pytest.raises(CacheError, match="permi"):
            # Root may write anywhere but into the kernel's own file system.
            build.build(FIVE + " ", cache=tmp_path if os.geteuid() else Path("/sys/mlcomp"))
    finally:
        tmp_path.chmod(0o755)


def test_a_full_disk_while_compiling(tmp_path: Path) -> None:
    compiler = script(tmp_path / "cc", "echo 'error writing to x.s: No space left on device' >&2; exit 1")
    with pytest.raises(CacheError, match="no space left"):
        build.build(FIVE, compiler=compiler, cache=tmp_path / "cache")
    assert entries(tmp_path / "cache") == []


def test_a_full_disk_while_publishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(CacheError, match="no space left"):
            build.build(FIVE, cache=tmp_path)
    assert entries(tmp_path) == [] and not list(tmp_path.rglob(".build-*"))
    assert five(build.build(FIVE, cache=tmp_path)) == 5, "the next run works"


def test_an_interrupt_stops_the_compiler_and_leaves_nothing(tmp_path: Path) -> None:
    cache, ready = tmp_path / "cache", tmp_path / "ready"
    os.mkfifo(ready)
    compiler = script(tmp_path / "cc", f"echo $$ > {ready}; exec sleep 100")
    program = textwrap.dedent(f"""
        import signal
        from pathlib import Path
        from compiler.runtime import build
        signal.signal(signal.SIGINT, signal.default_int_handler)
        build.build("int f;", compiler={compiler!r}, cache=Path({str(cache)!r}))
    """)
    root = Path(__file__).parents[3]
    ours = subprocess.Popen([sys.executable, "-c", program], cwd=root, stderr=subprocess.PIPE, text=True)
    child = int(ready.read_text())  # the stand-in compiler is running now
    ours.send_signal(signal.SIGINT)
    _, messages = ours.communicate(timeout=60)
    assert ours.returncode != 0 and "KeyboardInterrupt" in messages
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert entries(cache) == [] and not list(cache.rglob(".build-*"))


def test_sweep_removes_what_killed_processes_left(tmp_path: Path) -> None:
    path = build.build(FIVE, cache=tmp_path)
    left = path.parent / ".build-left"
    left.mkdir()
    assert store.sweep(tmp_path) == 0 and left.exists(), "it may still be in use"
    os.utime(left, (1, 1))
    assert store.sweep(tmp_path) == 1 and not left.exists() and path.exists()


def test_the_text_compiles_with_the_flags_of_the_oldest_machine(tmp_path: Path) -> None:
    flags = build.kernel_flags(machine="x86-64", optimise="-O2") if "avx2" in detect.cpu().features else None
    if flags is None:
        pytest.skip("not an x86-64 machine with AVX2")
    assert five(build.build(FIVE, flags, cache=tmp_path)) == 5


def test_a_loop_that_only_writes_reads_nothing_there() -> None:
    """What is read there and written back belongs to other threads: predictive commoning does that for these rows."""
    text = build.assembly("""
        __attribute__((visibility("default"))) void rows(const float* __restrict a, const float* __restrict b,
            const float* __restrict c, unsigned char* __restrict equal, long from, long to) {
          for (long i = from; i < to; i++) {
            for (long j = 0; j < 11; j++) equal[j * 3 + i] = a[j] + b[j * 3 + i] == c[i * 11 + j];
          }
        }""")
    assert "ucomiss" in text or "vcmp" in text, "the floats are compared"
    assert not re.findall(r"mov[sz]b\w\s+-?\d*\(%r(?!sp)\w+\),.*", text), "a byte is read"
