"""DistributedDataParallel goes on among the members that are left, and new ones."""

from pathlib import Path

import pytest

from tests.elastic_jobs import Coordinator, wait_until

# Instance 1 dies in its fifth step, and is started again. All end with equal weights.
BODY = """
import hashlib
import torch
import torch.distributed as dist
import popdist.torch
from popdist import elastic
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
index = int(os.environ["TEST_INDEX"])
torch.manual_seed(index)
model = torch.nn.Sequential(
    torch.nn.Linear(200, 200), torch.nn.Tanh(), torch.nn.Linear(200, 1)
)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
state = elastic.State(
    model=model, optimizer=optimizer, step=0, best=torch.zeros(3, dtype=torch.bfloat16)
)
@elastic.run
def train(state):
    if dist.is_initialized():
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            print("This group is closed" in str(error))
        dist.destroy_process_group()
    dist.init_process_group("popdist")
    parallel = DistributedDataParallel(model)
    size = dist.get_world_size()
    print("members", elastic.generation(), size, state.step, flush=True)
    while state.step < 15 or (elastic.generation(), size) != (2, SIZE):
        optimizer.zero_grad()
        loss = parallel(torch.randn(8, 200)).square().mean()
        loss.backward()
        optimizer.step()
        state.best = state.best + 1
        state.step += 1
        state.commit()
        if index == 1 and elastic.generation() == 0 and state.step == 5:
            os.kill(os.getpid(), signal.SIGKILL)

train(state)
text = repr([p.tolist() for p in model.parameters()] + [state.best.tolist()])
text += repr(optimizer.state_dict()["state"][0]["exp_avg"].tolist())
print(state.step, hashlib.sha256(text.encode()).hexdigest())
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_a_ddp_training_goes_on_with_equal_weights(tmp_path: Path) -> None:
    body = BODY.replace("SIZE", "3")
    with Coordinator(tmp_path, [3], body) as job:
        wait_until(lambda: job.generation == 1)
        job.add(1)
        ended = job.finish()

    assert [one.code for one in ended] == [0, -9, 0, 0], ended
    last = {one.out.splitlines()[-1] for one in ended if one.code == 0}
    assert len(last) == 1, ended
    # The groups of the first generation, and of the second one.
    assert [one.out.count("True") for one in ended] == [2, 0, 2, 0], ended


# gloo's errors say nothing of instances: poprun tells of the loss.
BODY_OF_GLOO = """
import torch
import torch.distributed as dist
from popdist import elastic
from popdist.elastic import repeating
from torch.nn.parallel import DistributedDataParallel

# Also on a busy machine each loss is told in time.
repeating._TOLD_SECONDS = 200.0
torch.set_num_threads(1)
index = int(os.environ["TEST_INDEX"])
torch.manual_seed(index)
model = torch.nn.Linear(20, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = elastic.State(model=model, optimizer=optimizer, step=0)

@elastic.run
def train(state):
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group("gloo")
    parallel = DistributedDataParallel(model)
    while state.step < 9 or (elastic.generation(), dist.get_world_size()) != (2, 3):
        if index == 1 and elastic.generation() == 0 and state.step == 5:
            # The others wait for it in a call of gloo.
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        parallel(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        state.step += 1
        state.commit()

train(state)
print(dist.get_rank(), model.weight.tolist())
dist.destroy_process_group()
"""


@pytest.mark.timeout(300)
def test_gloos_groups_are_made_anew_of_the_new_members(tmp_path: Path) -> None:
    with Coordinator(tmp_path, [3], BODY_OF_GLOO) as job:
        wait_until(lambda: job.generation == 1)
        job.add(1)
        ended = job.finish()

    assert [one.code for one in ended] == [0, -9, 0, 0], ended
    outs = [one.out for one in ended if one.code == 0]
    ranks, weights = zip(*(out.split(" ", 1) for out in outs), strict=True)
    assert ranks == ("0", "2", "1")
    assert len(set(weights)) == 1, ended


@pytest.mark.timeout(300)
def test_a_first_send_ends_where_the_receiver_re_forms(tmp_path: Path) -> None:
    body = """
    import torch
    import torch.distributed as dist
    import popdist.torch
    from popdist import elastic

    assert not elastic.refusal()
    dist.init_process_group("popdist")
    try:
        if rank == 0:
            dist.send(torch.ones(1), 1)
        if rank == 1:
            dist.all_reduce(torch.ones(1))
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    except dist.DistBackendError as error:
        print(isinstance(error.__cause__, popdist.PeerLostError))
    elastic.reform()
    print(popdist.instance_group().all_reduce(np.ones(1)).tolist())
    """
    with Coordinator(tmp_path, [3], body) as job:
        ended = job.finish()

    assert [one.code for one in ended] == [0, 0, -9], ended
    assert [one.out for one in ended] == ["True\n[2.0]\n", "True\n[2.0]\n", ""], ended


@pytest.mark.parametrize("size", [6, 100_000])
def test_views_of_a_tensor_are_views_on_all_members(tmp_path: Path, size: int) -> None:
    body = f"""
    import torch
    from popdist import elastic
    whole = torch.zeros({size}).requires_grad_(rank == 0)
    state = elastic.State(whole=whole, columns=whole.detach().view(2, -1).T)
    state.sync()
    state.columns += 1
    state.restore()
    state.columns += 1
    print(state.whole.sum().item(), state.columns.stride(), state.whole.requires_grad)
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    expected = f"{size}.0 (1, {size // 2}) True\n"
    assert [one.out for one in ended] == [expected] * 2, ended


def test_empty_tensors_can_grow_apart_on_all_members(tmp_path: Path) -> None:
    body = """
    import torch
    from popdist import elastic
    state = elastic.State(first=torch.empty(0), second=torch.empty(0))
    state.sync()
    state.first.resize_(2).fill_(1)
    state.second.resize_(2).fill_(2)
    print(state.first.tolist(), state.second.tolist())
    """
    with Coordinator(tmp_path, [2], body) as job:
        ended = job.finish()

    assert [one.out for one in ended] == ["[1.0, 1.0] [2.0, 2.0]\n"] * 2, ended
