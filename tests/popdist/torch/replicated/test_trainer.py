import pytest
import torch

from popdist.replicated.members import Members
from popdist.replicated.settings import ReplicatedSettings
from popdist.torch.replicated.trainer import Row, Trainer


def trainer_of(
    parameters: list[torch.Tensor], replicas: int, steps: int, updates: list[Row]
) -> Trainer:
    settings = ReplicatedSettings(replicas=replicas, gradient_accumulation=steps)
    members = Members(replicas=replicas)
    return Trainer(
        settings,
        members,
        parameters,
        ["weight", "unused"][: len(parameters)],
        updates.append,
        {},
    )


def added_up(values: list[torch.Tensor], first: int = 0) -> torch.Tensor:
    """Add values in the binary tree over their numbers, the rest from the right."""
    level = 0
    while first % (2 << level) == 0 and (2 << level) <= len(values):
        level += 1
    size = 1 << level
    node = values[0]
    if size > 1:
        half = size // 2
        node = added_up(values[:half]) + added_up(values[half:size])
    rest = values[size:]
    return node + added_up(rest, first + size) if rest else node


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 5, 6, 7, 8, 11])
def test_gradients_are_added_in_the_order_of_the_engine(
    replicas: int, steps: int
) -> None:
    weight = torch.nn.Parameter(torch.zeros(40))
    unused = torch.nn.Parameter(torch.zeros(3))
    generator = torch.Generator().manual_seed(replicas)
    each = [
        [torch.randn(40, generator=generator) for _ in range(steps)]
        for _ in range(replicas)
    ]
    updates: list[Row] = []
    trainer = trainer_of([weight, unused], replicas, steps, updates)

    for _ in range(2):
        trainer.begin()
        for replica in range(replicas):
            for step in range(steps):
                trainer.backward(weight * each[replica][step])
            trainer.after_replica(replica)
        trainer.update_weights()
        found, nothing = updates.pop()

        sums = []
        for gradients_of_replica in each:
            one = gradients_of_replica[0].clone()
            for gradient in gradients_of_replica[1:]:
                one += gradient
            sums.append(one)
        assert nothing is None
        assert found is not None
        assert found.equal(added_up(sums))
        assert weight.grad is None


def test_a_parameter_may_take_part_on_some_replicas_only() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    for present in range(1, 256):
        updates: list[Row] = []
        trainer = trainer_of([weight], 8, 1, updates)
        trainer.begin()
        for replica in range(8):
            if present >> replica & 1:
                trainer.backward(weight * 2.0**replica)
            trainer.after_replica(replica)
        trainer.update_weights()

        (total,) = updates.pop()
        assert total is not None
        assert total.tolist() == [present, present]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_update_begins_without_gradients_of_a_call_that_failed(
    dtype: torch.dtype,
) -> None:
    weight = torch.nn.Parameter(torch.zeros(2, dtype=dtype))
    updates: list[Row] = []
    trainer = trainer_of([weight], 1, 1, updates)
    trainer.begin()
    trainer.backward(weight * 3)

    trainer.begin()
    trainer.backward(weight * 5)
    trainer.after_replica(0)
    trainer.update_weights()

    (total,) = updates.pop()
    assert total is not None
    assert (total.tolist(), total.dtype) == ([5, 5], torch.float32)
