"""A small Llama of the transformers package with random weights, in `torch.compile(backend="mlcomp")`."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from compiler.tests.meaning import fresh_seed

transformers = pytest.importorskip("transformers", reason="the extra `models` is not installed")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(fresh_seed())
    with torch.no_grad():
        yield


@pytest.fixture
def model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def tokens(*shape: int) -> torch.Tensor:
    return torch.randint(1, 64, shape)


def compiled(function: Any, **words: Any) -> Any:
    return torch.compile(function, backend="mlcomp", options={"fallback": "error"}, **words)


def test_generate_with_a_static_cache_gives_the_tokens_of_eager(model: Any, made: list[Any]) -> None:
    """One program for what is given, one for a step, which leaves its keys and values in the cache."""
    given = tokens(2, 5)
    words = {"cache_implementation": "static", "max_new_tokens": 6, "do_sample": False}
    wanted = model.generate(given, attention_mask=torch.ones_like(given), **words)
    model.forward = compiled(model.forward)
    assert torch.equal(model.generate(given, attention_mask=torch.ones_like(given), **words), wanted)
    assert len(made) == 2
    step = made[-1].code.stages
    caches = [x.name for x in step["torch"].inputs if len(x.type.shape) == 4 and x.type.dtype.is_float]
    assert len(caches) == 2 and {w for f in step["kernel"].functions for w in f.writes} > {*caches}


def test_one_program_serves_every_length_that_is_given(model: Any, made: list[Any]) -> None:
    fast = compiled(model, dynamic=True)
    for length in (5, 9, 3):
        given = tokens(2, length)
        torch.testing.assert_close(fast(given, use_cache=False).logits, model(given, use_cache=False).logits)
    assert len(made) == 1


def test_one_program_serves_a_growing_cache(model: Any, made: list[Any]) -> None:
    fast = compiled(model, dynamic=True)
    caches = [transformers.DynamicCache(config=model.config) for _ in range(2)]
    given = tokens(2, 5)
    for cache in caches:
        model(given, past_key_values=cache, use_cache=True)
    for _ in range(3):
        new = tokens(2, 1)
        ours, eager = (
            m(new, past_key_values=c, use_cache=True).logits for m, c in zip((fast, model), caches, strict=True)
        )
        torch.testing.assert_close(ours, eager)
    assert len(made) == 1
