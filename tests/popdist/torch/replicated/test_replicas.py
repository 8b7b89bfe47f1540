from dataclasses import dataclass, field

import pytest
import torch

from popdist.replicated.members import Members
from popdist.replicated.seeds import seed_of
from popdist.replicated.settings import ReplicatedSettings
from popdist.torch.replicated.replicas import LocalReplicas, ReplicaBuffers
from popdist.torch.replicated.trainer import Trainer

SETTINGS = ReplicatedSettings(device_iterations=2, gradient_accumulation=2, replicas=2)


@dataclass
class Recorder:
    """A model that records the calls."""

    held: dict[str, torch.Tensor] = field(
        default_factory=lambda: {"counts": torch.tensor(0)}
    )
    calls: list[str] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def begin_iteration(self, iteration: int) -> None:
        self.calls.append(f"inputs {iteration}")

    def run_micro_batch(self, iteration: int, step: int, replica: int) -> None:
        if replica == 1 and self.held["counts"] == 2:
            raise KeyError("the second micro-batch of replica 1")
        self.held["counts"] += 1
        self.seeds.append(torch.initial_seed())
        count = int(self.held["counts"])
        self.calls.append(f"batch {iteration}.{step}.{replica}, buffer {count}")

    def end_iteration(self, iteration: int) -> None:
        self.calls.append(f"outputs {iteration}")


class RecordingTrainer(Trainer):
    """A trainer that only records the calls."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.members = Members(first_replica=4, replicas=6)

    def begin(self) -> None:
        self.calls.append("begin")

    def after_replica(self, replica: int) -> None:
        self.calls.append(f"gradients {replica}")

    def update_weights(self) -> None:
        self.calls.append("update")


def run(
    model: Recorder, settings: ReplicatedSettings, trainer: Trainer | None = None
) -> None:
    buffers = ReplicaBuffers([(model.held, "counts")], settings.replicas)
    LocalReplicas(settings, buffers, seed=3).run(model, trainer)


def test_a_call_updates_once_in_each_device_iteration() -> None:
    model = Recorder()
    settings = ReplicatedSettings(replicas=2, gradient_accumulation=1)

    run(model, settings, RecordingTrainer(model.calls))

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
    before = torch.get_rng_state()

    run(model, settings, RecordingTrainer(model.calls))

    assert before.equal(torch.get_rng_state())
    assert model.seeds == [seed_of(3, n, i) for i in (0, 1) for n in (4, 5)]


def test_a_failure_gives_the_model_the_buffers_of_replica_0_again() -> None:
    model = Recorder()
    before = model.held["counts"]

    with pytest.raises(KeyError):
        run(model, SETTINGS)

    assert model.held["counts"] is before
    # Replica 0 had run both of its micro-batches of both iterations.
    assert before == 4


def test_each_replica_has_its_own_buffers_until_a_reset() -> None:
    model = {"mean": torch.tensor([0])}
    buffers = ReplicaBuffers([(model, "mean")], 3)

    buffers.prepare()
    for replica in range(3):
        with buffers.of(replica):
            model["mean"] += replica
    with buffers.of(2):
        model["mean"] = model["mean"] + 7

    held = []
    for replica in range(3):
        with buffers.of(replica):
            held.append(int(model["mean"]))
    assert held == [0, 1, 9]

    buffers.reset()
    buffers.prepare()
    with buffers.of(1):
        assert model["mean"].tolist() == [0]


def test_a_model_without_buffers_exchanges_nothing() -> None:
    buffers = ReplicaBuffers([], 2)

    buffers.prepare()
    with buffers.of(1):
        assert buffers.current() == []
