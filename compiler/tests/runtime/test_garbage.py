"""Full collections wait while something is compiled, and only then."""

import gc
import threading

import pytest

from compiler.runtime.garbage import NEVER, paused


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()
    with paused():
        assert gc.get_threshold() == (*before[:2], NEVER)
        with paused():
            assert gc.get_threshold() == (*before[:2], NEVER)
        assert gc.get_threshold() == (*before[:2], NEVER)
    assert gc.get_threshold() == before


def test_thresholds_come_back_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(ZeroDivisionError), paused():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


def test_the_last_of_several_threads_brings_them_back() -> None:
    before = gc.get_threshold()
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with paused():
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=other)
    with paused():
        thread.start()
        assert inside.wait(60)
    assert gc.get_threshold() == (*before[:2], NEVER), "the other thread is not done"
    leave.set()
    thread.join()
    assert gc.get_threshold() == before
