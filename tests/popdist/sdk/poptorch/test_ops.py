from collections.abc import Iterable, Iterator
from math import log
from typing import Any

import pytest
import torch
from poptorch_models import options
from torch import nn

import poptorch


def test_programs_may_print_the_version() -> None:
    assert poptorch.__version__ == "3.4.0"


def test_star_imports_hide_no_names_of_programs() -> None:
    names: dict[str, Any] = {}
    exec("from poptorch import *", names)

    assert not {"Enum", "IntEnum", "data", "model", "errors"} & names.keys()
    assert names["optim"] is poptorch.optim
    assert names["OutputMode"] is poptorch.OutputMode
    assert names["trainingModel"] is poptorch.trainingModel


def test_identity_loss_reduces() -> None:
    x = torch.tensor([1.0, 3.0])

    assert poptorch.identity_loss(x, reduction="sum") == 4
    assert poptorch.identity_loss(x, reduction="mean") == 2
    assert poptorch.identity_loss(x, reduction=1) == 2
    assert poptorch.identity_loss(x, reduction="none") is x
    with pytest.raises(poptorch.Error, match="Unsupported reduction type 'max'"):
        poptorch.identity_loss(x, reduction="max")


def test_loops_and_branches() -> None:
    x = torch.tensor([1.0, 2.0])

    assert poptorch.for_loop(3, lambda a: [a * 2], [x])[0].tolist() == [8, 16]
    with pytest.raises(poptorch.Error, match="of the same shapes and dtypes"):
        poptorch.for_loop(1, lambda a: a.int(), [x])
    with pytest.raises(ValueError, match=r"to be a list .Object is not list"):
        poptorch.for_loop(1, lambda a: a, x)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"list at index 1 is not torch.tensor"):
        poptorch.for_loop(1, lambda a, b: (a, b), [x, 5])  # type: ignore[list-item]
    assert poptorch.for_loop(3, lambda a: a.add_(1), [x])[0].tolist() == [4, 5]
    assert x.tolist() == [1, 2]
    for condition, expected in ((True, 2.0), (False, -1.0)):
        found = poptorch.cond(
            torch.tensor([condition]), lambda a: a * 2, [x], lambda a: -a, [x]
        )
        assert found[0][0] == expected
    named = {"then_inps": [], "else_body": lambda: -x, "else_inps": []}
    assert poptorch.cond(torch.tensor(True), lambda: x, **named)[0] is x
    with pytest.raises(ValueError, match="else_inps to be lists"):
        poptorch.cond(torch.tensor(True), lambda: x, [], lambda: x, (x,))


def test_matrices_are_multiplied_in_parts_that_fit() -> None:
    a, b = torch.randn(4, 6), torch.randn(6, 8)
    modes = poptorch.MatMulSerializationMode

    assert poptorch.serializedMatMul(a, b, modes.OutputChannels, 4).equal(a @ b)
    assert poptorch.serializedMatMul(a, b, modes.Disabled).equal(a @ b)
    with pytest.raises(poptorch.Error, match="factor is 4, but must divide the 6"):
        poptorch.serializedMatMul(a, b, modes.ReducingDim, 4)


def test_slices_begin_where_a_tensor_says() -> None:
    x = torch.arange(6.0)

    found = poptorch.dynamic_slice(x, 0, torch.tensor(1), 4, 2)
    updated = poptorch.dynamic_update(x, torch.zeros(2), 0, torch.tensor([3]), 2)

    assert found.tolist() == [1, 3]
    assert updated.tolist() == [0, 1, 2, 0, 0, 5]


def test_the_nearest_point_is_of_the_same_batch() -> None:
    x, y = torch.tensor([0.0, 10.0]), torch.tensor([1.0, 9.0, 11.5])

    assert poptorch.nearest(x, y).tolist() == [0, 1]
    batches = torch.tensor([1, 2]), torch.tensor([0, 1, 2])
    assert poptorch.nearest(x, y, *batches).tolist() == [1, 2]


def test_tensors_and_gradients_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(2, requires_grad=True)

    (poptorch.ipu_print_tensor(x, "x") * 3).sum().backward()

    assert capsys.readouterr().err == (
        "x: tensor([1., 1.])\nGradient_x: tensor([3., 3.])\n"
    )


def test_annotations_return_what_they_get() -> None:
    x = torch.ones(2)

    assert poptorch.nop(x) is x
    assert poptorch.set_available_memory(x, 0.3) is x
    assert poptorch.recomputationCheckpoint(x) is x
    assert poptorch.recomputationCheckpoint(x, x) == (x, x)
    assert poptorch.set_overlap_for_input([x], poptorch.OverlapMode.NoOverlap) == [x]
    with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial) as scope:
        assert scope.settings == {"planType": poptorch.MultiConvPlanType.Serial}
    with poptorch.NameScope("a"), poptorch.Attribute(b=1):
        assert poptorch.CPU(lambda a: a + 1, "id")(1) == 2


def test_the_most_likely_labels_are_found() -> None:
    # Of 2 times: a is seen by a-, -a and aa, which is likelier than no label.
    row = [log(0.6), log(0.4)]
    probs = torch.tensor([[row], [row]])

    scores, sizes, labels = poptorch.ctc_beam_search_decoder(
        probs, torch.tensor([2]), beam_width=4, top_paths=2
    )

    assert scores[0].exp().tolist() == pytest.approx([0.64, 0.36])
    assert sizes.tolist() == [[1, 0]]
    assert labels[0, 0, 0] == 1


class Pair:
    def __init__(self, one: torch.Tensor, other: torch.Tensor) -> None:
        self.one, self.other = one, other


class PairParser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct: Any) -> Iterable[torch.Tensor]:
        return iter([struct.one, struct.other])

    def reconstruct(
        self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]
    ) -> Any:
        return Pair(next(tensor_iterator), next(tensor_iterator))


def test_arguments_of_other_types_are_divided_by_a_parser() -> None:
    class Sum(nn.Module):
        def forward(self, pair: Pair) -> torch.Tensor:
            assert pair.one.shape == (1,)
            return pair.one + pair.other

    poptorch.registerCustomArgParser(Pair, PairParser())
    executor = poptorch.inferenceModel(Sum(), options(replicas=2))

    for _ in range(2):
        found = executor(Pair(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])))
        assert found.tolist() == [4, 6]


def test_loops_are_for_inference() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (found,) = poptorch.for_loop(2, self.layer, [x])
            return poptorch.identity_loss(found, reduction="sum")

    poptorch.inferenceModel(Loop(), options())(torch.ones(1, 1))
    with pytest.raises(poptorch.Error, match=r"for_loop\(\) is only supported in inf"):
        poptorch.trainingModel(Loop(), options())(torch.ones(1, 1))


def test_farthest_points_are_chosen_in_each_part() -> None:
    points = torch.tensor([[0.0, 0], [1, 0], [9, 0], [5, 0], [0, 0], [0, 7], [0, 3]])

    assert poptorch.fps(points, [0, 4, 7], 0.5).tolist() == [0, 2, 4, 5]
    assert poptorch.fps(points, [0, 4], 1.0).tolist() == [0, 2, 3, 1]
    first = poptorch.fps(points, [0, 4], 0.25, random_start=True)
    assert first.shape == (1,)
    assert 0 <= first < 4
    with pytest.raises(poptorch.Error, match="must be a list of at least 2"):
        poptorch.fps(points, [7], 0.5)
    with pytest.raises(poptorch.Error, match="ratio is 1, but must be a float"):
        poptorch.fps(points, [0, 7], 1)


def test_nothing_is_compiled_by_mlir() -> None:
    assert poptorch.hasMlirSupportOnPlatform() is False
