"""The state of an executor's module: compiled, loaded, attached to its device."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from popdist.torch.replicated.random_numbers import torch_streams
from popdist.torch.replicated.training import broadcast

from .._logging import log_options, logger
from ..enums import ConnectionType
from ..optim import Optimizer as ExtendedOptimizer
from ..options import Options
from ..options.popart_options import check_options
from .compile.compilation import Compilation, Compiled
from .compile.graph_search import warn_of_int64
from .compile.progress_bar import compilation_bar
from .forward.constant_attributes import ConstantAttributes
from .forward.micro_batches import Inputs
from .forward.module_buffers import ModuleBuffers
from .forward.signature import ForwardArguments
from .forward.training_flags import TrainingFlags
from .replica_grouping import PerReplicaParameters
from .replicated_model import ReplicatedModel, Training
from .run_settings import RunSettings
from .update.anchors import Anchors
from .update.freed_memory import keep_freed_memory
from .update.instances import meet
from .update.optimizer_checks import ExpectedAttributes, check_supported
from .update.weight_update import WeightUpdate

_DEFAULT_LEARNING_RATE = 0.01


class ModelState:
    """A module on its way to a device: compiled, loaded, attached.

    `compiled` and `loaded` are None until the module is.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        settings: RunSettings,
        optimizer: torch.optim.Optimizer | None,
        grouped: PerReplicaParameters,
    ) -> None:
        self._module = module
        self._grouped = grouped
        self._options = options
        self._settings = settings
        self._arguments = ForwardArguments(module.forward)
        if optimizer is not None:
            check_supported(optimizer)
        self.optimizer = optimizer
        self.forget()

    def forget(self) -> None:
        """Make the module one that is neither compiled nor loaded."""
        self.compiled: Compiled | None = None
        self.loaded: ReplicatedModel | None = None
        self.attached = self._grouped.frozen = False
        self.flags = TrainingFlags()
        self.buffers = ModuleBuffers(self._module, self._settings.replicas)
        self.streams = torch_streams(self._settings.random_seed)
        # The attributes of the optimizer when the model was loaded.
        self._expected: ExpectedAttributes | None = None
        # The anchored tensors of the last call.
        self.anchors = Anchors(
            self._options.anchored_tensors,
            self._settings.output_mode,
            self._settings.output_period,
        )
        # The attributes when the model was compiled; None without that.
        self.attributes: ConstantAttributes | None = None

    # Any: whatever the module's forward takes.
    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the inputs as the device has them: it has no float64."""
        inputs = Inputs(args, kwargs, self._settings, self._arguments)
        if not inputs.has_float64 or any(
            parameter.dtype is torch.float64 for parameter in self._module.parameters()
        ):
            return inputs
        _warn_of_float64()
        return inputs.in_float32()

    def compile(self, inputs: Inputs) -> Compiled:
        """Compile the module for inputs like these.

        Raises:
            Error: The model cannot run with these options.
        """
        # Reading popdist's options attaches this process to its device.
        log_options(self._options.clone().toDict())
        if self._options.exists("use_model"):
            is_model = "Enabled" if self._options.use_model else "Disabled"
            logger.info("From the user configuration: Ipu model: %s", is_model)
        popart = self._options._popart.options
        check_options(popart)
        cached = popart.get("enableEngineCaching") and popart.get("cachePath")
        self.flags = TrainingFlags()
        attributes = ConstantAttributes(self._module)
        with (
            self.flags.applied(self._module),
            compilation_bar(self._options._show_compilation_progress_bar) as progress,
        ):
            compilation = Compilation(
                module=self._module,
                inputs=inputs,
                settings=self._settings,
                buffers=self.buffers,
                attributes=attributes,
                streams=torch_streams(self._settings.random_seed),
                grouped=self._grouped,
                progress=progress,
            )
            self.compiled = compilation.cached(Path(str(cached)) if cached else None)
            progress(100)
        self._grouped.frozen = True
        attributes.keep(self.compiled.changing)
        self.attributes = attributes
        warn_of_int64(self.compiled.int64)
        self.attach()
        return self.compiled

    def attach(self) -> None:
        """Attach to the device, unless the options say that there is none."""
        self.attached = self._options.connection_type != ConnectionType.Never
        if self.attached and isinstance(self.optimizer, ExtendedOptimizer):
            if self._settings.loss_scaling and self.optimizer._loss_factor is None:
                self.optimizer._loss_factor = 1.0
            self.optimizer.enter_device(self._parameter_names())

    def load(self, compiled: Compiled) -> ReplicatedModel:
        """Load the weights when the model runs first: when training, instance 0's."""
        if self.loaded is not None:
            return self.loaded
        training = None
        if self._settings.training:
            keep_freed_memory()
            members = meet(self._settings)
            self._grouped.set_members(members)
            self.streams.first_replica = members.first_replica
            weights = [*self._module.parameters(), *self._module.buffers()]
            broadcast(members, [weight.detach() for weight in weights])
            self.buffers.of_replicas.reset()
            self._grouped.check_optimizer(self._chosen_optimizer())
            update = WeightUpdate(self._chosen_optimizer(), self._parameter_names())
            self._expect_attributes_of(update.optimizer)
            training = Training(
                self._settings, members, update, self.anchors, compiled.half
            )
        if self.attributes is None:
            self.attributes = ConstantAttributes(self._module)
            self.attributes.keep(compiled.changing)
        self.loaded = ReplicatedModel(
            self._module,
            self._settings,
            self.buffers,
            self.attributes,
            self.streams,
            training,
            self._grouped,
        )
        return self.loaded

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimizer, as it is now.

        Raises:
            Error: A constant attribute changes.
            AssertionError: PopTorch does not support an optimizer of this class.
            ValueError: PopTorch does not support this variant of the optimizer.
        """
        check_supported(optimizer)
        self._grouped.check_optimizer(optimizer)
        if self._expected is not None:
            if type(optimizer) is type(self.optimizer):
                self._expected.check(optimizer)
            else:
                self._expect_attributes_of(optimizer)
        training = None if self.loaded is None else self.loaded.training
        if training is not None:
            training.set_optimizer(optimizer)
        self.optimizer = optimizer
        if self.attached and isinstance(optimizer, ExtendedOptimizer):
            optimizer.enter_device(self._parameter_names())

    def _expect_attributes_of(self, optimizer: torch.optim.Optimizer) -> None:
        is_relaxed = self._options._relax_optimizer_checks
        self._expected = ExpectedAttributes(optimizer, is_relaxed)

    def _chosen_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(
                self._module.parameters(), lr=_DEFAULT_LEARNING_RATE
            )
        return self.optimizer

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {p: name for name, p in self._module.named_parameters()}


@cache
def _warn_of_float64() -> None:
    logger.warning(
        "torch.float64 is not supported natively on IPU, loss of range/precision may "
        "occur. Inputs are converted to torch.float32. We will only warn on the first "
        "instance."
    )
