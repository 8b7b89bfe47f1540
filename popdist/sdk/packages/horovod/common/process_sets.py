"""Process sets: subsets of the ranks, which make calls of their own."""

from collections.abc import Iterable, Sequence


class ProcessSet:
    """Some of the ranks.

    One that is registered, by init() or add_process_set(), can be given to calls as
    process_set.
    """

    def __init__(self, ranks_or_comm: Iterable[int]) -> None:
        """Describe a set of these ranks.

        Raises:
            ValueError: These are no ranks, such as a communicator of mpi4py.
        """
        self.process_set_id: int | None = None
        self.ranks: list[int] | None = checked_ranks(ranks_or_comm)
        self.mpi_comm = None
        self._own_rank = -1

    def register(self, number: int, ranks: Sequence[int], own_rank: int) -> None:
        """Begin to stand for a registered set."""
        self.process_set_id, self.ranks = number, list(ranks)
        self._own_rank = own_rank

    def invalidate(self) -> None:
        """Stand for a set that is not registered."""
        self.process_set_id = None

    def included(self) -> bool | None:
        """Return whether this process is in the set; None if it is not registered."""
        if self.process_set_id is None:
            return None
        return self._own_rank in (self.ranks or ())

    def rank(self) -> int | None:
        """Return the index of this process in the set; None if it is not in it."""
        if not self.included() or self.ranks is None:
            return None
        return self.ranks.index(self._own_rank)

    def size(self) -> int | None:
        """Return the number of ranks in the set; None if it is not registered."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return len(self.ranks)

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ProcessSet):
            return NotImplemented
        return self is other or (
            self.process_set_id is not None
            and self.process_set_id == other.process_set_id
        )

    __hash__ = object.__hash__


def checked_ranks(ranks: object) -> list[int]:
    """Return distinct ranks in ascending order.

    Raises:
        ValueError: They are none.
    """
    numbers = list(ranks) if isinstance(ranks, Iterable) else [ranks]
    checked: list[int] = []
    for rank in numbers:
        if isinstance(rank, bool) or not isinstance(rank, int) or rank < 0:
            raise ValueError(
                f"A process set is made of ranks, which are whole numbers from 0, but "
                f"{ranks!r} is given. Communicators of MPI are not supported: give a "
                "list of ranks."
            )
        checked.append(rank)
    if len(set(checked)) != len(checked) or not checked:
        raise ValueError(
            f"A process set has each of its ranks once, and at least one, but "
            f"{checked} is given."
        )
    return sorted(checked)


# All ranks, which are known once hvd.init() is called.
global_process_set = ProcessSet([0])
global_process_set.ranks = None
