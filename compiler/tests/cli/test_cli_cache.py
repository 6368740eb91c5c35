"""`mlcomp cache`: what it counts, what it calls damaged, what it removes, and what it leaves alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from compiler import cli
from compiler.runtime import build, inventory, seal, store

DAY = 24 * 3600.0


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache with three entries, the first used longest ago, and a key for it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "_built", {})
    monkeypatch.setattr(store, "_trusted_folders", set())
    seal._key.cache_clear()
    for number, days in enumerate((30, 20, 10)):
        path = build.build(text(number), cache=tmp_path / "cache")
        for part in (path, path.with_suffix(".cpp")):
            os.utime(part, (time.time() - days * DAY,) * 2)
    yield tmp_path / "cache"
    seal._key.cache_clear()


def text(number: int) -> str:
    return f'extern "C" __attribute__((visibility("default"))) int number() {{ return {number}; }}\n'


def entries(cache: Path) -> list[Path]:
    """Shared objects, those used longest ago first."""
    return sorted(cache.rglob("*.so"), key=lambda path: path.stat().st_mtime)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert cli.main(["cache", *words]) == status
    return capsys.readouterr().out


def test_show_says_place_key_and_size_by_kind(cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys)
    assert f"place: {cache}\nkey:   {tmp_path / 'state' / 'mlcomp' / 'key'}\nsize:  6 files, " in out
    assert "shared objects: 3 files, " in out and "texts of shared objects: 3 files, " in out


def test_a_cache_that_is_not_there_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLCOMP_CACHE", str(tmp_path / "none"))
    for words in ([], ["verify"], ["prune"], ["clear"]):
        assert "0 files" in said(capsys, *words)


def test_verify_names_what_is_damaged(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "6 intact, 0 damaged" in said(capsys, "verify")
    first, second, _ = entries(cache)
    first.write_bytes(second.read_bytes())
    third = second.with_suffix(".cpp")
    third.write_text(third.read_text().replace("return", "return 1 +"))
    out = said(capsys, "verify", status=1)
    assert f"{first} is damaged or forged" in out and f"{third} is damaged or forged" in out
    assert "4 intact, 2 damaged" in out
    assert "removed 4 files" in said(capsys, "prune"), "an entry goes with both of its files"
    assert "2 intact, 0 damaged" in said(capsys, "verify")


def test_a_folder_that_others_may_write_is_named(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache.chmod(0o777)
    assert f"(refused: others may write to {cache}" in said(capsys, status=1)
    assert f"{cache} is refused: others may write to {cache}" in said(capsys, "verify", status=1)


def test_prune_by_age(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, second, third = entries(cache)
    assert "removed 2 files" in said(capsys, "prune", "--older-than", "25") and entries(cache) == [second, third]
    assert "removed 0 files" in said(capsys, "prune", "--older-than", "25")


def test_prune_by_size_keeps_what_was_used_last(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, second, third = entries(cache)
    whole = sum(file.size for file in inventory.files(cache))
    build._built.clear()
    build.build(text(1), cache=cache)
    assert entries(cache)[1:] == [third, second], "its use counts"
    said(capsys, "prune", "--max-size", str(whole - 1))
    assert entries(cache) == [third, second]
    said(capsys, "prune", "--max-size", f"{whole / 3 / 1024 + 0.1:.3f}K")
    assert entries(cache) == [second] and second.with_suffix(".cpp").exists()
    said(capsys, "prune", "--max-size", "0")
    assert inventory.files(cache) == []


def test_what_is_of_no_use_is_pruned_and_what_is_not_ours_stays(
    cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    former = cache / "ab" / f"{'c' * 38}.so"
    mine = [cache / "notes.txt", cache / "ab" / "mine.so", cache / "refused" / "mine.cpp"]
    refused = cache / "refused" / f"{'d' * 40}.cpp"
    for path in (former, refused, *mine):
        path.parent.mkdir(exist_ok=True)
        path.write_text("text")
    at_work, left = (entries(cache)[0].parent / f".build-{name}" for name in ("work", "left"))
    for folder in (at_work, left):
        folder.mkdir()
        (folder / "kernel.cpp").write_text("text")
    os.utime(left, (1, 1))
    out = said(capsys)
    assert "of former versions: 1 file, " in out and "refused: 1 file, " in out and "builders: 2 files, " in out
    assert "removed 3 files" in said(capsys, "prune")
    assert at_work.exists() and not any(path.exists() for path in (former, refused, left))
    assert len(entries(cache)) == 4
    assert "0 files, 0.0 MiB are left" in said(capsys, "clear")
    assert sorted(path for path in cache.rglob("*") if path.is_file()) == sorted(mine)


@pytest.mark.parametrize("words", [["shrink"], ["prune", "--older-than", "-1"], ["prune", "--max-size", "big"]])
def test_what_makes_no_sense(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(["cache", *words])
    assert end.value.code == 2 and "usage: mlcomp cache" in capsys.readouterr().err


def test_limits_are_for_prune(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "clear", "--older-than", "3"]) == 2
    assert "are for `mlcomp cache prune`" in capsys.readouterr().err
