"""The instances that train one model together, and their common settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from popdist.engine.group import Group
from popdist.errors import MismatchError
from popdist.replicated.sums import is_one_node
from popdist.session import STATE


@dataclass(frozen=True, kw_only=True, slots=True)
class Members:
    """The instances that train one model, and this one's replicas among theirs."""

    # The number in the job of local replica 0, and how many replicas there are.
    first_replica: int = 0
    replicas: int = 1
    # One row for each instance; None for one instance alone.
    instances: Group | None = None
    # One row for each node of the tree, or for each local replica.
    rows: Group | None = None
    # The class of the error if instances do not fit together.
    mismatch: type[Exception] = MismatchError

    @classmethod
    def meet(
        cls,
        purpose: str,
        replicas: int,
        alike: Mapping[str, int],
        mismatch: type[Exception] = MismatchError,
    ) -> Self:
        """Meet the others: all instances of the job, which must call this too.

        Args:
            purpose: The name of the group. Each group has a separate order of calls.
            replicas: The number of local replicas.
            alike: Settings that must be the same on all instances, by their names in an
                error.
            mismatch: The class of the error if instances do not fit together.

        Raises:
            mismatch: Instances have other settings than this one.
        """
        group = STATE.group(purpose, STATE.job.members)
        settings = group.all_gather(np.array([replicas, *alike.values()], np.int64))
        counts, *columns = np.array(settings).T.tolist()
        for name, values in zip(alike, columns, strict=True):
            if len(set(values)) > 1:
                raise mismatch(
                    f"{name} must be the same on all instances, but is {values}, from "
                    f"instance 0 to {group.size - 1}."
                )
        return cls(
            first_replica=sum(counts[: group.rank]),
            replicas=sum(counts),
            instances=group,
            rows=group if is_one_node(counts) else group.view(counts),
            mismatch=mismatch,
        )

    @property
    def separate_rows(self) -> bool:
        """Whether what each local replica has is exchanged by itself."""
        return self.rows is not self.instances

    def gather(self, number: int) -> list[int]:
        """Return a whole number of each instance. All must call this."""
        if self.instances is None:
            return [number]
        rows = self.instances.all_gather(np.array([number], np.int64))
        return [int(row[0]) for row in rows]

    def unlike_first(self, number: int) -> list[int]:
        """Return the instances with another number than the first. All call this."""
        first, *others = self.gather(number)
        return [i for i, other in enumerate(others, 1) if other != first]

    def gather_floats(self, numbers: Sequence[float]) -> list[list[float]]:
        """Return some numbers of each instance. All must call this."""
        own = np.array(numbers, np.float64)
        rows = [own] if self.instances is None else self.instances.all_gather(own)
        return [list(map(float, row)) for row in rows]

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Return which of some flags are set on any instance. All must call this."""
        own = np.array(flags, np.uint8)
        if self.instances is not None:
            own = self.instances.all_reduce(own, "max")
        return [bool(flag) for flag in own.tolist()]
