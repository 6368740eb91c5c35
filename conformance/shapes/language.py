"""Language models of the transformers package as modules of a case: a configuration in, a call on tensors alone out."""

from __future__ import annotations

import importlib
import json
from typing import Any

import torch
from torch import nn


class Model(nn.Module):
    """A decoder with random weights, made from a configuration as JSON, or from that of a folder or a name on the hub.

    Called with tokens it gives their logits. Called with a token, its place, and the keys and values of each layer, it
    writes to these, and gives the logits of the token, which sees all up to its place.
    """

    def __init__(self, config: str, layers: int = 0) -> None:
        super().__init__()
        self.model = importlib.import_module("transformers").AutoModelForCausalLM.from_config(made(config, layers))
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
        """A layer's part of a static cache, in these tensors."""
        layer = self._layer(max_cache_len=keys.shape[2])
        layer.keys, layer.values, layer.cumulative_length = keys, values, at.reshape(()).clone()
        layer.dtype, layer.device, layer.is_initialized = keys.dtype, keys.device, True
        layer.batch_size, layer.num_heads, layer.k_head_dim = keys.shape[0], keys.shape[1], keys.shape[3]
        layer.v_head_dim = values.shape[3]
        return layer


def made(config: str, layers: int = 0) -> Any:
    """A configuration of transformers, with so many layers unless 0."""
    library = importlib.import_module("transformers")
    if config.startswith("{"):
        known = json.loads(config)
        found = library.AutoConfig.for_model(known.pop("model_type"), **known)
    else:
        found = library.AutoConfig.from_pretrained(config)
    if layers:
        found.num_hidden_layers = layers
    return found
