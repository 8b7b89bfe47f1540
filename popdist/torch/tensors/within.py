"""A group inside one of its calls: its operations are steps of that call."""

from collections.abc import Callable
from typing import TypeVar

from popdist.engine.group import Group
from popdist.engine.handle import AsyncOp

T = TypeVar("T")


class Within:
    """Takes the place of the group in the functions of popdist.torch.tensors."""

    def __init__(self, group: Group) -> None:
        self.transport = group.transport
        self.rank, self.size = group.rank, group.size
        self.num_replicas = group.num_replicas
        self.num_local_replicas = group.num_local_replicas
        self.owner_of = group.owner_of

    def submit(self, what: str, action: Callable[[], T], async_op: AsyncOp) -> T:
        """Carry a step out at once."""
        return action()
