import threading
from typing import Any

import pytest

from popdist.engine.handle import Handle
from popdist.groups.joined_handle import JoinedHandle


def started(given_up: list[str], name: str) -> Handle[Any]:
    return Handle(lambda error: given_up.append(f"{name}: {error!r}"))


def test_it_ends_with_the_last_call_and_joins_the_results_once() -> None:
    calls, joined, ended = [started([], "") for _ in range(3)], [], []

    def join(found: Any) -> str:
        joined.append(list(found))
        return "whole"

    handle = JoinedHandle(calls, join)
    handle.add_done_callback(lambda one: ended.append(one.result()))
    for number, call in enumerate(calls):
        assert not handle.test()
        assert not joined
        call.run(lambda number=number: number)

    assert handle.test()
    assert handle.wait() == handle.result() == "whole"
    assert joined == [[0, 1, 2]]
    assert ended == ["whole"]


def test_it_ends_with_the_first_call_that_fails() -> None:
    calls = [started([], "") for _ in range(3)]
    handle = JoinedHandle(calls, list)

    def fail() -> None:
        raise KeyError("first")

    calls[0].run(lambda: 1)
    calls[2].run(fail)

    with pytest.raises(KeyError, match="first"):
        handle.wait()
    calls[1].run(fail)
    with pytest.raises(KeyError, match="first"):
        handle.result()


def test_an_error_in_joining_is_that_of_the_handle() -> None:
    call = started([], "")
    handle = JoinedHandle([call], lambda _: 1 / 0)

    call.run(lambda: 1)

    with pytest.raises(ZeroDivisionError):
        handle.wait()


def test_an_interrupted_wait_gives_up_the_calls_that_are_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given_up: list[str] = []
    calls = [started(given_up, name) for name in ("first", "second")]
    handle = JoinedHandle(calls, list)
    calls[0].run(lambda: 1)

    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(handle._done, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        handle.wait()

    assert given_up == ["second: KeyboardInterrupt()"]


def test_the_thread_that_makes_one_of_the_calls_cannot_wait_for_all() -> None:
    calls = [started([], "") for _ in range(2)]
    calls[1].thread = threading.current_thread()

    with pytest.raises(RuntimeError):
        JoinedHandle(calls, list).wait()
