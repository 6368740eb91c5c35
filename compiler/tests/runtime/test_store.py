"""The cache against those who tamper with it: what is not as it was published, or could be changed, is never run."""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import itertools
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.errors import CacheError
from compiler.runtime import build, cubin, seal, store, trust
from compiler.runtime.cubin import Compiler
from compiler.runtime.emulator import emulator
from compiler.runtime.folders import locked_folder, sweep_folders
from compiler.runtime.launches import Buffer, Launch, LaunchPlan

ROOT = Path(__file__).parents[3]
VISIBLE = 'extern "C" __attribute__((visibility("default")))'
FOREIGN = 12345  # a user whom no machine has
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


numbers = itertools.count(7)


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the whole module: building the emulator takes seconds."""
    return tmp_path_factory.mktemp("lasting")


@pytest.fixture
def cache(lasting: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that lasts, with the key of its entries."""
    monkeypatch.setenv("XDG_STATE_HOME", str(lasting / "state"))
    return lasting / "cache"


@pytest.fixture(autouse=True)
def forget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test starts as a fresh process of a user without a key would, and leaves nothing to others."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    anew()
    yield
    monkeypatch.undo()
    anew()


def anew() -> None:
    build._built.clear()
    cubin._built.clear()
    store._trusted_folders.clear()
    seal._key.cache_clear()


def program(number: int) -> str:
    return f"{VISIBLE} int number() {{ return {number}; }}\n"


def kernel(number: int) -> str:
    return f'#include "mlc_emulator.h"\nextern "C" __global__ void kernel(long* y) {{ y[0] = {number}; }}\n'


# ---- kinds of entries


@dataclass(frozen=True)
class Kind:
    """A way to make entries: `made(cache, number)` gives the path of the product and the number that it stands for."""

    suffix: str
    made: Callable[[Path, int], tuple[Path, int]]


def native(cache: Path, number: int) -> tuple[Path, int]:
    """Loaded from a copy, since this process keeps what it has loaded by its path."""
    path = build.build(program(number), cache=cache)
    copy = path.with_name(f"loaded-{time.monotonic_ns()}.so")
    shutil.copy(path, copy)
    return path, int(ctypes.CDLL(str(copy)).number())


def machine_code(cache: Path, number: int) -> tuple[Path, int]:
    tool = Compiler("fake", "1", lambda text, *_: (0, text.encode(), "said"))
    made = cubin.build_cubin(str(number), "sm_90a", cache=cache, compiler=tool)
    return made.path, int(made.image)


def emulated(cache: Path, number: int) -> tuple[Path, int]:
    path = emulator.build(kernel(number), cache=cache)
    emulator._text.cache_clear()
    y = np.zeros(1, np.int64)
    plan = LaunchPlan((), (Buffer("y", 8),), (Launch("kernel", (1, 1, 1), (1, 1, 1), (0,)),))
    emulator.run(path, plan, [y])
    return path, int(y[0])


KINDS = {
    "object": Kind(".so", native),
    "its text": Kind(".cpp", native),
    "cubin": Kind(".cubin", machine_code),
    "text of a cubin": Kind(".cu", machine_code),
    "text of an emulated kernel": Kind(".cpp", emulated),
}


# ---- ways to tamper: the file, and an intact one of another entry


def swap(path: Path, other: Path) -> None:
    shutil.copy(other, path)


def forge(path: Path, other: Path) -> None:
    """As the seal was once: a digest that anybody can make."""
    body = other.read_bytes()[: -seal.LENGTH]
    put(path, body + b"\nmlcomp-sha256:" + hashlib.sha256(body).digest())


def forge_with_another_key(path: Path, other: Path) -> None:
    body = other.read_bytes()[: -seal.LENGTH]
    made = hmac.digest(b"k" * 32, store.seal_name(path).encode() + b"\0" + body, "sha256").hex().encode()
    put(path, body + seal.MARK + made + b"\n")


def reuse_the_seal(path: Path, other: Path) -> None:
    put(path, other.read_bytes()[: -seal.LENGTH] + path.read_bytes()[-seal.LENGTH :])


def strip(path: Path, other: Path) -> None:
    put(path, path.read_bytes()[: -seal.LENGTH])


def truncate(path: Path, other: Path) -> None:
    put(path, path.read_bytes()[: path.stat().st_size // 2])


def empty(path: Path, other: Path) -> None:
    put(path, b"")


def flip_first(path: Path, other: Path) -> None:
    flip(path, 0)


def flip_middle(path: Path, other: Path) -> None:
    flip(path, path.stat().st_size // 3)


def flip_seal(path: Path, other: Path) -> None:
    flip(path, path.stat().st_size - 5)


def link(path: Path, other: Path) -> None:
    whole = path.read_bytes()
    path.unlink()
    elsewhere = path.with_name("elsewhere")
    elsewhere.write_bytes(whole)
    path.symlink_to(elsewhere)


def open_to_all(path: Path, other: Path) -> None:
    path.chmod(0o666)


def put(path: Path, content: bytes) -> None:
    """Not in place: this process may still run the old one."""
    path.unlink()
    path.write_bytes(content)
    path.chmod(0o600)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x41
    put(path, bytes(content))


WAYS = [
    swap, forge, forge_with_another_key, reuse_the_seal, strip, truncate, empty, flip_first, flip_middle, flip_seal,
    link, open_to_all,
]  # fmt: skip


MATRIX = [
    pytest.param(kind, way, id=f"{kind}-{way.__name__}")
    for kind in KINDS
    for way in (WAYS if KINDS[kind].made is not emulated else [swap, truncate, flip_middle, flip_seal])
]


@pytest.mark.parametrize(("kind", "way"), MATRIX)
def test_what_was_tampered_with_is_built_again_and_said_once(
    kind: str, way: Callable[[Path, Path], None], cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made, suffix, number = KINDS[kind].made, KINDS[kind].suffix, next(numbers)
    path, one = made(cache, number)
    other, two = made(cache, next(numbers))
    assert (one, two) == (number, number + 1)
    part = path.with_suffix(suffix)
    before = store.read(part)
    way(part, other.with_suffix(suffix))
    anew()
    with caplog.at_level(logging.WARNING, "mlcomp"):
        assert made(cache, number) == (path, number)
    assert [r.getMessage().count(str(part)) for r in caplog.records] == [1], caplog.text
    assert (way is open_to_all or store.read(part) is not None) and store.inspect(part) == "intact"
    assert suffix not in (".cpp", ".cu") or store.read(part) == before
    caplog.clear()
    anew()
    assert made(cache, number) == (path, number) and not caplog.records, "it is well again"


@as_root
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_another_user_is_built_again(kind: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, suffix, number = KINDS[kind].made, KINDS[kind].suffix, next(numbers)
    path, _ = made(cache, number)
    os.chown(path.with_suffix(suffix), FOREIGN, FOREIGN)
    anew()
    with caplog.at_level(logging.WARNING, "mlcomp"):
        assert made(cache, number) == (path, number)
    assert str(path.with_suffix(suffix)) in caplog.text and path.with_suffix(suffix).stat().st_uid == os.geteuid()


def test_a_constructor_of_a_forged_object_never_runs(tmp_path: Path) -> None:
    """In a process of its own, which loads what it finds as users do."""
    cache, mark = tmp_path / "cache", tmp_path / "executed"
    path = build.build(program(7), cache=cache)
    text = f"""
        #include <cstdio>
        __attribute__((constructor)) static void run() {{ std::fclose(std::fopen("{mark}", "w")); }}
    """
    evil = build.build(program(666) + text, ("-shared", "-fPIC"), cache=tmp_path / "evil")
    ctypes.CDLL(str(evil))
    assert mark.exists(), "the attack works where it is let in"
    mark.unlink()
    for attack in (swap, forge, forge_with_another_key, reuse_the_seal):
        attack(path, evil)
        done = python(f"""
            import ctypes
            from pathlib import Path
            from compiler.runtime import build
            print(ctypes.CDLL(str(build.build({program(7)!r}, cache=Path({str(cache)!r})))).number())
        """)
        assert done.stdout == "7\n" and "is damaged or forged" in done.stderr and not mark.exists()


def python(text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(text)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)


# ---- folders


def folders(cache: Path, path: Path) -> dict[str, Path]:
    return {"cache": cache, "format": cache / store.FORMAT, "entry": path.parent, "parent": cache.parent}


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o1777])
@pytest.mark.parametrize("which", ["cache", "format", "entry", "parent"])
def test_a_folder_that_others_may_write_is_refused_by_name(
    which: str, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "_private_group", lambda: -1)
    cache = tmp_path / "above" / "cache"
    place = folders(cache, build.build(program(7), cache=cache))[which]
    place.chmod(mode)
    anew()
    if which == "parent" and mode & 0o1000:  # as /tmp is
        assert native(cache, 7)[1] == 7
        return
    with pytest.raises(CacheError) as refused:
        build.build(program(7), cache=cache)
    assert f"others may write to {place} (mode {mode:04o})" in str(refused.value)
    assert f"chmod go-w {place}" in str(refused.value) and "MLCOMP_CACHE" in str(refused.value)
    place.chmod(mode & 0o755)
    assert native(cache, 7)[1] == 7


def test_a_group_of_the_user_alone_is_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "_private_group", os.getegid)
    cache = tmp_path / "cache"
    cache.mkdir()
    os.chown(cache, -1, os.getegid())
    cache.chmod(0o775)
    assert native(cache, 7)[1] == 7


@as_root
@pytest.mark.parametrize("which", ["cache", "format", "entry", "parent"])
def test_a_folder_of_another_user_is_refused_by_name(which: str, tmp_path: Path) -> None:
    cache = tmp_path / "above" / "cache"
    place = folders(cache, build.build(program(7), cache=cache))[which]
    os.chown(place, FOREIGN, -1)
    anew()
    with pytest.raises(CacheError, match=f"{place} belongs to user {FOREIGN}, who could put foreign code there"):
        build.build(program(7), cache=cache)


def test_a_link_leads_to_a_folder_that_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    path = build.build(program(7), cache=tmp_path / "link")
    assert path.is_relative_to(tmp_path / "open"), "the link could lead elsewhere before the file is loaded"
    (tmp_path / "open").chmod(0o777)
    anew()
    with pytest.raises(CacheError, match=f"others may write to {tmp_path / 'open'}"):
        build.build(program(7), cache=tmp_path / "link")


def test_folders_and_entries_are_the_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = build.build(program(7), cache=tmp_path / "a" / "cache")
        seal.sealed(b"", "")
    finally:
        os.umask(before)
    made = [path, path.with_suffix(".cpp"), *(tmp_path / "a").rglob("*"), tmp_path / "a", tmp_path / "state"]
    assert all(place.stat().st_mode & 0o077 == 0 for place in made)
    anew()
    assert native(tmp_path / "a" / "cache", 7)[1] == 7


def test_users_of_a_container_may_not_be_those_of_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the folders above the user's own belong to nobody whom the container knows."""
    cache = tmp_path / "cache"
    build.build(program(7), cache=cache)
    anew()
    monkeypatch.setattr(os, "geteuid", lambda: FOREIGN)
    monkeypatch.setattr(trust, "is_trusted_owner", lambda found: found.st_ino == cache.stat().st_ino)
    monkeypatch.setattr(trust, "_overflow_user", lambda: cache.parent.stat().st_uid)
    assert trust.distrust_reason(cache, cache) == ""
    assert "belongs to" in trust.distrust_reason(cache / store.FORMAT, cache)


# ---- the key


def key() -> Path:
    place = seal.key_path()
    assert place is not None
    return place


def test_the_key_is_the_users_alone_and_lasts(tmp_path: Path) -> None:
    first = seal.sealed(b"body", "name")
    assert key() == tmp_path / "state" / "mlcomp" / "key" and key().stat().st_mode & 0o777 == 0o600
    assert seal.is_persistent() and list(key().parent.iterdir()) == [key()]
    anew()
    assert seal.sealed(b"body", "name") == first and seal.unsealed(first, "name") == b"body"
    assert seal.unsealed(first, "another name") is None


@pytest.mark.parametrize("damage", ["short", "long", "readable", "folder link"])
def test_a_key_that_is_not_as_it_was_made_is_replaced(damage: str, caplog: pytest.LogCaptureFixture) -> None:
    first = seal.sealed(b"body", "name")
    match damage:
        case "short":
            key().write_bytes(key().read_bytes()[:-1])
        case "long":
            key().write_bytes(key().read_bytes() + b"\n")
        case "readable":
            key().chmod(0o644)
        case _:
            key().rename(key().with_name("other"))
            key().symlink_to("other")
    anew()
    assert seal.unsealed(first, "name") is None and seal.is_persistent()
    assert "a new one takes its place" in caplog.text and key().stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("trouble", ["no home", "read-only", "open to all"])
def test_without_a_lasting_key_entries_are_of_this_process(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    match trouble:
        case "no home":
            monkeypatch.setattr(seal, "key_path", lambda: None)
        case "read-only":
            monkeypatch.setenv("XDG_STATE_HOME", "/proc/self/nothing")
        case _:
            (tmp_path / "state").mkdir()
            (tmp_path / "state").chmod(0o777)
    monkeypatch.setattr(store, "process_folder", lambda: tmp_path / "process")
    cache = tmp_path / "cache"
    path, seven = native(cache, 7)
    native(cache, 8)
    assert seven == 7 and not path.is_relative_to(cache) and not cache.exists()
    assert [r.levelname for r in caplog.records] == ["WARNING"] and "set XDG_STATE_HOME" in caplog.text


def test_many_processes_make_one_key_and_one_entry(tmp_path: Path) -> None:
    text = f"""
        import ctypes
        from pathlib import Path
        from compiler.runtime import build, seal
        path = build.build({program(7)!r}, cache=Path({str(tmp_path / "cache")!r}))
        print(ctypes.CDLL(str(path)).number(), seal._key()[0].hex(), path)
    """
    command = [sys.executable, "-c", textwrap.dedent(text)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(command, cwd=ROOT, text=True, **pipes) for _ in range(4)]  # type: ignore[call-overload]
    said = [process.communicate(timeout=100) for process in running]
    assert len({out for out, _ in said}) == 1 and {err for _, err in said} == {""}
    number, used, path = said[0][0].split()
    assert number == "7" and used == key().read_bytes().hex() and store.inspect(Path(path)) == "intact"
    assert list(key().parent.iterdir()) == [key()]
    assert sorted(p.suffix for p in (tmp_path / "cache").rglob("*") if p.is_file()) == [".cpp", ".so"]


def test_a_builder_that_is_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    cache, ready, compiler = tmp_path / "cache", tmp_path / "ready", tmp_path / "g++"
    os.mkfifo(ready)
    compiler.write_text(f'#!/bin/sh\ncase "$1" in -dump*) exec g++ "$@";; esac\necho $$ > {ready}\nexec sleep 100\n')
    compiler.chmod(0o755)
    text = f"""
        from pathlib import Path
        from compiler.runtime import build
        build.build("int x;", compiler={str(compiler)!r}, cache=Path({str(cache)!r}))
    """
    ours = subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], cwd=ROOT, stderr=subprocess.DEVNULL)
    sleeping = int(ready.read_text())
    ours.kill()
    ours.wait()
    os.kill(sleeping, 9)
    (left,) = cache.rglob(".build-*")
    assert native(cache, 7)[1] == 7 and left.exists()
    os.utime(left, (1, 1))
    os.utime(cache / store.FORMAT, (1, 1))  # the day after
    assert native(cache, 8)[1] == 8 and not left.exists()


def test_entries_of_former_forms_are_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = build.build(program(7), cache=tmp_path)
    former = tmp_path / path.parent.name / path.name
    former.parent.mkdir()
    path.rename(former)
    path.with_suffix(".cpp").rename(former.with_suffix(".cpp"))
    anew()
    assert native(tmp_path, 7) == (path, 7) and former.exists() and not caplog.records


def test_the_folder_of_a_process_that_was_killed_is_swept(tmp_path: Path) -> None:
    (killed, lock), (living, other) = locked_folder(tmp_path), locked_folder(tmp_path)
    (tmp_path / "mlcomp-mine").mkdir()
    os.close(lock)  # as the system does when the process ends
    sweep_folders(tmp_path)
    assert not killed.exists() and living.exists() and (tmp_path / "mlcomp-mine").exists()
    os.close(other)


@pytest.mark.parametrize("moment", ["mkdtemp", "flock", "rename", "rmtree"])
def test_a_folder_is_swept_at_whatever_moment_its_process_was_killed(tmp_path: Path, moment: str) -> None:
    killed = f"""
import fcntl, os, pathlib, shutil, signal, tempfile
from compiler.runtime import folders

owner = {{"mkdtemp": tempfile, "flock": fcntl, "rename": pathlib.Path, "rmtree": shutil}}[{moment!r}]
called = getattr(owner, {moment!r})

def call(*some, **others):
    if {moment!r} != "mkdtemp":
        os.kill(os.getpid(), signal.SIGKILL)
    called(*some, **others)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, {moment!r}, call)
with folders.own_folder(pathlib.Path({str(tmp_path)!r})) as own:
    (own / "some").write_text("")
"""
    done = subprocess.run([sys.executable, "-c", killed], check=False)
    assert done.returncode == -signal.SIGKILL and len(list(tmp_path.iterdir())) == 1
    sweep_folders(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(tmp_path: Path) -> None:
    made, swept = tempfile.mkdtemp, list[str]()

    def sweep(*some: Any, **others: Any) -> str:
        folder: str = made(*some, **others)
        if not swept:
            swept.append(folder)
            sweep_folders(tmp_path)
        return folder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", sweep)
        folder, lock = locked_folder(tmp_path)
    assert list(tmp_path.iterdir()) == [folder] and not Path(swept[0]).exists()
    os.close(lock)
