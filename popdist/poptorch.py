"""PopTorch's options for the replicas of this instance.

They work with Graphcore's PopTorch if it is installed, and otherwise with the stand-in.
"""

import os
from typing import Any, NoReturn

import popdist
from popdist import environment as env

try:
    import poptorch
    import poptorch.options
except ModuleNotFoundError as error:
    if error.name != "poptorch":
        raise
    raise ModuleNotFoundError(
        "popdist.poptorch needs poptorch, which is not installed. Its stand-in can be "
        "imported under poprun. Elsewhere, `python -m popdist.sdk enable` makes it "
        "importable in this environment, and `python -m popdist.sdk PROGRAM` for one "
        "program.",
        name="poptorch",
    ) from None

__all__ = ["Options"]


# The stand-in trains without devices, so it does so in offline mode too.
_IS_STAND_IN = getattr(poptorch, "__stand_in__", False)


def _is_offline() -> bool:
    return os.environ.get(env.OFFLINE_MODE) == "1"


def _refuse(method: str, reason: str) -> NoReturn:
    raise RuntimeError(
        f"Cannot call `{method}` with popdist.poptorch.Options: {reason}. "
        "Use poptorch.Options to set it in the program."
    )


class _Distributed(poptorch.options._DistributedOptions):
    """The place of this instance, fixed by poprun."""

    # With any arguments: the refusal is the answer to wrong ones, too.

    def disable(self) -> NoReturn:
        _refuse("Distributed.disable", "poprun decides how many instances there are")

    def setEnvVarNames(self, *_: object, **__: object) -> NoReturn:
        _refuse("Distributed.setEnvVarNames", "poprun decides which instance this is")

    def configureProcessId(self, *_: object, **__: object) -> NoReturn:
        _refuse(
            "Distributed.configureProcessId", "poprun decides which instance this is"
        )


class Options(poptorch.Options):
    """Options with the local replicas, the device and the index of this instance.

    Without poprun they are for one instance with one replica.
    """

    def __init__(self, ipus_per_replica: int | None = None) -> None:
        """Make options.

        Args:
            ipus_per_replica: How many IPUs a replica of this model has; None: as many
                as poprun's --ipus-per-replica.
        """
        super().__init__()
        self._ipus_per_replica = ipus_per_replica
        super().replicationFactor(popdist.getNumLocalReplicas())
        self.Distributed.configureProcessId(
            popdist.getInstanceIndex(), popdist.getNumInstances()
        )
        self.Distributed.__class__ = _Distributed
        cache = os.environ.get(env.EXECUTABLE_CACHE_PATH)
        if cache and not os.environ.get("POPTORCH_CACHE_DIR"):
            self.enableExecutableCaching(cache)
        if _is_offline() and not _IS_STAND_IN:
            self.useOfflineIpuTarget()

    def useIpuId(self, ipu_id: int) -> NoReturn:
        """Refuse to set the device."""
        _refuse("useIpuId", "poprun decides which device this instance has")

    def replicationFactor(self, replication_factor: int) -> NoReturn:
        """Refuse to set the number of replicas."""
        _refuse("replicationFactor", "poprun decides how many replicas there are")

    # Any: options have values of many types.
    def toDict(self) -> dict[str, Any]:
        """Return all options as one dictionary, the device among them.

        The device is attached only now: most options are never run.
        """
        merged: dict[str, Any] = super().toDict()
        connects = self.connection_type != poptorch.ConnectionType.Never
        if connects and not _is_offline():
            merged["ipu_id"] = popdist.getDeviceId(self._ipus_per_replica)
        return merged
