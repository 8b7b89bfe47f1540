"""DistributedOptimizer, against plain torch on the samples of all ranks."""

import gc
import itertools
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.ranks_of_horovod import hvd, results

pytestmark = pytest.mark.usefixtures("each_transport")

SAMPLES = torch.arange(48.0).reshape(12, 4).sin()
TARGETS = SAMPLES.sum(1, keepdim=True).cos()
MAKERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.05),
    "rmsprop": lambda params: torch.optim.RMSprop(params, lr=0.02),
}


def network() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train_alone(name: str, steps: int) -> list[torch.Tensor]:
    """Return the parameters after steps on all samples, in plain torch."""
    model = network()
    optimizer = MAKERS[name](model.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        mse_loss(model(SAMPLES), TARGETS).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def train(me: int, size: int, name: str, **settings: Any) -> list[torch.Tensor]:
    """Return the parameters after 4 steps on this rank's samples."""
    passes = settings.get("backward_passes_per_step", 1)
    mine = slice(me * 12 // size, (me + 1) * 12 // size)
    samples, targets = SAMPLES[mine].chunk(passes), TARGETS[mine].chunk(passes)
    model = network()
    if me:
        for param in model.parameters():
            param.data.fill_(9.0)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        MAKERS[name](model.parameters()), model.named_parameters(), **settings
    )
    for _ in range(4):
        optimizer.zero_grad()
        for x, y in zip(samples, targets, strict=True):
            (mse_loss(model(x), y) / passes).backward()
        optimizer.step()
    return [param.detach() for param in model.parameters()]


def test_steps_of_ranks_equal_steps_of_plain_torch_on_all_samples() -> None:
    # By whatever way the gradients take.
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "grouped": {"groups": 2},
        "one group": {"groups": 1},
        "two passes": {"backward_passes_per_step": 2},
        "groups and passes": {"backward_passes_per_step": 2, "groups": 3},
        "predivided": {"gradient_predivide_factor": 2.0},
        "float16": {"compression": hvd.Compression.fp16},
    }

    def rank(me: int) -> Any:
        return {
            (maker, name): train(me, 3, maker, **settings)
            for maker in MAKERS
            for name, settings in variants.items()
        }

    found = results(3, rank)

    for maker, name in found[0]:
        expected = train_alone(maker, 4)
        tolerance = 3e-3 if name == "float16" else 1e-5
        for each in found:
            for param, other, one in zip(
                each[maker, name], expected, found[0][maker, name], strict=True
            ):
                assert torch.equal(param, one), (maker, name)
                assert torch.allclose(param, other, atol=tolerance), (maker, name)


def test_a_sum_is_the_average_times_the_ranks() -> None:
    def rank(me: int) -> Any:
        x = torch.ones(2, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0), op=hvd.Sum)
        (x * (me + 1)).sum().backward()
        optimizer.step()
        return x.tolist()

    assert results(2, rank) == [[-2.0, -2.0]] * 2


def test_the_optimizer_is_one_of_its_class_that_shares_its_state() -> None:
    def rank(me: int) -> Any:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
        outer = hvd.DistributedOptimizer(inner, model.named_parameters())
        model(SAMPLES).sum().backward()
        outer.step()
        with warnings.catch_warnings():
            # It was made for the inner one, whose step() is never called.
            warnings.simplefilter("ignore")
            scheduler.step()
        return [
            isinstance(outer, torch.optim.SGD),
            type(outer).__name__,
            outer.param_groups[0]["lr"],
            len(inner.state),
            outer.backward_passes_per_step,
            list(outer.state_dict()) == ["state", "param_groups"],
            # Programs read it, private as it is.
            sorted(outer._parameter_names.values()),
        ]

    names = ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert results(2, rank) == [[True, "SGD", 0.05, 4, 1, True, names]] * 2


def test_gradients_that_a_rank_has_not_computed_are_reduced_as_zeros() -> None:
    def rank(me: int) -> Any:
        first, second = (torch.zeros(2, requires_grad=True) for _ in range(2))
        params = [("first", first), ("second", second)]
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([first, second], lr=1.0), params
        )
        for _ in range(2):
            optimizer.zero_grad()
            (second if me else first).sum().backward()
            optimizer.step()
        return first.tolist(), second.tolist()

    assert results(2, rank) == [([-1.0, -1.0], [-1.0, -1.0])] * 2


def test_gradients_can_be_clipped_between_synchronize_and_step() -> None:
    def rank(me: int) -> Any:
        x = torch.zeros(1, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0))
        (x * (2.0 + me)).sum().backward()
        busy = error_of(optimizer.zero_grad)[0]
        optimizer.synchronize()
        reduced = x.grad.item()
        nn.utils.clip_grad_norm_([x], 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()
        clipped = x.item()
        optimizer.zero_grad()
        (x * 1.0).sum().backward()
        optimizer.synchronize()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.step()
        texts = [str(one.message)[:55] for one in caught]
        return busy, reduced, round(clipped, 4), texts

    text = "optimizer.step() called without optimizer.skip_synchronize()"[:55]
    assert results(2, rank) == [("AssertionError", 2.5, -1.0, [text])] * 2


def test_a_closure_is_evaluated_with_the_reduced_gradients() -> None:
    def rank(me: int) -> Any:
        x = torch.zeros(1, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (x * (me + 1.0)).sum()
            loss.backward()
            return loss

        loss = optimizer.step(closure)
        return loss.item(), x.item()

    assert results(2, rank) == [(0.0, -1.5)] * 2


def test_parameters_that_are_added_later_are_reduced_too() -> None:
    def rank(me: int) -> Any:
        first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([first], lr=1.0))
        optimizer.add_param_group({"params": [second], "lr": 0.5})
        ((first + second) * (me + 1.0)).sum().backward()
        under_way = error_of(optimizer.zero_grad)[0]
        optimizer.step()
        return under_way, first.item(), second.item()

    assert results(2, rank) == [("AssertionError", -1.5, -0.75)] * 2


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Adasum])
def test_an_optimizer_takes_the_place_of_earlier_ones_of_its_parameters(
    op: int,
) -> None:
    def rank(me: int) -> Any:
        first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
        inner = torch.optim.SGD([first, second], lr=1.0)
        earlier = hvd.DistributedOptimizer(inner, op=op)
        # An optimizer may also wrap the earlier DistributedOptimizer.
        for optimizer in (inner, earlier):
            last = hvd.DistributedOptimizer(optimizer, op=hvd.Sum)
            for _ in range(2):
                last.zero_grad()
                ((first + second) * (me + 1.0)).sum().backward()
                last.step()
        return (
            type(last).__bases__[1:],
            first.tolist(),
            second.tolist(),
            error_of(earlier.step),
        )

    error = (
        "ValueError",
        "Another DistributedOptimizer was made later for the parameter "
        "'gradient.noname.1', and reduces its gradient. Use only that optimizer, or "
        "give each of them other parameters.",
    )
    assert results(2, rank) == [((torch.optim.SGD,), [-12.0], [-12.0], error)] * 2


def test_parameters_live_no_longer_than_their_optimizers() -> None:
    def rank(me: int) -> Any:
        x = torch.zeros(1, requires_grad=True)
        hvd.DistributedOptimizer(torch.optim.SGD([x], lr=1.0))
        gone = weakref.ref(x)
        del x
        gc.collect()
        return gone() is None

    assert results(1, rank) == [True]


def test_too_many_backward_passes_are_refused() -> None:
    def rank(me: int) -> Any:
        x = torch.zeros(1, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([x], lr=1.0), backward_passes_per_step=2
        )
        for _ in range(2):
            (x * 1.0).sum().backward()
        kind = error_of((x * 1.0).sum().backward)[0]
        optimizer.step()
        # This one may have been added to what the other rank gets, or not.
        x.data.zero_()
        optimizer.zero_grad()
        optimizer.set_backward_passes_per_step(1)
        (x * 1.0).sum().backward()
        optimizer.step()
        return kind, x.item()

    assert results(2, rank) == [("AssertionError", -1.0)] * 2


def test_networks_are_trained_by_turns() -> None:
    def rank(me: int) -> Any:
        one, other = nn.Linear(2, 2), nn.Linear(2, 1)
        nets = [one, other]
        hvd.broadcast_parameters([p for net in nets for p in net.parameters()], 0)
        optimizers = [
            hvd.DistributedOptimizer(
                torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters()
            )
            for net in nets
        ]
        for step in range(4):
            for i, net in enumerate(nets):
                net.requires_grad_(i == step % 2)
                optimizers[i].zero_grad()
            other(one(torch.ones(3, 2) * (me + 1))).sum().backward()
            optimizers[step % 2].step()
        return [p.tolist() for net in nets for p in net.parameters()]

    found = results(2, rank)

    assert found[0] == found[1]


def test_sparse_gradients_are_reduced_sparse_or_dense() -> None:
    def rank(me: int) -> Any:
        found = []
        for dense in (False, True):
            torch.manual_seed(3)
            table = nn.Embedding(5, 2, sparse=True)
            before = table.weight.detach().clone()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SGD(table.parameters(), lr=1.0), sparse_as_dense=dense
            )
            table(torch.tensor([me, 4])).sum().backward()
            optimizer.step()
            change = (table.weight.detach() - before)[:, 0]
            found += [[round(one, 4) for one in change.tolist()]]
        return found

    assert results(2, rank) == [[[-0.5, -0.5, 0, 0, -1.0]] * 2] * 2


def test_gradients_that_are_reduced_dense_are_sparse_again_before_the_step() -> None:
    def rank(me: int) -> Any:
        found = []
        for groups in (None, 1):
            torch.manual_seed(3)
            table = nn.Embedding(5, 2, sparse=True)
            before = table.weight.detach().clone()
            optimizer = hvd.DistributedOptimizer(
                torch.optim.SparseAdam(table.parameters(), lr=0.5),
                sparse_as_dense=True,
                groups=groups,
            )
            table(torch.tensor([me, 4])).sum().backward()
            optimizer.step()
            change = (table.weight.detach() - before)[:, 0]
            gradient = table.weight.grad.coalesce()
            found.append(([round(one, 4) for one in change.tolist()], repr(gradient)))
        return found

    gradient = """tensor(indices=tensor([[0, 1, 4]]),
       values=tensor([[0.5000, 0.5000],
                      [0.5000, 0.5000],
                      [1.0000, 1.0000]]),
       size=(5, 2), nnz=3, layout=torch.sparse_coo)"""
    assert results(2, rank) == [[([-0.5, -0.5, 0, 0, -0.5], gradient)] * 2] * 2


def test_adasum_combines_the_changes_of_a_step() -> None:
    def rank(me: int) -> Any:
        x = torch.zeros(2, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([x], lr=1.0), op=hvd.Adasum
        )
        # Along different axes, so that the changes add up.
        x[me].backward()
        optimizer.step()
        optimizer.zero_grad()
        # Along the same one, so that they count once.
        x[0].backward()
        optimizer.step()
        return x.tolist()

    assert results(2, rank) == [[-2.0, -1.0]] * 2


def test_arguments_of_the_optimizer_are_checked() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    both = [*one.parameters(), *other.parameters()]
    sgd = torch.optim.SGD(both, lr=0.1)
    named = list(one.named_parameters())
    twice = itertools.chain(named, other.named_parameters())

    cases = [
        lambda: hvd.DistributedOptimizer(sgd, twice),
        lambda: hvd.DistributedOptimizer(sgd, named),
        lambda: hvd.DistributedOptimizer(sgd, one.parameters()),
        lambda: hvd.DistributedOptimizer(sgd, op=hvd.Max),
        lambda: hvd.DistributedOptimizer(
            sgd, op=hvd.Sum, gradient_predivide_factor=2.0
        ),
        lambda: hvd.DistributedOptimizer(sgd, backward_passes_per_step=0),
        lambda: hvd.DistributedOptimizer(sgd, groups=-1),
        lambda: hvd.DistributedOptimizer(sgd, groups=[[both[0]], [both[0]]]),
        lambda: hvd.DistributedOptimizer(sgd, groups=[[torch.ones(1)]]),
    ]

    assert [error_of(case)[0] for case in cases] == ["ValueError"] * len(cases)
