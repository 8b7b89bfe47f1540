from pathlib import Path

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Identity()
        self.inner.count = torch.tensor([0.0])
        self.number = 0
        self.seen: list[int] = []
        self.constant = torch.tensor([5.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.inner.count += 1
        self.number += 1
        self.seen.append(self.number)
        self.made = getattr(self, "made", 0) + 1
        numbers = [self.number, len(self.seen), self.made]
        if x[0] < 0:
            raise ValueError("x is negative")
        return torch.cat([self.inner.count, torch.tensor(numbers), self.constant])


def test_plain_attributes_are_as_before_the_model_was_compiled() -> None:
    model = Counter()
    settings = options(replicas=2, iterations=2)
    executor = poptorch.inferenceModel(model, settings)

    for _ in range(2):
        assert executor(torch.ones(4)).view(4, 5).tolist() == [[1, 1, 1, 1, 5]] * 4
    assert model.inner.count.tolist() == [1.0]
    assert executor.model.number == 1
    assert model.seen == [1]


def test_a_call_that_raises_leaves_attributes_as_they_were() -> None:
    model = Counter()
    executor = poptorch.inferenceModel(model, options())
    executor(torch.ones(1))

    with pytest.raises(ValueError, match="x is negative"):
        executor(-torch.ones(1))
    assert model.inner.count.tolist() == [1.0]
    assert executor(torch.ones(1)).tolist() == [1, 1, 1, 1, 5]


def test_a_model_from_the_executable_cache_has_the_same_constants(
    tmp_path: Path,
) -> None:
    settings = options().enableExecutableCaching(str(tmp_path))
    for _ in range(2):
        executor = poptorch.inferenceModel(Counter(), settings)
        for _ in range(2):
            assert executor(torch.ones(1)).tolist() == [1, 1, 1, 1, 5]
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_buffers_count_on() -> None:
    class Buffer(nn.Module):
        count: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.tensor([0.0]))

        def forward(self) -> torch.Tensor:
            self.count += 1
            return self.count.clone()

    executor = poptorch.inferenceModel(Buffer(), options())

    assert [executor().item() for _ in range(2)] == [1.0, 2.0]


def test_weights_that_a_hook_computes_are_trained() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with pytest.warns(FutureWarning):
                self.layer = nn.utils.weight_norm(nn.Linear(2, 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.layer(x), reduction="sum")

    torch.manual_seed(1)
    model = Model()
    executor = poptorch.trainingModel(model, options())
    losses = [executor(torch.ones(1, 2)).item() for _ in range(4)]

    assert losses == sorted(losses, reverse=True)
    assert len(set(losses)) == 4
