"""The seal of a cached file: a keyed digest of its name and content, which only this user's processes can make.

The key is in a file of the user's, outside of the cache. If there can be none, each process has its own key.
"""

import contextlib
import functools
import hmac
import logging
import os
import secrets
import stat
import tempfile
from pathlib import Path

from compiler.runtime import detect, trust

log = logging.getLogger("mlcomp")

# A comment in a text, and past the end of what loaders read of a binary: the seal travels inside the file.
MARK = b"\n// mlcomp-hmac-sha256:"
LENGTH = len(MARK) + 64 + 1
_BYTES = 32  # of a key


def sealed(body: bytes, name: str) -> bytes:
    """`body` with the seal for the entry `name`."""
    return body + _trailer(body, name)


def unsealed(content: bytes, name: str) -> bytes | None:
    """The body of content sealed for the entry `name` with this user's key; None for anything else."""
    body, trailer = content[:-LENGTH], content[-LENGTH:]
    return body if hmac.compare_digest(trailer, _trailer(body, name)) else None


def _trailer(body: bytes, name: str) -> bytes:
    return MARK + hmac.digest(_key()[0], name.encode() + b"\0" + body, "sha256").hex().encode() + b"\n"


def is_persistent() -> bool:
    """Whether other processes of this user have the same key."""
    return _key()[1]


def key_path() -> Path | None:
    """The file of the key; None if the user has no folder for it."""
    state = detect.default_state(os.environ)
    return state / "key" if state is not None else None


@functools.cache
def _key() -> tuple[bytes, bool]:
    """The key, and whether it outlasts this process."""
    path = key_path()
    try:
        if path is None:
            raise OSError("there is no home folder")
        trust.make_private(path.parent)
        folder = path.parent.resolve()
        if problem := trust.distrust_reason(folder, folder):
            raise OSError(problem)
        return _persistent_key(path), True
    except OSError as error:
        log.warning(
            "mlcomp: no key for the kernel cache in %s: %s. Kernels are built anew by each process; set XDG_STATE_HOME "
            "to a folder of your own.",
            path.parent if path is not None else "~/.local/state",
            error,
        )
        return secrets.token_bytes(_BYTES), False


def _persistent_key(path: Path) -> bytes:
    """The user's key, made by the first process that needs it."""
    with contextlib.suppress(FileNotFoundError):
        if key := _read(path):
            return key
        # If two processes do this at once, one may lose its entries, which are then rebuilt.
        log.warning(
            "mlcomp: the key %s is not as it was made: a new one takes its place, kernels are built again", path
        )
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    descriptor, draft = tempfile.mkstemp(prefix=".key-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):  # another process was first; readers never see half a key
            os.link(draft, path)
    finally:
        os.unlink(draft)
    key = _read(path)
    if key is None:
        raise OSError(f"{path} is not a key")
    return key


def _read(path: Path) -> bytes | None:
    """The key in a file that nobody else can access; None if the file is not such a key."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            return None
        key = file.read(_BYTES + 1)
    return key if len(key) == _BYTES else None
