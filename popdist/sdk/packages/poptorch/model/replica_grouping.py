"""Parameters with one value for each group of replicas.

The first dimension of such a parameter numbers the groups, and forward() sees the row
of its replica's group.
"""

from collections import UserDict
from collections.abc import Mapping
from typing import Any
from weakref import ref

import torch
from torch import nn
from torch.func import functional_call
from torch.utils.weak import WeakIdKeyDictionary

from popdist import popdist_core as core
from popdist.replicated.members import Members
from popdist.replicated.variable_groups import VariableGroups

from ..enums import CommGroupType, VariableRetrievalMode
from ..errors import Error
from .run_settings import RunSettings

# Its type, the number of replicas in a group, and which values come back.
Grouping = tuple[CommGroupType, int, VariableRetrievalMode]


def _members_by_options(settings: RunSettings) -> Members:
    """Return the members as far as an instance knows them before it meets others."""
    replicas = settings.replicas
    if (
        settings.instances > 1
        and core.isPopdistEnvSet()
        and core.getNumLocalReplicas() == replicas
    ):
        return Members(
            first_replica=core.getReplicaIndexOffset(),
            replicas=core.getNumTotalReplicas(),
        )
    # Other options do not say how many replicas other instances have.
    return Members(
        first_replica=settings.instance * replicas,
        replicas=settings.instances * replicas,
    )


class PerReplicaParameters(UserDict[str, Grouping]):
    """The groupings of a model's parameters, by their names."""

    def __init__(self, module: nn.Module, settings: RunSettings) -> None:
        self._module = module
        self._groups: dict[str, VariableGroups] = {}
        self._members = _members_by_options(settings)
        # Set once the model is compiled.
        self.frozen = False
        super().__init__()

    def __setitem__(self, name: str, grouping: Grouping) -> None:
        """Let a parameter have a value for each group of replicas.

        Raises:
            Error: The groups do not fit the replicas or the parameter, or the model is
                compiled.
        """
        groups = self._checked(name, *grouping)
        if self.frozen and groups != self._groups.get(name):
            raise Error(
                f"The model is compiled, so the groups of {name} cannot change. Call "
                "replicaGrouping before the first call, or destroy() the model."
            )
        self._groups.pop(name, None)
        if groups is not None:
            self._groups[name] = groups
        self.data[name] = grouping

    def _checked(
        self, name: str, kind: CommGroupType, size: int, mode: VariableRetrievalMode
    ) -> VariableGroups | None:
        """Return the groups, None if all replicas are one."""
        if kind == CommGroupType.All:
            return None
        replicas = self._members.replicas
        if kind == CommGroupType.NoGrouping:
            size = 1
        if size < 1 or replicas % size:
            raise Error(
                f"{name} is to have groups of {size} replicas, which must divide the "
                f"{replicas} replicas of all instances."
            )
        if mode == VariableRetrievalMode.AllReplicas and size > 1:
            raise Error(
                f"{name} is to be retrieved from all replicas, but it has one value "
                "for each group, and no room for one of each replica. Use "
                "VariableRetrievalMode.OnePerGroup: all replicas of a group have the "
                "same value."
            )
        shape, count = list(self._module.get_parameter(name).shape), replicas // size
        if not shape or shape[0] != count:
            raise Error(
                f"{name} has the shape {shape}, but {replicas} replicas in groups of "
                f"{size} are {count} groups. Give it a first dimension of {count}, "
                "which has the value of each group."
            )
        return VariableGroups(kind == CommGroupType.Orthogonal, size, count)

    def set_members(self, members: Members) -> None:
        """Number the replicas as all instances have agreed.

        Raises:
            Error: The groups do not fit so many replicas.
        """
        self._members = members
        for name, grouping in self.items():
            self._checked(name, *grouping)

    def check_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Raise Error if an update would differ between replicas of a weight."""
        if self._groups and getattr(optimizer, "max_grad_norm", None) is not None:
            raise Error(
                f"{', '.join(self._groups)} differ between replicas, for which "
                "max_grad_norm is not supported: each replica would clip by the norm "
                "of its gradients, and weights that replicas share would no longer be "
                "the same. Leave max_grad_norm out."
            )

    def group_counts(self) -> dict[str, int]:
        """Return how many groups each grouped parameter has, by its name."""
        return {name: groups.count for name, groups in self._groups.items()}

    # Any: whatever the module's forward takes and returns.
    def call(
        self,
        module: nn.Module,
        replica: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Call the module with the parameters of a local replica."""
        if not self._groups:
            return module(*args, **kwargs)
        number = self._members.first_replica + replica
        rows = {
            name: module.get_parameter(name)[groups.group_of(number)]
            for name, groups in self._groups.items()
        }
        return functional_call(module, rows, args, dict(kwargs))


# The groupings of the executor that a program has last read each parameter from, and
# the parameter's name there.
# Any: torch's dictionary has no types.
_read_from: Any = WeakIdKeyDictionary()


def note_read(
    parameter: nn.Parameter, groupings: PerReplicaParameters, name: str
) -> None:
    """Remember the executor that a parameter is read from, for replicaGrouping."""
    _read_from[parameter] = ref(groupings), name


def _replica_grouping(
    parameter: nn.Parameter,
    comm_group_type: CommGroupType,
    shards: int,
    variable_retrieval_mode: VariableRetrievalMode,
) -> None:
    """Let the parameter have one value for each group of replicas.

    Args:
        parameter: The parameter, as an attribute of an executor.
        comm_group_type: The order of the replicas in groups.
        shards: How many replicas a group has.
        variable_retrieval_mode: OnePerGroup; or AllReplicas, for groups of one.
    """
    reference, name = _read_from.get(parameter, (lambda: None, ""))
    groupings = reference()
    if groupings is None:
        raise Error(
            "replicaGrouping must be called on a parameter of a trainingModel or an "
            "inferenceModel, as in model.weight.replicaGrouping(...). For parameters "
            'of modules inside, use model.per_replica_params["layer.weight"] = ...'
        )
    groupings[name] = comm_group_type, shards, variable_retrieval_mode


nn.Parameter.replicaGrouping = _replica_grouping  # type: ignore[attr-defined]
