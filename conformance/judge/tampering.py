"""Detect tampering with what judging relies on: clocks, comparison functions, and settings of the process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

_GUARDED: tuple[tuple[Any, str], ...] = (
    *((time, name) for name in ("perf_counter", "perf_counter_ns", "thread_time", "thread_time_ns", "process_time")),
    *((torch, name) for name in ("equal", "isclose", "allclose")),
    *((torch.cuda, name) for name in ("synchronize", "Event")),
)
_ORIGINALS = {(module, name): getattr(module, name) for module, name in _GUARDED}


def original_clock(name: str) -> Callable[[], int]:
    """Return the original function of the module `time`, even if it has been replaced."""
    function: Callable[[], int] = _ORIGINALS[time, name]
    return function


def restore_functions() -> str:
    """Return the names of the functions that have been replaced, joined by commas, and restore them."""
    names = []
    for (module, name), function in _ORIGINALS.items():
        if getattr(module, name) is not function:
            setattr(module, name, function)
            names.append(f"{module.__name__}.{name}")
    return ", ".join(names)


def current_settings() -> dict[str, object]:
    """Return the settings of the process that affect what other code computes."""
    return {name: get() for name, (get, _) in _SETTINGS.items()}


def restore_settings(previous: dict[str, object]) -> str:
    """Return the names of the settings that differ from `previous`, joined by commas, and restore them."""
    names = [name for name, value in current_settings().items() if previous[name] != value]
    for name in names:
        _SETTINGS[name][1](previous[name])
    return ", ".join(names)


def _flushes_denormals() -> bool:
    return bool(torch.full((), 1e-40) * 1.0 == 0)


def _random_state() -> bytes:
    return torch.get_rng_state().numpy().tobytes()


def _set_random_state(state: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_SETTINGS: dict[str, tuple[Callable[[], object], Callable[[Any], object]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "the treatment of denormals": (_flushes_denormals, torch.set_flush_denormal),
    "the state of random numbers": (_random_state, _set_random_state),
}
