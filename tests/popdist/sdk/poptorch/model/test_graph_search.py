import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch
from poptorch.model.compile import graph_search

STAMP = r"^\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch:cpp\] \[warning\] "
REST = (
    ": torch.int64 is not supported natively on IPU, loss of range/precision may "
    "occur. We will only warn on the first instance."
)


@pytest.fixture(autouse=True)
def _in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_search, "_CALLS", count())


class Best(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.pool = nn.MaxPool1d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, best = torch.max(self.pool(self.norm(x)), 1)
        return best.float()


class Same(nn.Module):
    def forward(self, x: Any) -> Any:
        return x


LINE = Best.forward.__code__.co_firstlineno + 1


def test_the_first_operation_that_yields_int64_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for _ in range(2):
        poptorch.inferenceModel(Best(), options())(torch.ones(2, 4, 6))

    [line] = capsys.readouterr().err.splitlines()
    named = f"aten::max in {__file__}:{LINE}"
    assert re.fullmatch(STAMP + re.escape(named + REST), line)


def test_an_output_of_int64_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.inferenceModel(Same(), options())(torch.arange(3))

    named = "The output of the model"
    [line] = capsys.readouterr().err.splitlines()
    assert re.fullmatch(STAMP + re.escape(named + REST), line)


def test_labels_of_int64_alone_are_not_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Loss(nn.Module):
        def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return nn.functional.cross_entropy(x, target)

    executor = poptorch.inferenceModel(Loss(), options())
    executor(torch.ones(2, 3), torch.tensor([0, 1]))

    assert capsys.readouterr().err == ""


def test_a_model_from_the_executable_cache_is_warned_of(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = options().enableExecutableCaching(str(tmp_path))
    poptorch.inferenceModel(Best(), settings)(torch.ones(2, 4, 6))
    first = capsys.readouterr().err
    monkeypatch.setattr(graph_search, "_CALLS", count())
    poptorch.inferenceModel(Best(), settings)(torch.ones(2, 4, 6))

    assert len(list(tmp_path.glob("*.json"))) == 1
    # Without the time.
    assert capsys.readouterr().err[15:] == first[15:] != ""


def test_a_program_that_calls_directly_is_the_place() -> None:
    place = graph_search._place_of_caller()

    test = test_a_program_that_calls_directly_is_the_place.__code__
    assert place == f"{__file__}:{test.co_firstlineno + 1}"
