"""Runs a graph on all local replicas, one after another."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch

from popdist.replicated.settings import ReplicatedSettings
from popdist.replicated.variable_groups import VariableGroups
from popdist.torch.replicated.replicas import LocalReplicas, ReplicaBuffers

from ..data_flow import DataFlow
from ..errors import popart_exception, popart_runtime_error
from ..graph import Graph
from ..operators import Node, Values
from ..step_io import StepIO
from ..tensor_names import GRADIENT
from .training import Training

# A step of the gradient accumulation, and a local replica.
Place = tuple[int, int]


def statistics_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Return the running statistics that training changes, with their new names."""
    changed: dict[str, str] = {}
    for node in nodes:
        if node.kind == "BatchNormalization" and len(node.outputs) == 5:
            changed.update(zip(node.inputs[3:5], node.outputs[1:3], strict=True))
    return changed


def replica_groups(graph: Graph, replicas: int) -> dict[str, VariableGroups]:
    """Return the groups of weights that differ between replicas, by their names.

    Args:
        graph: The model.
        replicas: The number of all replicas of the job.

    Raises:
        popart_exception: A weight has no row for each group, or is a statistic.
    """
    statistics = statistics_of(graph.nodes)
    groups = {n: s.groups_of(replicas) for n, s in graph.grouped.items()}
    for name, group in groups.items():
        rows = len(graph.weights[name])
        if rows != group.count or name in statistics:
            raise popart_exception(
                f"The weight {name} has {rows} rows, but {replicas} replicas in groups "
                f"of {group.size} are {group.count} groups. Give it a row for each. A "
                "running statistic cannot have groups."
            )
    return groups


class Replicas:
    """The local replicas of a graph: they share weights, but not running statistics."""

    def __init__(
        self,
        graph: Graph,
        flow: DataFlow,
        settings: ReplicatedSettings,
        groups: Mapping[str, VariableGroups],
        first_replica: int,
        loss: str | None,
        checks_floats: bool,
    ) -> None:
        self._graph, self._flow, self._settings = graph, flow, settings
        self._groups, self._first_replica = groups, first_replica
        self._loss, self._checks_floats = loss, checks_floats
        self._gradients = [
            name.removeprefix(GRADIENT)
            for name in flow.anchors()
            if name.startswith(GRADIENT)
        ]
        plain = [name for name in flow.anchors() if not name.startswith(GRADIENT)]
        self._statistics = statistics_of(graph.nodes) if loss else {}
        wanted = [*plain, *self._gradients, *self._statistics.values()]
        wanted = [*wanted, loss] if loss else wanted
        self._nodes = graph.nodes_for(wanted, self._gradients)
        read = {name for node in self._nodes for name in node.inputs} | set(plain)
        self.inputs = {n: info for n, info in graph.inputs.items() if n in read}
        # The weights on the device, with the running statistics of replica 0.
        self.weights: Values = {}
        places = [(self.weights, name) for name in self._statistics]
        buffers = ReplicaBuffers(places, settings.replicas)
        self.local = LocalReplicas(settings, buffers, seed=0)
        # The gradients and the optimizer of a call that trains.
        self._training: Training | None = None

    def is_trained(self, name: str) -> bool:
        """Return whether a tensor is a weight that training updates."""
        return name in self._graph.weights and name not in self._statistics

    def load(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give all replicas these values, in the tensors that they have already."""
        with torch.no_grad():
            for name, value in weights.items():
                if name in self.weights:
                    self.weights[name].copy_(value)
                else:
                    self.weights[name] = value.clone()
        self.local.buffers.reset()

    def weights_of(self, replica: int) -> Values:
        """Return the weights that a local replica computes with."""
        number = self._first_replica + replica
        groups = self._groups.items()
        rows = {n: self.weights[n][group.group_of(number)] for n, group in groups}
        return {**self.weights, **rows}

    def run(self, io: StepIO, training: Training | None) -> None:
        """Run all micro-batches of one call."""
        settings = self._settings
        count = settings.micro_batches
        io.begin({name: (info, count) for name, info in self.inputs.items()})
        call = _Call(self, settings, self._flow, io)
        self._training = training
        self.local.run(call, None if training is None else training.trainer)

    def run_micro_batch(self, inputs: Values, replica: int) -> Values:
        """Run forward and, when training, backward; return the anchors."""
        values = {**self._graph.constants, **self.weights_of(replica), **inputs}
        gradients: Values = {}
        for name in self._gradients:
            if name in inputs or name in self.weights:
                self._watch(name, values, gradients)
        for node in self._nodes:
            outputs = node.evaluate(values, self._graph.training)
            if self._checks_floats:
                _check_floats(node, outputs)
            values.update(outputs)
            for name in outputs.keys() & set(self._gradients):
                self._watch(name, values, gradients)
        if self._training is not None and self._loss is not None:
            self._training.backward(values[self._loss])
            new = {n: values[output].detach() for n, output in self._statistics.items()}
            values.update(new)
            self.weights.update(new)
        return {
            name: self._anchor(name, values, gradients) for name in self._flow.anchors()
        }

    def _watch(self, name: str, values: Values, gradients: Values) -> None:
        """Keep the gradient of a tensor, once the backward pass has it."""
        value = values[name]
        if not value.is_floating_point():
            raise popart_exception(f"{name} has no gradient: it holds no fractions.")
        # A view, since hooks on a weight would stay after the micro-batch.
        values[name] = value = (
            value.view_as(value)
            if value.requires_grad
            else value.detach().requires_grad_()
        )
        gradients[name] = torch.zeros_like(value)

        def keep(gradient: torch.Tensor) -> None:
            gradients[name] = gradient.detach().clone()

        value.register_hook(keep)  # type: ignore[no-untyped-call]

    def _anchor(self, name: str, values: Values, gradients: Values) -> torch.Tensor:
        if name.startswith(GRADIENT):
            return gradients[name.removeprefix(GRADIENT)]
        value = values[name].detach()
        # Updates change weights in place.
        return value.clone() if name in self.weights else value


@dataclass(slots=True)
class _Call:
    """One call of a session, as LocalReplicas runs it."""

    replicas: Replicas
    settings: ReplicatedSettings
    flow: DataFlow
    io: StepIO
    # The inputs and anchors of a device iteration, by step and local replica.
    inputs: dict[Place, Values] = field(default_factory=dict)
    anchors: dict[Place, Values] = field(default_factory=dict)
    # The sums of anchors so far, by name and local replica.
    sums: dict[tuple[str, int], torch.Tensor] = field(default_factory=dict)

    def begin_iteration(self, iteration: int) -> None:
        self.inputs = {
            (step, replica): {
                name: self.io.read(
                    name,
                    info,
                    self.settings.micro_batch_index(iteration, step, replica),
                )
                for name, info in self.replicas.inputs.items()
            }
            for step in range(self.settings.gradient_accumulation)
            for replica in range(self.settings.replicas)
        }

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        inputs = self.inputs[step, replica]
        self.anchors[step, replica] = self.replicas.run_micro_batch(inputs, replica)

    def end_iteration(self, iteration: int) -> None:
        for step, replica in self.inputs:
            values = self.anchors[step, replica]
            if step == self.settings.gradient_accumulation - 1:
                # An anchored weight is the updated one.
                weights = self.replicas.weights_of(replica)
                updated = [name for name in values if self.replicas.is_trained(name)]
                values.update({name: weights[name].detach() for name in updated})
            for name, value in values.items():
                self._write(name, value, iteration, step, replica)

    def _write(
        self, name: str, value: torch.Tensor, iteration: int, step: int, replica: int
    ) -> None:
        """Hand out an anchor of a micro-batch, if the DataFlow asks for it."""
        kind = self.flow.art(name)
        mode = kind.id().name
        if mode == "Sum":
            value = self.sums[name, replica] = value + self.sums.get((name, replica), 0)
            mode = "Final"
        place = self.settings.returned_place(mode, kind.period, iteration, step)
        if place is not None:
            self.io.write(name, value, place * self.settings.replicas + replica)


def _check_floats(node: Node, outputs: Values) -> None:
    for name, value in outputs.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise popart_runtime_error(
                f"{node.kind} has yielded a number that is not finite, in the tensor "
                f"{name}. Set SessionOptions.enableFloatingPointChecks to False to go "
                "on with it."
            )
