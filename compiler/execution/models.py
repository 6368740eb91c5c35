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
MOVED = 2.0**-13
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_ROUNDS, _WARM = 15, 3


@dataclass(frozen=True)
class Wanted:
    """The model to run: weights random or stored, number of layers (0: all), phase, tokens, dtype and seed."""

    name: str
    random_weights: bool = False
    layers: int = 0
    phase: str = "prefill"
    tokens: int = 128
    dtype: str = "f32"
    seed: int = 0


@dataclass(frozen=True)
class Ran:
    """The largest errors of ours and eager's against f64, and the allowed one, for the result or part of a cache where
    ours is worst relative to that; seconds per call; the change by quantization in f64."""

    ours: float
    eager: float
    allowed: float
    times: dict[str, float]
    quantization: float | None = None


Run = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class Called:
    """A model, with functions that run it or a copy of it and return its main result (`run`), reset caches before a
    call (`ready`), and return the contents of its cache (`held`)."""

    model: torch.nn.Module
    run: Run
    ready: Callable[[], None]
    held: Callable[[torch.nn.Module], list[torch.Tensor]]


def call(wanted: Wanted, device: str) -> Called:
    """Load or create the model of a request.

    A decoding call finds a cache filled by eager with the preceding tokens, in the dtype of the model. Raises
    CompilerError for a model that cannot be loaded.
    """
    library = _library()
    torch.manual_seed(wanted.seed)
    config = _had(wanted, lambda: library.AutoConfig.from_pretrained(wanted.name))
    for name in _LAYERS:
        if wanted.layers and hasattr(config, name):
            setattr(config, name, wanted.layers)
    names = library.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    decodes = config.model_type in names and not getattr(config, "is_encoder_decoder", False)
    kind = library.AutoModelForCausalLM if decodes else library.AutoModel
    if wanted.phase == "decode" and not decodes:
        raise CompilerError(f"model {wanted.name}: {config.model_type} is no decoder; leave --phase decode out")
    if wanted.random_weights:
        model = kind.from_config(config)
    else:
        model = _had(wanted, lambda: kind.from_pretrained(wanted.name, config=config))
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[wanted.dtype]
    given = _inputs(config, wanted, device)
    model = model.to(device, dtype).eval()
    caches: dict[torch.dtype, _Cache] = {}  # of a decoder, by dtype of the model
    if wanted.phase == "decode":
        filled = library.StaticCache(config=config, max_cache_len=wanted.tokens)
        _fill(model, filled, config, wanted, device)
        caches = {kind: _Cache(filled, kind) for kind in (dtype, torch.float64)}

    def run(m: torch.nn.Module) -> torch.Tensor:
        arguments: dict[str, Any] = {k: v.to(_dtype(m)) if v.is_floating_point() else v for k, v in given.items()}
        if wanted.phase == "decode":
            arguments |= {"past_key_values": caches[_dtype(m)].cache, "use_cache": True}
        elif decodes:
            arguments["use_cache"] = False
        made: torch.Tensor = m(**arguments, return_dict=False)[0]
        return made

    def ready() -> None:
        for cache in caches.values():
            cache.restore()

    return Called(model, run, ready, lambda m: caches[_dtype(m)].held() if caches else [])


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

    def held(self) -> list[torch.Tensor]:
        """Copies of its keys and values, in f64."""
        every = (x for layer in self.cache.layers for x in vars(layer).values() if isinstance(x, torch.Tensor))
        return [x.to(torch.float64, copy=True) for x in every if x.is_floating_point()]

    def restore(self) -> None:
        """Restore the original contents, in the same memory."""
        for layer, before, contents in zip(self.cache.layers, self._before, self._contents, strict=True):
            for name, x in before.items():
                setattr(layer, name, x.copy_(contents[name]) if isinstance(x, torch.Tensor) else x)


def _fill(model: torch.nn.Module, cache: Any, config: Any, wanted: Wanted, device: str) -> None:
    """Fill all but the last position of a cache, by a call of the model on random tokens."""
    source = torch.Generator().manual_seed(wanted.seed + 1)
    tokens = torch.randint(0, config.vocab_size, (1, wanted.tokens - 1), generator=source).to(device)
    with torch.no_grad():
        if wanted.tokens > 1:
            model(input_ids=tokens, past_key_values=cache, use_cache=True)


def program(wanted: Wanted, device: str) -> tuple[Callable[..., Any], list[Any]]:
    """A call of the model as a function without arguments, and its empty list of inputs."""
    made = call(wanted, device)

    def called() -> torch.Tensor:
        with torch.no_grad():
            return made.run(made.model)

    return called, []


def compare(wanted: Wanted, device: str, backend: Callable[..., Any], bench: bool, quantize: str | None = None) -> Ran:
    """Run `measured` on the requested model."""
    return measured(call(wanted, device), backend, device if bench else None, quantize)


def measured(
    made: Called, backend: Callable[..., Any], timed_on: str | None = None, quantize: str | None = None
) -> Ran:
    """Compare a compiled call with eager and f64; with `timed_on`, a device, time it in turns with eager.

    A quantized model is compared with one whose weights, and in some modes activations, are restored from 8 or 4 bit
    integers and scales. An activation near the middle between two of these may become either, so ours may also be off
    by what that changes in f64.
    """
    model, run = made.model, made.run

    def results(m: Any) -> list[torch.Tensor]:
        made.ready()
        return [run(m).double(), *made.held(m)]

    with torch.no_grad():
        torch._dynamo.reset()
        fast = torch.compile(model, backend=backend, options={"quantize": quantize} if quantize else None)
        beside, wide = (with_restored(x, model, quantize) for x in (model, copy.deepcopy(model).double()))
        eager, ours, exact = map(results, (beside, fast, wide))
        moved = [
            results(with_restored(copy.deepcopy(model).double(), model, quantize, away))
            for away in (-MOVED, MOVED) if quantize in OF_ACTIVATIONS
        ]  # fmt: skip
        runs = {"eager": lambda: run(model), "mlcomp": lambda: run(fast)}
        times = _times(runs, timed_on, made.ready) if timed_on else {}
        before = results(copy.deepcopy(model).double()) if quantize else exact
    unit = torch.finfo(_dtype(model)).eps
    worst = [_errors(o, (e, *m), x, unit) for o, e, x, *m in zip(ours, eager, exact, *moved, strict=True)]
    own, theirs, allowed = max(worst, key=lambda x: x[0] / x[2] if x[2] else x[0])
    changed = max(float((a - b).abs().max()) for a, b in zip(exact, before, strict=True)) if quantize else None
    return Ran(own, theirs, allowed, times, changed)


def with_restored(
    model: torch.nn.Module, stored: torch.nn.Module, quantize: str | None, away: float = 0.0
) -> torch.nn.Module:
    """A copy of a model, of any floating type, whose matmul weights are those of `stored`, quantized and restored, and
    whose activations are rounded as in that mode, after being moved `away` from 0; `model` itself without
    `quantize`."""
    if quantize is None:
        return model
    made = copy.deepcopy(model)
    mode = quantize

    def of_bytes(_: torch.nn.Module, given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (rounded(given[0], mode, away).to(given[0].dtype), *given[1:])

    for to, source in zip(made.modules(), stored.modules(), strict=True):
        across = type(source).__name__ == "Conv1D"  # from transformers: its weights are [depth, rows]
        if isinstance(source, torch.nn.Linear) or across:
            assert isinstance(to.weight, torch.nn.Parameter) and isinstance(source.weight, torch.nn.Parameter)
            wide = restored(source.weight, quantize, across)
            to.weight = torch.nn.Parameter(wide.to(to.weight.dtype), requires_grad=False)  # no embedding's any more
            if quantize in OF_ACTIVATIONS:
                to.register_forward_pre_hook(of_bytes)
    return made


def _errors(
    ours: torch.Tensor, others: tuple[torch.Tensor, ...], exact: torch.Tensor, unit: float
) -> tuple[float, float, float]:
    """The largest errors of ours and of eager, the first of the others, and the allowed error of ours."""
    own, *theirs = (float((x - exact).abs().max().nan_to_num(nan=float("inf"))) for x in (ours, *others))
    return own, theirs[0], 4 * max(theirs) + unit * float(exact.abs().max())


def _times(runs: Mapping[str, Callable[[], object]], device: str, ready: Callable[[], None]) -> dict[str, float]:
    """The median seconds of calls in turns, waiting for each."""
    wait: Callable[[], object] = torch.cuda.synchronize if device.startswith("cuda") else lambda: None
    found: dict[str, list[float]] = {name: [] for name in runs}
    for n in range(_WARM + _ROUNDS):
        for name, f in runs.items():
            ready()
            wait()
            start = time.perf_counter()
            f()
            wait()
            if n >= _WARM:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return next(p.dtype for p in model.parameters())


def _inputs(config: Any, wanted: Wanted, device: str) -> dict[str, torch.Tensor]:
    """One sequence of random tokens, or one random image, depending on the configuration."""
    source = torch.Generator().manual_seed(wanted.seed)
    if not hasattr(config, "vocab_size") and hasattr(config, "image_size"):
        height, width = (
            (config.image_size, config.image_size) if isinstance(config.image_size, int) else config.image_size
        )
        image = torch.randn(1, getattr(config, "num_channels", 3), height, width, generator=source)
        return {"pixel_values": image.to(device)}
    if not hasattr(config, "vocab_size"):
        raise CompilerError(f"model {wanted.name}: {config.model_type} takes neither tokens nor one image")
    count = 1 if wanted.phase == "decode" else wanted.tokens
    tokens = torch.randint(0, config.vocab_size, (1, count), generator=source).to(device)
    if wanted.phase == "decode":
        return {"input_ids": tokens, "position_ids": torch.full((1, 1), wanted.tokens - 1, device=device)}
    return {"input_ids": tokens}


def _library() -> Any:
    try:
        return importlib.import_module("transformers")
    except ImportError as problem:
        raise CompilerError(
            f"--model needs the package transformers, which cannot be imported ({problem}): "
            'pip install "pytest-mlcomp[models]"'
        ) from problem


def _had(wanted: Wanted, get: Callable[[], Any]) -> Any:
    """Run a loading function; its exceptions become a CompilerError with a remedy."""
    try:
        return get()
    except Exception as problem:  # its own exceptions and those of three libraries below it
        said = " ".join(str(problem).split()).rstrip(".")
        if "SafetensorError" in type(problem).__name__ or "eader" in said:
            remedy = "a file of its weights is cut short or damaged: fetch it again, or use --random-weights"
        else:
            remedy = (
                "give a folder with config.json, or a name on the hub that this machine can reach or has in its cache"
            )
        raise CompilerError(f"model {wanted.name} cannot be loaded: {said[:300]}; {remedy}") from problem
