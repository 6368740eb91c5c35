"""The environment of a run: facts about the machine and its tools, and the name of the report folder."""

import functools
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.specifiers import SpecifierSet

import compiler
from conformance.shapes.cases import kind_of, stages_of

Environment = dict[str, str | None]
MARKETING = re.compile(r"\((r|tm)\)|\bcpu\b|@.*|\bprocessor\b|\b\d+-core\b|\bwith .*|\bnvidia\b", re.IGNORECASE)


def collect(targets: Sequence[str], variant: str | None = None) -> Environment:
    """Return the facts that a result depends on; None for what this machine does not have."""
    return {
        "python": platform.python_version(),
        "torch": _installed("torch"),
        "device": device(targets, variant),
        "cpu": cpu_model(),
        "gpu": gpu_model(),
        "toolchain": toolchain(targets),
        "commit": _commit(Path(__file__).resolve().parents[2]),
    }


def device(targets: Sequence[str], variant: str | None = None) -> str:
    """Return the name of the report folder of this device; a variant, such as another backend, has its own folder."""
    on_gpu = any(kind_of(target) == "cuda" for target in targets)
    gpu = gpu_model() if on_gpu else None
    name = slug(gpu or cpu_model() or platform.machine()) + ("-emulated" if on_gpu and gpu is None else "")
    return f"{name}-{slug(variant)}" if variant else name


def toolchain(targets: Sequence[str]) -> str | None:
    """Return the versions of the C++ compiler and, for CUDA targets, of nvcc."""
    cuda = (
        _first_line("nvcc", "--version", containing="release") if any(kind_of(t) == "cuda" for t in targets) else None
    )
    return "; ".join(filter(None, (_first_line("g++", "--version"), cuda))) or None


def missing_tool() -> str | None:
    """Return the name of a missing tool that is needed to build kernels, or None."""
    if shutil.which("g++") is None:
        return "g++"
    # g++ prints the linker's path if it is in the compiler's folders, else only the name.
    linker = _first_line("g++", "-print-prog-name=ld") or "ld"
    return None if shutil.which(linker) else "ld"


def missing_for(targets: Sequence[str], stages: Sequence[str]) -> str:
    """Return why this machine cannot run one of these stages of one of the targets; "" if it can run them all."""
    runnable = (target for target in targets if stages_of(target)[-1] in stages)
    return next(filter(None, map(compiler.missing_requirement, runnable)), "")


def needs_another_torch(versions: str) -> str:
    """Return a message if this PyTorch is none of these versions (a specifier such as ">=2.13"), else ""."""
    installed = version("torch")
    return (
        ""
        if SpecifierSet(versions).contains(installed, prereleases=True)
        else f"needs torch {versions}, here is {installed}"
    )


def emulates(targets: Sequence[str]) -> bool:
    """Return whether some of these targets are GPUs and this machine, which has none, emulates them."""
    return any(kind_of(target) == "cuda" for target in targets) and gpu_model() is None


def slug(model: str) -> str:
    """Convert the name of a processor or GPU to a folder name.

    >>> slug("AMD EPYC 7R13 48-Core Processor"), slug("Intel(R) Xeon(R) CPU @ 2.20GHz"), slug("NVIDIA H200")
    ('amd-epyc-7r13', 'intel-xeon', 'h200')
    """
    return re.sub(r"[^a-z0-9.]+", "-", MARKETING.sub(" ", model).lower()).strip("-.") or "unknown"


def cpu_model() -> str | None:
    """Return the system's name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model\t")))
    return next(models, None) or platform.processor() or platform.machine() or None


@functools.cache
def gpu_model() -> str | None:
    """Return the name of the first NVIDIA GPU or None, from nvidia-smi, so that CUDA need not be loaded."""
    return _first_line("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")


def _installed(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _commit(folder: Path) -> str | None:
    if not (folder / ".git").exists():
        return None
    commit = _first_line("git", "-C", str(folder), "rev-parse", "--short=12", "HEAD")
    changed = _first_line("git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no")
    return f"{commit}+changes" if commit and changed else commit


def _first_line(*command: str, containing: str = "") -> str | None:
    """Return the first line of a command's output that contains `containing`; None if there is none or it fails."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line for line in process.stdout.strip().splitlines() if containing in line]
    return next(iter(lines), None) if process.returncode == 0 else None
