"""`[[model]]` tables: the cases that they are, and what is wrong with them."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance.shapes import files, models
from conformance.shapes.cases import Case
from conformance.shapes.files import ShapeFileError

CONFIG = 'config = { model_type = "llama", vocab_size = 64 }\n'
TABLE = f'format = 1\n[[model]]\nname = "small"\n{CONFIG}'


def cases(path: Path, text: str) -> list[Case]:
    (path / "mine.toml").write_text(text)
    return list(files.expand(files.load(path / "mine.toml"), "full"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A configuration as the library would make it."""
    made = SimpleNamespace(
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, vocab_size=64
    )
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(models, "_configuration", lambda source, layers: made)


@pytest.mark.usefixtures("known")
def test_a_model_is_a_case_for_each_phase(tmp_path: Path) -> None:
    prefill, *decode = cases(tmp_path, TABLE + "layers = 2\nsizes = { S = 5, L = [9, 12] }\n")
    assert prefill.id == "small.prefill[B1-S5.f32.contig.normal]" and prefill.entry == "compile"
    assert json.loads(str(prefill.init["config"])) == {"model_type": "llama", "vocab_size": 64}
    assert [c.dims["L"] for c in decode] == [9, 12]
    assert decode[0].mutates == ("keys0", "values0", "keys1", "values1")
    assert decode[0].args[2].shape == (1, 2, 9, 8)
    assert [c.id for c in cases(tmp_path, TABLE + 'phases = ["decode"]\n')] == ["small.decode[B1-L9.f32.contig.normal]"]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('phases = ["train"]', "not a phase of a model"),
        ("sizes = { M = 3 }", "'M'"),
        ("layer = 2", "did you mean"),
        ("layers = -1", "a number of layers"),
    ],
)
def test_what_is_wrong_with_a_model_is_said_at_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ShapeFileError, match=said):
        cases(tmp_path, f"{TABLE}{text}\n")


def test_without_the_library_there_are_no_cases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cases(tmp_path, TABLE) == []
    with pytest.raises(ShapeFileError, match="config"):
        cases(tmp_path, TABLE.replace(CONFIG, ""))
