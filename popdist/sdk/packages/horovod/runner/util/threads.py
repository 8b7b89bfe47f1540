"""Threads, as Horovod's launcher starts them."""

import threading
from collections.abc import Callable, Iterable
from typing import Any


# Any, because the function's arguments are its own.
def in_thread(
    target: Callable[..., object],
    args: Iterable[Any] = (),
    name: str | None = None,
    daemon: bool = True,
    silent: bool = False,
) -> threading.Thread:
    """Call a function in a thread, and return the thread.

    Args:
        target: The function.
        args: Its arguments.
        name: That of the thread.
        daemon: Whether the program may end before the function has.
        silent: Report no exception of the function.
    """
    arguments = tuple(args)

    def call() -> None:
        try:
            target(*arguments)
        except BaseException:
            if not silent:
                raise

    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread
