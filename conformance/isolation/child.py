"""The executor's child process: requests from one pipe in, replies on another out; whatever it prints stays apart.

A message is eight bytes of length and JSON. Only `executor.py` starts this module.
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
STACK_SIGNAL = signal.SIGUSR1  # asks for every thread's Python stack on stderr


def encode(message: Message) -> bytes:
    """One message as it stands on a pipe."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


def resolve(name: str) -> Callable[..., Any]:
    """The function that `package.module:function` names."""
    module, _, function = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return found


def serve(requests: BinaryIO, replies: BinaryIO, machine_path: Path, preload: Sequence[str]) -> None:
    """Import what is needed, say so, then answer requests until the pipe closes."""

    def send(message: Message) -> None:
        replies.write(encode(message))
        replies.flush()

    machine = lock.Machine(machine_path, lambda: send({"event": "waiting"}), lambda: send({"event": "running"}))
    send(_guarded(lambda: [importlib.import_module(module) and module for module in preload]))
    while header := requests.read(LENGTH.size):
        request = json.loads(requests.read(LENGTH.unpack(header)[0]))
        reply = _guarded(partial(_call, request, machine, lambda where: send({"event": "at", "where": where})))
        sys.stdout.flush()
        sys.stderr.flush()
        if loss := device_loss():
            send({"lost": f"{loss} ({reply['raised']})" if "raised" in reply else loss})
            os._exit(1)  # an orderly end would wait for the GPU
        send(reply)


def device_loss() -> str:
    """Why this process can use the GPU no more, empty where it can: after a kernel's fault every later call fails.

    Waits for the GPU, so that a fault is found in the call that made it.
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
    """Call the function, which may ask for `tell` (say where it is) and `quiet` (hold the machine alone) by name."""
    function = resolve(request["function"])
    wanted = inspect.signature(function).parameters.keys()
    with ExitStack() as held:
        quiet = held.enter_context(lock.shared(machine)) if request["lock"] else nullcontext
        offered = {"tell": tell, "quiet": quiet}
        if request["lock"] == "exclusive" and "quiet" not in wanted:
            held.enter_context(quiet())
        return function(*request["arguments"], **{name: offered[name] for name in offered.keys() & wanted})


def _guarded(action: Callable[[], Any]) -> Message:
    """What the action returns or raises, as a message: this is where a failure leaves the process."""
    try:
        return {"value": rows.to_json(action())}
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}


def die_with(parent: int) -> None:
    """End this process when the one that started it ends, even by SIGKILL while this one hangs (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the process that started this one is gone")


def main(setup: Message) -> None:
    """Serve over the two descriptors that the parent passed, or opened for a process that has another parent."""
    if setup["parent"]:
        die_with(setup["parent"])
        for descriptor in (setup["requests"], setup["replies"]):
            os.set_inheritable(descriptor, False)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    with open(setup["requests"], "rb") as requests, open(setup["replies"], "wb") as replies:
        serve(requests, replies, Path(setup["machine"]), setup["preload"])
