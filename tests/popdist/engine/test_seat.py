import gc
import os
import threading
import time
from typing import Any

import numpy as np
import pytest

from popdist.engine import seat
from popdist.engine.group import Group
from popdist.engine.heap import Heap
from tests.popdist.engine.members import SMALL


def alone() -> Group:
    return Group("alone", 0, 1, tuning=SMALL)


def test_threads_that_make_the_first_array_at_once_get_two_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(Heap):
        def __init__(self, *args: Any) -> None:
            time.sleep(0.05)
            super().__init__(*args)

    monkeypatch.setattr(seat, "Heap", Slow)
    group = alone()
    made: list[np.ndarray] = []
    threads = [
        threading.Thread(target=lambda: made.append(group.empty(100))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, array in enumerate(made):
        array[...] = number

    assert [set(array) for array in made] == [{0}, {1}, {2}, {3}]
    group.close()


def test_a_child_that_drops_its_parents_array_leaves_it_as_it_is() -> None:
    group = alone()
    kept = [group.empty(1000)]
    kept[0][...] = 3
    child = os.fork()
    if child == 0:
        try:
            kept.clear()
            gc.collect()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert set(kept[0]) == {3}
    # It is still taken.
    assert not np.shares_memory(group.empty(1000), kept[0])
    group.close()


def test_a_thread_that_cannot_be_started_leaves_nothing_behind_that_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    group = alone()
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            group.all_reduce(np.ones(3), async_op=True)

    assert group.all_reduce(np.ones(3)).tolist() == [1] * 3
    assert group.all_reduce(np.ones(3), async_op=True).wait().tolist() == [1] * 3
    group.close()
