"""States that are committed and restored, and functions that go on from them."""

from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

from tests.popdist.sdk.horovod.ranks_of_horovod import error_of, hvd, results


def weights_of(model: torch.nn.Module) -> list[list[float]]:
    return [one.flatten().tolist() for one in model.state_dict().values()]


def momenta_of(optimizer: torch.optim.Optimizer) -> list[list[float]]:
    return [
        one["momentum_buffer"].flatten().tolist() for one in optimizer.state.values()
    ]


def make_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_a_state_becomes_that_of_rank_0_and_returns_to_its_last_commit() -> None:
    def rank(me: int) -> Any:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * (me + 1), momentum=0.5)
        scheduler = StepLR(optimizer, 1)
        state = hvd.elastic.TorchState(
            model, optimizer, scheduler=scheduler, epoch=10 + me, best=[me]
        )
        if me == 0:
            make_step(model, optimizer)
        state.sync()
        shared = weights_of(state.model), state.epoch, optimizer.param_groups[0]["lr"]
        make_step(model, optimizer)
        scheduler.step()
        state.epoch, state.best = 11, [8]
        state.commit()
        committed = weights_of(model), momenta_of(optimizer)
        restored = []
        # An optimizer goes on with what it has loaded.
        for _ in range(2):
            make_step(model, optimizer)
            make_step(model, optimizer)
            scheduler.step()
            state.epoch = 12
            state.restore()
            restored.append((weights_of(model), momenta_of(optimizer)))
        assert restored == [committed] * 2
        return shared, committed, state.epoch, state.best, scheduler.last_epoch

    first, second = results(2, rank)

    assert first == second
    assert first[0][1:] == (10, 0.1)
    assert first[2:] == (11, [8], 1)


def test_a_part_of_a_state_can_be_replaced_by_one_of_its_kind() -> None:
    def rank(me: int) -> Any:
        state = hvd.elastic.TorchState(torch.nn.Linear(1, 1), None, count=1)
        state.model = torch.nn.Linear(2, 2)
        saved = weights_of(state.model)
        torch.nn.init.zeros_(state.model.weight)
        state.restore()
        assert weights_of(state.model) == saved
        return state.optimizer, error_of(lambda: setattr(state, "model", 3))

    assert results(1, rank) == [
        (
            None,
            (
                "ValueError",
                "The state's attribute 'model' is a Linear, but is set to 3. Set it to "
                "an object of that kind.",
            ),
        )
    ]


def train(me: int, fails: set[tuple[int, int]]) -> Any:
    """Train for 3 epochs of 4 steps; the ranks' calls differ where it is to fail."""
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5),
        named_parameters=model.named_parameters(),
    )
    begun = []

    @hvd.elastic.run
    def run(state: Any, steps: int) -> str:
        begun.append((state.epoch, state.step))
        # As programs for Horovod write it.
        for state.epoch in range(state.epoch, 3):  # noqa: B020
            for state.step in range(state.step, steps):  # noqa: B020
                optimizer.zero_grad()
                model(torch.full((1, 2), me + 1.0)).sum().backward()
                if (state.epoch, state.step) in fails:
                    fails.remove((state.epoch, state.step))
                    hvd.allreduce(torch.ones(me + 1))
                optimizer.step()
                if state.step % 2:
                    state.step += 1
                    state.commit()
            state.step = 0
        return "trained"

    state = hvd.elastic.TorchState(model, optimizer, epoch=0, step=0)
    state.register_reset_callbacks([lambda: begun.append(hvd.size())])
    return run(state, 4), begun, weights_of(model)


def test_a_function_goes_on_from_its_last_commit_after_an_error() -> None:
    def rank(me: int) -> Any:
        return train(me, set()), train(me, {(0, 3), (2, 2)})

    (plain, first), (_, second) = results(2, rank)

    assert first == second
    assert plain[:2] == ("trained", [(0, 0)])
    assert first[:2] == ("trained", [(0, 0), 2, (0, 2), 2, (2, 2)])
    assert first[2] == plain[2]


def test_an_error_before_a_commit_is_raised() -> None:
    def rank(me: int) -> Any:
        return error_of(lambda: train(me, {(0, 1)}))[0]

    assert results(2, rank) == ["HorovodInternalError"] * 2


def test_a_sampler_shares_out_what_is_left_of_an_epoch() -> None:
    def rank(me: int) -> Any:
        sampler = hvd.elastic.ElasticSampler(range(10), shuffle=me == 5)
        state = hvd.elastic.TorchState(sampler=sampler)
        found = [list(sampler), len(sampler)]
        sampler.record_batch(0, 2)
        state.commit()
        sampler.record_batch(1, 1)
        state.restore()
        found += [sampler.processed_num, list(sampler)]
        sampler.record_batch(1, 2)
        state.commit()
        state.sync()
        found += [list(sampler), len(sampler)]
        sampler.set_epoch(1)
        return [*found, len(sampler)]

    def shuffled(me: int) -> Any:
        sampler = hvd.elastic.ElasticSampler(range(8), seed=3)
        first = list(sampler)
        sampler.set_epoch(1)
        return first, list(sampler)

    # 10 samples make 4 for each of 3 ranks: the first two come twice.
    assert results(3, rank) == [
        [[0, 3, 6, 9], 4, 6, [6, 9], [], 0, 4],
        [[1, 4, 7, 0], 4, 6, [7, 6], [], 0, 4],
        [[2, 5, 8, 1], 4, 6, [8, 7], [], 0, 4],
    ]
    (one, later), (other, other_later) = results(2, shuffled)
    assert sorted(one + other) == sorted(later + other_later) == list(range(8))
    assert one + other != later + other_later
