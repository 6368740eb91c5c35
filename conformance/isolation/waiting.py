"""A lock's path in; which process outside of this run holds it, as a line for people, out (Linux)."""

import os
from pathlib import Path

RUN = "PYTEST_XDIST_TESTRUNUID"  # the same in all processes of a run that xdist spreads, and in their children


def said(path: Path) -> str:
    """What a run that waits for the machine says; nothing where it waits for itself."""
    holder = next((pid for pid in _holders(path) if not _is_ours(pid)), None)
    if holder is None:
        return ""
    words = " ".join(_read(holder, "cmdline").split("\0")).strip()
    return f"mlcomp: waiting for process {holder}, which has this machine's lock {path}: {words[:100]}"


def _holders(path: Path) -> list[int]:
    """The processes that hold the lock, or stand in the gate to it."""
    inodes = set()
    for file in (path, path.with_name(path.name + ".gate")):
        try:
            inodes.add(str(file.stat().st_ino))
        except OSError:
            continue
    try:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    held = [words for words in lines if "FLOCK" in words and "->" not in words]
    return [int(words[4]) for words in held if words[5].rpartition(":")[2] in inodes and int(words[4]) > 0]


def _is_ours(pid: int) -> bool:
    """Whether it belongs to this run, or to this process."""
    run = os.environ.get(RUN)
    if run is not None and f"{RUN}={run}" in _read(pid, "environ").split("\0"):
        return True
    while pid > 1 and pid != os.getpid():
        status = _read(pid, "stat").rpartition(")")[2].split()
        pid = int(status[1]) if status else 0
    return pid == os.getpid()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace")
    except OSError:
        return ""
