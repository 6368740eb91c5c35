"""Properties of this machine as plain data: processor, cores, caches, GPU, C++ compiler and the user's folders."""

import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from compiler.errors import CacheError, ToolchainError

INSTALL_COMPILER = (
    "install one (Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) and run the same command again"
)


@dataclass(frozen=True)
class Cpu:
    """A processor. Sizes are in bytes, `l3` is shared by all cores, `cores` are those that this process may use.

    `vendor` is as in /proc/cpuinfo, such as GenuineIntel, or empty.
    """

    vendor: str
    model: str
    features: frozenset[str]
    cores: int
    l1d: int
    l2: int
    l3: int
    line: int


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler: its path and the version that it reports."""

    path: str
    version: str


@dataclass(frozen=True)
class Gpu:
    """An NVIDIA GPU: compute capability (major, minor), number of multiprocessors, bytes of L2."""

    capability: tuple[int, int]
    cores: int
    l2: int


# The feature of instructions that load at indices faster than a load for each element does: Intel's take 3.1 us for
# 16384 f32, single loads 8.1 (Emerald Rapids). Where microcode keeps them from leaking data, they are several times as
# slow, and AMD's are about as fast as single loads.
FAST_GATHER = "fast_gather"

# The least that 64-bit server or laptop processors of the last ten years have; used if the system does not tell.
SMALLEST_CACHES = {"l1d": 32 << 10, "l2": 256 << 10, "l3": 2 << 20}


@functools.cache
def cpu() -> Cpu:
    """The processor that this process runs on."""
    vendor, model, features = parse_cpuinfo(_read_text(Path("/proc/cpuinfo")))
    if "amx_tile" in features and not _tiles_granted():
        features -= {f for f in features if f.startswith("amx_")}
    leaks = _read_text(Path("/sys/devices/system/cpu/vulnerabilities/gather_data_sampling")).strip() != "Not affected"
    if vendor == "GenuineIntel" and "avx2" in features and not leaks:
        features |= {FAST_GATHER}
    caches = SMALLEST_CACHES | cache_sizes(Path("/sys/devices/system/cpu/cpu0/cache"))
    line = int(_read_text(Path("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size")).strip() or 64)
    return Cpu(vendor, model, features, usable_cores(), caches["l1d"], caches["l2"], caches["l3"], line)


def _tiles_granted() -> bool:
    """Whether Linux lets this process use the tile registers of AMX, for which a process has to ask."""
    # x86-64's number of the call, ARCH_REQ_XCOMP_PERM and its argument (Linux, Documentation/arch/x86/xstate.rst)
    arch_prctl, ask, tile_data = 158, 0x1023, 18
    return bool(ctypes.CDLL(None).syscall(arch_prctl, ask, tile_data) == 0)


def parse_cpuinfo(text: str) -> tuple[str, str, frozenset[str]]:
    """Vendor, model name and feature words of the first processor in /proc/cpuinfo.

    >>> parse_cpuinfo("vendor_id\\t: AuthenticAMD\\nmodel name\\t: Zen\\nflags\\t\\t: fma avx2\\n")[:2]
    ('AuthenticAMD', 'Zen')
    """
    rows = dict(reversed(re.findall(r"^([^\t:]+?)\s*: ?(.*)$", text, flags=re.MULTILINE)))
    model = rows.get("model name") or rows.get("CPU part") or "unknown"
    return rows.get("vendor_id", ""), model, frozenset((rows.get("flags") or rows.get("Features") or "").split())


def cache_sizes(folder: Path) -> dict[str, int]:
    """Cache sizes in bytes by name (l1d, l2, l3), as far as sysfs lists them in `folder`."""
    sizes: dict[str, int] = {}
    for index in sorted(folder.glob("index*")):
        level, kind, size = (_read_text(index / name).strip() for name in ("level", "type", "size"))
        match = re.fullmatch(r"(\d+)([KMG]?)", size)
        if kind == "Instruction" or match is None:
            continue
        name = "l1d" if level == "1" else f"l{level}"
        sizes[name] = int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]
    return sizes


def usable_cores() -> int:
    """Cores that the affinity mask and the container's quota grant to this process, at least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(allowed, math.ceil(parse_quota(_read_text(Path("/sys/fs/cgroup/cpu.max"))))))


def parse_quota(text: str) -> float:
    """Cores granted by a cgroup's `cpu.max`; 9999 if there is no limit.

    >>> parse_quota("150000 100000"), parse_quota("max 100000"), parse_quota("")
    (1.5, 9999.0, 9999.0)
    """
    words = text.split()
    return float(words[0]) / float(words[1]) if len(words) == 2 and words[0].isdigit() else 9999.0


@functools.cache
def gpu() -> Gpu | None:
    """The first GPU visible to this process, by NVIDIA's driver; None without a driver or a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return None

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
        return value.value

    # CUdevice_attribute: COMPUTE_CAPABILITY_MAJOR and _MINOR, MULTIPROCESSOR_COUNT, L2_CACHE_SIZE
    return Gpu((attribute(75), attribute(76)), attribute(16), attribute(38))


@functools.cache
def toolchain(compiler: str = "g++") -> Toolchain:
    """The compiler of this name on PATH, with its version. Raises ToolchainError, with installation advice."""
    path = shutil.which(compiler)
    if path is None:
        raise ToolchainError(f"no C++ compiler: `{compiler}` is not on PATH; {INSTALL_COMPILER}.")
    try:
        # gcc shortens -dumpversion to the major number and clang knows no other option: ask for both.
        answer = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True, check=False)
        machine = subprocess.run([path, "-dumpmachine"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise ToolchainError(f"cannot run the C++ compiler {path}: {error.strerror}; {INSTALL_COMPILER}.") from error
    if answer.returncode != 0:
        raise ToolchainError(
            f"the C++ compiler {path} does not answer (exit status {answer.returncode}): "
            f"{answer.stderr.strip()[:300] or 'it says nothing'}; {INSTALL_COMPILER}."
        )
    return Toolchain(path, f"{answer.stdout.strip()} {machine.stdout.strip()}")


def python_headers() -> Path | None:
    """The folder of Python.h; None if Python was installed without its headers."""
    folder = Path(sysconfig.get_path("include"))
    return folder if (folder / "Python.h").is_file() else None


def default_cache(environment: Mapping[str, str]) -> Path:
    """The default folder of built kernels. Only the outermost layer calls this, as it alone reads the environment.

    >>> default_cache({"XDG_CACHE_HOME": "/var/c"}).as_posix()
    '/var/c/mlcomp'
    """
    if chosen := environment.get("MLCOMP_CACHE"):
        return Path(chosen).expanduser().absolute()
    folder = _user_folder(environment.get("XDG_CACHE_HOME"), "~/.cache")
    if folder is None:
        raise CacheError(Path("~/.cache/mlcomp"), "this user has no home folder")
    return folder


def default_state(environment: Mapping[str, str]) -> Path | None:
    """The folder of the key that seals the user's cache; None for a user without a home.

    >>> default_state({"XDG_STATE_HOME": "/var/s"}).as_posix()
    '/var/s/mlcomp'
    """
    return _user_folder(environment.get("XDG_STATE_HOME"), "~/.local/state")


def _user_folder(chosen: str | None, default: str) -> Path | None:
    """Our folder in the user's folder of some kind. A relative path is ignored, as the XDG specification demands."""
    if chosen and Path(chosen).is_absolute():
        return Path(chosen) / "mlcomp"
    try:
        return Path(default).expanduser() / "mlcomp"
    except RuntimeError:
        return None


def _read_text(path: Path) -> str:
    """The file's text; empty if the system lacks the file (another kernel, a container without /sys)."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
