"""SASS, the machine code of NVIDIA GPUs: disassemble a cubin, and count the opcodes of each kernel."""

import collections
import functools
import importlib.util
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

Counts = Mapping[str, int]  # by full opcode, such as LDG.E.128.CONSTANT

_KERNEL = re.compile(r"^\s*Function : (\S+)|^\.text\.(\S+):", re.MULTILINE)
_OPCODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P\w+\s+)?([A-Z][A-Za-z0-9_.]*)")
_WIDE = re.compile(r"\.(128|256)(\.|$)")


@functools.cache
def disassembler() -> tuple[str, ...] | None:
    """The command of a disassembler (cuobjdump or nvdisasm), from PATH, a toolkit or NVIDIA's packages; None if
    missing."""
    folders = [str(p) for p in (Path("/usr/local/cuda/bin"), *_package_folders())]
    for name, options in (("cuobjdump", ("-sass",)), ("nvdisasm", ())):
        path = shutil.which(name) or shutil.which(name, path=":".join(folders))
        if path:
            return (path, *options)
    return None


def _package_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    return [f for root in (spec.submodule_search_locations or () if spec else ()) for f in Path(root).glob("*/bin")]


def disassemble(cubin: Path) -> str | None:
    """Disassemble all kernels of a cubin; None without a disassembler (`pip install nvidia-cuda-cuobjdump`)."""
    command = disassembler()
    if command is None:
        return None
    process = subprocess.run([*command, str(cubin)], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ValueError(f"{command[0]} cannot read {cubin}: {(process.stderr or process.stdout).strip()[:300]}")
    return process.stdout


def bodies(text: str) -> dict[str, str]:
    """The code of each kernel in a disassembly by cuobjdump or nvdisasm, by name."""
    parts = _KERNEL.split(text)
    return {(a or b): body for a, b, body in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}


def opcodes(text: str) -> dict[str, Counts]:
    """The opcode counts of each kernel in a disassembly."""
    return {name: collections.Counter(_OPCODE.findall(body)) for name, body in bodies(text).items()}


def total(counts: Counts, name: str) -> int:
    """The number of occurrences of an opcode with any modifiers.

    >>> total({"LDG.E": 2, "LDG.E.128": 3, "LDGSTS.E": 5}, "LDG")
    5
    """
    return sum(n for opcode, n in counts.items() if opcode.split(".")[0] == name)


def wide_share(counts: Counts) -> float:
    """The share of global loads and stores that move at least 16 bytes; 1 if there are none.

    >>> wide_share({"LDG.E.128": 3, "STG.E.U16": 1, "LDS": 7})
    0.75
    """
    narrow = sum(n for opcode, n in counts.items() if is_narrow(opcode))
    accesses = total(counts, "LDG") + total(counts, "STG")
    return 1 - narrow / accesses if accesses else 1.0


def is_narrow(opcode: str) -> bool:
    """Whether an opcode is a global load or store of less than 16 bytes."""
    return opcode.split(".")[0] in ("LDG", "STG") and not _WIDE.search(opcode)
