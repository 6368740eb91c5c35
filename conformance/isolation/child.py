"""The executor's child process: it reads requests from one pipe and writes replies to another, apart from its output.

A message is its length in eight bytes, then JSON. Only `executor.py` starts this module.
"""

import ctypes
import faulthandler
import importlib
import inspect
import json
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from conformance import rows
from conformance.isolation import lock

Message = dict[str, Any]
LENGTH = struct.Struct(">Q")
PR_SET_PDEATHSIG = 1
STACK_SIGNAL = signal.SIGUSR1  # makes the process print the Python stacks of all threads to stderr


def encode(message: Message) -> bytes:
    """Encode a message for a pipe."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def resolve(name: str) -> Callable[..., Any]:
    """Return the function named `package.module:function`."""
    module, _, function = name.partition(":")
    resolved: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return resolved


def serve(requests: BinaryIO, replies: BinaryIO, machine_path: Path, preload: Sequence[str]) -> None:
    """Import the modules `preload`, report that, then answer requests until the pipe closes."""

    def send(message: Message) -> None:
        replies.write(encode(message))
        replies.flush()

    machine = lock.Machine(machine_path, lambda: send({"event": "waiting"}), lambda: send({"event": "running"}))
    send(_run_guarded(lambda: [importlib.import_module(module) and module for module in preload]))
    while header := requests.read(LENGTH.size):
        request = json.loads(requests.read(LENGTH.unpack(header)[0]))
        reply = _run_guarded(partial(_call, request, machine, lambda where: send({"event": "at", "where": where})))
        sys.stdout.flush()
        sys.stderr.flush()
        if loss := device_loss():
            send({"lost": f"{loss} ({reply['raised']})" if "raised" in reply else loss})
            os._exit(1)  # an orderly end would wait for the GPU
        send(reply)


def device_loss() -> str:
    """Return why this process cannot use the GPU any more, or "": after a fault in a kernel every later call fails.

    Waits for the GPU, so that a fault is attributed to the call that caused it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return ""
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"the GPU stopped its process's work: {str(error).splitlines()[0]}"
    return ""


def _call(request: Message, machine: lock.Machine, tell: Callable[[str], None]) -> Any:
    """Call the function; if it has parameters `tell` (report progress) or `quiet` (lock the machine), pass them."""
    function = resolve(request["function"])
    parameters = inspect.signature(function).parameters.keys()
    with ExitStack() as locks:
        quiet = locks.enter_context(lock.shared(machine)) if request["lock"] else nullcontext
        services = {"tell": tell, "quiet": quiet}
        if request["lock"] == "exclusive" and "quiet" not in parameters:
            locks.enter_context(quiet())
        return function(*request["arguments"], **{name: services[name] for name in services.keys() & parameters})


def _run_guarded(action: Callable[[], Any]) -> Message:
    """Run the action and return its result or its exception as a message."""
    try:
        return {"value": rows.to_json(action())}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def die_with(parent: int) -> None:
    """Make the kernel kill this process when its parent ends, even by SIGKILL (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


def main(setup: Message) -> None:
    """Serve requests on the two inherited descriptors, or paths if a command such as a debugger is the parent."""
    if setup["parent"]:
        die_with(setup["parent"])
        for descriptor in (setup["requests"], setup["replies"]):
            os.set_inheritable(descriptor, False)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    with open(setup["requests"], "rb") as requests, open(setup["replies"], "wb") as replies:
        serve(requests, replies, Path(setup["machine"]), setup["preload"])
