"""Weights that differ between replicas, which the emulation refuses."""

from collections import UserDict
from typing import Any

from torch import nn

from ..enums import CommGroupType, VariableRetrievalMode
from ..errors import Error


class PerReplicaParameters(UserDict[str, Any]):
    """The groupings of an executor's parameters, by their names: all are the same."""

    def __setitem__(self, name: str, grouping: tuple[Any, ...]) -> None:
        check_grouping(name, grouping[0])


def check_grouping(name: str, comm_group_type: CommGroupType) -> None:
    """Raise Error unless a parameter is to have one value on all replicas."""
    if comm_group_type != CommGroupType.All:
        raise Error(
            f"{name} is to differ between replicas (replicaGrouping with "
            f"{comm_group_type!r}), which is not emulated: all replicas share one "
            "value of each parameter. Models split like this need collectives between "
            "replicas in forward(), and here replicas run one after another."
        )


def _replica_grouping(
    parameter: nn.Parameter,
    comm_group_type: CommGroupType,
    shards: int,
    variable_retrieval_mode: VariableRetrievalMode,
) -> None:
    """Check that the parameter is to have one value on all replicas."""
    check_grouping(f"A parameter of shape {list(parameter.shape)}", comm_group_type)


nn.Parameter.replicaGrouping = _replica_grouping  # type: ignore[attr-defined]
