"""Options: all that controls how a model is run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch

from .. import enums
from .._logging import logger, warn_deprecated
from ..enums import CommGroupType, ConnectionType, OutputMode, SyncPattern
from ..errors import require, require_poptorch, require_type
from . import strategies
from .option_groups import (
    TensorLocationSettings,
    _DistributedOptions,
    _JitOptions,
    _PrecisionOptions,
    _TensorLocationOptions,
    _TrainingOptions,
)
from .option_values import Freezable, OptionValues
from .popart_options import _PopartOptions
from .sources import set_from_file, set_from_json
from .strategies import PipelinedExecution, _IExecutionStrategy

SYNTHETIC_DATA_OFF, SYNTHETIC_DATA_RANDOM = 0, 2


class Options(OptionValues):
    """How a model is run: each method sets an option and returns the options.

    Options that only matter on an IPU are checked and recorded: A method that begins
    with "Record" has no effect on a CPU.
    """

    # Where tensors are stored.
    TensorLocations: _TensorLocationOptions
    # This process among the processes that train together.
    Distributed: _DistributedOptions
    # How a model becomes a graph.
    Jit: _JitOptions
    # The operations in float16 and in float32.
    Precision: _PrecisionOptions
    # How a step of training accumulates and reduces gradients.
    Training: _TrainingOptions
    _Popart: _PopartOptions

    def __init__(self) -> None:
        super().__init__(
            replication_factor=1,
            input_group_type=CommGroupType.Consecutive.value,
            input_group_size=1,
            broadcast_buffers=True,
            device_iterations=1,
            log_dir=".",
            auto_round_num_ipus=False,
            anchored_tensors={},
            output_mode=OutputMode.Default.value,
            output_return_period=1,
            connection_type=ConnectionType.Always.value,
            sync_pattern=SyncPattern.Full.value,
            available_memory_proportion={},
            max_repeat_logs=4,
        )
        popart = _PopartOptions()
        # Not by __setattr__, which takes options alone.
        self.__dict__.update(
            Distributed=_DistributedOptions(),
            Jit=_JitOptions(trace_model=True),
            Precision=_PrecisionOptions(popart),
            TensorLocations=_TensorLocationOptions(),
            Training=_TrainingOptions(popart),
            _Popart=popart,
        )
        self._execution_strategy: _IExecutionStrategy = PipelinedExecution()
        self._source_location_excludes: list[str] = []
        self._relax_optimizer_checks = False
        self._show_compilation_progress_bar = True
        self._module_namescope_enabled = True
        self._set_defaults_from_environment()

    def _set_defaults_from_environment(self) -> None:
        path = os.environ.get("POPTORCH_CACHE_DIR")
        if path:
            logger.info("POPTORCH_CACHE_DIR sets the cache's path: %s", path)
            self.enableExecutableCaching(path)
        defaults = os.environ.get("POPTORCH_DEFAULT_OPTIONS")
        if defaults:
            self.from_json(defaults)

    # --- How many samples a call takes, and what it returns.

    def deviceIterations(self, device_iterations: int) -> Self:
        """Set how many steps one call of a model makes."""
        return self.set(device_iterations=device_iterations)

    def replicationFactor(self, replication_factor: int) -> Self:
        """Set how many replicas of the model this process has."""
        return self.set(replication_factor=replication_factor)

    def inputReplicaGrouping(
        self,
        input_group_size: int,
        input_group_type: CommGroupType = CommGroupType.Consecutive,
    ) -> Self:
        """Set how many replicas get the same input, and which.

        Raises:
            ValueError: The size is not a positive int, or the type is All.
        """
        if not isinstance(input_group_size, int) or input_group_size < 1:
            raise ValueError(
                f"input_group_size is {input_group_size!r}, but must be a positive "
                "integer that divides the replication factor."
            )
        if (
            not isinstance(input_group_type, CommGroupType)
            or input_group_type == CommGroupType.All
        ):
            raise ValueError(
                f"input_group_type is {input_group_type!r}, but must be a "
                "poptorch.CommGroupType other than All."
            )
        return self.set(
            input_group_size=input_group_size, input_group_type=input_group_type.value
        )

    def outputMode(
        self, output_mode: OutputMode, output_return_period: int | None = None
    ) -> Self:
        """Set which of the results of a call are returned."""
        require_poptorch(output_mode, OutputMode)
        if output_mode == OutputMode.EveryN:
            require(
                output_return_period and output_return_period > 0,
                "EveryN anchor must have output_return_period set to valid positive "
                "integer",
            )
        elif output_return_period not in (None, 1):
            logger.info("The return period has no effect with %s.", output_mode)
            output_return_period = 1
        return self.set(
            output_mode=output_mode.value,
            output_return_period=output_return_period or 1,
        )

    def defaultOutputMode(self) -> bool:
        """Return whether the output mode is the default one."""
        return bool(self.output_mode == OutputMode.Default)

    def anchorTensor(
        self,
        short_name: str,
        long_name: str,
        output_mode: OutputMode | None = None,
        output_return_period: int | None = 1,
    ) -> Self:
        """Keep a tensor of each call for PoplarExecutor.getAnchoredTensor().

        These are gradients and updated weights: Gradient___NAME, UpdatedVar___NAME.

        Args:
            short_name: The name that getAnchoredTensor() takes.
            long_name: The name that PoplarExecutor.getTensorNames() returns.
            output_mode: The weight updates that it is kept for; None: as the outputs.
            output_return_period: With EveryN, of every so many updates.
        """
        self.checkIsFrozen()
        period = output_return_period if output_mode == OutputMode.EveryN else 1
        anchor = [long_name, output_mode is None, output_mode, period]
        self._values["anchored_tensors"][short_name] = anchor
        return self

    def randomSeed(self, random_seed: int) -> Self:
        """Seed all random numbers, and torch's own from this call on."""
        require_type("random_seed", random_seed, int)
        self.createOrSet(random_seed=random_seed)
        torch.manual_seed(random_seed)
        return self

    def broadcastBuffers(self, broadcast_buffers: bool = True) -> Self:
        """Set whether replicas have the same buffers; models may change others."""
        return self.set(broadcast_buffers=broadcast_buffers)

    def updatableNamedBuffers(self, buffers: Sequence[str]) -> Self:
        """Record which buffers may be updated from the host: here all may."""
        return self.createOrSet(updatable_named_buffers=list(buffers))

    # --- The device, and how a model runs on it.

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
        for key in available_memory_proportion:
            require(
                key.startswith("IPU"),
                f"A proportion is given for {key!r}, but each needs the name of an "
                'IPU: {"IPU0": 0.5}.',
            )
        proportions = {
            int(key.removeprefix("IPU")): proportion
            for key, proportion in available_memory_proportion.items()
        }
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
            self._Popart.set("cachePath", path)
        return self._set_popart("enableEngineCaching", path is not None)

    def enableStableNorm(self, enabled: bool) -> Self:
        """Record whether norms are computed in a slower and more exact way."""
        return self._set_popart("enableStableNorm", enabled)

    def enableSyntheticData(self, enabled: bool) -> Self:
        """Record whether the device makes up its input."""
        mode = SYNTHETIC_DATA_RANDOM if enabled else SYNTHETIC_DATA_OFF
        return self._set_popart("syntheticDataMode", mode)

    # --- Logs, progress and measurements.

    def showCompilationProgressBar(self, show: bool = True) -> Self:
        """Set whether a bar is shown while a model is compiled."""
        self._show_compilation_progress_bar = show
        return self

    def relaxOptimizerAttributesChecks(self, relax: bool = True) -> Self:
        """Set whether attributes that optimizers get later are logged at debug only."""
        self._relax_optimizer_checks = relax
        return self

    def logDir(self, log_dir: str) -> Self:
        """Record the folder of log files."""
        return self.set(log_dir=log_dir)

    def maxRepeatLogs(self, max_lines: int | None) -> Self:
        """Record how often a line is logged at most; None: as often as it comes."""
        self.checkIsFrozen()
        require(
            max_lines is None or isinstance(max_lines, int),
            f"max_lines is {max_lines!r}, but must be an int or None.",
        )
        self._values["max_repeat_logs"] = max_lines
        return self

    def modelName(self, name: str) -> Self:
        """Record the name of the model in reports."""
        return self.createOrSet(model_name=name)

    def logCycleCount(self, log_cycle_count: bool) -> Self:
        """Set whether cycleCount() has what a call has taken."""
        return self._set_popart("instrumentWithHardwareCycleCounter", log_cycle_count)

    def enableProfiling(self, profile_dir: str | None = None) -> Self:
        """Record a folder for the profile of the device."""
        reports = {
            "debug.allowOutOfMemory": "true",
            "autoReport.directory": profile_dir or ".",
            "autoReport.all": "true",
        }
        engine = self._Popart.options.get("engineOptions", {})
        return self._set_popart("engineOptions", {**engine, **reports})

    def disableModuleNamescope(self) -> Self:
        """Record that operations are not named after their modules."""
        self._module_namescope_enabled = False
        return self

    def sourceLocationExcludes(self, excludes: list[str]) -> Self:
        """Record which files are not named as the place of an operation."""
        self._source_location_excludes = list(excludes)
        return self

    def appendToLocationExcludes(self, *excludes: str) -> Self:
        """Record more files that are not named as the place of an operation."""
        return self.sourceLocationExcludes([*self._source_location_excludes, *excludes])

    # Any: each option has another type.
    def _set_popart(self, name: str, value: Any) -> Self:
        self._Popart.set(name, value)
        return self

    # --- Names of older releases: each warns once, and does what the new one does.

    def anchorMode(
        self, anchor_mode: OutputMode, anchor_return_period: int | None = None
    ) -> Self:
        """Set the output mode: its name in older releases."""
        warn_deprecated("Options.anchorMode", "Options.outputMode")
        return self.outputMode(anchor_mode, anchor_return_period)

    @property
    def Popart(self) -> _PopartOptions:
        """Options of PopART: their name in older releases."""
        warn_deprecated("Options.Popart", "Options._Popart")
        return self._Popart

    # --- Options from elsewhere, and as a whole.

    def loadFromFile(self, filepath: str | Path) -> Self:
        """Make the calls of a file, one on each line: deviceIterations(4).

        Raises:
            ConfigFileError: A line is not a call of a method, or the call raised.
        """
        names = {**vars(enums), **vars(strategies)}
        names["TensorLocationSettings"] = TensorLocationSettings
        public = {n: v for n, v in names.items() if isinstance(v, type) and n[0] != "_"}
        poptorch = type("poptorch", (), public)
        set_from_file(self, filepath, {"poptorch": poptorch, "torch": torch})
        return self

    def from_json(self, string: str) -> Self:
        """Call the methods that a JSON object names, with its values as arguments."""
        set_from_json(self, string, vars(enums))
        return self

    def toDict(self) -> dict[str, Any]:
        """Return all options as one dictionary, as a model is compiled with them."""
        require(
            not self.defaultOutputMode(),
            "The options have no output mode. Choose one with outputMode().",
        )
        merged = self._execution_strategy.backendOptions()
        merged.update(self._Popart.options)
        merged = self.update(merged)
        for part in (self.Training, self.Distributed, self.TensorLocations):
            merged = part.update(merged)
        return merged

    def clone(self) -> Self:
        """Return a copy that is not frozen."""
        return self.__deepcopy__({})

    def _set_frozen(self, frozen: bool) -> None:
        super()._set_frozen(frozen)
        for part in self.__dict__.values():
            if isinstance(part, Freezable):
                part._set_frozen(frozen)

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self._values.items()]
        values += [
            f"{name}={part!r}"
            for name, part in vars(self).items()
            if isinstance(part, Freezable)
        ]
        return f"{type(self).__name__}({', '.join(values)})"
