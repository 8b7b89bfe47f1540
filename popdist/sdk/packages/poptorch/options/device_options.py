"""The part of Options that is about devices."""

from typing import Self

from ..enums import ConnectionType, SyncPattern
from ..errors import require, require_poptorch, require_type
from .option_values import OptionValues
from .popart_options import _PopartOptions
from .strategies import _IExecutionStrategy

SYNTHETIC_DATA_OFF, SYNTHETIC_DATA_RANDOM = 0, 2


class _DeviceOptions(OptionValues):
    """The device, and how a model runs on it.

    Recorded options have no effect on a CPU.
    """

    _popart: _PopartOptions
    _execution_strategy: _IExecutionStrategy

    def setExecutionStrategy(self, strategy: _IExecutionStrategy) -> Self:
        """Set the place and the order of the model's blocks."""
        require(
            isinstance(strategy, _IExecutionStrategy),
            f"{strategy!r} is not an execution strategy such as "
            "poptorch.PipelinedExecution().",
        )
        self._execution_strategy = strategy
        return self

    def setAvailableMemoryProportion(
        self, available_memory_proportion: dict[str, float]
    ) -> Self:
        """Record which part of each IPU's memory is for temporary data."""
        proportions = {}
        for key, proportion in available_memory_proportion.items():
            require(
                key.startswith("IPU"),
                f"A proportion is given for {key!r}, but each needs the name of an "
                'IPU: {"IPU0": 0.5}.',
            )
            proportions[int(key.removeprefix("IPU"))] = proportion
        return self.set(available_memory_proportion=proportions)

    def autoRoundNumIPUs(self, auto_round_num_ipus: bool = True) -> Self:
        """Record whether IPUs are rounded up to a power of 2."""
        return self.set(auto_round_num_ipus=auto_round_num_ipus)

    def connectionType(self, connection_type: ConnectionType) -> Self:
        """Set when a model attaches to its device; Never: it can only be compiled."""
        require_poptorch(connection_type, ConnectionType)
        return self.set(connection_type=connection_type.value)

    def syncPattern(self, sync_pattern: SyncPattern) -> Self:
        """Record which IPUs synchronise with each other."""
        require_poptorch(sync_pattern, SyncPattern)
        return self.set(sync_pattern=sync_pattern.value)

    def useIpuModel(self, use_model: bool) -> Self:
        """Record whether a model of an IPU is used instead of a device."""
        return self.createOrSet(use_model=use_model)

    def useIpuId(self, ipu_id: int) -> Self:
        """Record the id of the device."""
        require_type("ipu_id", ipu_id, int)
        return self.createOrSet(ipu_id=ipu_id)

    def useOfflineIpuTarget(self, ipu_version: int = 2) -> Self:
        """Only compile, for this version of the IPU."""
        self.connectionType(ConnectionType.Never)
        return self.createOrSet(ipu_version=ipu_version)

    def enableExecutableCaching(self, path: str | None) -> Self:
        """Set the folder of the executable cache; None: there is none."""
        if path is not None:
            self._popart.set("cachePath", path)
        self._popart.set("enableEngineCaching", path is not None)
        return self

    def enableStableNorm(self, enabled: bool) -> Self:
        """Record whether norms are computed in a slower and more exact way."""
        self._popart.set("enableStableNorm", enabled)
        return self

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Record whether the device makes up its input."""
        mode = SYNTHETIC_DATA_RANDOM if enabled else SYNTHETIC_DATA_OFF
        self._popart.set("syntheticDataMode", mode)
        return self
