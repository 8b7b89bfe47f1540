"""Every operation among instances on several hosts equals the specification."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.conftest import mpirun_of
from tests.host_jobs import OPERATIONS, TCP, run

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("per_host", [(2, 2), (1, 1, 1, 1), (3, 1)])
def test_every_operation_equals_the_specification(
    hydra: str, tmp_path: Path, per_host: Sequence[int]
) -> None:
    ran = run(hydra, per_host, OPERATIONS, tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * sum(per_host)


# Draws calls as all instances do. The shares of gathers differ.
EXCHANGES = """
group = popdist.instance_group()
size = group.size
dice = np.random.default_rng(SEED)
for turn in range(30):
    kind = str(dice.choice(["float32", "float16", "uint8", "int64", "bool"]))
    most = int(dice.choice([0, 1, 9, 700, 5000, 60_000]))
    root = int(dice.integers(size))
    xs = [dice.integers(0, 256, (1, size * most)).astype(kind) for _ in range(size)]
    own, lengths = xs[rank][0], dice.integers(0, size * most + 1, size)
    parts = [x[0, :n] for x, n in zip(xs, lengths)]
    whole = reference.broadcast(xs, root)
    found = [group.broadcast(own, root), group.broadcast(own.copy(), root)]
    expected = [whole, whole]
    if most:
        rows = own.reshape(size, most)
        scattered = reference.scatter(xs, root)[rank]
        found += [group.scatter(rows if rank == root else None, root)]
        found += [group.all_to_all(rows), group.all_to_all(rows, out=rows.copy())]
        turned = reference.all_to_all(xs)[rank]
        expected += [scattered, turned, turned]
    found += group.all_gather(parts[rank])
    found += group.gather(parts[rank], root) or []
    expected += parts + parts * (rank == root)
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        assert np.array_equal(np.ravel(one), np.ravel(other)), (turn, kind, most)
print("equal")
"""


@pytest.mark.parametrize(
    ("seed", "per_host", "links"),
    [
        (1, (2, 1), "hydra"),
        (2, (1, 2, 2), TCP),
        (3, (1, 1, 2, 1), "hydra"),
        (4, (3, 3), TCP),
    ],
    indirect=["links"],
)
def test_drawn_exchanges_equal_the_specification(
    links: str, tmp_path: Path, seed: int, per_host: Sequence[int]
) -> None:
    body = EXCHANGES.replace("SEED", str(seed))

    assert run(links, per_host, body, tmp_path).outputs == ["equal"] * sum(per_host)


@pytest.mark.parametrize("mpi", ["openmpi5", "openmpi4"])
def test_other_mpis_carry_them_as_well(tmp_path: Path, mpi: str) -> None:
    ran = run(mpirun_of(mpi), (2, 1), OPERATIONS, tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * 3


def test_the_same_replicas_have_the_same_bits_on_all_splits_into_hosts(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    import hashlib
    group = popdist.replica_group()
    first = popdist.getReplicaIndexOffset()
    digest = hashlib.sha256()
    for count in (3, 999, 200_003):
        for dtype in (np.float32, np.float16, np.float64):
            for op in ("sum", "mean", "prod"):
                rows = [
                    (np.random.default_rng(first + row).random(count) * 3).astype(dtype)
                    for row in range(popdist.getNumLocalReplicas())
                ]
                for total in group.all_reduce(rows, op, reproducible=True):
                    pass
                digest.update(total.tobytes())
    print(digest.hexdigest())
    """
    splits = [
        ((1,), (8,)),
        ((4,), (2, 2, 2, 2)),
        ((2, 2), (2, 2, 2, 2)),
        ((1, 1, 1, 1), (2, 2, 2, 2)),
        ((1, 2), (3, 4, 1)),
        ((1, 1), (5, 3)),
    ]

    digests = [
        run(hydra, per_host, body, tmp_path, rows=rows).outputs
        for per_host, rows in splits
    ]

    assert len({digest for outputs in digests for digest in outputs}) == 1


def test_bfloat16_equals_float32_that_is_rounded_at_the_end(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    import ctypes
    from popdist.engine.rows import Rows
    from popdist.engine.spec.dtypes import DTYPES
    carry = popdist.instance_group().transport
    for count in (8, 70_000):
        exact = np.random.default_rng(1).random(count, np.float32) * (rank + 1)
        x = (exact.view(np.uint32) >> 16).astype(np.uint16)
        row = Rows((x.ctypes.data,), (count,), DTYPES["bfloat16"], x)
        carry.all_reduce([(row, row)], 0)
        given = [
            ((np.random.default_rng(1).random(count, np.float32) * (peer + 1))
             .view(np.uint32) >> 16 << 16).view(np.float32)
            for peer in range(3)
        ]
        total = (given[0] + given[1]) + given[2]
        bits = total.view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        assert np.array_equal(x, rounded.astype(np.uint16))
    print("equal")
    """

    assert run(hydra, (2, 1), body, tmp_path).outputs == ["equal"] * 3


def test_groups_of_some_instances_span_the_hosts_that_these_are_on(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    from popdist.session import STATE
    whole = popdist.instance_group()
    made = []
    for members in ((0, 1), (2, 3), (1, 2), (0, 2, 3)):
        if rank in members:
            group = STATE.group("test", members)
            total = group.all_reduce(np.full(3, 10.0**rank))
            kind = type(group.transport).__name__
            made.append(f"{kind} {total[0]:g}")
            group.close()
            again = STATE.group("test", members)
            assert again.all_reduce(np.ones(2))[0] == len(members)
    whole.barrier()
    print(*made, sep=", ")
    """

    assert run(hydra, (2, 2), body, tmp_path).outputs == [
        "ShmTransport 11, HostsTransport 1101",
        "ShmTransport 11, HostsTransport 110",
        "ShmTransport 1100, HostsTransport 110, HostsTransport 1101",
        "ShmTransport 1100, HostsTransport 1101",
    ]


def test_a_group_of_one_hosts_instances_starts_no_mpi(
    hydra: str, tmp_path: Path
) -> None:
    body = """
    from popdist.session import STATE
    members = (0, 1) if rank < 2 else (2, 3)
    group = STATE.group("test", members)
    group.all_reduce(np.ones(5))
    print(type(group.transport).__name__, "mpi4py" in sys.modules)
    """

    ran = run(hydra, (2, 2), body, tmp_path)

    assert ran.outputs == ["ShmTransport False"] * 4


def test_calls_beside_the_program_and_traces(hydra: str, tmp_path: Path) -> None:
    body = """
    group = popdist.instance_group()
    told = []
    group.set_trace(lambda call, began, ended, done: told.append((int(call[0]), done)))
    handles = [group.all_reduce(np.ones(n), async_op=True) for n in (4, 50_000)]
    totals = [handle.wait() for handle in handles]
    group.barrier()
    print([int(total[-1]) for total in totals], told)
    """

    ran = run(hydra, (1, 2), body, tmp_path)

    assert ran.outputs == ["[3, 3] [(1, True), (1, True), (0, True)]"] * 3


def test_instances_of_hosts_in_turn_give_the_same_results(
    hydra: str, tmp_path: Path
) -> None:
    # As mpirun --map-by node places them.
    in_turn = """
    from popdist.engine.hosts import meeting, world
    world.JobHosts.hosts = property(lambda self: (0, 1, 0, 1))
    """
    turned = "os.environ['POPDIST_INSTANCES_PER_HOST'] = '2,2'\n"

    ran = run(hydra, (2, 2), turned + dedent(in_turn) + dedent(OPERATIONS), tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * 4


def test_communicators_span_hosts_as_well(hydra: str, tmp_path: Path) -> None:
    body = """
    popdist.init()
    both = popdist.execute_on_instances(
        {1, 2}, collectives.allReduceSum, np.ones(2) * rank
    )
    # MPI starts for instances 1 and 2 when instance 0 starts it, too.
    collectives.barrier()
    print(None if both is None else both.tolist())
    popdist.finalizeBackend()
    """

    ran = run(hydra, (2, 1), body, tmp_path)

    assert ran.outputs == ["None", "[3.0, 3.0]", "[3.0, 3.0]"]


# Rank, size; local rank, local size; cross rank, cross size; homogeneous; sum.
PLACES = {
    "[[0, 1, 2, 3]]": [
        "0 4 0 2 0 2 True 6.0",
        "1 4 1 2 0 2 True 6.0",
        "2 4 0 2 1 2 True 6.0",
        "3 4 1 2 1 2 True 6.0",
    ],
    # Instances 1 and 3 need no MPI, but MPI waits for them.
    "[[0, 2], [1], [3]]": [
        "0 2 0 1 0 2 True 2.0",
        "0 1 0 1 0 1 True 1.0",
        "1 2 0 1 1 2 True 2.0",
        "0 1 0 1 0 1 True 3.0",
    ],
    "[[0, 2], [1, 3]]": [
        "0 2 0 1 0 2 True 2.0",
        "0 2 0 1 0 2 True 4.0",
        "1 2 0 1 1 2 True 2.0",
        "1 2 0 1 1 2 True 4.0",
    ],
    "[[0, 1, 2], [3]]": [
        "0 3 0 2 0 2 False 3.0",
        "1 3 1 2 0 1 False 3.0",
        "2 3 0 1 1 2 False 3.0",
        "0 1 0 1 0 1 True 3.0",
    ],
}


def test_horovods_local_ranks_are_counted_among_the_instances_that_are_ranks(
    hydra: str, tmp_path: Path
) -> None:
    body = f"""
    import popdist.sdk
    popdist.sdk.install()
    import horovod.torch as hvd, torch
    for sets in [{", ".join(PLACES)}]:
        hvd.init(comm=next(ranks for ranks in sets if rank in ranks))
        total = hvd.allreduce(torch.ones(2) * rank, op=hvd.Sum)
        print(hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), end=" ")
        print(hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous(), end=" ")
        print(total[0].item())
        hvd.shutdown()
    """

    outputs = run(hydra, (2, 2), body, tmp_path).outputs

    places = [output.splitlines() for output in outputs]
    assert places == [list(lines) for lines in zip(*PLACES.values(), strict=True)]
