"""Elastic Horovod for PyTorch: states, samplers, and the loop over changes of ranks."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from popdist.errors import CollectiveTimeoutError
from tests.elastic_jobs import Coordinator, wait_until
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.ranks_of_horovod import hvd, results, start

# isort: split
from horovod.common.elastic import ObjectState
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.torch.elastic.state import (
    SamplerStateHandler,
    StateHandler,
    get_handler_registry,
    set_handler_registry,
)

# Trains for at least 9 steps, and until there are 3 ranks, of which one dies in step 5.
PROGRAM = """
import popdist.sdk
popdist.sdk.install()
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, step=0, sizes=[])

def reset():
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()

state.register_reset_callbacks([reset])

@hvd.elastic.run
def train(state):
    state.sizes.append(hvd.size())
    while state.step < 9 or hvd.size() < 3:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().sum().backward()
        if rank == 0 and state.step == 4 and state.sizes == [3]:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.step()
        state.step += 1
        state.commit()
    return hvd.size()

size = train(state)
weights = hvd.allgather(model.weight.detach()[None])
alike = all(torch.equal(weights[0], one) for one in weights)
rates = {group["lr"] for group in optimizer.param_groups}
print(hvd.rank(), size, alike, rates, state.sizes)
"""


def test_ranks_go_on_without_one_that_ends_and_then_with_a_new_one(
    tmp_path: Path,
) -> None:
    with Coordinator(tmp_path, [3], PROGRAM, environ={"OMP_NUM_THREADS": "1"}) as job:
        wait_until(lambda: job.generation == 1)
        job.add(0)
        ended = job.finish()

    assert [one.code for one in ended] == [-9, 0, 0, 0]
    assert [ended[0].err, ended[3].err] == ["", ""]
    for survivor in ended[1:3]:
        lost, others = survivor.err.splitlines()
        because = (
            "The training continues from the state that was committed last, because "
            "of HorovodInternalError: Instance 0"
        )
        # The engine has detected it, or poprun has told it first.
        reasons = f"{because} has ended", f"{because} was killed by SIGKILL."
        assert lost.startswith(reasons)
        assert others == "The training continues on other ranks."
    # Horovod's programs broadcast from rank 0: the new instance 0 is the last rank.
    assert [one.out for one in ended[1:]] == [
        f"{rank} 3 True {{0.03}} [3, 2, 3]\n" for rank in range(3)
    ]


# Instance 0 dies when a new instance 1 has joined, which has not received the state.
LOST = """
import popdist.sdk
popdist.sdk.install()
import torch
import horovod.torch as hvd
from popdist import elastic

hvd.init()

class State(hvd.elastic.ObjectState):
    def sync(self):
        if os.environ["TEST_INDEX"] == "0" and elastic.generation() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        super().sync()

@hvd.elastic.run
def train(state):
    while True:
        hvd.allreduce(torch.ones(1))
        state.commit()

train(State(step=0))
"""


def test_a_refusal_that_follows_from_a_loss_ends_the_function(tmp_path: Path) -> None:
    environ = {"OMP_NUM_THREADS": "1"}
    with Coordinator(tmp_path, [2], LOST, environ=environ, least=2) as job:
        wait_until(lambda: job.state.able == {0, 1})
        job.kill(1)
        ended = job.finish()

    assert [one.code for one in ended] == [1, -9]
    *_, last = ended[0].err.splitlines()
    assert last == (
        "popdist.errors.ElasticError: Only 1 instance of the job is left, but it needs "
        "at least 2 instances: see --min-instances and --nnodes."
    )
    # It is asked for once.
    assert ended[0].err.count("The training continues") == 1


INTERRUPTED = """
import popdist.sdk
popdist.sdk.install()
import horovod.torch as hvd
from horovod.common.elastic import ObjectState
from horovod.common.exceptions import HostsUpdatedInterrupt
hvd.init()

@hvd.elastic.run
def train(state):
    raise HostsUpdatedInterrupt

train(ObjectState(step=0))
"""


def test_a_refusal_to_a_rank_that_is_to_leave_has_no_other_error(
    tmp_path: Path,
) -> None:
    environ = {"OMP_NUM_THREADS": "1"}
    with Coordinator(tmp_path, [2], INTERRUPTED, environ=environ, least=3) as job:
        ended = job.finish()

    for one in ended:
        first, *_, last = one.err.splitlines()
        assert first == "The training continues on other ranks."
        assert last == (
            "popdist.errors.ElasticError: Only 2 instances of the job are left, but it "
            "needs at least 3 instances: see --min-instances and --nnodes."
        )
        assert one.err.count("Traceback") == 1


def test_a_rank_that_never_had_the_state_does_not_begin_from_zero(
    tmp_path: Path,
) -> None:
    with Coordinator(tmp_path, [2], LOST, environ={"OMP_NUM_THREADS": "1"}) as job:
        wait_until(lambda: job.state.able == {0, 1})
        job.kill(1)
        wait_until(lambda: job.generation == 1)
        job.add(1)
        ended = job.finish()

    assert [one.code for one in ended] == [-9, -9, 1], ended
    last = ended[2].err.splitlines()[-1]
    assert last.startswith(
        "popdist.errors.ElasticError: All instances that had the state of this job "
    )


def test_a_rank_on_a_host_that_leaves_ends_without_a_traceback(tmp_path: Path) -> None:
    body = """
    import popdist.sdk
    popdist.sdk.install()
    import torch
    import horovod.torch as hvd

    hvd.init()

    @hvd.elastic.run
    def train(state):
        while hvd.size() == 2:
            state.commit()
            time.sleep(0.01)
        return hvd.size()

    print(train(hvd.elastic.ObjectState(step=0)))
    """
    with Coordinator(tmp_path, [1, 1], body) as job:
        wait_until(lambda: job.state.able == {0, 1})
        job.let_leave(1)
        ended = job.finish()

    continues = "The training continues on other ranks.\n"
    assert [(one.code, one.out) for one in ended] == [(0, "1\n"), (1, "")], ended
    left = (
        "The host host-1 is named no longer, so instance 1 (host-1) has left the job."
    )
    assert [one.err for one in ended] == [continues, f"{continues}{left}\n"]


def test_an_error_that_counts_as_a_loss_is_printed(tmp_path: Path) -> None:
    body = """
    import popdist.sdk
    popdist.sdk.install()
    import torch
    import horovod.torch as hvd
    from popdist import elastic

    hvd.init()

    @hvd.elastic.run
    def train(state):
        hvd.allreduce(torch.ones(1))
        if elastic.generation() == 0:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while not elastic.members_changed():
                time.sleep(0.01)
            raise OSError("No space left on device")
        return elastic.generation()

    print(train(hvd.elastic.ObjectState(step=0)))
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert ended[0].out == "1\n", ended
    first, *traceback = ended[0].err.splitlines()
    assert first == (
        "The training continues from the state that was committed last, because of "
        "OSError: No space left on device"
    )
    assert traceback[-1] == "OSError: No space left on device"


def test_all_ranks_get_an_error_if_one_of_them_cannot_re_form(tmp_path: Path) -> None:
    body = """
    import popdist.sdk
    popdist.sdk.install()
    import torch
    import horovod.torch as hvd
    from horovod.common.exceptions import HorovodInternalError
    from popdist.generations import GENERATIONS

    hvd.init()
    if rank == 1:
        GENERATIONS._end(OSError(0, "its socket is gone"))

    @hvd.elastic.run
    def train(state):
        state.commit()

    try:
        train(hvd.elastic.ObjectState(step=0))
    except HorovodInternalError as error:
        print(error)
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == [
        "Another instance of this job cannot re-form, and its error says why. All must "
        "be able to, so the job cannot go on.\n",
        "The job cannot re-form any more, because poprun cannot be asked: its socket "
        "is gone.\n",
    ], ended


def test_only_the_ranks_commit_a_state(tmp_path: Path) -> None:
    over = tmp_path / "over"
    body = f"""
    import popdist.sdk
    popdist.sdk.install()
    import torch
    import horovod.torch as hvd

    if rank < 2:
        hvd.init([0, 1])
        hvd.elastic.ObjectState(step=0).commit()
        print("committed")
    while not os.path.exists({str(over)!r}):
        time.sleep(0.01)
    """
    with Coordinator(tmp_path, [3], body) as job:
        wait_until(lambda: all("committed" in job.output(i) for i in range(2)))
        over.touch()
        ended = job.finish()

    assert [one.code for one in ended] == [0, 0, 0], ended


def test_a_state_is_shared_kept_and_restored() -> None:
    def rank(me: int) -> Any:
        model = nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        seen = [f"rank {me}"]
        state = hvd.elastic.TorchState(model, optimizer, epoch=me, seen=seen)
        with torch.no_grad():
            model.weight.fill_(1.0 + me)
        state.sync()
        found = [(model.weight.item(), state.epoch, list(state.seen))]

        def step() -> None:
            model.weight.grad = torch.ones(1, 1)
            optimizer.step()
            state.epoch += 1
            state.seen.append("step")

        step()
        state.commit()
        # The momentum is restored with the rest: the second step is the same again.
        for _ in range(2):
            step()
            found.append((model.weight.item(), state.epoch, list(state.seen)))
            state.restore()
        found.append((model.weight.item(), state.epoch, list(state.seen)))
        return found

    after_step = (-1.5, 2, ["rank 0", "step", "step"])
    assert (
        results(2, rank)
        == [
            [
                (1.0, 0, ["rank 0"]),
                after_step,
                after_step,
                (0.0, 1, ["rank 0", "step"]),
            ]
        ]
        * 2
    )


def test_a_step_begins_anew_on_all_ranks_when_the_state_is_shared() -> None:
    def rank(me: int) -> Any:
        model = nn.Linear(1, 1, bias=False)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0),
            model.named_parameters(),
            backward_passes_per_step=2,
        )
        state = hvd.elastic.TorchState(model, optimizer)

        def backward() -> None:
            (model(torch.ones(1, 1)) * (1.0 + me)).sum().backward()

        # Ranks are added between the two passes, which the new ones have not made.
        backward()
        state.sync()
        optimizer.zero_grad()
        backward()
        backward()
        optimizer.step()
        return optimizer.param_groups[0]["lr"], model.weight.grad.item()

    assert results(2, rank) == [(1.0, 3.0)] * 2


def test_an_object_that_is_assigned_gets_the_handler_of_the_earlier_one() -> None:
    def rank(_: int) -> Any:
        state = hvd.elastic.TorchState(nn.Linear(1, 1))
        state.model = other = nn.Linear(1, 1, bias=False)
        before = other.weight.item()
        with torch.no_grad():
            other.weight.fill_(7.0)
        state.restore()
        return state.model is other, other.weight.item() == before

    assert results(1, rank) == [(True, True)]


def test_programs_add_handlers_for_objects_of_their_own() -> None:
    class Counter:
        def __init__(self) -> None:
            self.count = 0

    class CounterHandler(StateHandler):
        def save(self) -> None:
            self._kept = self.value.count

        def restore(self) -> None:
            self.value.count = self._kept

        def sync(self) -> None:
            self.value.count = hvd.broadcast_object(self.value.count)

    def rank(me: int) -> Any:
        set_handler_registry([*get_handler_registry(), (Counter, CounterHandler)])
        counter = Counter()
        state = hvd.elastic.TorchState(counter=counter)
        counter.count = 5 + me
        state.sync()
        shared = counter.count
        state.restore()
        return shared, counter.count

    assert results(2, rank) == [(5, 0)] * 2


def test_a_sampler_divides_what_is_left_of_an_epoch() -> None:
    def rank(me: int) -> Any:
        sampler = hvd.elastic.ElasticSampler(range(10), shuffle=False)
        whole = list(sampler)
        state = hvd.elastic.TorchState(sampler=sampler)
        sampler.record_batch(0, 2)
        state.commit()
        sampler.record_batch(1, 2)
        sampler.load_state_dict(sampler.state_dict())
        late = list(sampler), len(sampler)
        state.restore()
        left = list(sampler)
        sampler.set_epoch(1)
        return whole, late, left, list(sampler), sampler.state_dict()

    def shares(me: int) -> Any:
        whole = [*range(me, 10, 2)]
        # Samples 8 and 9 are left; and after restore() those from 4 on.
        return (
            whole,
            ([8 + me], 1),
            [4 + me, 6 + me, 8 + me],
            whole,
            {"epoch": 1, "processed_num": 0},
        )

    assert results(2, rank) == [shares(0), shares(1)]


def test_a_shuffled_sampler_gives_all_ranks_as_many_samples() -> None:
    def rank(_: int) -> Any:
        sampler = hvd.elastic.ElasticSampler(range(7), seed=3)
        first = list(sampler)
        sampler.set_epoch(1)
        return first, list(sampler)

    found = results(3, rank)

    for epoch in (0, 1):
        shares = [one[epoch] for one in found]
        assert [len(share) for share in shares] == [3, 3, 3]
        assert {sample for share in shares for sample in share} == set(range(7))
    assert found[0][0] != found[0][1]


def test_without_an_elastic_job_a_function_runs_again_on_the_same_ranks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def rank(me: int) -> Any:
        state = ObjectState(hvd.broadcast_object, hvd.rank, step=0)
        resets = []
        state.register_reset_callbacks([lambda: resets.append(state.step)])

        @hvd.elastic.run
        def train(state: Any, more: int) -> Any:
            state.step += more
            if not resets:
                raise HorovodInternalError("The program gives up.")
            if len(resets) == 1:
                # Without a loss, nothing is restored.
                raise HostsUpdatedInterrupt
            return state.step, hvd.rank(), hvd.size()

        return train(state, more=2), resets, caplog.messages

    assert results(2, rank) == [
        (
            (4, me, 2),
            [0, 2],
            [
                "The training continues from the state that was committed last, "
                "because of HorovodInternalError: The program gives up.",
                "The training continues on other ranks.",
            ],
        )
        for me in range(2)
    ]


def test_process_sets_can_be_added_again_after_a_change_of_ranks() -> None:
    def rank(me: int) -> Any:
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
        added = [hvd.add_process_set([0]), hvd.add_process_set([1])]
        state = ObjectState(step=0)
        state.register_reset_callbacks([lambda: added.append(hvd.add_process_set([1]))])

        @hvd.elastic.run
        def train(state: Any) -> Any:
            if len(added) == 2:
                raise HostsUpdatedInterrupt
            return [one.ranks for one in added], added[-1].included()

        return train(state)

    assert results(2, rank) == [([[0], [1], [1]], me == 1) for me in range(2)]


def test_without_an_elastic_job_the_loss_of_a_rank_is_the_error() -> None:
    def rank(me: int) -> Any:
        hvd.init()
        state = ObjectState(step=0)

        @hvd.elastic.run
        def train(state: Any) -> None:
            if me == 1:
                os._exit(7)
            hvd.allreduce(torch.ones(1))

        try:
            train(state)
        except HorovodInternalError as error:
            return str(error).partition(",")[0], error.__notes__

    first, second = start(2, rank)

    assert first.value == (
        "Instance 1 has ended",
        [
            "poprun has not started this process, so its job cannot re-form. Start it "
            "with poprun, --mpirun local and --min-instances."
        ],
    )
    assert second.code == 7


def test_without_an_elastic_job_a_rank_that_does_not_come_is_the_error() -> None:
    def rank(_: int) -> Any:
        @hvd.elastic.run
        def train(_: Any) -> None:
            raise HorovodInternalError from CollectiveTimeoutError("It has not come.")

        return error_of(lambda: train(ObjectState()))[0]

    assert results(1, rank) == ["HorovodInternalError"]


def test_calls_that_differ_are_an_error_that_no_other_ranks_would_help() -> None:
    def rank(me: int) -> Any:
        @hvd.elastic.run
        def train(_: Any) -> None:
            hvd.allreduce(torch.ones(1 + me), name="differs")

        return error_of(lambda: train(ObjectState()))[0]

    assert results(2, rank) == ["HorovodInternalError"] * 2


def test_the_base_class_leaves_the_rest_to_its_subclasses() -> None:
    def rank(_: int) -> Any:
        state = hvd.elastic.State(hvd.broadcast_object, hvd.rank)
        for call in (state.save, state.restore, state.sync):
            with pytest.raises(NotImplementedError):
                call()
        state.check_host_updates()
        return issubclass(SamplerStateHandler, StateHandler)

    assert results(1, rank) == [True]
