"""Language models of the transformers package as modules whose arguments are only tensors."""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch
from torch import nn


class Model(nn.Module):
    """A decoder with random weights; its configuration is JSON text, or that of a folder or a name on the hub.

    Called with tokens, it returns their logits. Called with one token, its position, and the keys and values of each
    layer (a static KV cache), it updates the cache and returns the logits of the token, which attends to all positions
    up to its own.
    """

    def __init__(self, config: str, layers: int = 0) -> None:
        super().__init__()
        self.model = importlib.import_module("transformers").AutoModelForCausalLM.from_config(
            make_configuration(config, layers)
        )
        caches = importlib.import_module("transformers.cache_utils")
        self._cache, self._layer = caches.Cache, caches.StaticLayer

    def forward(self, tokens: torch.Tensor, at: torch.Tensor | None = None, *caches: torch.Tensor) -> torch.Tensor:
        words: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
        if at is not None:
            layers = [self._filled(at, *x) for x in zip(caches[::2], caches[1::2], strict=True)]
            words |= {"past_key_values": self._cache(layers=layers), "use_cache": True}
            words["position_ids"] = at.expand(tokens.shape)
        logits: torch.Tensor = self.model(**words).logits
        return logits

    def _filled(self, at: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> Any:
        """Return a layer of a static cache stored in these tensors, with `at` positions filled."""
        layer = self._layer(max_cache_len=keys.shape[2])
        layer.keys, layer.values, layer.cumulative_length = keys, values, at.reshape(()).clone()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.batch_size, layer.num_heads, layer.k_head_dim = keys.shape[0], keys.shape[1], keys.shape[3]
        layer.v_head_dim = values.shape[3]
        return layer


def make_configuration(config: str, layers: int = 0) -> Any:
    """Return a configuration of transformers, with this number of layers unless it is 0."""
    library = importlib.import_module("transformers")
    if config.startswith("{"):
        options = json.loads(config)
        configuration = library.AutoConfig.for_model(options.pop("model_type"), **options)
    else:
        configuration = library.AutoConfig.from_pretrained(config)
    if layers:
        configuration.num_hidden_layers = layers
    return configuration
