"""Report the resources of the kernels of programs lowered for GPUs, with complaints. Nothing is run.

Many texts are compiled together, since starting the compiler costs more than most kernels.
"""

from __future__ import annotations

import collections
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from compiler.errors import ToolchainError
from compiler.execution.gpu_programs import HEADERS
from compiler.ir import kernel as k
from compiler.ir.expr import Load, Op
from compiler.pipeline import Lowering
from compiler.render import cuda
from compiler.runtime import cubin, detect, resources
from compiler.runtime.resources import Contract
from compiler.targets.target import Target

BATCH = 24  # texts per compilation; if one is rejected, each is compiled again alone
# CUDA's trigonometric functions multiply large arguments by many digits of 2/pi, and index the product. They load the
# digits from global memory one by one, which opcodes do not distinguish from narrow accesses of the kernel itself.
_ARGUMENT_REDUCING = frozenset({"sin", "cos", "tan"})
# A failed requirement is reported by a store of its own, which is narrow.
_CHECK_OPS = frozenset({"require"})
REDUCTION_STACK = 48  # bytes of local memory
WIDEST_ACCESS = 16  # bytes of the widest access
# Accesses to adjacent elements: functions that count in elements, and functions that count in bytes.
_ELEMENTS = frozenset({"mlc_load", "mlc_load_where", "mlc_store", "mlc_store_global"})
_BYTES = frozenset({"mlc_load_once", "mlc_load_keep", "mlc_store_once"})
# If a warpgroup has an instruction, that of a warp is half as fast.
_SLOWER_OPCODES = {"HGMMA": ("HMMA",), "IGMMA": ("IMMA",)}


@dataclass(frozen=True)
class Kernel:
    """The resources of one kernel for one architecture.

    `registers` per thread; `stack` bytes of local memory per thread, of which `spilled` are spills; `shared` bytes per
    block; how often each opcode occurs, empty without a disassembler; and what the gate complains about.
    """

    name: str
    arch: str
    registers: int
    stack: int
    spilled: int
    shared: int
    opcodes: Mapping[str, int]
    complaints: tuple[str, ...]


def inspect(
    lowerings: Sequence[Lowering], cache: Path | None = None, families: Sequence[tuple[str, str] | None] = ()
) -> list[tuple[Kernel, ...]]:
    """Compile each program for its target's architecture and return its kernels' resources.

    `families` may give for each program its row of `resources.FAMILIES` and the dtype that it multiplies. Machine code
    is stored in `cache` (default: by the environment). Raises ToolchainError if there is no CUDA compiler; a text that
    it rejects is a complaint.
    """
    cubin.installed_compiler()
    folder = cache if cache is not None else detect.default_cache(os.environ)
    inspected: dict[tuple[str, str], tuple[Kernel, ...]] = {}  # by architecture and text; equal texts are compiled once
    pending: dict[str, dict[str, Lowering]] = {}
    for x in lowerings:
        pending.setdefault(x.target.name, {}).setdefault(x.stages["cuda"], x)
    for arch, texts in pending.items():
        pairs = list(texts.items())
        for start in range(0, len(pairs), BATCH):
            for text, kernels_of_text in _inspect_texts(arch, dict(pairs[start : start + BATCH]), folder):
                inspected[arch, text] = kernels_of_text
    programs = [inspected[x.target.name, x.stages["cuda"]] for x in lowerings]
    known_families = [*families, *[None] * (len(programs) - len(families))]
    return [_check_family(kernels, family) for kernels, family in zip(programs, known_families, strict=True)]


def _check_family(kernels: tuple[Kernel, ...], family: tuple[str, str] | None) -> tuple[Kernel, ...]:
    """Check the opcodes of a program's kernels, taken together, against its family; complaints go to the first
    kernel."""
    if family is None or not all(x.opcodes for x in kernels):
        return kernels
    totals = sum((collections.Counter(x.opcodes) for x in kernels), collections.Counter())
    name, dtype = family
    breaches = resources.breaches(resources.contract(name, kernels[0].arch, dtype), totals)
    complaints = tuple(f"{name} of {dtype}: {problem}" for problem in breaches)
    first, *rest = kernels
    return (replace(first, complaints=(*first.complaints, *complaints)), *rest)


def _inspect_texts(
    arch: str, texts: Mapping[str, Lowering], cache: Path | None
) -> Iterator[tuple[str, tuple[Kernel, ...]]]:
    """Compile texts together; each alone if one is rejected or a complaint names no kernel."""
    try:
        inspected = _inspect_together(arch, texts, cache)
    except ToolchainError as refusal:
        inspected = None
        if len(texts) == 1:
            inspected = [(Kernel("", arch, 0, 0, 0, 0, {}, (str(refusal),)),)]
    if inspected is None:
        for text, lowering in texts.items():
            yield from _inspect_texts(arch, {text: lowering}, cache)
    else:
        yield from zip(texts, inspected, strict=True)


def _inspect_together(arch: str, texts: Mapping[str, Lowering], cache: Path | None) -> list[tuple[Kernel, ...]] | None:
    """Compile texts together; None if a complaint names no kernel and there are several texts."""
    programs: list[k.Program] = [x.stages["kernel"] for x in texts.values()]
    names = [cuda.names(program) for program in programs]
    contracts = {
        f"k{n}_{name}": contract(f, lowering.target)
        for n, (program, lowering) in enumerate(zip(programs, texts.values(), strict=True))
        for f, name in zip(program.functions, names[n], strict=True)
    }
    source = "\n".join(_renamed(text, n, names[n]) for n, text in enumerate(texts))
    report = resources.inspect(cubin.build_cubin(source, arch, include=(HEADERS,), cache=cache), contracts)
    complaints_of = {
        symbol: tuple(c for c in report.complaints if re.search(rf"\b{symbol}\b", c)) for symbol in contracts
    }
    if unattributed := set(report.complaints) - {c for complaints in complaints_of.values() for c in complaints}:
        if len(texts) > 1:
            return None
        complaints_of = {symbol: (*complaints, *sorted(unattributed)) for symbol, complaints in complaints_of.items()}
    usage = {u.kernel: u for u in report.usage}
    if missing := contracts.keys() - usage.keys():
        raise ToolchainError(f"the CUDA compiler made a cubin and no report of ptxas on {', '.join(sorted(missing))}")

    def kernel(f: k.Function, n: int, name: str) -> Kernel:
        symbol = f"k{n}_{name}"
        u, shared = usage[symbol], k.dynamic_shared(f)[1]
        kernel_complaints = tuple(c.replace(symbol, name) for c in complaints_of[symbol])
        spilled = u.spill_stores + u.spill_loads
        return Kernel(
            name,
            arch,
            u.registers,
            u.stack,
            spilled,
            u.shared + shared,
            report.opcodes.get(symbol, {}),
            kernel_complaints,
        )

    return [
        tuple(kernel(f, n, name) for f, name in zip(program.functions, names[n], strict=True))
        for n, program in enumerate(programs)
    ]


def _renamed(text: str, n: int, names: Sequence[str]) -> str:
    """The text with its kernels renamed to k<n>_<name>."""
    for name in names:
        text = re.sub(
            rf'^(extern "C" __global__ [^{{]*?\s){re.escape(name)}\(', rf"\1k{n}_{name}(", text, flags=re.MULTILINE
        )
    return text


def contract(f: k.Function, target: Target) -> Contract:
    """The requirements on a function's machine code: the instructions that it calls, and wide accesses if all are
    wide."""
    needs: dict[str, None] = {}
    for call in (n for n in f.walk() if isinstance(n, k.Call)):
        needs |= dict.fromkeys(_opcodes(call, f, target))
    forbids = tuple(narrow for name in needs for narrow in _SLOWER_OPCODES.get(name, ()))
    ops = [n for n in f.walk() if isinstance(n, Op)]
    reduced = {
        n.dtype for n in ops if n.name in _ARGUMENT_REDUCING
    }  # each type has a function, with a product of its own
    wide = _has_only_wide_accesses(f) and not reduced and not any(n.name in _CHECK_OPS for n in ops)
    return Contract(tuple(needs), forbids, 1.0 if wide else 0.0, REDUCTION_STACK * len(reduced))


def _opcodes(call: k.Call, f: k.Function, target: Target) -> tuple[str, ...]:
    """The opcode of the instruction that a call performs, if the call's types determine it."""
    rows = [r for r in target.instructions if r.function == call.function]
    if rows:
        arrays = {a.name: a.dtype.name for a in f.walk() if isinstance(a, k.Array)}
        types = {arrays.get(a.buffer) for a in call.args if isinstance(a, k.Address)}
        opcodes = {r.opcode for r in rows if r.acc_type in types}
    else:
        opcodes = {r.opcode for r in target.transfers if r.function == call.function}
        opcodes |= {r.opcode for r in target.fragments if r.function == call.function}
    return tuple(opcodes) if len(opcodes) == 1 else ()


def _has_only_wide_accesses(f: k.Function) -> bool:
    """Whether every access to global memory is a multiple of 16 bytes."""
    bytes_of = {p.name: p.dtype.bytes for p in f.params}
    has_access = False
    for n in f.walk():
        match n:
            case Load(buffer) | k.Store(buffer) if buffer in bytes_of:
                return False
            case k.Call(function, template, args):
                sizes = [bytes_of[a.buffer] for a in args if isinstance(a, k.Address) and a.buffer in bytes_of]
                if sizes and function not in _ELEMENTS | _BYTES:
                    return False
                if any(int(template[0]) * (size if function in _ELEMENTS else 1) % WIDEST_ACCESS for size in sizes):
                    return False
                has_access = has_access or bool(sizes)
    return has_access
