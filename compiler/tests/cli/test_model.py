"""`mlcomp run --model` and `mlcomp explain --model`, on a folder with a tiny model."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from compiler.cli import main
from compiler.errors import CompilerError
from compiler.execution import models
from compiler.passes.quantize import MODES
from compiler.runtime.device import unavailable_reason

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
}  # fmt: skip
needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra `models` is not installed"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@needs_transformers
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_model_of_a_folder_is_compiled_and_compared(
    folder: Path, phase: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(folder), "--random-weights", "--layers", "1", "--phase", phase, "--tokens", "8", "--bench"]
    assert main(["run", *words]) == 0
    said = capsys.readouterr().out
    assert ": ok" in said and " ms: " in said


@needs_transformers
@pytest.mark.parametrize("mode", MODES)
def test_a_model_is_quantized_beside_what_its_integers_stand_for(
    folder: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", str(folder), "--random-weights", "--layers", "1", "--tokens", "8", "--quantize", mode]
    assert main(["run", *words]) == 0
    said = capsys.readouterr().out
    assert ": ok" in said and "quantization changes results by at most" in said


@needs_transformers
def test_a_step_that_spoils_its_cache_is_wrong(folder: Path) -> None:
    """The cache is full but for the place of the step, and is compared as the result is."""

    def spoils(graph: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        def run(*inputs: Any) -> Any:
            made = graph(*inputs)
            for x in inputs:
                if x.dim() == 4:
                    assert x[:, :, :-1].abs().sum(3).all(), "filled"
                    x[:, :, 0] *= 2
            return made

        return run

    ran = models.compare(models.ModelRequest(str(folder), True, 1, "decode", 6), "cpu", spoils, False)
    assert ran.ours > ran.allowed


@needs_transformers
def test_explain_tells_what_becomes_of_a_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--model", str(folder), "--random-weights", "--layers", "1", "--tokens", "8"]) == 0
    assert "attention" in capsys.readouterr().out


@needs_transformers
@pytest.mark.skipif(not unavailable_reason(), reason="a GPU is here")
def test_a_model_is_explained_for_a_gpu_that_is_not_here_and_not_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = ["--model", str(folder), "--random-weights", "--layers", "1", "--tokens", "8", "--target", "sm_90a"]
    assert main(["explain", *request]) == 0
    assert "attention" in capsys.readouterr().out
    assert main(["run", *request]) == 2
    assert "there is no GPU" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "explain"])
def test_options_of_models_need_a_model(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "-c", "torch.ones(3)", "--layers", "1", "--phase", "decode"]) == 2
    assert "--layers, --phase work only with --model" in capsys.readouterr().err
    assert main([command, "-c", "torch.ones(3)", "--random-weights"]) == 2
    assert "--random-weights works only with --model" in capsys.readouterr().err


@needs_transformers
def test_what_cannot_be_loaded_is_told_with_its_remedy(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "model.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    assert main(["run", "--model", str(folder)]) == 1
    assert "cut short" in capsys.readouterr().err
    assert main(["run", "--model", "nobody/nothing", "--random-weights"]) == 1
    assert "config.json" in capsys.readouterr().err


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("compiler.execution.models.importlib.import_module", missing)
    with pytest.raises(CompilerError, match=r"pip install .*\[models\]"):
        models.call(models.ModelRequest("x"), "cpu")


def test_a_model_and_an_expression_make_no_sense(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-c", "torch.ones(3)", "--model", "x"]) == 2
    assert "cannot be combined" in capsys.readouterr().err
