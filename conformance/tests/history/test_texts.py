"""Records of emitted texts: equal code is equal whatever its comments and names, other code is shown."""

import doctest
import json
import zipfile
from pathlib import Path

import pytest

import compiler
from conformance.bench import emitted
from conformance.history import texts

ADD = """
format = 1

[[case]]
name = "add"
expr = "x + {n}"
dims = { N = [8] }
args = { x = { shape = ["N"] } }
"""


def recorded(folder: Path, name: str, n: str) -> Path:
    """The record of one program for two targets."""
    shapes = folder / name / "file.toml"
    shapes.parent.mkdir()
    shapes.write_text(ADD.replace("{n}", n))
    archive = folder / f"{name}.zip"
    made = texts.record([shapes], "smoke", ("cpu:avx2", "sm_80"), 1, 1)
    texts.write(made, archive)
    return archive


def test_docstring_examples() -> None:
    assert doctest.testmod(emitted).failed == 0


def test_equal_programs_differ_in_nothing_others_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, same, other = (recorded(tmp_path, *how) for how in (("a", "1.5"), ("b", "1.5"), ("c", "2.5")))
    with zipfile.ZipFile(one) as archive:
        assert {key.split()[0] for key in json.loads(archive.read(texts.INDEX))} == {"cpu:avx2", "sm_80", "cpu", "cuda"}
    assert texts.main(["compare", str(one), str(same)]) == 0
    assert "nothing differs" in capsys.readouterr().out
    assert texts.main(["compare", str(one), str(other)]) == 1
    said = capsys.readouterr().out
    assert "-" in said and "1.5" in said and "2.5" in said


def test_a_text_is_the_same_whatever_was_lowered_before(tmp_path: Path) -> None:
    def case(name: str, expr: str) -> str:
        sizes = 'dims = { N = [5] }\nargs = { x = { shape = ["N", 33] } }'
        return f'[[case]]\nname = "{name}"\nexpr = "{expr}"\n{sizes}\n'

    mine, other = case("mine", "x.sum(0)"), case("other", "torch.einsum('ij->j', x)")
    found = []
    for cases in (mine, other + mine):
        path = tmp_path / "file.toml"
        path.write_text(f"format = 1\n{cases}")
        compiler.forget_kernels()
        found.append(texts.record([path], "smoke", ("cpu:avx2",), 1, 1))
    alone, after = found
    assert len(after) > len(alone) and {key: after[key] for key in alone} == alone


def test_what_cannot_be_lowered_is_recorded_as_its_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(ADD.replace("x + {n}", "torch.linalg.svd(x[None])"))
    made = texts.record([path], "smoke", ("sm_80",), 1, 1)
    refused = [text for key, text in made.items() if not key.endswith(texts.HEADERS)]
    assert refused and all("Error" in text or "Unsupported" in text for text in refused)


def test_a_case_that_can_no_longer_be_captured_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = recorded(tmp_path, "before", "1.5")

    def refuse(*_: object, **__: object) -> None:
        raise compiler.CompilerError("cannot be captured")

    with monkeypatch.context() as patch:
        patch.setattr(compiler, "capture", refuse)
        after = recorded(tmp_path, "after", "1.5")
    said = texts.compare(texts.read(before), texts.read(after))
    assert any(line.startswith("-") for line in said) and "+CompilerError: cannot be captured" in said


def test_how_kernels_are_launched_counts() -> None:
    launch = 'with function("add", [x], grid=[2], block=[32, 1, 1]):'
    head = f"// f, for sm_80\n// def f(x: f32[8]):\n//     {launch}\n//         pass\n"
    text = 'extern "C" __global__ void add(float *x) {  // one\n}\n'
    one, other = emitted.normalise(head + text), emitted.normalise(head.replace("[2]", "[4]") + text)
    assert one != other and 'function("kernel0", [x], grid=[2]' in one
    renamed = (head + text).replace("add", "sum")
    assert emitted.normalise(renamed) == one
