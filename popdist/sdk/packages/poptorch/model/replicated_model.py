"""A compiled module on its local replicas: what one call of an executor does."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from popdist.torch.replicated.gradients import GradientSum

from ..execution import Execution
from .compile.compilation import Compiled
from .forward.casting import casting
from .forward.constant_attributes import ConstantAttributes
from .forward.float_checks import FloatChecks
from .forward.half_precision import HalfPrecision
from .forward.losses import TorchLosses, loss_of
from .forward.micro_batches import Inputs
from .forward.outputs import Outputs, refuse_backward
from .forward.replica_state import RandomState, ReplicaBuffers, host_random_state_kept
from .forward.timing import Timing
from .run_settings import RunSettings
from .update.anchors import Anchors
from .update.exchange import Exchange
from .update.loss_scaler import LossScaler
from .update.weight_update import WeightUpdate


@dataclass
class ReplicatedModel:
    """Runs a module on all local replicas, one after another.

    They share the parameters; each has its own buffers and random numbers.
    """

    module: nn.Module
    settings: RunSettings
    buffers: ReplicaBuffers
    attributes: ConstantAttributes
    random_state: RandomState
    training: "Training | None"
    # Of the last call.
    timing: Timing = field(default_factory=Timing)

    # Any: whatever the module's forward returns.
    def run(self, compiled: Compiled, inputs: Inputs) -> Any:
        """Run all micro-batches, and return the outputs that the options ask for.

        When training, the weights are updated once in each device iteration.
        """
        outputs, self.timing = Outputs(self.settings), Timing()
        if self.training is not None:
            self.training.anchors.begin()
        with _torch_set_up(self.settings, compiled.half):
            for iteration in range(self.settings.device_iterations):
                self._run_iteration(compiled, iteration, inputs, outputs)
        result = outputs.result()
        if self.training is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    leaf.backward = refuse_backward  # type: ignore[method-assign]
        return result

    def _run_iteration(
        self, compiled: Compiled, iteration: int, inputs: Inputs, outputs: Outputs
    ) -> None:
        timing, training = self.timing, self.training
        timing.mark(timing.input)
        if training is not None:
            training.begin()
        self.buffers.prepare()
        timing.mark(timing.input_complete)
        for replica in range(self.settings.replicas):
            self.random_state.begin(replica)
            with self.buffers.of(replica):
                for step in range(self.settings.gradient_accumulation):
                    output = self._run_micro_batch(
                        compiled, inputs.micro_batch(iteration, step, replica)
                    )
                    inputs.keep_changes()
                    outputs.add(iteration, step, replica, output)
                    del output
            if training is not None:
                training.gradients.after_replica(replica)
        if training is not None:
            training.update_weights()
        timing.mark(timing.output)
        self.random_state.iterations += 1
        timing.mark(timing.output_complete)

    # Any: whatever the module's forward takes and returns.
    def _run_micro_batch(
        self, compiled: Compiled, inputs: tuple[tuple[Any, ...], dict[str, Any]]
    ) -> Any:
        """Run forward and, when training, backward; return detached outputs."""
        args, kwargs = inputs
        with (
            Execution(self.settings.training) as execution,
            self.attributes.restored(),
            self._casting(compiled, execution),
        ):
            if self.training is None or compiled.loss is None:
                return self.module(*args, **kwargs)
            output, recorded = self._forward(compiled, args, kwargs)
        loss = loss_of(compiled.loss, execution, recorded, output)

        self.training.backward(loss)
        return output

    def _casting(
        self, compiled: Compiled, execution: Execution
    ) -> AbstractContextManager[None]:
        rules = self.settings.cast_rules
        if rules is None:
            return nullcontext()
        if not compiled.casts:
            execution.regions.may_cast = False
            return nullcontext()
        return casting(execution, rules)

    # Any: whatever the module's forward takes and returns.
    def _forward(
        self, compiled: Compiled, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[torch.Tensor]]:
        if compiled.loss is None or not compiled.loss.needs_recording:
            return self.module(*args, **kwargs), []
        with TorchLosses() as recorder:
            output = self.module(*args, **kwargs)
        return output, recorder.recorded


class Training:
    """What a model needs to train: gradients, their exchange, and the update."""

    def __init__(
        self,
        settings: RunSettings,
        exchange: Exchange,
        update: WeightUpdate,
        anchors: Anchors,
        half: bool,
    ) -> None:
        self._settings = settings
        self.anchors = anchors
        self._exchange = exchange
        self._half = half
        self.update = update
        scaling = settings.loss_scaling if half else None
        self._scaler = LossScaler(scaling) if scaling is not None else None
        self._set_up()

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights by this optimizer from now on.

        Raises:
            Error: It changes an attribute that is marked as constant.
        """
        self.update.set_optimizer(optimizer)
        self._set_up()

    def _set_up(self) -> None:
        """Make the sum of gradients, and the scales, that the update needs."""
        update = self.update
        self.gradients = GradientSum(
            update.parameters,
            self._exchange.members.first_replica,
            self._settings.replicas,
            self._settings.gradient_accumulation,
            separate=self._exchange.members.separate_rows,
        )
        self._set_scales()

    def _set_scales(self) -> None:
        divisor = self._micro_batches if self._settings.mean else 1
        # Gradients of float16 would vanish if the loss were divided; others are
        # cheaper to divide so.
        scaling = self.update.loss_scaling if self._half else 1
        self._loss_scale = scaling if self._half else 1 / divisor
        self._gradient_scale = 1 / (divisor * scaling) if self._half else 1.0

    @property
    def _micro_batches(self) -> int:
        """How many micro-batches all replicas of the job run for one update."""
        accumulation = self._settings.gradient_accumulation
        return accumulation * self._exchange.members.replicas

    def begin(self) -> None:
        """Begin the micro-batches of one update."""
        self.gradients.begin()
        if self._scaler is not None:
            self._set_scales()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a micro-batch."""
        # Not a gradient given to backward(), whose checks take longer and import sympy.
        if loss.numel() != 1:
            loss = loss.sum()
        if self._loss_scale != 1:
            loss = loss * self._loss_scale
        loss.backward()  # type: ignore[no-untyped-call]
        if self.gradients.has_short:
            self.gradients.after_micro_batch()

    def update_weights(self) -> None:
        """Reduce the gradients over all replicas of all instances, and update once."""
        update = self.update
        total = self._exchange.reduced(self.gradients, update.parameters, update.names)
        factor, scale = 1.0, update.loss_scaling
        if self._scaler is not None:
            factor = self._scaler.next_factor(
                update.parameters, total, self._micro_batches, scale
            )
        update.step(total, self._gradient_scale)
        self.anchors.keep(update.parameters, update.names, total, scale)
        if factor != 1:
            update.loss_factor *= factor


@contextmanager
def _torch_set_up(settings: RunSettings, half: bool) -> Iterator[None]:
    """Set torch up as models need it, and leave it as it was."""
    with ExitStack() as contexts:
        contexts.enter_context(host_random_state_kept())
        contexts.enter_context(torch.set_grad_enabled(settings.training))
        if settings.float_checks:
            # Below the other, which clips what overflows.
            contexts.enter_context(FloatChecks())  # type: ignore[no-untyped-call]
        if half:
            contexts.enter_context(HalfPrecision())
        yield
