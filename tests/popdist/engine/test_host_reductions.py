"""Reductions over hosts, as the core carries them out, without MPI between them."""

import ctypes
import gc
import select
import socket
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from popdist.engine import _core
from popdist.engine.hosts.layout import Layout
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import REDUCTIONS, code_of
from popdist.engine.spec.operations import (
    ALGORITHMS,
    Operation,
    Status,
)
from tests.popdist.engine import samples
from tests.popdist.engine.fake_links import NODES, RECORD, RESULTS, FakeLinks
from tests.popdist.engine.host_job import (
    FLOAT32,
    REDUCE,
    SPLITS,
    Call,
    Job,
    Member,
    Split,
    arena_of,
    drawn_split,
)
from tests.popdist.engine.members import Me, results
from tests.popdist.engine.samples import Array, same, sample


class ReadingLinks(FakeLinks):
    """A fake of MPI, where the test of the second message completes the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.tested: list[int] = []

    def _test(self, request: int, done: int, _: int) -> int:
        number = ctypes.c_size_t.from_address(request).value
        ctypes.c_int.from_address(done).value = number == 2 or 2 in self.tested
        self.tested.append(number)
        return 0


def rows_of(row: Array, count: int) -> Array:
    return np.broadcast_to(row, (count, *row.shape))


def inputs_of(seed: int, split: Split, count: int, dtype: Any) -> list[Array]:
    return [
        sample([seed, rank], (n, count), dtype) for rank, n in enumerate(split.replicas)
    ]


# Few elements go with the records; whole blocks; several blocks.
CASES = [
    (dtype, op, count)
    for dtype in samples.DTYPES
    for op in REDUCTIONS
    for count in ((0, 3001) if op != "sum" else (1, 33, 9001))
    if dtype.kind != "b" or op != "mean"
] + [(np.dtype(name), "sum", 300_007) for name in ("float32", "float16", "bool")]


@pytest.mark.parametrize(
    "split", [*SPLITS, *map(drawn_split, range(3))], ids=lambda s: f"{s[0]}-{s[1]}"
)
def test_any_split_into_hosts_gives_the_bits_of_one_host(split: Split) -> None:
    with Job(split) as job:
        for seed, (dtype, op, count) in enumerate(CASES):
            inputs = inputs_of(seed, split, count, dtype)
            row = reference.all_reduce(inputs, op)
            before = [x.copy() for x in inputs]
            in_place = seed % 3 == 0
            outs = inputs if in_place else [np.ones_like(x) for x in inputs]
            calls = [([x], [out]) for x, out in zip(inputs, outs, strict=True)]

            def reduce(member: Member, op: str = op, calls: Any = calls) -> None:
                arrays, out = calls[member.rank]
                member.reduce(Call(arrays, op), out)

            job.each(reduce)
            for x, unchanged, out in zip(inputs, before, outs, strict=True):
                assert in_place or same(x, unchanged), (str(dtype), op, count)
                assert same(out, rows_of(row, len(x))), (str(dtype), op, count)


def test_a_message_that_the_test_of_another_one_completes_is_not_slept_for() -> None:
    # Data that MPI has read wakes no sleep of this member.
    with Job(Split([0, 1], [1, 1])) as job:
        job.links = links = ReadingLinks()
        arena = arena_of(1, spin_us=0)
        layout = Layout(0, range(2), [0, 1])
        member = Member(layout, Split([0, 1], [1, 1]), arena, job, None)
        x = np.ones(2)
        # A label, and the elements.
        member.exchange(Operation.SEND, x, x, (), 1)

        _, yields, _, sleeps = member.comm.waits()
        member.comm.close()
    assert links.tested == [1, 2, 1]
    assert (yields, sleeps) == (0, 0)


@pytest.mark.parametrize("dtype", samples.DTYPES, ids=str)
def test_every_simd_level_gives_the_same_bits(dtype: np.dtype[Any]) -> None:
    split = Split([0, 0, 1, 2], [3, 1, 4, 2])
    ops = [op for op in REDUCTIONS if dtype.kind != "b" or op != "mean"]
    for level in _core.simd_levels():
        with Job(split, simd=level) as job:
            for op in ops:
                for count in (1, 9, 64, 5003):
                    inputs = inputs_of(count, split, count, dtype)
                    row = reference.all_reduce(inputs, op)
                    calls = [Call([x], op) for x in inputs]
                    found = job.each(lambda m, calls=calls: m.reduced(calls[m.rank])[0])
                    for out in found:
                        assert same(out, rows_of(row, len(out))), (level, op, count)


@pytest.mark.parametrize(
    ("count", "kinds", "algorithm"),
    [
        (4096, {RECORD}, "oneshot"),
        (4097, {RECORD, NODES}, "direct"),
        (32768, {RECORD, NODES}, "direct"),
        (32769, {RECORD, NODES, RESULTS}, "direct"),
    ],
)
def test_long_rows_go_in_blocks_and_longer_ones_in_parts(
    count: int, kinds: set[int], algorithm: str
) -> None:
    call = Call([np.ones((1, count), FLOAT32)])
    with Job(Split([0, 1], [1, 1])) as job:
        job.each(lambda member: member.reduced(call))

        assert set(job.links.senders) == kinds
        for member in job.members:
            assert member.comm.last()[0] == ALGORITHMS[algorithm]


@pytest.mark.parametrize(
    ("hosts", "count", "senders"),
    [
        # Each leader completes all of a small block.
        ([0, 0, 1, 1], 10_000, {0, 2}),
        ([0, 0, 1, 1], 40_000, {0, 1, 2, 3}),
        # As many as the host with the fewest members has, and four at most.
        ([0, 0, 0, 1, 1], 40_000, {0, 1, 3, 4}),
        ([0, 1, 0], 40_000, {0, 1}),
        ([0] * 5 + [1] * 6, 40_000, {0, 1, 2, 3, 5, 6, 7, 8}),
    ],
)
def test_several_members_of_each_host_carry_parts_of_long_rows(
    hosts: Sequence[int], count: int, senders: set[int]
) -> None:
    call = Call([np.ones((1, count), FLOAT32)])
    with Job(Split(hosts, [1] * len(hosts))) as job:
        job.each(lambda member: member.reduced(call))

        assert job.links.senders[NODES] == senders
        leaders = {hosts.index(host) for host in hosts}
        assert job.links.senders[RECORD] == leaders


@pytest.mark.parametrize("lengths", [(5, 0, 33), (7, 0, 40_003, 1, 90_000)])
@pytest.mark.parametrize("split", [SPLITS[4], SPLITS[9]], ids=lambda s: str(s[0]))
def test_arrays_are_reduced_as_if_they_were_one(
    split: Split, lengths: Sequence[int]
) -> None:
    inputs = [inputs_of(i, split, n, FLOAT32) for i, n in enumerate(lengths)]
    calls = [Call([arrays[r] for arrays in inputs]) for r in range(len(split.hosts))]
    with Job(split) as job:
        found = job.each(lambda member: member.reduced(calls[member.rank]))

    for arrays, outs in zip(inputs, zip(*found, strict=True), strict=True):
        row = reference.all_reduce(arrays)
        for x, out in zip(arrays, outs, strict=True):
            assert same(out, rows_of(row, len(x)))


@pytest.mark.parametrize("split", [SPLITS[1], SPLITS[4], SPLITS[9]], ids=str)
def test_only_the_root_gets_the_result_of_a_reduce(split: Split) -> None:
    with Job(split) as job:
        for root in range(len(split.hosts)):
            for count in (9, 5003, 90_001):
                inputs = inputs_of(root, split, count, FLOAT32)
                row = reference.all_reduce(inputs)
                calls = [Call([x], "sum", REDUCE, root) for x in inputs]
                found = job.each(lambda m, calls=calls: m.reduced(calls[m.rank])[0])
                for rank, out in enumerate(found):
                    expected = row if rank == root else np.ones_like(row)
                    assert same(out, rows_of(expected, len(out))), (root, count, rank)


@pytest.mark.parametrize("each", [0, 1, 67, 3001, 40_009])
@pytest.mark.parametrize(
    "split", [*SPLITS, *map(drawn_split, range(3))], ids=lambda s: f"{s[0]}-{s[1]}"
)
def test_each_member_gets_its_replicas_parts_of_a_reduce_scatter(
    split: Split, each: int
) -> None:
    count = each * sum(split.replicas)
    with Job(split) as job:
        for dtype in (FLOAT32, np.dtype(np.float16), np.dtype(np.bool_)):
            inputs = inputs_of(each, split, count, dtype)
            row = reference.all_reduce(inputs)
            calls = [Call([x], "sum", name=8) for x in inputs]

            found = job.each(lambda m, calls=calls: m.scattered(calls[m.rank]))

            assert same(np.concatenate(found), row)


def test_a_reduce_scatter_is_described_as_one() -> None:
    call = Call([np.ones((1, 70), FLOAT32)], "sum", name=8)
    with Job(Split([0, 1], [1, 1])) as job:
        job.each(lambda member: member.scattered(call))

        for member in job.members:
            how = code_of(FLOAT32), REDUCTIONS["sum"], ALGORITHMS["oneshot"]
            described = (Operation.REDUCE_SCATTER, *how, -1, 70, 8, 0)
            assert member.comm.larger_call() == (described, 1)


@pytest.mark.parametrize("hosts", [2, 3])
def test_a_host_sends_the_others_only_what_these_get_of_a_reduce_scatter(
    hosts: int,
) -> None:
    each = 300_000
    split = Split([host for host in range(hosts) for _ in range(2)], [1] * 2 * hosts)
    call = Call([np.ones((1, each * 2 * hosts), FLOAT32)])
    with Job(split) as job:
        job.each(lambda member: member.scattered(call))

        assert set(job.links.senders) == {RECORD, NODES}
        # For each pair of hosts, the nodes of what the two members of one get.
        assert job.links.nbytes[NODES] == hosts * (hosts - 1) * 2 * each * 4


def test_the_largest_job_is_reduced() -> None:
    # As many nodes as a host can have, and as many as there can be in all.
    split = Split([0, 1, 2], [1, 4094, 1])
    with Job(split) as job:
        found = job.each(
            lambda member: member.reduced(
                Call([np.ones((split.replicas[member.rank], 3), np.float16)])
            )[0]
        )

    for n, out in zip(split.replicas, found, strict=True):
        assert out.tolist() == [[4096] * 3] * n


@pytest.mark.parametrize(
    ("hosts", "replicas", "message"),
    [
        ([0], [1, 1], "There must be the number of a host for each of 2 members."),
        ([0, 2], [1, 1], "There must be the number of a host for each of 2 members."),
        ([0, 1], [4096, 1], "A group has 4097 replicas and this is member 0 of 2"),
    ],
)
def test_a_split_that_cannot_be_is_refused(
    hosts: Sequence[int], replicas: Sequence[int], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Split(0, replicas, hosts=hosts)


FEW, MANY = np.ones((1, 8), FLOAT32), np.ones((1, 50_000), FLOAT32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(Call([FEW]), Call([FEW], "max"), id="reduction"),
        pytest.param(Call([FEW]), Call([FEW[:, 1:]]), id="count"),
        pytest.param(Call([FEW]), Call([FEW.reshape(1, 2, 4)]), id="shape"),
        pytest.param(Call([FEW]), Call([FEW.astype(np.float64)]), id="dtype"),
        pytest.param(Call([FEW]), Call([FEW], name=5), id="name"),
        pytest.param(Call([FEW]), Call([FEW], "sum", REDUCE, 2), id="operation"),
        pytest.param(
            Call([FEW], "sum", REDUCE, 0),
            Call([FEW], "max", REDUCE, 0),
            id="without-a-result",
        ),
        pytest.param(Call([FEW]), Call([MANY]), id="records-or-blocks"),
        pytest.param(Call([MANY]), Call([MANY[:, 1:]]), id="count-of-blocks"),
        pytest.param(Call([MANY[:, :9000]]), Call([MANY]), id="whole-or-parts"),
    ],
)
def test_hosts_that_make_different_calls_are_told_so(one: Call, other: Call) -> None:
    with Job(Split([0, 0, 1, 1], [1, 1, 1, 1])) as job:
        failed = job.each(lambda m: m.failed(one if m.rank < 2 else other))

        assert failed == [True] * 4
        assert RESULTS not in job.links.senders
        for member in job.members:
            leads, peer = member.rank % 2 == 0, 2 - member.rank
            theirs = [(peer, job.members[peer].comm.larger_call()[0])] if leads else []
            ending = member.comm.ending()
            assert member.mismatches == theirs
            assert ending is not None
            error = Status.STOPPED, "mismatch", ()
            assert (ending[0], ending[-1]) == (Status.END_REQUESTED, error)


def test_hosts_that_disagree_on_the_split_are_told_so() -> None:
    with Job(Split([0, 1], [1, 1])) as job:
        job.members[1].split = _core.Split(1, [2, 1], hosts=[0, 1])

        assert job.each(lambda member: member.failed(Call([FEW]))) == [True] * 2
        assert [len(member.mismatches) for member in job.members] == [1, 1]


def test_a_split_made_while_another_one_is_made_does_not_change_it() -> None:
    class Hosts(list[int]):
        def __getitem__(self, index: Any) -> Any:
            _core.Split(1, [2, 1], hosts=[0, 1])
            return super().__getitem__(index)

    with Job(Split([0, 1], [1, 1])) as job:
        job.members[1].split = _core.Split(1, [1, 1], hosts=Hosts([0, 1]))

        sums = job.each(lambda member: member.reduced(Call([FEW]))[0])

    assert [out.tolist() for out in sums] == [[[2] * 8]] * 2


def test_members_of_a_host_that_disagree_on_the_split_are_told_so() -> None:
    with Job(Split([0, 0, 1], [1, 1, 1])) as job:
        job.members[1].split = _core.Split(1, [1, 1, 2], hosts=[0, 0, 1])
        here = job.members[:2]
        with ThreadPoolExecutor(2) as threads:
            failed = threads.map(lambda member: member.failed(Call([FEW])), here)

            assert list(failed) == [True] * 2
        endings = [member.comm.ending() for member in here]
        assert [e and e[0] for e in endings] == [Status.MISMATCH] * 2


@pytest.mark.parametrize("x", [FEW, MANY], ids=["records", "blocks"])
def test_an_exception_while_a_leader_waits_ends_the_call(x: Array) -> None:
    with Job(Split([0, 0, 1], [1, 1, 1])) as job:
        leader, beside, _ = job.members
        leader.interruption = KeyError("interrupted")
        with ThreadPoolExecutor(1) as threads:
            failed = threads.submit(beside.failed, Call([x]))
            with pytest.raises(KeyError, match="interrupted"):
                leader.reduced(Call([x]))

            assert failed.result()
        assert leader.waited_for == {2}
        for member in (leader, beside):
            ending = member.comm.ending()
            assert ending is not None
            assert ending[:2] == (Status.STOPPED, 0)


@pytest.mark.parametrize("x", [FEW, MANY], ids=["records", "blocks"])
@pytest.mark.parametrize("function", ["isend", "irecv", "test"])
def test_an_error_of_mpi_ends_the_call(function: str, x: Array) -> None:
    with Job(Split([0, 0, 1], [1, 1, 1])) as job:
        job.links.errors[function] = 16

        assert job.each(lambda member: member.failed(Call([x]))) == [True] * 3
        assert [member.link_errors for member in job.members] == [[16], [], [16]]


@pytest.fixture
def hung_up() -> Iterator[socket.socket]:
    """Return a socket whose other end is closed."""
    one, other = socket.socketpair()
    other.close()
    with one:
        yield one


@pytest.mark.parametrize("x", [FEW, MANY], ids=["records", "blocks"])
def test_a_leader_sends_once_it_is_known_which_process_has_hung_up(
    hung_up: socket.socket, x: Array
) -> None:
    with Job(Split([0, 0, 1], [1, 1, 1])) as job:
        job.hangups.register(hung_up, select.EPOLLRDHUP)

        def forget() -> None:
            with suppress(FileNotFoundError):
                job.hangups.unregister(hung_up)

        for member in job.members:
            member.news = forget

        found = job.each(lambda member: member.reduced(Call([x]))[0])

        first, beside, second = (member.prepared for member in job.members)
        assert (first, second) in (([2], []), ([], [0]), ([2], [0]))
        assert beside == []
        assert all((row == 3).all() for row in found)


@pytest.mark.parametrize("x", [FEW, MANY], ids=["records", "blocks"])
@pytest.mark.parametrize("is_raised", [False, True])
def test_nothing_is_sent_to_a_leader_that_has_hung_up_and_died(
    hung_up: socket.socket, x: Array, is_raised: bool
) -> None:
    with Job(Split([0, 0, 1], [1, 1, 1])) as job:
        job.hangups.register(hung_up, select.EPOLLRDHUP)
        leader, beside, _ = job.members

        def note_death() -> None:
            if is_raised:
                raise KeyError
            leader.comm.note_death(2)

        leader.news = note_death
        with ThreadPoolExecutor(1) as threads:
            failed = threads.submit(beside.failed, Call([x]))
            with pytest.raises(KeyError if is_raised else _core.Failure):
                leader.reduced(Call([x]))

            assert failed.result()
        assert (leader.prepared, dict(job.links.senders)) == ([2], {})
        assert leader.deaths == ([] if is_raised else [2])


def test_messages_under_way_at_the_end_keep_their_memory() -> None:
    def member(_: Me) -> bool:
        job = Job(Split([0, 1], [1, 1]))
        for each in job.members:
            each.interruption = TimeoutError()
        with pytest.raises(TimeoutError):
            job.members[0].reduced(Call([MANY]))
        first = weakref.ref(job.members[0])
        job.members.pop(0).comm.close()
        # The exception's traceback refers to the member.
        gc.collect()
        assert first() is None
        # In memory that was given back, if any was.
        later = [np.full(n << 10, 7, np.uint8) for n in range(1, 1000, 10)]
        with pytest.raises(TimeoutError):
            job.members[0].reduced(Call([MANY]))
        return NODES in job.links.senders and all((x == 7).all() for x in later)

    assert results(1, member) == [True]
