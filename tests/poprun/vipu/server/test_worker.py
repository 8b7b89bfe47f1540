"""The thread that works on the inventory: in which order requests have their turn."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from poprun.vipu.errors import InventoryFullError
from poprun.vipu.server.worker import Worker


def order_of(others: int, holders: int) -> str:
    """Let requests of others (o) and then of holders (h) wait; return their order."""
    done: list[str] = []

    async def ask() -> None:
        worker, begun, go = Worker(nullcontext), threading.Event(), threading.Event()
        first = asyncio.ensure_future(worker.run(lambda: begun.set() or go.wait()))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        kinds = "o" * others + "h" * holders
        waiting = [
            asyncio.ensure_future(
                worker.run(lambda k=kind: done.append(k), is_of_holder=kind == "h")
            )
            for kind in kinds
        ]
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(first, *waiting)
        worker.stop()

    asyncio.run(ask())
    return "".join(done)


def test_who_holds_ipus_comes_before_who_wants_some() -> None:
    assert order_of(others=3, holders=2) == "hhooo"


def test_holders_keep_no_others_out() -> None:
    assert order_of(others=2, holders=20) == "hhhhhhhhohhhhhhhhohhhh"


def test_what_waits_when_the_server_stops_is_refused() -> None:
    async def ask() -> list[object]:
        worker, begun, go = Worker(nullcontext), threading.Event(), threading.Event()
        first = asyncio.ensure_future(worker.run(lambda: begun.set() or go.wait()))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        waiting = [asyncio.ensure_future(worker.run(int)) for _ in range(100)]
        await asyncio.sleep(0)
        threading.Timer(0.1, go.set).start()
        worker.stop()
        return await asyncio.gather(first, *waiting, return_exceptions=True)

    first, *others = asyncio.run(ask())

    assert first is True
    assert len(others) == 100
    assert {str(error) for error in others} == {
        "The V-IPU server is stopping. Try again."
    }


def test_nothing_is_answered_before_the_transaction_of_its_group_has_ended() -> None:
    ran, go = threading.Event(), threading.Event()

    @contextmanager
    def together() -> Iterator[None]:
        yield
        ran.set()
        go.wait()

    async def ask() -> tuple[bool, list[int]]:
        worker = Worker(together)
        waiting = [asyncio.ensure_future(worker.run(lambda n=n: n)) for n in range(3)]
        while not ran.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
        was_answered = any(future.done() for future in waiting)
        go.set()
        answers = await asyncio.gather(*waiting)
        worker.stop()
        return was_answered, answers

    assert asyncio.run(ask()) == (False, [0, 1, 2])


def test_each_of_a_group_whose_transaction_fails_is_run_alone() -> None:
    transactions: list[int] = []
    runs: list[str] = []

    @contextmanager
    def together() -> Iterator[None]:
        transactions.append(1)
        yield
        raise InventoryFullError("There is no space.")

    def run(name: str) -> str:
        runs.append(name)
        if name == "b" and runs.count(name) == 2:
            raise InventoryFullError("There is no space for b.")
        return f"{name}{runs.count(name)}"

    async def ask() -> list[object]:
        worker = Worker(together)
        waiting = [
            asyncio.ensure_future(worker.run(lambda name=name: run(name)))
            for name in "abc"
        ]
        answers = await asyncio.gather(*waiting, return_exceptions=True)
        worker.stop()
        return list(map(str, answers))

    assert asyncio.run(ask()) == ["a2", "There is no space for b.", "c2"]
    assert runs == list("abcabc")
    assert len(transactions) == 1
