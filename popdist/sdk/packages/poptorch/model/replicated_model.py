"""A compiled module on its local replicas: what one call of an executor does.

Any: a model's forward takes and returns objects of all kinds.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from popdist.replicated.members import Members
from popdist.replicated.run import run_replicas
from popdist.replicated.seeds import ReplicaStreams
from popdist.torch.replicated.gradients import Row
from popdist.torch.replicated.random_numbers import host_random_state_kept
from popdist.torch.replicated.training import ReplicatedTraining

from ..autocasting import casting
from ..execution import Execution
from .compile.compilation import Compiled
from .forward.constant_attributes import ConstantAttributes
from .forward.float_checks import FloatChecks
from .forward.half_precision import HalfPrecision
from .forward.losses import TorchLosses, loss_of
from .forward.micro_batches import Inputs
from .forward.module_buffers import ModuleBuffers
from .forward.outputs import Outputs, refuse_backward
from .forward.timing import Timing
from .replica_grouping import PerReplicaParameters
from .run_settings import RunSettings
from .update.anchors import Anchors
from .update.loss_scaler import LossScaler
from .update.weight_update import WeightUpdate


@dataclass
class ReplicatedModel:
    """Runs a module on all local replicas."""

    module: nn.Module
    settings: RunSettings
    buffers: ModuleBuffers
    attributes: ConstantAttributes
    streams: ReplicaStreams
    training: "Training | None"
    grouped: PerReplicaParameters
    # The times of the last call.
    timing: Timing = field(default_factory=Timing)

    def run(self, compiled: Compiled, inputs: Inputs) -> Any:
        """Run all micro-batches, and return the outputs that the options ask for.

        When training, the weights are updated once in each device iteration.
        """
        outputs, self.timing = Outputs(self.settings), Timing()
        call = _Call(self, compiled, inputs, outputs)
        gradients = None
        if self.training is not None:
            self.training.anchors.begin()
            gradients = self.training.gradients
        with _torch_set_up(self.settings, compiled.half):
            run_replicas(
                self.settings, self.buffers.of_replicas, self.streams, call, gradients
            )
        result = outputs.result()
        if self.training is not None:
            for leaf in tree_leaves(result):
                if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
                    leaf.backward = refuse_backward  # type: ignore[method-assign]
        return result


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a model, as popdist.replicated.run runs it."""

    model: ReplicatedModel
    compiled: Compiled
    inputs: Inputs
    outputs: Outputs

    def begin_iteration(self, iteration: int) -> None:
        self.model.timing.begin_iteration()

    def end_iteration(self, iteration: int) -> None:
        self.model.timing.end_iteration()

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        timing, begin = self.model.timing, perf_counter()
        args, kwargs = self.inputs.micro_batch(iteration, step, replica)
        timing.dividing += perf_counter() - begin
        output = self._run(replica, args, kwargs)
        begin = perf_counter()
        self.inputs.keep_changes()
        self.outputs.add(iteration, step, replica, output)
        timing.keeping += perf_counter() - begin

    def _run(self, replica: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run forward and, when training, backward; return the outputs."""
        model, training, source = self.model, self.model.training, self.compiled.loss
        with (
            Execution(model.settings.training) as execution,
            model.attributes.restored(),
            self._casting(execution),
        ):
            if training is None or source is None:
                return model.grouped.call(model.module, replica, args, kwargs)
            with TorchLosses() if source.needs_recording else nullcontext() as losses:
                output = model.grouped.call(model.module, replica, args, kwargs)
        recorded = [] if losses is None else losses.recorded
        training.backward(loss_of(source, execution, recorded, output))
        return output

    def _casting(self, execution: Execution) -> AbstractContextManager[None]:
        rules = self.model.settings.cast_rules
        if rules is None:
            return nullcontext()
        if not self.compiled.casts:
            execution.regions.may_cast = False
            return nullcontext()
        return casting(execution, rules)


class Training:
    """The training of a model: its optimizer and the scale of its loss."""

    def __init__(
        self,
        settings: RunSettings,
        members: Members,
        update: WeightUpdate,
        anchors: Anchors,
        half: bool,
    ) -> None:
        self._settings, self._members = settings, members
        self.anchors, self.update = anchors, update
        self._half = half
        scaling = settings.loss_scaling if half else None
        self._scaler = LossScaler(scaling) if scaling is not None else None
        # How many micro-batches all replicas of the job run for one update.
        self._micro_batches = settings.gradient_accumulation * members.replicas
        self._divisor = self._micro_batches if settings.mean else 1
        self.gradients = self._sum_of_gradients()

    def _sum_of_gradients(self) -> ReplicatedTraining:
        update = self.update
        return ReplicatedTraining(
            self._settings,
            self._members,
            update.parameters,
            update.names,
            self._update_weights,
        )

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights by this optimizer from now on.

        Raises:
            Error: It changes an attribute that is marked as constant.
        """
        before = [(id(p), p.dtype) for p in self.update.parameters]
        self.update.set_optimizer(optimizer)
        if [(id(p), p.dtype) for p in self.update.parameters] != before:
            self.gradients = self._sum_of_gradients()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass of a micro-batch."""
        # Gradients of float16 would vanish if the loss were divided; others are
        # cheaper to divide so.
        scale = self.update.loss_scaling if self._half else 1 / self._divisor
        self.gradients.backward(loss, scale)

    def _update_weights(self, total: Row) -> None:
        """Update the weights by the gradients of all replicas of the job."""
        update, scale = self.update, self.update.loss_scaling
        factor = 1.0
        if self._scaler is not None:
            factor = self._scaler.next_factor(
                update.parameters, total, self._micro_batches, scale
            )
        update.step(total, 1 / (self._divisor * scale) if self._half else 1.0)
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
            # Below the other, which clips overflows.
            contexts.enter_context(FloatChecks())  # type: ignore[no-untyped-call]
        if half:
            contexts.enter_context(HalfPrecision())
        yield
