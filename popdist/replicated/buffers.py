"""Arrays that each local replica has for itself, such as running statistics."""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Generic, TypeVar

T = TypeVar("T")
_UNCHANGED = nullcontext()


class ReplicaBuffers(Generic[T]):
    """The buffers of all local replicas of a model.

    The model holds the buffers of replica 0. The buffers of another replica replace
    them while it runs.
    """

    def __init__(
        self,
        places: Sequence[tuple[MutableMapping[str, T], str]],
        replicas: int,
        copy: Callable[[T], T],
    ) -> None:
        """Make buffers that are equal on all replicas.

        Args:
            places: The mapping in which the model holds each buffer, and its key.
            replicas: The number of local replicas.
            copy: Returns a copy of a buffer.
        """
        self._places, self._replicas, self._copy = places, replicas, copy
        # The buffers of the replicas after the first, once they are needed.
        self._others: list[list[T]] = []

    def reset(self) -> None:
        """Give all replicas the buffers that the model has now."""
        self._others = []

    def prepare(self) -> None:
        """Copy the model's buffers for all replicas, before replica 0 changes them."""
        if self._places and not self._others:
            self._others = [self.copies() for _ in range(1, self._replicas)]

    def of(self, replica: int) -> AbstractContextManager[None]:
        """Give the model the buffers of a replica, until the block ends."""
        return self._exchanged(replica) if replica and self._places else _UNCHANGED

    @contextmanager
    def _exchanged(self, replica: int) -> Iterator[None]:
        first = self.current()
        self.place(self._others[replica - 1])
        try:
            yield
        finally:
            self._others[replica - 1] = self.current()
            self.place(first)

    def current(self) -> list[T]:
        """Return the model's buffers themselves."""
        return [holder[name] for holder, name in self._places]

    def copies(self) -> list[T]:
        """Return copies of the model's buffers."""
        return [self._copy(buffer) for buffer in self.current()]

    def place(self, buffers: Sequence[T]) -> None:
        """Give the model these buffers."""
        for (holder, name), buffer in zip(self._places, buffers, strict=True):
            holder[name] = buffer
