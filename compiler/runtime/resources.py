"""Resource usage of kernels: registers, memory and warnings from ptxas' report, and complaints about them.

Needs no GPU: `ptxas -v` reports while it compiles, and `sass` reads the machine code.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.runtime import in_flight, sass
from compiler.runtime.cubin import Cubin

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+) bytes smem")
MAX_QUOTED = 2  # the number of hazards that a complaint quotes
# setmaxnreg ignored, or wgmma serialised: the kernel stays correct but becomes several times slower.
_SLOWED = re.compile(r"\((C75(?:0[89]|1\d))\)")


@dataclass(frozen=True)
class Usage:
    """Of one kernel: registers per thread at entry, bytes of local memory per thread (`stack`, which includes spills),
    bytes of static shared memory per block, and the number of named barriers."""

    kernel: str
    registers: int
    stack: int
    spill_stores: int
    spill_loads: int
    shared: int
    barriers: int


def usage(log: str) -> tuple[Usage, ...]:
    """The usage of each kernel in a report of `ptxas -v`, sorted by name."""
    parts = _ENTRY.split(log)[1:]
    usages = [_usage(name, report) for name, report in zip(parts[::2], parts[1::2], strict=True)]
    return tuple(sorted(usages, key=lambda u: u.kernel))


def _usage(name: str, report: str) -> Usage:
    stack = _STACK.search(report)
    registers = _REGISTERS.search(report)
    if stack is None or registers is None:
        raise ValueError(f"no report of ptxas -v on kernel {name}: {report[:200]!r}")
    frame, stores, loads = map(int, stack.groups())
    return Usage(name, int(registers[1]), frame, stores, loads, _number(_SHARED, report), _number(_BARRIERS, report))


def _number(pattern: re.Pattern[str], report: str) -> int:
    match = pattern.search(report)
    return int(match[1]) if match else 0


def slowdown_messages(log: str) -> tuple[str, ...]:
    """ptxas' messages C7508 to C7519 in full: why it serialised wgmma or ignored setmaxnreg."""
    return tuple(dict.fromkeys(line.strip() for line in log.splitlines() if _SLOWED.search(line)))


@dataclass(frozen=True)
class Contract:
    """Requirements on a kernel's machine code: opcodes that it needs and forbids, the least share of global memory
    accesses of at least 16 bytes (`wide`), and the most bytes of local memory per thread (`stack`)."""

    needs: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    wide: float = 0.0
    stack: int = 0


# Matrix instructions by element type: per warp and per warpgroup.
_WARP = {"bf16": "HMMA", "f16": "HMMA", "tf32": "HMMA", "i8": "IMMA", "f64": "DMMA", "f8e4m3": "QMMA", "f8e5m2": "QMMA"}
_WARPGROUP = {"bf16": "HGMMA", "f16": "HGMMA", "tf32": "HGMMA", "i8": "IGMMA", "f8e4m3": "QGMMA", "f8e5m2": "QGMMA"}
_MEMORY_BOUND = ("pointwise", "broadcast", "transpose", "reduction", "normalization", "softmax")
_PRODUCTS = ("contraction", "attention", "convolution")
FAMILIES = (*_MEMORY_BOUND, *_PRODUCTS, "scan", "gather", "argmax")


def contract(family: str, arch: str, dtype: str) -> Contract:
    """The contract of a family, for sizes divisible by vectors of 16 bytes; `dtype` is that of the factors, if any.

    Raises KeyError for a family that is not in FAMILIES.
    """
    if family not in FAMILIES:
        raise KeyError(f"no family {family!r}; there are {', '.join(FAMILIES)}")
    if family in _MEMORY_BOUND:
        return Contract(wide=1.0)
    if family not in _PRODUCTS or dtype not in _WARP:
        return Contract()
    # wgmma exists on sm_90a only.
    if arch == "sm_90a" and dtype in _WARPGROUP:
        return Contract((_WARPGROUP[dtype],), (_WARP[dtype],))
    return Contract((_WARP[dtype],))


def complaints(
    log: str, opcodes: Mapping[str, sass.Counts] | None = None, contracts: Mapping[str, Contract] | None = None
) -> tuple[str, ...]:
    """Complaints about the kernels of a report; empty in the best case.

    Spills and slowed instructions are always reported. `contracts` are checked against `opcodes` (both by kernel), and
    state which kernels may use local memory.
    """
    contracts_by_kernel = contracts or {}
    out = list(slowdown_messages(log))
    for u in usage(log):
        if u.spill_stores or u.spill_loads:
            out.append(f"{u.kernel}: {u.registers} registers, spills {u.spill_stores} bytes of stores and "
                         f"{u.spill_loads} of loads")  # fmt: skip
        elif u.stack > contracts_by_kernel.get(u.kernel, Contract()).stack:
            out.append(f"{u.kernel}: {u.stack} bytes of local memory, an array that is indexed at run time?")
    for kernel, counts in (opcodes or {}).items():
        out += (f"{kernel}: {problem}" for problem in breaches(contracts_by_kernel.get(kernel, Contract()), counts))
    return tuple(out)


def breaches(requirements: Contract, counts: sass.Counts) -> tuple[str, ...]:
    """How the opcodes of a kernel violate its contract; empty if they do not."""
    out = [f"has no {name}" for name in requirements.needs if not sass.total(counts, name)]
    out += [f"has {n} {name}" for name in requirements.forbids if (n := sass.total(counts, name))]
    share = sass.wide_share(counts)
    if share < requirements.wide:
        narrow = ", ".join(f"{n} {name}" for name, n in sorted(counts.items()) if sass.is_narrow(name))
        out.append(
            f"only {share:.0%} of its accesses to global memory are 16 bytes wide, "
            f"not {requirements.wide:.0%}: {narrow}"
        )
    return tuple(out)


def _quoted(hazards: Sequence[in_flight.Hazard]) -> str:
    unquoted = len(hazards) - MAX_QUOTED
    return "; ".join(map(str, hazards[:MAX_QUOTED])) + (f"; and {unquoted} more" if unquoted > 0 else "")


@dataclass(frozen=True)
class Report:
    """All that is known of a cubin without running it; `opcodes` by kernel, empty without a disassembler."""

    usage: tuple[Usage, ...]
    opcodes: Mapping[str, sass.Counts]
    complaints: tuple[str, ...]


def inspect(cubin: Cubin, contracts: Mapping[str, Contract] | None = None) -> Report:
    """Check a cubin against the contracts of its kernels."""
    text = sass.disassemble(cubin.path) or ""
    counts = sass.opcodes(text)
    hazard_complaints = [f"{kernel}: {_quoted(hazards)}" for kernel, hazards in in_flight.hazards(text).items()]
    return Report(usage(cubin.log), counts, (*complaints(cubin.log, counts, contracts), *hazard_complaints))
