"""Functions that torch.compile calls as they are."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from popdist.torch.calls.untraced import untraced

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::UserWarning"
)


@pytest.fixture(autouse=True)
def _no_compiled_functions() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def times_two(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def plain(x: torch.Tensor) -> torch.Tensor:
    return times_two(x) + 1


@untraced
def skipped(x: torch.Tensor) -> torch.Tensor:
    return times_two(x) + 1


class Methods:
    constant = 1

    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return times_two(x) + self.constant


@untraced
class Skipped(Methods):
    def skipped(self, x: torch.Tensor) -> torch.Tensor:
        return times_two(x) + self.constant


@pytest.mark.parametrize(
    ("function", "graphs"),
    [
        (plain, 1),
        (skipped, 0),
        (Skipped().plain, 1),
        (Skipped().skipped, 0),
    ],
)
def test_only_functions_that_are_not_marked_are_compiled(
    function: Any, graphs: int
) -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    assert torch.compile(function, backend=backend)(torch.ones(2)).tolist() == [3, 3]
    assert len(compiled) == graphs


def test_the_decorator_returns_what_it_was_given() -> None:
    # A marked function stays marked for other tests, so this one is new.
    def nothing() -> None:
        pass

    class Empty:
        pass

    assert untraced(nothing) is nothing
    assert untraced(Empty) is Empty
