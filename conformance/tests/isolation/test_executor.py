"""The executor against functions that crash, hang, eat memory, print garbage or exit."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.isolation.executor import Executor, Status

VICTIMS = '''
import ctypes, os, subprocess, sys, time

def double(x): return 2 * x
def count(): count.n = getattr(count, "n", 0) + 1; return count.n
def segfault(): print("about to fall", flush=True); ctypes.string_at(0)
def abort(): os.abort()
def leave(): sys.exit(3)
def vanish(): os._exit(0)
def raises(): raise ValueError("seven is not a size")
def unsayable(): return object()
def garbage():
    os.write(1, b"\\x00" * 100 + b"not a message")
    sys.stderr.write("more noise")
    return "fine"
def scribble():
    for fd in range(3, 40):
        try: os.write(fd, b"\\xff" * 64)
        except OSError: pass
    time.sleep(60)
def hang(): time.sleep(60)
def hang_deep(calls=80): return hang_deep(calls - 1) if calls else hang()
def segfault_deep(calls=80): return segfault_deep(calls - 1) if calls else segfault()
def hang_in_c(): ctypes.CDLL(None).pause()
def hog():
    kept = []
    while True: kept.append(bytearray(b"x") * (8 << 20)); time.sleep(0.001)
def family(path):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    open(path, "w").write(str(child.pid))
    time.sleep(60)
def fragile(path):
    """Dies where an earlier call has run in the same process."""
    if count() > 1: os.abort()
    return "alone"
class BrokenGpu:
    """Stands for torch in a process whose GPU context is lost."""
    class cuda:
        def is_initialized(): return True
        def synchronize(): raise RuntimeError("CUDA error: an illegal memory access was encountered\\nmore")
def loses_gpu(): sys.modules["torch"] = BrokenGpu; return "wrong, and nobody noticed"
def raises_and_loses_gpu(): loses_gpu(); raise ValueError("seven")
def fragile_gpu(): return loses_gpu() if count() > 1 else "alone"
def sleeps(seconds): time.sleep(seconds); return seconds
def timed(seconds, quiet):
    with quiet(): time.sleep(seconds)
    return seconds
'''


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    (tmp_path / "victims.py").write_text(VICTIMS)
    monkeypatch.syspath_prepend(tmp_path)
    executor = Executor(preload=["victims"], memory=256 << 20, machine=tmp_path / "lock")
    yield executor
    executor.close()


def test_values_come_back_and_the_child_stays_warm(executor: Executor) -> None:
    assert executor.call("victims:double", [1, 2], timeout=20).value == [1, 2, 1, 2]
    assert [executor.call("victims:count", timeout=20).value for _ in range(3)] == [1, 2, 3]


@pytest.mark.parametrize(
    ("victim", "status", "message"),
    [
        ("segfault", Status.CRASH, "SIGSEGV"),
        ("abort", Status.CRASH, "SIGABRT"),
        ("leave", Status.CRASH, "exited with status 3"),
        ("vanish", Status.CRASH, "exited with status 0"),
        ("scribble", Status.CRASH, "unreadable reply"),
        ("raises", Status.RAISED, "ValueError: seven is not a size"),
        ("unsayable", Status.RAISED, "not JSON serializable"),
        ("absent", Status.RAISED, "no attribute 'absent'"),
        ("hog", Status.CRASH, "more than 0.2 GiB"),
        ("loses_gpu", Status.CRASH, "the GPU stopped its process's work: CUDA error: an illegal memory access"),
        ("raises_and_loses_gpu", Status.CRASH, "encountered (ValueError: seven)"),
    ],
)
def test_one_bad_call_costs_one_call(executor: Executor, victim: str, status: Status, message: str) -> None:
    reply = executor.call(f"victims:{victim}", timeout=20)
    assert (reply.status, reply.first_loss) == (status, "")
    assert message in reply.message
    assert executor.call("victims:double", 21, timeout=20).value == 42


@pytest.mark.parametrize("victim", ["hang", "hang_in_c"])
def test_a_hang_is_killed_and_says_where(executor: Executor, victim: str) -> None:
    reply = executor.call(f"victims:{victim}", timeout=0.3)
    assert reply.status is Status.TIMEOUT
    assert "no answer within 0.3 s" in reply.message
    assert f"in {victim}" in reply.output
    assert executor.call("victims:double", 1, timeout=20).value == 2


@pytest.mark.parametrize("innermost", ["hang", "segfault"])
def test_a_deep_stack_is_shown_from_its_most_recent_call(executor: Executor, innermost: str) -> None:
    output = executor.call(f"victims:{innermost}_deep", timeout=1).output
    assert f"in {innermost}\n" in output
    assert f"in {innermost}_deep\n  ..." in output
    assert "Extension modules" not in output


def test_output_is_kept_apart_and_shown_on_a_crash(executor: Executor) -> None:
    assert executor.call("victims:garbage", timeout=20).value == "fine"
    output = executor.call("victims:segfault", timeout=20).output
    assert "about to fall" in output
    assert "Segmentation fault" in output
    assert "noise" not in output


def test_a_victim_of_an_earlier_call_is_told_from_a_culprit(executor: Executor) -> None:
    assert executor.call("victims:fragile", "", timeout=20).value == "alone"
    reply = executor.call("victims:fragile", "", timeout=20)
    assert (reply.status, reply.value) == (Status.DONE, "alone")
    assert "SIGABRT" in reply.first_loss
    culprit = executor.call("victims:abort", timeout=20)
    assert culprit.status is Status.CRASH
    assert "SIGABRT" in culprit.first_loss


def test_a_victim_of_a_lost_gpu_is_told_from_a_culprit(executor: Executor) -> None:
    assert executor.call("victims:count", timeout=20).value == 1
    victim = executor.call("victims:fragile_gpu", timeout=20)
    assert (victim.status, victim.value) == (Status.DONE, "alone") and "illegal memory" in victim.first_loss
    culprit = executor.call("victims:loses_gpu", timeout=20)
    assert culprit.status is Status.CRASH and "illegal memory" in culprit.first_loss
    assert executor.call("victims:count", timeout=20).value == 1, "the next call has a new process"


def test_what_the_child_started_is_killed_with_it(executor: Executor, tmp_path: Path) -> None:
    assert executor.call("victims:family", str(tmp_path / "pid"), timeout=2).status is Status.TIMEOUT
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_the_clock_stands_still_while_the_machine_is_taken(executor: Executor) -> None:
    executor.call("victims:double", 1, timeout=20)
    with subprocess.Popen(parent_of("timed", "1, timeout=20, hold='exclusive'", executor)) as holder:
        time.sleep(0.8)
        replies = [executor.call("victims:sleeps", 0.1, timeout=0.5, hold="exclusive") for _ in range(3)]
    assert holder.returncode == 0
    assert [reply.status for reply in replies] == [Status.DONE] * 3, replies


def test_a_command_in_between_need_not_hand_descriptors_on(tmp_path: Path, executor: Executor) -> None:
    closing = 'for n in 3 4 5 6 7 8 9; do eval "exec $n<&-"; done; "$@"; true'  # a shell that stays, like a debugger
    under = Executor(
        ["victims"], machine=tmp_path / "lock", under=["bash", "-c", closing, "bash"], environment={"WHO": "me"}
    )
    try:
        assert under.call("victims:double", 21, timeout=20).value == 42
        assert under.call("os:getenv", "WHO", timeout=20).value == "me"
        assert under.call("os:getppid", timeout=20).value != os.getpid()
        assert under.call("victims:abort", timeout=20).status is Status.CRASH
        assert under.call("victims:hang", timeout=0.3).status is Status.TIMEOUT
        assert under.call("victims:count", timeout=20).value == 1
    finally:
        under.close()


def test_missing_imports_are_said_once_and_at_once(tmp_path: Path) -> None:
    executor = Executor(preload=["no_such_module_here"], machine=tmp_path / "lock")
    first, second = (executor.call("victims:double", 1, timeout=20) for _ in range(2))
    assert first is second
    assert "No module named 'no_such_module_here'" in first.message


def test_no_orphan_when_the_parent_is_killed(executor: Executor) -> None:
    command = parent_of("hang_in_c", "timeout=60", executor)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_until_gone(child)


def parent_of(victim: str, arguments: str, executor: Executor) -> list[str]:
    """A process of its own that says its child's number and then calls a victim."""
    program = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from conformance.isolation.executor import Executor\n"
        "executor = Executor(['victims'], machine=Path(sys.argv[1]))\n"
        "print(executor.call('os:getpid', timeout=20).value, flush=True)\n"
        f"reply = executor.call('victims:{victim}', {arguments})\n"
        "executor.close(); sys.exit(reply.status != 'done')\n"
    )
    return [sys.executable, "-c", program, str(executor.machine), *sys.path]


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")
