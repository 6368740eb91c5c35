"""Run a model of the `transformers` package, given its name on the hub or its folder, and compare it with eager."""

from __future__ import annotations

import copy
import importlib
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from compiler.errors import CompilerError
from compiler.frontend import restored, rounded
from compiler.passes.quantize import OF_ACTIVATIONS

# How far roundings in f32 may move an activation, in units of the integer it is then rounded to (8 bits).
ACTIVATION_SHIFT = 2.0**-13
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_ROUNDS, _WARM = 15, 3


@dataclass(frozen=True)
class ModelRequest:
    """The model to run: weights random or stored, number of layers (0: all), phase, tokens, dtype and seed."""

    name: str
    random_weights: bool = False
    layers: int = 0
    phase: str = "prefill"
    tokens: int = 128
    dtype: str = "f32"
    seed: int = 0


@dataclass(frozen=True)
class Comparison:
    """The largest errors of ours and eager's against f64, and the allowed one, for the result or part of a cache where
    ours is worst relative to that; seconds per call; the change by quantization in f64."""

    ours: float
    eager: float
    allowed: float
    times: dict[str, float]
    quantization: float | None = None


Run = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class ModelCall:
    """A model, with functions that run it or a copy of it and return its main result (`run`), reset caches before a
    call (`reset`), and return the contents of its cache (`cache_contents`)."""

    model: torch.nn.Module
    run: Run
    reset: Callable[[], None]
    cache_contents: Callable[[torch.nn.Module], list[torch.Tensor]]


def call(request: ModelRequest, device: str) -> ModelCall:
    """Load or create the model of a request.

    A decoding call finds a cache filled by eager with the preceding tokens, in the dtype of the model. Raises
    CompilerError for a model that cannot be loaded.
    """
    library = _library()
    torch.manual_seed(request.seed)
    config = _load(request, lambda: library.AutoConfig.from_pretrained(request.name))
    for name in _LAYERS:
        if request.layers and hasattr(config, name):
            setattr(config, name, request.layers)
    names = library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    decodes = config.model_type in names and not getattr(config, "is_encoder_decoder", False)
    kind = library.AutoModelForCausalLM if decodes else library.AutoModel
    if request.phase == "decode" and not decodes:
        raise CompilerError(f"model {request.name}: {config.model_type} is no decoder; leave --phase decode out")
    if request.random_weights:
        model = kind.from_config(config)
    else:
        model = _load(request, lambda: kind.from_pretrained(request.name, config=config))
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[request.dtype]
    inputs = _inputs(config, request, device)
    model = model.to(device, dtype).eval()
    caches: dict[torch.dtype, _Cache] = {}  # of a decoder, by dtype of the model
    if request.phase == "decode":
        filled = library.StaticCache(config=config, max_cache_len=request.tokens)
        _fill(model, filled, config, request, device)
        caches = {kind: _Cache(filled, kind) for kind in (dtype, torch.float64)}

    def run(m: torch.nn.Module) -> torch.Tensor:
        arguments: dict[str, Any] = {k: v.to(_dtype(m)) if v.is_floating_point() else v for k, v in inputs.items()}
        if request.phase == "decode":
            arguments |= {"past_key_values": caches[_dtype(m)].cache, "use_cache": True}
        elif decodes:
            arguments["use_cache"] = False
        made: torch.Tensor = m(**arguments, return_dict=False)[0]
        return made

    def reset() -> None:
        for cache in caches.values():
            cache.restore()

    return ModelCall(model, run, reset, lambda m: caches[_dtype(m)].contents() if caches else [])


class _Cache:
    """A copy of a filled cache in a floating type, which calls modify, with its original contents."""

    def __init__(self, filled: Any, dtype: torch.dtype) -> None:
        self.cache = copy.deepcopy(filled)
        for layer in self.cache.layers:
            for name, x in list(vars(layer).items()):
                if isinstance(x, torch.Tensor):
                    setattr(layer, name, x.to(dtype) if x.is_floating_point() else x)
        self._before = [dict(vars(layer)) for layer in self.cache.layers]
        self._contents = [
            {name: x.clone() for name, x in vars(layer).items() if isinstance(x, torch.Tensor)}
            for layer in self.cache.layers
        ]

    def contents(self) -> list[torch.Tensor]:
        """Copies of its keys and values, in f64."""
        tensors = (x for layer in self.cache.layers for x in vars(layer).values() if isinstance(x, torch.Tensor))
        return [x.to(torch.float64, copy=True) for x in tensors if x.is_floating_point()]

    def restore(self) -> None:
        """Restore the original contents, in the same memory."""
        for layer, before, contents in zip(self.cache.layers, self._before, self._contents, strict=True):
            for name, x in before.items():
                setattr(layer, name, x.copy_(contents[name]) if isinstance(x, torch.Tensor) else x)


def _fill(model: torch.nn.Module, cache: Any, config: Any, request: ModelRequest, device: str) -> None:
    """Fill all but the last position of a cache, by a call of the model on random tokens."""
    source = torch.Generator().manual_seed(request.seed + 1)
    tokens = torch.randint(0, config.vocab_size, (1, request.tokens - 1), generator=source).to(device)
    with torch.no_grad():
        if request.tokens > 1:
            model(input_ids=tokens, past_key_values=cache, use_cache=True)


def program(request: ModelRequest, device: str) -> tuple[Callable[..., Any], list[Any]]:
    """A call of the model as a function without arguments, and its empty list of inputs."""
    model_call = call(request, device)

    def called() -> torch.Tensor:
        with torch.no_grad():
            return model_call.run(model_call.model)

    return called, []


def compare(
    request: ModelRequest, device: str, backend: Callable[..., Any], bench: bool, quantize: str | None = None
) -> Comparison:
    """Run `compare_call` on the requested model."""
    return compare_call(call(request, device), backend, device if bench else None, quantize)


def compare_call(
    model_call: ModelCall, backend: Callable[..., Any], timed_on: str | None = None, quantize: str | None = None
) -> Comparison:
    """Compare a compiled call with eager and f64; with `timed_on`, a device, time it in turns with eager.

    A quantized model is compared with one whose weights, and in some modes activations, are restored from 8 or 4 bit
    integers and scales. An activation near the middle between two of these may become either, so ours may also be off
    by what that changes in f64.
    """
    model, run = model_call.model, model_call.run

    def results(m: Any) -> list[torch.Tensor]:
        model_call.reset()
        return [run(m).double(), *model_call.cache_contents(m)]

    with torch.no_grad():
        torch._dynamo.reset()
        compiled = torch.compile(model, backend=backend, options={"quantize": quantize} if quantize else None)
        eager_model, f64_model = (with_restored(x, model, quantize) for x in (model, copy.deepcopy(model).double()))
        eager, ours, exact = map(results, (eager_model, compiled, f64_model))
        shifted = [
            results(with_restored(copy.deepcopy(model).double(), model, quantize, shift))
            for shift in (-ACTIVATION_SHIFT, ACTIVATION_SHIFT) if quantize in OF_ACTIVATIONS
        ]  # fmt: skip
        runs = {"eager": lambda: run(model), "mlcomp": lambda: run(compiled)}
        times = _times(runs, timed_on, model_call.reset) if timed_on else {}
        unquantized = results(copy.deepcopy(model).double()) if quantize else exact
    unit = torch.finfo(_dtype(model)).eps
    worst = [_errors(o, (e, *m), x, unit) for o, e, x, *m in zip(ours, eager, exact, *shifted, strict=True)]
    our_error, eager_error, allowed = max(worst, key=lambda x: x[0] / x[2] if x[2] else x[0])
    quantization = (
        max(float((a - b).abs().max()) for a, b in zip(exact, unquantized, strict=True)) if quantize else None
    )
    return Comparison(our_error, eager_error, allowed, times, quantization)


def with_restored(
    model: torch.nn.Module, stored: torch.nn.Module, quantize: str | None, shift: float = 0.0
) -> torch.nn.Module:
    """A copy of a model, of any floating type, whose matmul weights are those of `stored`, quantized and restored, and
    whose activations are rounded as in that mode, after being moved `shift` from 0; `model` itself without
    `quantize`."""
    if quantize is None:
        return model
    copied = copy.deepcopy(model)
    mode = quantize

    def round_activation(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded(given[0], mode, shift).to(given[0].dtype), *given[1:])

    for module, source in zip(copied.modules(), stored.modules(), strict=True):
        is_transposed = type(source).__name__ == "Conv1D"  # from transformers: its weights are [depth, rows]
        if isinstance(source, torch.nn.Linear) or is_transposed:
            assert isinstance(module.weight, torch.nn.Parameter) and isinstance(source.weight, torch.nn.Parameter)
            weight = restored(source.weight, quantize, is_transposed)
            # No embedding's any more.
            module.weight = torch.nn.Parameter(weight.to(module.weight.dtype), requires_grad=False)
            if quantize in OF_ACTIVATIONS:
                module.register_forward_pre_hook(round_activation)
    return copied


def _errors(
    ours: torch.Tensor, others: tuple[torch.Tensor, ...], exact: torch.Tensor, unit: float
) -> tuple[float, float, float]:
    """The largest errors of ours and of eager, the first of the others, and the allowed error of ours."""
    our_error, *other_errors = (float((x - exact).abs().max().nan_to_num(nan=float("inf"))) for x in (ours, *others))
    return our_error, other_errors[0], 4 * max(other_errors) + unit * float(exact.abs().max())


def _times(runs: Mapping[str, Callable[[], object]], device: str, reset: Callable[[], None]) -> dict[str, float]:
    """The median seconds of calls in turns, waiting for each."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(_WARM + _ROUNDS):
        for name, f in runs.items():
            reset()
            wait()
            start = time.perf_counter()
            f()
            wait()
            if n >= _WARM:
                seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters())


def _inputs(config: Any, request: ModelRequest, device: str) -> dict[str, torch.Tensor]:
    """One sequence of random tokens, or one random image, depending on the configuration."""
    source = torch.Generator().manual_seed(request.seed)
    if not hasattr(config, "vocab_size") and hasattr(config, "image_size"):
        height, width = (
            (config.image_size, config.image_size) if isinstance(config.image_size, int) else config.image_size
        )
        image = torch.randn(1, getattr(config, "num_channels", 3), height, width, generator=source)
        return {"pixel_values": image.to(device)}
    if not hasattr(config, "vocab_size"):
        raise CompilerError(f"model {request.name}: {config.model_type} takes neither tokens nor one image")
    count = 1 if request.phase == "decode" else request.tokens
    tokens = torch.randint(0, config.vocab_size, (1, count), generator=source).to(device)
    if request.phase == "decode":
        return {"input_ids": tokens, "position_ids": torch.full((1, 1), request.tokens - 1, device=device)}
    return {"input_ids": tokens}


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as problem:
        raise CompilerError(
            f"--model needs the package transformers, which cannot be imported ({problem}): "
            'pip install "pytest-mlcomp[models]"'
        ) from problem


def _load(request: ModelRequest, load: Callable[[], Any]) -> Any:
    """Run a loading function; its exceptions become a CompilerError with a remedy."""
    try:
        return load()
    except Exception as problem:  # its own exceptions and those of three libraries below it
        message = " ".join(str(problem).split()).rstrip(".")
        if "SafetensorError" in type(problem).__name__ or "eader" in message:
            remedy = "a file of its weights is cut short or damaged: fetch it again, or use --random-weights"
        else:
            remedy = (
                "give a folder with config.json, or a name on the hub that this machine can reach or has in its cache"
            )
        raise CompilerError(f"model {request.name} cannot be loaded: {message[:300]}; {remedy}") from problem
