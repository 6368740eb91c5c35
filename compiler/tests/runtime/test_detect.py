"""What the machine is: from the files of several systems, and from this one."""

from pathlib import Path

import pytest

from compiler.errors import CacheError, ToolchainError, Unsupported
from compiler.runtime import detect


def test_this_machine() -> None:
    cpu = detect.cpu()
    assert cpu.cores >= 1 and cpu.l1d >= 8 << 10 and cpu.l2 >= cpu.l1d and cpu.line in {32, 64, 128, 256}
    assert cpu is detect.cpu()


def test_cpuinfo_of_x86_takes_the_first_processor() -> None:
    first = "vendor_id\t: Maker\nmodel name\t: Fast One\nflags\t\t: fma avx2\n"
    second = "model name\t: Slow\nflags\t\t: mmx\n"
    text = f"processor\t: 0\n{first}\nprocessor\t: 1\n{second}"
    assert detect.parse_cpuinfo(text) == ("Maker", "Fast One", frozenset({"fma", "avx2"}))


def test_cpuinfo_of_arm_and_of_nobody() -> None:
    text = "processor\t: 0\nFeatures\t: asimd sve\nCPU part\t: 0xd40\n"
    assert detect.parse_cpuinfo(text) == ("", "0xd40", frozenset({"asimd", "sve"}))
    assert detect.parse_cpuinfo("") == ("", "unknown", frozenset())


def test_cache_sizes(tmp_path: Path) -> None:
    rows = [("1", "Data", "32K"), ("1", "Instruction", "64K"), ("2", "Unified", "1M"), ("3", "Unified", "garbage")]
    for i, row in enumerate(rows):
        folder = tmp_path / f"index{i}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), row, strict=True):
            (folder / name).write_text(f"{text}\n")
    assert detect.cache_sizes(tmp_path) == {"l1d": 32 << 10, "l2": 1 << 20}
    assert detect.cache_sizes(tmp_path / "nowhere") == {}


def test_the_cache_folder_is_chosen_by_the_most_specific_word() -> None:
    assert detect.default_cache({"MLCOMP_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert detect.default_cache({"XDG_CACHE_HOME": "/b"}) == Path("/b/mlcomp")
    assert detect.default_cache({}) == Path("~/.cache/mlcomp").expanduser()


def test_toolchain_is_asked_once_and_missing_ones_are_named() -> None:
    assert detect.toolchain("g++").version[0].isdigit()
    assert detect.toolchain("g++") is detect.toolchain("g++")
    with pytest.raises(ToolchainError, match="no-such"):
        detect.toolchain("no-such")


def test_error_messages_name_the_call_and_the_remedy() -> None:
    error = Unsupported("aten.svd.default", ("f32[3, 4]", list(range(1000))), "no lowering", {"some": True})
    assert str(error).startswith("unsupported: aten.svd.default(f32[3, 4], [0, 1,")
    assert str(error).endswith("some=True): no lowering") and len(str(error)) < 200
    assert "set MLCOMP_CACHE=DIR" in str(CacheError(Path("/x"), "read-only"))
