"""HorovodBasics: ranks, and the start and end of Horovod, as methods."""

from typing import Any

from horovod.common import ranks
from horovod.common.calls import reduce_ops


class HorovodBasics:
    """Has the functions of the module as methods; all objects have the same ranks."""

    Adasum = reduce_ops.Adasum
    Average = reduce_ops.Average
    Sum = reduce_ops.Sum

    def __init__(self, *library: object) -> None:
        """Take the place of a library, which is not needed here."""

    def __getattr__(self, name: str) -> Any:
        return getattr(ranks, name)
