"""Every operation among instances on several hosts equals the specification."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent

import pytest

from tests.host_jobs import run

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

# Few elements go between hosts with their rows, more of them as nodes, in blocks.
OPERATIONS = """
group = popdist.instance_group()
size = group.size
others = [np.random.default_rng(i) for i in range(size)]

def check(name, given, expected):
    assert np.array_equal(given, expected, equal_nan=True), (rank, name)

def arrays(count, dtype):
    return [(o.random(count) * 8 - 4).astype(dtype) for o in others]

dtypes = ["float32", "float64", "float16", "bool", "int8", "int16", "int32", "int64"]
dtypes += ["uint8", "uint16", "uint32", "uint64"]
for count in (0, 1, 7, 1001, 300_017):
    for dtype in dtypes if count < 2000 else dtypes[:4]:
        xs = arrays(count, dtype)
        for op in ("sum", "min", "max", "prod", "mean"):
            if (dtype, op) != ("bool", "mean"):
                result = reference.all_reduce([x[None] for x in xs], op)
                check((count, dtype, op), group.all_reduce(xs[rank], op), result)
for count in (size, size * 70_001):
    xs = arrays(count, "float32")
    rows = [x[None] for x in xs]
    own = xs[rank].reshape(size, -1)
    scattered = reference.reduce_scatter(rows)[rank][0]
    check("reduce_scatter", group.reduce_scatter(xs[rank]), scattered)
    for root in range(size):
        total = group.reduce(xs[rank], "sum", root)
        if rank == root:
            check("reduce", total, reference.all_reduce(rows))
        x = xs[rank] if rank == root else np.zeros_like(xs[rank])
        check("broadcast", group.broadcast(x, root, out=x), xs[root])
        found = group.gather(xs[rank][: count // 2 + rank], root)
        for peer in range(size if rank == root else 0):
            check("gather", found[peer], xs[peer][: count // 2 + peer])
        part = group.scatter(own if rank == root else None, root)
        check("scatter", part, xs[root].reshape(size, -1)[rank])
    for peer, x in enumerate(group.all_gather(xs[rank][: count // 2 + rank])):
        check("all_gather", x, xs[peer][: count // 2 + peer])
    parts = np.stack([x.reshape(size, -1)[rank] for x in xs])
    check("all_to_all", group.all_to_all(own, out=own.copy()), parts)
    there, after = np.empty_like(xs[0]), (rank + 1) % size
    for turn in range(size):
        if rank == turn:
            group.send(xs[rank], after)
        elif rank == (turn + 1) % size:
            group.recv(there, turn)
    check("recv", there, xs[rank - 1])
small, large = arrays(5, "float32"), arrays(300_017, "float32")
first, second = group.grouped_all_reduce(
    [small[rank], large[rank]], out=[small[rank], large[rank]]
)
group.barrier()
print(group.last_algorithm, group.transport.__class__.__name__)
"""


@pytest.mark.parametrize("per_host", [(2, 2), (1, 1, 1, 1), (3, 1), (1, 2)])
def test_every_operation_equals_the_specification(
    hydra: str, tmp_path: Path, per_host: Sequence[int]
) -> None:
    ran = run(hydra, per_host, OPERATIONS, tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * sum(per_host)


def test_every_mpi_carries_them(every_mpirun: str, tmp_path: Path) -> None:
    ran = run(every_mpirun, (2, 1), OPERATIONS, tmp_path)

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


def test_several_members_of_a_host_may_share_what_goes_between_hosts(
    hydra: str, tmp_path: Path
) -> None:
    shared = "from popdist.engine.hosts import reductions; reductions.CARRIERS = 2\n"

    ran = run(hydra, (2, 3), shared + dedent(OPERATIONS), tmp_path)

    assert ran.outputs == ["direct HostsTransport"] * 5


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
