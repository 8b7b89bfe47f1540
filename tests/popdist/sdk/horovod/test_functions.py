"""Broadcasts of parameters, states and objects; batch normalization; process sets."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import popdist
from tests.jobs import outputs, run, run_alone
from tests.popdist.engine.members import error_of
from tests.popdist.sdk.horovod.ranks_of_horovod import hvd, results, start

pytestmark = pytest.mark.usefixtures("each_transport")


def test_parameters_become_those_of_the_root() -> None:
    def rank(me: int) -> Any:
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        model[1].num_batches_tracked += me
        turned = nn.Parameter(torch.randn(3, 2).t())
        assert hvd.broadcast_parameters(model.state_dict(), root_rank=1) is None
        hvd.broadcast_parameters(model.named_parameters(), root_rank=0)
        hvd.broadcast_parameters([("turned", turned), ("none", None)], root_rank=2)
        kinds = [
            error_of(lambda: hvd.broadcast_parameters(3, root_rank=0))[0],
            error_of(lambda: hvd.broadcast_parameters({"x": 1.0}, root_rank=0))[0],
        ]
        state = {name: one.tolist() for name, one in model.state_dict().items()}
        return state, turned.tolist(), kinds

    found = results(3, rank)

    assert found[0] == found[1] == found[2]
    assert found[0][0]["1.num_batches_tracked"] == 1
    torch.manual_seed(2)
    nn.Linear(3, 2)
    assert found[0][1] == torch.randn(3, 2).t().tolist()
    assert found[0][2] == ["ValueError"] * 2


OPTIMIZERS = [
    lambda params, me: torch.optim.SGD(params, lr=0.1 + me, momentum=0.9),
    lambda params, me: torch.optim.SGD(params, lr=0.1 + me),
    lambda params, me: torch.optim.Adam(params, lr=0.1, betas=(0.5 + me / 9, 0.9)),
    lambda params, me: torch.optim.Rprop(params, step_sizes=(1e-6 * (me + 1), 50)),
    lambda params, me: torch.optim.ASGD(params, lambd=1e-4 * (me + 1)),
]


def test_an_optimizers_state_becomes_that_of_the_root_with_its_types() -> None:
    def plain(state: Any) -> Any:
        if isinstance(state, torch.Tensor):
            return str(state.dtype), state.tolist()
        if isinstance(state, dict):
            return {key: plain(value) for key, value in state.items()}
        if isinstance(state, list | tuple):
            return type(state)(plain(value) for value in state)
        return type(state), state

    def rank(me: int) -> Any:
        found = []
        for make in OPTIMIZERS:
            model = nn.Linear(3, 2)
            model.bias.requires_grad_(False)
            optimizer = make(model.parameters(), me)
            if me == 1:
                # Only the root has a state.
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
            hvd.broadcast_optimizer_state(optimizer, root_rank=1)
            found.append(plain(optimizer.state_dict()))
            assert model.weight.grad is not None
            assert model.bias.grad is None
            hvd.broadcast_parameters(model.state_dict(), root_rank=0)
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
        lbfgs = torch.optim.LBFGS(nn.Linear(1, 1).parameters())
        kind, _ = error_of(lambda: hvd.broadcast_optimizer_state(lbfgs, 0))
        return found, kind

    found = results(2, rank)

    assert found[0] == found[1]
    assert found[0][1] == "ValueError"
    assert found[0][0][0]["param_groups"][0]["lr"] == (float, 1.1)
    assert len(found[0][0][0]["state"]) == 1
    assert found[0][0][1]["state"] == {}


def test_objects_are_broadcast_and_gathered() -> None:
    def rank(me: int) -> Any:
        thing = {"rank": me, 0: [1, None], "long": "x" * (me * 100_000)}
        one = hvd.broadcast_object(thing if me == 2 else None, root_rank=2, name="o")
        each = hvd.allgather_object({"rank": me, "x": "y" * me})
        pair = hvd.broadcast_object((me, torch.ones(2) * me))
        return one["rank"], len(one["long"]), each, pair[0], pair[1].tolist()

    gathered = [{"rank": i, "x": "y" * i} for i in range(3)]
    assert results(3, rank) == [(2, 200_000, gathered, 0, [0.0, 0.0])] * 3


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batches_of_all_ranks_are_normalized_as_one(momentum: float | None) -> None:
    torch.manual_seed(11)
    # Of different numbers of samples.
    batches = [torch.randn(2 + i, 3, 4) * 5 + i for i in range(3)]
    weights = [torch.randn_like(batch) for batch in batches]
    whole = torch.cat(batches).requires_grad_()
    alone = nn.BatchNorm1d(3, momentum=momentum)
    nn.init.uniform_(alone.weight)
    output = alone(whole)
    (output * torch.cat(weights)).sum().backward()

    def rank(me: int) -> Any:
        layer = hvd.SyncBatchNorm(3, momentum=momentum)
        layer.load_state_dict({**alone.state_dict(), **layer_state(layer)})
        mine = batches[me].clone().requires_grad_()
        out = layer(mine)
        (out * weights[me]).sum().backward()
        layer.eval()
        return (
            out.detach(),
            mine.grad,
            layer.running_mean,
            layer.running_var,
            hvd.allreduce(layer.weight.grad, op=hvd.Sum),
            hvd.allreduce(layer.bias.grad, op=hvd.Sum),
            layer(mine).detach(),
        )

    def layer_state(layer: nn.Module) -> dict[str, torch.Tensor]:
        names = ("running_mean", "running_var", "num_batches_tracked")
        return {name: getattr(layer, name) for name in names}

    found = results(3, rank)

    def close(one: torch.Tensor, other: torch.Tensor) -> bool:
        return torch.allclose(one, other, rtol=1e-4, atol=1e-5)

    assert close(torch.cat([each[0] for each in found]), output)
    assert close(torch.cat([each[1] for each in found]), whole.grad)
    alone.eval()
    evaluated = alone(whole)
    assert close(torch.cat([each[6] for each in found]), evaluated)
    for each in found:
        assert close(each[2], alone.running_mean)
        assert close(each[3], alone.running_var)
        assert close(each[4], alone.weight.grad)
        assert close(each[5], alone.bias.grad)


def test_process_sets_make_calls_of_their_own() -> None:
    def rank(me: int) -> Any:
        first, pair, again = hvd.ProcessSet([0]), hvd.ProcessSet([2, 1]), [2, 1, 0]
        unused = first.included(), pair.size(), str(hvd.global_process_set)
        hvd.init(process_sets=[first, pair, again, [0]])
        found = [
            unused,
            [str(one) for one in (hvd.global_process_set, first, pair)],
            [pair.included(), pair.rank(), pair.size()],
            error_of(lambda: hvd.add_process_set([0, 1]))[0],
        ]
        mine = first if me == 0 else pair
        x = torch.full((2,), me + 1.0)
        for step in range(3):
            found += [
                hvd.allreduce(x, op=hvd.Sum, process_set=mine).tolist(),
                hvd.allgather(x[: me + 1], process_set=mine).tolist(),
                hvd.broadcast(x, 0 if me == 0 else 2, process_set=mine).tolist(),
                hvd.broadcast_object(me, 0 if me == 0 else 1, process_set=mine),
                hvd.allgather_object(me, process_set=mine),
                hvd.allreduce(x, op=hvd.Sum).tolist() if step == 1 else None,
            ]
        hvd.barrier(mine)
        if me:
            found.append(error_of(lambda: hvd.broadcast(x, 0, process_set=pair))[0])
        other = first if me else pair
        found.append(error_of(lambda: hvd.allreduce(x, process_set=other))[0])
        weight = torch.zeros(1, requires_grad=True)
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([weight], lr=1.0), process_set=pair
        )
        (weight * (me + 1)).sum().backward()
        optimizer.step()
        found.append(weight.item())
        hvd.shutdown()
        return found, first.process_set_id, hvd.global_process_set.ranks

    ended = start(3, rank)
    for one in ended:
        if one.error is not None:
            raise one.error
    texts = [
        "ProcessSet(process_set_id=0, ranks=[0, 1, 2], mpi_comm=None)",
        "ProcessSet(process_set_id=1, ranks=[0], mpi_comm=None)",
        "ProcessSet(process_set_id=2, ranks=[1, 2], mpi_comm=None)",
    ]
    unused = (None, None, "ProcessSet(process_set_id=None, ranks=None, mpi_comm=None)")
    alone = [[1.0] * 2, [1.0], [1.0] * 2, 0, [0]]
    pair = [[5.0] * 2, [2.0, 2.0, 3.0, 3.0], [3.0] * 2, 1, [1, 2]]
    for me, one in enumerate(ended):
        found, number, ranks = one.value
        place = [[False, None, 2], [True, 0, 2], [True, 1, 2]][me]
        own = pair if me else alone
        calls = [*own, None, *own, [6.0] * 2, *own, None]
        refused = ["ValueError"] * (1 + (me > 0))
        weight = [-1.0, -2.5, -2.5][me]
        assert found == [unused, texts, place, "ValueError", *calls, *refused, weight]
        assert (number, ranks) == (None, None)


def test_process_sets_come_and_go() -> None:
    def rank(me: int) -> Any:
        hvd.init(process_sets="dynamic")
        ids = hvd.mpi_ops._basics._get_process_set_ids_and_ranks
        one, two = hvd.add_process_set([0]), hvd.add_process_set(range(1, 3))
        found = [ids(), hvd.remove_process_set(one), one.process_set_id, ids()]
        hvd.add_process_set(one)
        found += [ids(), hvd.remove_process_set(one)]
        three = hvd.add_process_set([0, 2])
        found += [
            three.process_set_id,
            error_of(lambda: hvd.add_process_set([2, 1]))[0],
            error_of(lambda: hvd.add_process_set(range(3)))[0],
            error_of(lambda: hvd.add_process_set([0, 3]))[0],
            error_of(lambda: hvd.ProcessSet([0, 0]))[0],
            error_of(lambda: hvd.add_process_set([me]))[0],
            error_of(lambda: hvd.allreduce(torch.ones(1), process_set=one))[0],
            hvd.remove_process_set(hvd.global_process_set),
        ]
        if me != 1:
            found.append(hvd.allreduce(torch.tensor(1.0 * me), process_set=three))
        hvd.remove_process_set(three)
        again = hvd.add_process_set([0, 2])
        if me != 1:
            found.append(hvd.allreduce(torch.tensor(3.0 * me), process_set=again))
        hvd.remove_process_set(two)
        return [*found, ids()]

    everyone = [0, 1, 2]
    expected = [
        {0: everyone, 1: [0], 2: [1, 2]},
        True,
        None,
        {0: everyone, 2: [1, 2]},
        {0: everyone, 1: [0], 2: [1, 2]},
        True,
        1,
        *["ValueError"] * 4,
        "HorovodInternalError",
        "ValueError",
        False,
    ]
    last = {0: everyone, 1: [0, 2]}
    for me, one in enumerate(start(3, rank)):
        if one.error is not None:
            raise one.error
        calls = [1.0, 3.0] if me != 1 else []
        assert one.value == [*expected, *calls, last]


def test_a_timeline_is_a_complete_file_of_events(tmp_path: Path) -> None:
    def rank(me: int) -> Any:
        first, second = tmp_path / f"{me}-first.json", tmp_path / f"{me}-second.json"
        hvd.start_timeline(str(first), mark_cycles=True)
        hvd.allreduce(torch.ones(2), name="x")
        hvd.stop_timeline()
        hvd.allreduce(torch.ones(2), name="unseen")
        hvd.start_timeline(str(second))
        hvd.synchronize(hvd.broadcast_async(torch.ones(2), 0, name="y"))
        hvd.stop_timeline()
        hvd.stop_timeline()
        return [path.read_text() for path in (first, second) if path.exists()]

    (first, second), nothing = results(2, rank)

    assert nothing == []
    events = json.loads(first)
    names = {event.get("args", {}).get("name") for event in events}
    assert names == {None, "allreduce.x"}
    steps = [(event["ph"], event["name"]) for event in events if event["ph"] in "BEi"]
    assert [one for one in steps if one[0] != "i"] == [
        ("B", "NEGOTIATE_ALLREDUCE"),
        ("E", "NEGOTIATE_ALLREDUCE"),
        ("B", "ALLREDUCE"),
        ("E", "ALLREDUCE"),
    ]
    assert ("i", "CYCLE_START") in steps
    times = [event["ts"] for event in events if "ts" in event]
    assert times == sorted(times)
    # Of the announcements, and of the tensor.
    carried_out = [
        (event["name"], event["args"]) for event in events if event["ph"] == "X"
    ]
    reduction = "ENGINE_ALL_REDUCE", {"count": 2, "dtype": "float32"}
    assert carried_out[-1] == reduction
    assert {name for name, _ in carried_out} >= {"ENGINE_ALL_GATHER"}
    assert "start_time_since_epoch_in_micros" in first
    assert "NEGOTIATE_BROADCAST" in second
    assert "CYCLE_START" not in second


def test_the_environment_begins_a_timeline(tmp_path: Path) -> None:
    def rank(me: int) -> Any:
        os.environ["HOROVOD_TIMELINE"] = str(tmp_path / "timeline.json")
        hvd.init()
        hvd.barrier()
        hvd.shutdown()

    assert [one.error for one in start(2, rank)] == [None] * 2
    text = (tmp_path / "timeline.json").read_text()
    assert {event["name"] for event in json.loads(text)} >= {"BARRIER"}


INITS = [hvd.init, popdist.init]


@pytest.mark.parametrize("inits", [INITS, INITS[::-1], INITS[:1], INITS * 2])
def test_horovod_and_popdist_are_initialised_in_any_order(inits: list[Any]) -> None:
    def rank(me: int) -> Any:
        for init in inits:
            init()
        total = popdist.instance_group().all_reduce(torch.ones(2).numpy())
        found = hvd.allreduce(torch.ones(2), op=hvd.Sum)
        return total.tolist(), found.tolist(), hvd.rank() == popdist.getInstanceIndex()

    assert [one.value for one in start(2, rank)] == [([2, 2], [2, 2], True)] * 2


def test_what_the_ranks_are_and_what_there_is() -> None:
    def rank(me: int) -> Any:
        return [
            (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()),
            (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()),
            [hvd.mpi_built(), hvd.mpi_enabled(), hvd.mpi_threads_supported()],
            [hvd.gloo_built(), hvd.gloo_enabled(), hvd.nccl_built(), hvd.ddl_built()],
            [hvd.ccl_built(), hvd.cuda_built(), hvd.rocm_built()],
        ]

    for me, found in enumerate(results(2, rank)):
        assert found == [
            (me, 2, me, 2),
            (0, 1, True),
            [False, False, True],
            [True, True, 0, False],
            [False, False, False],
        ]


def test_a_cycle_time_that_is_no_time_is_refused() -> None:
    def rank(me: int) -> Any:
        os.environ["HOROVOD_CYCLE_TIME"] = "2.5"
        hvd.init()
        handle = hvd.allreduce_async(torch.ones(1), name="x")
        while not hvd.poll(handle):
            pass
        hvd.shutdown()
        os.environ["HOROVOD_CYCLE_TIME"] = "soon"
        return error_of(hvd.init), hvd.is_initialized()

    ((error, initialized),) = (one.value for one in start(1, rank))
    assert error == (
        "ValueError",
        "HOROVOD_CYCLE_TIME is 'soon', but must be a number of milliseconds from 0 to "
        "1000. Correct it, or unset it.",
    )
    assert not initialized


def test_some_of_the_instances_can_be_the_ranks() -> None:
    def rank(me: int) -> Any:
        if me == 1:
            return error_of(lambda: hvd.init(comm=[0, 2]))[0]
        hvd.init(comm=[0, 2])
        total = hvd.allreduce(torch.tensor(1.0 * me), op=hvd.Sum)
        return hvd.rank(), hvd.size(), hvd.local_rank(), total.item()

    assert [one.value for one in start(3, rank)] == [
        (0, 2, 0, 2.0),
        "ValueError",
        (1, 2, 1, 2.0),
    ]


def test_local_ranks_of_some_instances_are_counted_on_their_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rank(me: int) -> Any:
        if me == 1:
            return None
        hvd.init(comm=[0, 2, 3])
        monkeypatch.setattr("horovod.common.basics.host_numbers", lambda: (0, 0, 1, 1))
        counts = (hvd.local_rank(), hvd.local_size(), hvd.cross_rank())
        return *counts, hvd.cross_size(), hvd.is_homogeneous()

    assert [one.value for one in start(4, rank)] == [
        (0, 1, 0, 2, False),
        None,
        (0, 2, 1, 2, False),
        (1, 2, 0, 1, False),
    ]


PROGRAM = """
import popdist.sdk
popdist.sdk.install()
import horovod
import horovod.torch as hvd
import torch
hvd.init()
found = hvd.allreduce(torch.tensor([hvd.rank() + 1.0]), average=False)
handle = hvd.allreduce_async(torch.ones(1), name=f"not waited for {hvd.rank()}")
print(hvd.rank(), hvd.size(), found.item())
try:
    horovod.run()
except NotImplementedError as error:
    print(str(error).partition(":")[0])
"""
NOT_THERE = "horovod.run is not available"


def test_without_poprun_there_is_one_rank() -> None:
    assert outputs(run_alone(PROGRAM)) == [f"0 1 1.0\n{NOT_THERE}"]


def test_a_program_ends_though_calls_are_under_way() -> None:
    assert outputs(run(2, PROGRAM, {"OMP_NUM_THREADS": "1"})) == [
        f"{rank} 2 3.0\n{NOT_THERE}" for rank in range(2)
    ]
