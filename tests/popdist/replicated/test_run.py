from dataclasses import dataclass, field

import pytest

from popdist.replicated.buffers import ReplicaBuffers
from popdist.replicated.run import run_replicas
from popdist.replicated.seeds import ReplicaStreams, seed_of
from popdist.replicated.settings import ReplicatedSettings

SETTINGS = ReplicatedSettings(device_iterations=2, gradient_accumulation=2, replicas=2)


@dataclass
class Recorder:
    """A model and its training, which records the calls."""

    held: dict[str, list[int]] = field(default_factory=lambda: {"counts": [0]})
    calls: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def begin_iteration(self, iteration: int) -> None:
        self.calls.append(f"inputs {iteration}")

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        if replica == 1 and self.held["counts"] == [2]:
            raise KeyError("the second micro-batch of replica 1")
        self.held["counts"][0] += 1
        counts = self.held["counts"]
        self.calls.append(f"batch {iteration}.{step}.{replica}, buffer {counts[0]}")

    def end_iteration(self, iteration: int) -> None:
        self.calls.append(f"outputs {iteration}")

    def begin(self) -> None:
        self.calls.append("begin")

    def after_replica(self, replica: int) -> None:
        self.calls.append(f"gradients {replica}")

    def update_weights(self) -> None:
        self.calls.append("update")


def run(
    model: Recorder, settings: ReplicatedSettings, training: Recorder | None = None
) -> None:
    buffers = ReplicaBuffers([(model.held, "counts")], settings.replicas, list[int])
    streams = ReplicaStreams(3, int, model.seeds.append)
    streams.first_replica = 4
    run_replicas(settings, buffers, streams, model, training)


def test_a_call_updates_once_in_each_device_iteration() -> None:
    model = Recorder()
    settings = ReplicatedSettings(replicas=2, gradient_accumulation=1)

    run(model, settings, training=model)

    assert model.calls == [
        "inputs 0",
        "begin",
        "batch 0.0.0, buffer 1",
        "gradients 0",
        "batch 0.0.1, buffer 1",
        "gradients 1",
        "update",
        "outputs 0",
    ]


def test_each_replica_draws_from_its_own_stream_in_each_iteration() -> None:
    model = Recorder()
    settings = ReplicatedSettings(device_iterations=2, replicas=2)

    run(model, settings)

    assert model.seeds == [seed_of(3, n, i) for i in (0, 1) for n in (4, 5)]
    assert "update" not in model.calls


def test_a_failure_gives_the_model_the_buffers_of_replica_0_again() -> None:
    model = Recorder()
    before = model.held["counts"]

    with pytest.raises(KeyError):
        run(model, SETTINGS)

    assert model.held["counts"] is before
    # Replica 0 had run both of its micro-batches of both iterations.
    assert before == [4]
