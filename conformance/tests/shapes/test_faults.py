"""What is a shape file's own fault is said of it, with its line; its modules are found, made and kept."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import compiler
from conformance.judge import ladder, systems
from conformance.judge.oracle import Verdict
from conformance.rows import CaseResult
from conformance.shapes import files, inputs
from conformance.shapes.cases import to_json

ROOT = Path(compiler.__file__).parents[1]
SEED = int.from_bytes(os.urandom(4))
HEAD = 'format = 1\n\n[[case]]\nname = "a"\nargs.x = { shape = [3, 5] }\n'
MINE = """
import torch

class Mine(torch.nn.Module):
    def __init__(self, by=2.0):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((5,), by))
    def forward(self, x):
        return x * self.scale
"""
FAULTS = {
    'module = "nowhere:Thing"': "module: nowhere:Thing cannot be had: ModuleNotFoundError",
    'module = "torch.nn:Linaer"': "module: torch.nn:Linaer cannot be had: AttributeError",
    'module = "torch:nn"': "module: torch:nn is a module, which cannot be called",
    'module = "collections:OrderedDict"': "makes a OrderedDict, no torch.nn.Module",
    'module = "torch.nn:Linear"\ninit = { out = 3 }': "init: the module cannot be made: TypeError",
    'expr = "nn.Linear(3)(x)"': "expr: the module cannot be made: TypeError",
    'expr = "sum(nn.Linear(3, 3)(x) for _ in range(2))"': "expr: nn.Linear(3, 3) is called in a loop",
    'module = "torch.nn:ReLU"\ndtypes = ["i64"]': "a module has no weights of i64",
    'expr = "x.view(7)"': "expr: PyTorch itself does not run it: RuntimeError: shape '[7]' is invalid",
    'expr = "x + torch.ones(10**12)"': "expr: PyTorch itself does not run it: RuntimeError",
    'expr = "torch.sfotmax(x)"\nraises = "IndexError"': "expr: PyTorch itself does not run it: AttributeError",
    'expr = "x + 1"\nraises = "IndexError"': "raises: PyTorch itself raises nothing, and should raise IndexError",
}


def row(path: Path, stages: tuple[str, ...] = ("torch", "cpp"), **options: Any) -> CaseResult:
    (case, *_) = files.expand(files.load(path))
    asked = {"target": "cpu", "seed": SEED, "stages": stages, **options}
    return ladder.check(to_json(case), asked)


@pytest.mark.parametrize("lines", FAULTS)
def test_the_shape_file_is_blamed_at_its_line(tmp_path: Path, lines: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + lines + "\n")
    found = row(path)
    assert (found.verdict, found.first_bad_stage, found.first_bad_pass) == ("fail", None, None)
    first = found.detail.splitlines()[0]
    written = {text.partition(" ")[0]: line for line, text in enumerate(path.read_text().splitlines(), 1)}
    said = re.search(r":(\d+): case 'a': (\w+): ", first)
    assert said is not None and int(said[1]) == written.get(said[2], 3) and FAULTS[lines] in first, first
    assert "Traceback" not in found.detail


@pytest.mark.parametrize("expr", ["x[i]", "torch.svd(x[i])[0]"])
def test_an_error_that_eager_alone_raises_is_the_shape_files(tmp_path: Path, expr: str) -> None:
    path = tmp_path / "mine.toml"
    index = 'args.i = { shape = [4], dtype = "i64", low = 3, high = 9 }\n'
    path.write_text(HEAD + index + f'expr = "{expr}"\n')
    found = row(path)
    assert found.first_bad_stage is None and "expr: PyTorch itself does not run it: IndexError" in found.detail


def test_a_module_beside_the_shape_file_is_found(tmp_path: Path) -> None:
    for folder, by in (("one", 2.0), ("other", 3.0)):
        place = tmp_path / folder
        place.mkdir()
        (place / "mymods.py").write_text(MINE.replace("2.0", str(by)))
        (place / "mine.toml").write_text(HEAD + 'module = "mymods:Mine"\n')
        (case,) = files.expand(files.load(place / "mine.toml"))
        function, (x,) = inputs.bind(case, inputs.make(case, SEED))
        assert function(x).equal(x * by)
        assert row(place / "mine.toml").verdict == "pass"
        assert str(place) not in sys.path


def test_modules_inside_an_expression_are_modules_of_the_case(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    expr = "torch.relu(nn.Linear(5, n)(x)) + nn.Linear(5, n)(x)"
    path.write_text(HEAD + f'dtypes = ["bf16"]\nexpr = "{expr}"\nparams.n = [4]\n')
    (case,) = files.expand(files.load(path))
    (x,) = inputs.make(case, SEED).values()
    first, again = inputs.function(case), inputs.function(case)
    assert first(x).equal(again(x)) and first(x).shape == (3, 4) and not first(x).requires_grad
    assert row(path).verdict == "pass"


def test_what_failed_with_modules_can_be_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymods.py").write_text(MINE)
    path = tmp_path / "mine.toml"
    path.write_text(HEAD + 'module = "mymods:Mine"\nexpr = "module(x) + nn.Linear(5, 5)(x)"\n')
    monkeypatch.setattr(ladder, "assess", lambda *_: Verdict(False, 9.0, (), "off by one"))
    found = row(path, dump=str(tmp_path / "repro"))
    assert found.verdict == "fail"
    done = subprocess.run(
        [sys.executable, str(tmp_path / "repro" / "run.py")], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("largest difference from f64") == len(compiler.stages(compiler.target("cpu")))


def test_an_unknown_backend_is_answered_with_the_nearest_one() -> None:
    assert "there is no system 'inducter'; did you mean 'inductor'?" in str(systems.explain_unknown("inducter"))
    assert "did you mean 'max-autotune'?" in str(systems.explain_unknown("max_autotune"))
    assert systems.explain_unknown("aot_eager") is None
