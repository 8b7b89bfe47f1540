"""Runs a graph on all local replicas, one after another."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch

from popdist.replicated.seeds import seed_of
from popdist.replicated.settings import ReplicatedSettings

from ..data_flow import DataFlow
from ..errors import popart_exception, popart_runtime_error
from ..graph import Graph
from ..operators import Node, Values
from ..step_io import StepIO
from ..tensor_names import GRADIENT
from .anchors import AnchorWriter
from .training import Training


def statistics_of(nodes: Iterable[Node]) -> dict[str, str]:
    """Return the running statistics that training changes, with what replaces them."""
    changed: dict[str, str] = {}
    for node in nodes:
        if node.kind == "BatchNormalization" and len(node.outputs) == 5:
            changed.update(zip(node.inputs[3:5], node.outputs[1:3], strict=True))
    return changed


class Replicas:
    """The local replicas of a graph: they share weights, but not running statistics."""

    def __init__(
        self,
        graph: Graph,
        flow: DataFlow,
        settings: ReplicatedSettings,
        loss: str | None,
        checks_floats: bool,
    ) -> None:
        self._graph, self._flow, self._settings = graph, flow, settings
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
        # The weights on the device, and the statistics of the replicas after the first.
        self.weights: Values = {}
        self._others: list[Values] = []
        self.seed, self.iterations, self.first_replica = 0, 0, 0

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
        for name in self._statistics:
            self.weights[name] = self.weights[name].clone()
        first = {name: self.weights[name] for name in self._statistics}
        self._others = [dict(first) for _ in range(1, self._settings.replicas)]

    def run(self, io: StepIO, training: Training | None) -> None:
        """Run all micro-batches of one call."""
        settings = self._settings
        count = settings.micro_batches
        io.begin({name: (info, count) for name, info in self.inputs.items()})
        writer = AnchorWriter(self._flow, settings, io)
        with _own_random_state(), torch.set_grad_enabled(training is not None):
            for iteration in range(settings.device_iterations):
                self._run_iteration(iteration, io, writer, training)
                self.iterations += 1

    def _run_iteration(
        self,
        iteration: int,
        io: StepIO,
        writer: AnchorWriter,
        training: Training | None,
    ) -> None:
        settings = self._settings
        steps, replicas = settings.gradient_accumulation, settings.replicas
        places = [
            (step, replica) for step in range(steps) for replica in range(replicas)
        ]
        inputs = {
            (step, replica): {
                name: io.read(
                    name, info, settings.micro_batch_index(iteration, step, replica)
                )
                for name, info in self.inputs.items()
            }
            for step, replica in places
        }
        if training is not None:
            training.gradients.begin()
        anchors: dict[tuple[int, int], Values] = {}
        for replica in range(replicas):
            self._seed_replica(replica)
            for step in range(steps):
                anchors[step, replica] = self._run_micro_batch(
                    inputs[step, replica], replica, training
                )
            if training is not None:
                training.gradients.after_replica(replica)
        if training is not None:
            training.update_weights()
        for step, replica in places:
            values = anchors[step, replica]
            if step == steps - 1:
                # Those of weights are what the update has left.
                values.update(
                    {
                        name: self.weights[name]
                        for name in values
                        if self.is_trained(name)
                    }
                )
            writer.add(iteration * steps + step, replica, values)

    def _run_micro_batch(
        self, inputs: Values, replica: int, training: Training | None
    ) -> Values:
        """Run forward and, when training, backward; return what anchors hold."""
        values = {**self._graph.constants, **self.weights, **inputs}
        if replica:
            values.update(self._others[replica - 1])
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
        if training is not None and self._loss is not None:
            training.backward(values[self._loss])
            self._keep_statistics(values, replica)
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

    def _keep_statistics(self, values: Values, replica: int) -> None:
        new = {n: values[output].detach() for n, output in self._statistics.items()}
        values.update(new)
        if replica:
            self._others[replica - 1].update(new)
        else:
            self.weights.update(new)

    def _seed_replica(self, replica: int) -> None:
        number = self.first_replica + replica
        torch.default_generator.manual_seed(seed_of(self.seed, number, self.iterations))


def _check_floats(node: Node, outputs: Values) -> None:
    for name, value in outputs.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise popart_runtime_error(
                f"{node.kind} has yielded a number that is not finite, in the tensor "
                f"{name}. Set SessionOptions.enableFloatingPointChecks to False to go "
                "on with it."
            )


@contextmanager
def _own_random_state() -> Iterator[None]:
    """Leave torch's generator as it was: graphs do not draw from the host's."""
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)
