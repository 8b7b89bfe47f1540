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
from .device_options import _DeviceOptions
from .distributed_options import _DistributedOptions
from .jit_options import _JitOptions
from .location_options import TensorLocationSettings, _TensorLocationOptions
from .option_values import OptionValues
from .popart_options import _PopartOptions
from .precision_options import _PrecisionOptions
from .report_options import _ReportOptions
from .sources import set_from_file, set_from_json
from .strategies import PipelinedExecution, _IExecutionStrategy
from .training_options import _TrainingOptions


class Options(_DeviceOptions, _ReportOptions):
    """How a model is run: each method sets an option and returns the options.

    Options that only matter on an IPU are checked and recorded: A method that begins
    with "Record" has no effect on a CPU.
    """

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
        self._popart = _PopartOptions()
        self._jit = _JitOptions()
        self._precision = _PrecisionOptions(self._popart)
        self._training = _TrainingOptions(self._popart)
        self._distributed = _DistributedOptions()
        self._tensor_locations = _TensorLocationOptions()
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

    # --- The options that are about one subject.

    @property
    def TensorLocations(self) -> _TensorLocationOptions:
        """Where tensors are stored."""
        return self._tensor_locations

    @property
    def Distributed(self) -> _DistributedOptions:
        """This process among the processes that train together."""
        return self._distributed

    @property
    def Jit(self) -> _JitOptions:
        """How a model becomes a graph."""
        return self._jit

    @property
    def Precision(self) -> _PrecisionOptions:
        """The operations in float16 and in float32."""
        return self._precision

    @property
    def Training(self) -> _TrainingOptions:
        """How a step of training accumulates and reduces gradients."""
        return self._training

    @property
    def _Popart(self) -> _PopartOptions:
        return self._popart

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
        return self._popart

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
        merged.update(self._popart.options)
        merged = self.update(merged)
        for part in (self._training, self._distributed, self._tensor_locations):
            merged = part.update(merged)
        return merged

    def clone(self) -> Self:
        """Return a copy that is not frozen."""
        return self.__deepcopy__({})

    def _set_frozen(self, frozen: bool) -> None:
        super()._set_frozen(frozen)
        for part in self.__dict__.values():
            if isinstance(part, OptionValues | _PopartOptions):
                part._set_frozen(frozen)

    def __repr__(self) -> str:
        parts = ("Distributed", "Jit", "Precision", "TensorLocations", "Training")
        values = [f"{name}={value!r}" for name, value in self._values.items()]
        values += [f"{name}={getattr(self, name)!r}" for name in (*parts, "_Popart")]
        return f"{type(self).__name__}({', '.join(values)})"
