"""The micro-batches of one call that a model returns a tensor for."""

from dataclasses import dataclass
from enum import Enum


class ReturnMode(Enum):
    """The returned micro-batches, by PopART's names."""

    All = "All"
    EveryN = "EveryN"
    Final = "Final"
    Sum = "Sum"


@dataclass(frozen=True, slots=True)
class ReturnedBatches:
    """The micro-batches of each replica that a call returns a tensor for."""

    mode: ReturnMode
    # The N of EveryN.
    period: int
    # How many micro-batches a replica runs in one call.
    total: int

    def place(self, number: int) -> int | None:
        """Return the place of a replica's micro-batch in the result; None: not there.

        All micro-batches of `Sum` have the place 0.
        """
        match self.mode:
            case ReturnMode.All:
                return number
            case ReturnMode.EveryN:
                return None if (number + 1) % self.period else number // self.period
            case ReturnMode.Sum:
                return 0
            case ReturnMode.Final:
                return 0 if number + 1 == self.total else None
