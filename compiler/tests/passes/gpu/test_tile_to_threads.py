"""Tile IR with tensor instructions and copies as threads: what check mode finds, what the text computes, its code."""

from pathlib import Path

import numpy as np
import pytest

from compiler.interpret import tile as interpret
from compiler.ir import kernel, kernel_text, tile, tile_text
from compiler.ir.statement import Program
from compiler.pipeline import from_tiles
from compiler.render import cuda
from compiler.runtime import cubin, resources, sass
from compiler.targets import legal, nvidia
from compiler.targets.target import Target, instruction
from compiler.tests import run_threads
from compiler.tests.meaning import fresh_seed, random_arrays

CASES = Path(__file__).parents[2] / "cases"
PROGRAMS = sorted([*(CASES / "tile_to_threads").glob("*.tile"), *(CASES / "tile").glob("*.tile")])
COMPILED = sorted((CASES / "tile_compiled").glob("*.tile"))  # sizes of real work, to be read by ptxas only
_TENSOR = {"HMMA", "HGMMA", "DMMA", "IMMA", "IGMMA"}
_COPIES = {"LDGSTS", "UTMALDG", "UTMASTG"}
TARGETS = {t.name: t for t in nvidia.TARGETS}


def read(path: Path) -> tuple[Program, str]:
    """The program in a file and the name of its target, from the file's head."""
    text = path.read_text(encoding="utf-8")
    target = next(line for line in text.splitlines() if line.startswith("# target:"))
    return tile_text.parse(text), target.removeprefix("# target:").strip()


def lowered(path: Path) -> tuple[Program, kernel.Program]:
    program, target = read(path)
    tile.verify(program)
    legal.verify(program, TARGETS[target])
    made = from_tiles(program, TARGETS[target])
    kernel.verify(made)
    return program, made


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda p: p.stem)
def test_program(path: Path) -> None:
    program, made = lowered(path)
    assert kernel_text.parse(kernel_text.show(made)) is made
    seed = fresh_seed()
    # 16-bit elements that blocks add to in any order hold sums of few eighths exactly.
    added = any(t.dtype.bits == 16 for t in program.outputs)
    arrays = random_arrays(program.inputs, seed, 0.125 if added else 0.0)
    wanted = interpret.run(program, arrays)
    got = run_threads.run(made, list(arrays), seed=2)
    for x, y, t in zip(got, wanted, program.outputs, strict=True):
        unit = 2.0**-8 if t.dtype.bits == 16 else 2.0**-20
        np.testing.assert_allclose(x, y, rtol=unit, atol=unit * np.abs(y).max(), err_msg=f"{path.stem}, seed {seed}")


def opcodes(program: Program, target: Target) -> set[str]:
    """The machine instructions that a program's products and copies ask for, by the target's rows."""
    made = set()
    for s in (n for part in program.kernels for top in part.body for n in top.walk()):
        if isinstance(s, tile.Mma):
            made.add(instruction(target, s.instruction).opcode)
        elif isinstance(s, tile.Copy):
            inwards = s.source.buffer in {p.name for p in program.inputs}
            made |= {t.opcode for t in target.transfers if t.name == s.how and inwards == (t.source == "global")}
    return made


@pytest.mark.parametrize("path", [*COMPILED, *PROGRAMS], ids=lambda p: p.stem)
def test_code_has_the_instructions_asked_for_and_nothing_spills(path: Path) -> None:
    if cubin.nvrtc_compiler() is None and cubin.nvcc_compiler() is None:
        pytest.skip("no CUDA compiler")
    program, made = lowered(path)
    _, name = read(path)
    text = cuda.render(made, target=name)
    report = resources.inspect(cubin.build_cubin(text, name, include=(run_threads.HEADERS,)))
    assert not report.complaints
    for counts in report.opcodes.values():
        found = {opcode for opcode in _TENSOR | _COPIES if sass.total(counts, opcode)}
        assert found == opcodes(program, TARGETS[name]) & (_TENSOR | _COPIES)
