"""The state of an executor's module: compiled, loaded, and what its calls do.

Any: a model's forward takes and returns objects of all kinds.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from popdist.torch.replicated.replicas import LocalReplicas
from popdist.torch.replicated.trainer import broadcast

from .._logging import log_options, logger
from ..autocasting import casting
from ..enums import ConnectionType, MeanReductionStrategy
from ..execution import Execution
from ..optim import Optimizer as ExtendedOptimizer
from ..options import Options
from ..options.popart_options import check_options
from .compile.compilation import Compilation, Compiled
from .compile.graph_search import warn_of_int64
from .compile.progress_bar import compilation_bar
from .forward.constant_attributes import ConstantAttributes
from .forward.float_checks import FloatChecks
from .forward.half_precision import HalfPrecision
from .forward.losses import TORCH_LOSS, TorchLosses, loss_of
from .forward.micro_batches import Inputs
from .forward.module_buffers import ModuleBuffers
from .forward.outputs import Outputs, refuse_backward
from .forward.signature import ForwardArguments
from .replica_grouping import PerReplicaParameters
from .run_settings import RunSettings
from .timing import Timing
from .update.anchors import Anchors
from .update.freed_memory import keep_freed_memory
from .update.instances import meet
from .update.optimizer_checks import ExpectedAttributes, check_supported
from .update.training import Training

_DEFAULT_LEARNING_RATE = 0.01


class ModelState:
    """A module on its way to a device: compiled, loaded, and run.

    `compiled` is None until the module is. When it runs first, it is loaded.
    """

    def __init__(
        self,
        module: nn.Module,
        options: Options,
        settings: RunSettings,
        optimizer: torch.optim.Optimizer | None,
        grouped: PerReplicaParameters,
    ) -> None:
        self.module, self.settings, self.grouped = module, settings, grouped
        self._options = options
        self._arguments = ForwardArguments(module.forward)
        if optimizer is not None:
            check_supported(optimizer)
        self.optimizer = optimizer
        self.forget()

    def forget(self) -> None:
        """Make the module one that is neither compiled nor loaded."""
        self.compiled: Compiled | None = None
        self.training: Training | None = None
        self.attached = self._is_loaded = self.grouped.frozen = False
        self._buffers = ModuleBuffers(self.module, self.settings.replicas)
        seed = self.settings.random_seed
        self.replicas = LocalReplicas(self.settings, self._buffers, seed)
        # The attributes of the optimizer when the model was loaded.
        self._expected: ExpectedAttributes | None = None
        # The anchored tensors of the last call.
        self.anchors = Anchors(
            self._options.anchored_tensors,
            self.settings.output_mode,
            self.settings.output_period,
        )
        # The attributes when the model was compiled; None without that.
        self._attributes: ConstantAttributes | None = None

    def inputs(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
        """Return the inputs as the device has them: it has no float64."""
        inputs = Inputs(args, kwargs, self.settings, self._arguments)
        if not inputs.has_float64 or any(
            parameter.dtype is torch.float64 for parameter in self.module.parameters()
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
        popart = self._options._Popart.options
        check_options(popart)
        cached = popart.get("enableEngineCaching") and popart.get("cachePath")
        attributes = ConstantAttributes(self.module)
        with compilation_bar(self._options._show_compilation_progress_bar) as progress:
            compilation = Compilation(
                module=self.module,
                inputs=inputs,
                settings=self.settings,
                buffers=self._buffers,
                attributes=attributes,
                grouped=self.grouped,
                progress=progress,
            )
            self.compiled = compilation.cached(Path(str(cached)) if cached else None)
            progress(100)
        self.grouped.frozen = True
        attributes.keep(self.compiled.changing)
        self._attributes = attributes
        warn_of_int64(self.compiled.int64)
        self.attach()
        return self.compiled

    def attach(self) -> None:
        """Attach to the device, unless the options say that there is none."""
        self.attached = self._options.connection_type != ConnectionType.Never
        if self.attached and isinstance(self.optimizer, ExtendedOptimizer):
            if self.settings.loss_scaling and self.optimizer._loss_factor is None:
                self.optimizer._loss_factor = 1.0
            self.optimizer.enter_device(self._parameter_names())

    def run(self, compiled: Compiled, inputs: Inputs) -> tuple[Any, Timing]:
        """Run all micro-batches on all local replicas.

        When training, the weights are updated once in each device iteration.

        Returns:
            The outputs that the options ask for, and when the parts of the call began.
        """
        if self._attributes is None:
            self._attributes = ConstantAttributes(self.module)
            self._attributes.keep(compiled.changing)
        self._load(compiled)
        self.attached = True
        call = _Call(self, compiled, inputs, self._attributes, Outputs(self.settings))
        trainer = None
        if self.training is not None:
            self.anchors.begin()
            trainer = self.training.trainer
        with self._attributes.training_flags(), self._torch_set_up(compiled.half):
            self.replicas.run(call, trainer)
        result = call.outputs.result()
        if trainer is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    leaf.backward = refuse_backward  # type: ignore[method-assign]
        return result, call.timing

    def _load(self, compiled: Compiled) -> None:
        """Load the weights when the model runs first: when training, instance 0's."""
        if self._is_loaded:
            return
        if self.settings.training:
            keep_freed_memory()
            members = meet(self.settings)
            self.grouped.set_members(members)
            weights = [*self.module.parameters(), *self.module.buffers()]
            broadcast(members, [weight.detach() for weight in weights])
            self._buffers.reset()
            self.grouped.check_optimizer(self._chosen_optimizer())
            self._expect_attributes_of(self._chosen_optimizer())
            options = self._options.Training
            strategy = options.meanAccumulationAndReplicationReductionStrategy
            self.training = Training(
                self.settings,
                members,
                self._chosen_optimizer(),
                self._parameter_names(),
                self.anchors,
                half=compiled.half,
                running_means=strategy == MeanReductionStrategy.Running,
                group_counts=self.grouped.group_counts(),
            )
        self._is_loaded = True

    @contextmanager
    def _torch_set_up(self, half: bool) -> Iterator[None]:
        """Set torch up as models need it, and leave it as it was."""
        with ExitStack() as contexts:
            if self.settings.float_checks:
                # Below the other, which clips overflows.
                contexts.enter_context(FloatChecks())  # type: ignore[no-untyped-call]
            if half:
                contexts.enter_context(HalfPrecision())
            yield

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimizer, as it is now.

        Raises:
            Error: A constant attribute changes.
            AssertionError: PopTorch does not support an optimizer of this class.
            ValueError: PopTorch does not support this variant of the optimizer.
        """
        check_supported(optimizer)
        self.grouped.check_optimizer(optimizer)
        if self._expected is not None:
            if type(optimizer) is type(self.optimizer):
                self._expected.check(optimizer)
            else:
                self._expect_attributes_of(optimizer)
        if self.training is not None:
            self.training.set_optimizer(optimizer)
        self.optimizer = optimizer
        if self.attached and isinstance(optimizer, ExtendedOptimizer):
            optimizer.enter_device(self._parameter_names())

    def _expect_attributes_of(self, optimizer: torch.optim.Optimizer) -> None:
        is_relaxed = self._options._relax_optimizer_checks
        self._expected = ExpectedAttributes(optimizer, is_relaxed)

    def _chosen_optimizer(self) -> torch.optim.Optimizer:
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(
                self.module.parameters(), lr=_DEFAULT_LEARNING_RATE
            )
        return self.optimizer

    def _parameter_names(self) -> dict[torch.Tensor, str]:
        return {p: name for name, p in self.module.named_parameters()}


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a model, as LocalReplicas runs it."""

    state: ModelState
    compiled: Compiled
    inputs: Inputs
    attributes: ConstantAttributes
    outputs: Outputs
    timing: Timing = field(default_factory=Timing)

    def begin_iteration(self, iteration: int) -> None:
        self.timing.begin_iteration()

    def end_iteration(self, iteration: int) -> None:
        self.timing.end_iteration()

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        timing, begin = self.timing, perf_counter()
        args, kwargs = self.inputs.micro_batch(iteration, step, replica)
        timing.dividing += perf_counter() - begin
        output = self._run(replica, args, kwargs)
        begin = perf_counter()
        self.inputs.keep_changes()
        self.outputs.add(iteration, step, replica, output)
        timing.keeping += perf_counter() - begin

    def _run(self, replica: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run forward and, when training, backward; return the outputs."""
        state, source = self.state, self.compiled.loss
        recording = TorchLosses() if source == TORCH_LOSS else nullcontext()
        with (
            Execution(state.settings.training) as execution,
            self.attributes.restored(),
            self._casting(execution),
            recording,
        ):
            output = state.grouped.call(state.module, replica, args, kwargs)
        if state.training is not None and source is not None:
            recorded = getattr(recording, "recorded", ())
            loss = loss_of(source, execution.losses, recorded, output)
            state.training.backward(loss)
        return output

    def _casting(self, execution: Execution) -> AbstractContextManager[None]:
        rules = self.state.settings.cast_rules
        if rules is None:
            return nullcontext()
        if not self.compiled.casts:
            execution.regions.may_cast = False
            return nullcontext()
        return casting(execution, rules)


@cache
def _warn_of_float64() -> None:
    logger.warning(
        "torch.float64 is not supported natively on IPU, loss of range/precision may "
        "occur. Inputs are converted to torch.float32. We will only warn on the first "
        "instance."
    )
