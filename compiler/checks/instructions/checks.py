"""All checks of all rows, which a test runner may run in any order.

A row is checked three times: its meaning against NumPy, the CPU body of its device function against the meaning, and
the GPU body against the meaning, so that a mistake made twice cannot cancel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compiler.checks.instructions import moves, tensor
from compiler.checks.instructions.functions import functions
from compiler.checks.instructions.trial import HEADERS, Trial, judge, plan, poisoned, source
from compiler.interpret.scalar import storage
from compiler.ir import dtype as dt
from compiler.runtime import arrays, cubin, device, resources, sass
from compiler.runtime.emulator import emulator
from compiler.targets import instructions, nvidia
from compiler.targets.layout import Layout, is_bijection, threads
from compiler.targets.target import Fragments, Instruction, Target, Transfer

Row = Instruction | Fragments | Transfer
TrialsOfSeed = Callable[[int], Mapping[str, Sequence[Trial]]]  # from a seed to trials by name


class NotRun(Exception):
    """A check that this machine cannot run; the message says what is missing."""


@dataclass(frozen=True)
class Check:
    """`run` takes the seed of random inputs. It raises AssertionError if the check fails, or NotRun."""

    name: str
    kind: str
    run: Callable[[int], None]


def instruction_checks() -> tuple[Check, ...]:
    """The checks of every row and device function, in a fixed order."""
    return (*_row_checks(), *_function_checks())


def _row_checks() -> Iterator[Check]:
    for family in _families():
        for row in family:
            name = _row_name(row)
            if not isinstance(row, Transfer):
                yield Check(f"{name}::layout", "layout", functools.partial(_check_layout, row))
            if isinstance(row, Instruction):
                yield Check(f"{name}::meaning", "meaning", functools.partial(_check_meaning, row))
            yield from _kernel_checks(name, row.needs, row.opcode, functools.partial(_family_trials, family))


def _function_checks() -> Iterator[Check]:
    needs = {name: feature for name, feature, _ in functions(0)}
    for name, feature in sorted(needs.items(), key=lambda item: item[1]):
        yield from _kernel_checks(name, feature, "", functools.partial(_function_trials, feature))


def _kernel_checks(name: str, needs: str, opcode: str, trials_of_seed: TrialsOfSeed) -> Iterator[Check]:
    """Checks of one name's trials, whose kernels are compiled together with those of related names."""
    yield Check(f"{name}::emulated", "emulated", functools.partial(_check_emulated, name, trials_of_seed))
    yield Check(f"{name}::gpu", "gpu", functools.partial(_check_on_gpu, name, needs, trials_of_seed))
    for target in nvidia.TARGETS:
        if not needs or needs in target.features:
            run = functools.partial(_check_assembled, name, opcode, target, trials_of_seed)
            yield Check(f"{name}::{target.name}", "assembled", run)


# Rows per text: compiling few texts of several kernels is faster than many texts of one.
_ROWS_PER_TEXT = 6
# These widths n (narrowest, medium, widest) get all combinations of swizzles; others get one swizzle per order of axes.
_THOROUGH_WIDTHS = (8, 64, 256)


def _families() -> Iterator[tuple[Row, ...]]:
    for _, rows_alike in itertools.groupby(instructions.TENSOR, lambda r: (r.needs, r.function, r.a_type)):
        rows = tuple(rows_alike)
        yield from (rows[i : i + _ROWS_PER_TEXT] for i in range(0, len(rows), _ROWS_PER_TEXT))
    for _, fragments in itertools.groupby(instructions.FRAGMENTS, lambda r: r.needs):
        yield tuple(fragments)
    for row in instructions.TRANSFERS:
        yield (row,)


def _row_name(row: Row) -> str:
    return f"{row.name}.store" if isinstance(row, Transfer) and row.source == "shared" else row.name


@functools.lru_cache(maxsize=4)
def _family_trials(family: tuple[Row, ...], seed: int) -> Mapping[str, Sequence[Trial]]:
    return {_row_name(row): _row_trials(row, seed) for row in family}


def _row_trials(row: Row, seed: int) -> Sequence[Trial]:
    match row:
        case Instruction():
            return tensor.trials(row, seed, thorough=row.n in _THOROUGH_WIDTHS and row.threads > instructions.WARP)
        case Fragments():
            return moves.fragments(row, seed)
        case Transfer():
            return moves.transfers(row, seed)


@functools.lru_cache(maxsize=2)
def _function_trials(needs: str, seed: int) -> Mapping[str, Sequence[Trial]]:
    return {name: [trial] for name, feature, trial in functions(seed) if feature == needs}


def _text(trials_by_name: Mapping[str, Sequence[Trial]]) -> str:
    return source([trial for trials in trials_by_name.values() for trial in trials])


def _check_layout(row: Instruction | Fragments, seed: int) -> None:
    layouts: list[Layout | None] = (
        [row.layout] if isinstance(row, Fragments) else [row.acc_layout, row.a_layout, row.b_layout]
    )
    width = instructions.WARP if isinstance(row, Fragments) else row.threads
    for layout in layouts:
        assert layout is None or is_bijection(layout), f"{layout} does not hold every element of its tile once"
        assert layout is None or threads(layout) == width, f"{layout} is not of {width} threads"


def _check_meaning(row: Instruction, seed: int) -> None:
    """The row's Tile IR computes a matmul."""
    rng = np.random.default_rng(seed)
    a, b, acc = (
        rng.integers(-64, 65, shape).astype(storage(dt.DTYPES[t]))
        for shape, t in (((row.m, row.k), row.a_type), ((row.k, row.n), row.b_type), ((row.m, row.n), row.acc_type))
    )
    expected = acc.astype(np.float64) + a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_array_equal(tensor.evaluate(row, acc, a, b), expected)


def _check_emulated(name: str, trials_of_seed: TrialsOfSeed, seed: int) -> None:
    trials = trials_of_seed(seed)
    path = emulator.build(_text(trials), (HEADERS,))
    for trial in trials[name]:
        outputs = poisoned(trial)
        outcome = emulator.run(path, plan(trial), [*(a for _, a in trial.inputs), *outputs])
        assert outcome.complete and not outcome.reports, outcome.reports
        judge(trial, outputs)


def _check_on_gpu(name: str, needs: str, trials_of_seed: TrialsOfSeed, seed: int) -> None:
    if reason := device.unavailable_reason():
        raise NotRun(reason)
    gpu = arrays.current()
    architecture = device.architecture(gpu.capability, [t.name for t in nvidia.TARGETS])
    target = next((t for t in nvidia.TARGETS if t.name == architecture), None)
    if target is None or (needs and needs not in target.features):
        raise NotRun(f"{gpu.name} has no {needs or 'target'}")
    trials = trials_of_seed(seed)
    image = cubin.build_cubin(_text(trials), target.name, include=(HEADERS,))
    for trial in trials[name]:
        memory = arrays.run(image, plan(trial), [*(a for _, a in trial.inputs), *poisoned(trial)])
        judge(trial, memory[len(trial.inputs) :])


# Bytes of stack that ptxas 13.0 itself adds for every load by a tensor map.
_PTXAS_STACK = {"sm_120": 8}


def _check_assembled(name: str, opcode: str, target: Target, trials_of_seed: TrialsOfSeed,
               seed: int) -> None:  # fmt: skip
    """ptxas accepts it without complaints, and the machine code has the instruction."""
    if cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None:
        raise NotRun(f"no CUDA compiler: {cubin.INSTALL_COMPILER}")
    trials = trials_of_seed(seed)
    image = cubin.build_cubin(_text(trials), target.name, include=(HEADERS,))
    kernels = {trial.launch.kernel for trial in trials[name]}
    messages = resources.slowdown_messages(image.log)
    assert not messages, "\n".join(messages)
    for usage in resources.usage(image.log):
        if usage.kernel in kernels:
            assert not usage.spill_stores and not usage.spill_loads, f"{usage.kernel} on {target.name} spills registers"
            assert usage.stack <= _PTXAS_STACK.get(target.name, 0), f"{usage.kernel} on {target.name} uses local memory"
    if opcode:
        opcodes = _opcode_counts(image.path)
        if opcodes is None:
            raise NotRun("there is no disassembler to look for machine instructions: pip install nvidia-cuda-cuobjdump")
        for kernel in kernels:
            has_opcode = any(sass.total(opcodes[kernel], word) for word in opcode.split())
            assert has_opcode, f"{kernel} on {target.name} has no {opcode}"


@functools.lru_cache(maxsize=8)
def _opcode_counts(path: Path) -> Mapping[str, sass.Counts] | None:
    text = sass.disassemble(path)
    return None if text is None else sass.opcodes(text)
