"""Models for inference, as configurations of the transformers package, and calls of them with random weights."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from conformance.training.models import MODELS as TRAINED

FREE_POSITIONS = 8  # positions of a KV cache that are left free for the timed calls
_LAYERS = ("num_hidden_layers", "n_layer", "encoder_layers", "decoder_layers")
_TINYLLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
    "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000, "max_position_embeddings": 16384,
}  # fmt: skip
_QWEN = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "max_position_embeddings": 32768,
}  # fmt: skip
_QWEN3 = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
    "tie_word_embeddings": True,
}  # fmt: skip
_WHISPER = {
    "model_type": "whisper", "d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 6,
    "decoder_attention_heads": 6, "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "vocab_size": 51865,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A configuration, and its inputs: a batch of prompts of `tokens` tokens, or with `decode` one token each and a
    cache of `tokens` positions."""

    config: Mapping[str, Any] = field(default_factory=dict)
    tokens: int = 0
    decode: bool = False
    batch: int = 1


@dataclass(frozen=True)
class Call:
    """A model; `run` calls it, or a compiled version of it, and returns the main result; `ready` resets the caches, and
    makes one for models of this dtype if needed, so that FREE_POSITIONS calls can follow."""

    model: nn.Module
    run: Callable[[Any], Tensor]
    reset_caches: Callable[[torch.dtype], None]


MODELS: Mapping[str, Model] = {
    "tinyllama-prefill": Model(_TINYLLAMA, 512),
    "tinyllama-decode": Model(_TINYLLAMA, 512, decode=True),
    "tinyllama-decode-8k": Model(_TINYLLAMA, 8192, decode=True),
    "qwen2.5-7b-prefill": Model(_QWEN, 512),
    "qwen2.5-7b-decode": Model(_QWEN, 512, decode=True),
    "qwen2.5-7b-decode-8k": Model(_QWEN, 8192, decode=True),
    "qwen3-0.6b-prefill": Model(_QWEN3, 512),
    "qwen3-0.6b-decode": Model(_QWEN3, 512, decode=True),
    "gpt2-prefill": Model({"model_type": "gpt2"}, 512),
    "bert-base": Model({"model_type": "bert"}, 128, batch=8),
    "vit-b": Model({"model_type": "vit"}, batch=8),
    "resnet-50": Model({"model_type": "resnet"}, batch=8),
    "whisper-tiny": Model(_WHISPER, 64),
    "unet": Model(batch=4),
}


def small_version(model: Model) -> Model:
    """Return a small version for any machine: one layer, few features and few tokens."""
    sizes = {
        "hidden_size": 64, "n_embd": 64, "d_model": 64, "intermediate_size": 96, "encoder_ffn_dim": 96,
        "decoder_ffn_dim": 96, "num_attention_heads": 4, "n_head": 4, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 99, "image_size": 32,
        "embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1],
    }  # fmt: skip
    if not model.config:
        return replace(model, batch=1)
    defaults = _library().AutoConfig.for_model(**model.config).to_dict()
    config = {**model.config, **{k: v for k, v in sizes.items() if defaults.get(k) is not None}}
    if model.config["model_type"] == "whisper":
        config |= {"pad_token_id": 1, "bos_token_id": 1, "eos_token_id": 1, "decoder_start_token_id": 1}
    return replace(
        with_layers(replace(model, config=config), 1), tokens=min(model.tokens, 12), batch=min(model.batch, 2)
    )


def with_layers(model: Model, layers: int) -> Model:
    """Return the model with this number of layers; 0 keeps all."""
    if not layers or not model.config:
        return model
    defaults = _library().AutoConfig.for_model(**model.config).to_dict()
    return replace(model, config={**model.config, **{k: layers for k in _LAYERS if defaults.get(k) is not None}})


def call(model: Model, device: str, dtype: torch.dtype) -> Call:
    """Instantiate the model with random weights and random inputs."""
    if not model.config:
        return _unet(model, device, dtype)
    library = _library()
    config = library.AutoConfig.for_model(**json.loads(json.dumps(dict(model.config))))
    names = library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    is_causal = config.model_type in names and config.model_type not in ("bert", "whisper")
    kind = library.AutoModelForCausalLM if is_causal else library.AutoModel
    with torch.device(device):
        instance = kind.from_config(config).to(dtype).eval()
        inputs: dict[str, Any] = _inputs(config, model, dtype)
        filled = _fill_cache(library, config, instance, model) if model.decode else None
    caches: dict[torch.dtype, Any] = {} if filled is None else {dtype: filled}

    def run(m: Any) -> Tensor:
        call_dtype = next(m.parameters()).dtype
        arguments = {k: x.to(call_dtype) if x.is_floating_point() else x for k, x in inputs.items()}
        if filled is not None:
            arguments |= {"past_key_values": caches[call_dtype], "use_cache": True}
        elif is_causal:
            arguments["use_cache"] = False
        with torch.no_grad():
            result: Tensor = m(**arguments, return_dict=False)[0]
            return result

    def ready(call_dtype: torch.dtype) -> None:
        if filled is not None and call_dtype not in caches:
            caches[call_dtype] = _convert_cache(filled, call_dtype)
        for cache in caches.values():
            torch._foreach_copy_([layer.cumulative_length for layer in cache.layers], lengths)

    lengths = [] if filled is None else [layer.cumulative_length.clone() for layer in filled.layers]
    return Call(instance, run, ready)


def _fill_cache(library: Any, config: Any, instance: nn.Module, model: Model) -> Any:
    """Return a static KV cache that is filled except for the last FREE_POSITIONS positions."""
    cache = library.StaticCache(config=config, max_cache_len=model.tokens)
    tokens = torch.randint(0, config.vocab_size, (model.batch, model.tokens - FREE_POSITIONS))
    with torch.no_grad():
        instance(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return cache


def _convert_cache(cache: Any, dtype: torch.dtype) -> Any:
    converted = copy.deepcopy(cache)
    for layer in converted.layers:
        layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
        layer.dtype = dtype
    return converted


def _inputs(config: Any, model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    count = 1 if model.decode else model.tokens
    if hasattr(config, "max_source_positions"):
        sound = torch.randn(model.batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=dtype)
        return {"input_features": sound, "decoder_input_ids": torch.randint(0, config.vocab_size, (model.batch, count))}
    if not hasattr(config, "vocab_size"):
        side = getattr(config, "image_size", 224)
        return {"pixel_values": torch.randn(model.batch, config.num_channels, side, side, dtype=dtype)}
    ids = torch.randint(0, config.vocab_size, (model.batch, count))
    if model.decode:
        return {"input_ids": ids, "position_ids": torch.full((model.batch, 1), model.tokens - FREE_POSITIONS)}
    return {"input_ids": ids}


def _unet(model: Model, device: str, dtype: torch.dtype) -> Call:
    kind = TRAINED["unet"]
    size = replace(kind.full if model.batch > 1 else kind.small, batch=model.batch)
    instance, (x, _) = kind.make(size).to(device, dtype).eval(), kind.batch(size)
    x = x.to(device, dtype)

    def run(m: Any) -> Tensor:
        with torch.no_grad():
            result: Tensor = m(x.to(next(m.parameters()).dtype))
            return result

    return Call(instance, run, lambda dtype_of_call: None)


def _library() -> Any:
    return importlib.import_module("transformers")
