"""Models that are trained compiled, forward and backward, lose as much in every step as they do in eager."""

import dataclasses
import secrets

import pytest
import torch

from conformance.training import command, curves, steps
from conformance.training.models import MODELS


@pytest.mark.parametrize("name", ["unet"])
def test_losses(name: str) -> None:
    """Of one model; the command has the others."""
    found = curves.train(name, MODELS[name].small, 30, seed := secrets.randbits(32))
    assert found.our_error <= command.MOST_ERROR * found.eager_error, (seed, found.our_error, found.eager_error)
    assert found.exact[-1] < 0.9 * found.exact[0], "nothing has been learnt"


def test_losses_that_are_not_eagers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.tensor([2.0, 1.0], dtype=torch.float64)
    near = curves.Curves(exact + 3e-7, exact + 1e-7, exact)
    job = command.Job("vit", 2, 0, "cpu", full=False, rivals=())
    for made, verdict in ((near, "right"), (dataclasses.replace(near, ours=exact + 1e-5), "WRONG")):
        monkeypatch.setattr(curves, "train", lambda *_, made=made: made)
        assert command.curve(job)[-1] == verdict


def test_every_model_takes_a_step_of_each_size_it_has() -> None:
    """Shapes of the full sizes go together too, which only a large machine trains."""
    for kind in MODELS.values():
        model, (x, wanted) = kind.make(kind.small), kind.batch(kind.small)
        torch.autograd.backward(kind.loss(model(x), wanted))
        assert all(p.grad is not None for p in model.parameters())
        with torch.device("meta"):
            large, (given, asked) = kind.make(kind.full), kind.batch(kind.full)
            assert kind.loss(large(given), asked).shape == ()


def test_steps_are_raced_beside_eager() -> None:
    calls = steps.contestants("vit", MODELS["vit"].small, "cpu", None, ("eager",))
    assert list(calls) == [*steps.our_modes("cpu"), "eager"]


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["gpt9"])
    assert "unknown: gpt9; there are gpt, bert, resnet, vit, unet" in capsys.readouterr().err
