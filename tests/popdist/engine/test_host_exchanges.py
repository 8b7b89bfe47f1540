"""Exchanges over hosts, as the core carries them out, without MPI between them."""

import gc
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import pytest

from popdist.engine.call_table import EngineCall
from popdist.engine.spec.dtypes import code_of
from popdist.engine.spec.operations import Operation, Status
from tests.popdist.engine.fake_links import MESSAGES, RECORD, ROWS, TAGS
from tests.popdist.engine.host_job import SPLITS, Job, Member, Split, drawn_split
from tests.popdist.engine.samples import Array

BARRIER, BROADCAST = Operation.BARRIER, Operation.BROADCAST
ALL_GATHER, ALL_TO_ALL = Operation.ALL_GATHER, Operation.ALL_TO_ALL
GATHER, SCATTER = Operation.GATHER, Operation.SCATTER
SEND, RECEIVE = Operation.SEND, Operation.RECEIVE

ALL_SPLITS = [*SPLITS, *map(drawn_split, range(3))]
MIB = 1 << 20


class Exchange(NamedTuple):
    """An exchange with the inputs and results of all members, None for no result."""

    operation: Operation
    given: Sequence[Array]
    expected: Sequence[Array | None]
    lengths: Sequence[int]
    root: int = -1

    def made_by(self, member: Member) -> Array:
        """Return the result of the exchange on a member."""
        source, expected = self.given[member.rank], self.expected[member.rank]
        if self.operation is BROADCAST:
            out = source = source.copy()
        else:
            out = np.zeros(0 if expected is None else expected.size, np.uint8)
        member.exchange(self.operation, source, out, self.lengths, self.root)
        return out


def exchanges_of(seed: int, size: int, most: int) -> list[Exchange]:
    """Draw an exchange of each operation among members, of shares up to a size."""
    dice = np.random.default_rng(seed)
    root = int(dice.integers(size))
    lengths = [int(n) for n in dice.integers(0, most + 1, size)]
    shares = [dice.integers(0, 256, n, np.uint8) for n in lengths]
    whole = np.concatenate(shares)
    nothing = [np.zeros(0, np.uint8)] * size
    rows = [np.full(most, rank, np.uint8) for rank in range(size)]
    tables = dice.integers(0, 256, (size, size, most), np.uint8)
    at_root = [whole if rank == root else None for rank in range(size)]
    from_root = [whole if rank == root else nothing[0] for rank in range(size)]
    turned = [tables[:, rank].ravel() for rank in range(size)]
    return [
        Exchange(BROADCAST, rows, [rows[root]] * size, [most] * size, root),
        Exchange(ALL_GATHER, shares, [whole] * size, lengths),
        Exchange(GATHER, shares, at_root, lengths, root),
        Exchange(SCATTER, from_root, shares, lengths, root),
        Exchange(ALL_TO_ALL, [one.ravel() for one in tables], turned, [most] * size),
    ]


@pytest.mark.parametrize("most", [0, 9, 5000])
@pytest.mark.parametrize("split", ALL_SPLITS, ids=lambda s: f"{s[0]}-{s[1]}")
def test_every_member_gets_its_share(split: Split, most: int) -> None:
    with Job(split) as job:
        for seed in range(4):
            for exchange in exchanges_of(seed, len(split.hosts), most):
                found = job.each(exchange.made_by)

                for out, expected in zip(found, exchange.expected, strict=True):
                    assert expected is None or np.array_equal(out, expected)


@pytest.mark.parametrize("hosts", [[0, 0, 1], [0, 1, 0, 2]], ids=str)
def test_rows_of_several_blocks_are_whole(hosts: Sequence[int]) -> None:
    with Job(Split(hosts, [1] * len(hosts))) as job:
        for exchange in exchanges_of(5, len(hosts), 2 * MIB + 77):
            found = job.each(exchange.made_by)

            for out, expected in zip(found, exchange.expected, strict=True):
                assert expected is None or np.array_equal(out, expected)


def test_parts_may_be_exchanged_in_place() -> None:
    tables = np.arange(3 * 3 * 500, dtype=np.uint16).reshape(3, 3, 500)
    with Job(Split([0, 1, 0], [1, 1, 1])) as job:

        def exchanged(member: Member) -> Array:
            x = tables[member.rank].copy()
            member.exchange(ALL_TO_ALL, x, x, [1000] * 3)
            return x

        found = job.each(exchanged)

    assert np.array_equal(np.stack(found), tables.swapaxes(0, 1))


@pytest.mark.parametrize("most", [300, 9000])
def test_a_share_may_lie_where_it_is_gathered(most: int) -> None:
    hosts = [0, 1, 0, 1]
    whole = np.random.default_rng(1).integers(0, 256, (4, most), np.uint8)
    with Job(Split(hosts, [1] * 4)) as job:

        def gathered(member: Member) -> Array:
            out = np.zeros_like(whole)
            out[member.rank] = whole[member.rank]
            member.exchange(ALL_GATHER, out[member.rank], out, [most] * 4)
            return out

        found = job.each(gathered)

    assert all(np.array_equal(out, whole) for out in found)


# --- Messages between hosts


def test_five_hosts_are_three_steps_from_the_root() -> None:
    with Job(Split([0, 1, 2, 3, 4], [1] * 5)) as job:
        job.each(exchanges_of(0, 5, 100)[0]._replace(root=0).made_by)

        rows = [(one.source, one.to) for one in job.links.sent if one.kind == ROWS]
    assert sorted(rows) == [(0, 1), (0, 2), (0, 4), (2, 3)]


def test_a_root_sends_in_place_of_its_leader() -> None:
    with Job(Split([0, 0, 1, 1, 2], [1] * 5)) as job:
        job.each(exchanges_of(0, 5, 100)[0]._replace(root=3).made_by)

        rows = [(one.source, one.to) for one in job.links.sent if one.kind == ROWS]
    assert sorted(rows) == [(3, 0), (3, 4)]


@pytest.mark.parametrize("hosts", [2, 3, 6, 7, 8, 9, 13])
def test_each_host_gets_a_broadcast_once(hosts: int) -> None:
    with Job(Split(range(hosts), [1] * hosts)) as job:
        for root in (0, hosts - 1):
            before = len(job.links.sent)
            job.each(exchanges_of(0, hosts, 100)[0]._replace(root=root).made_by)

            rows = [one for one in job.links.sent[before:] if one.kind == ROWS]
            assert sorted(one.to for one in rows) == sorted({*range(hosts)} - {root})
            of_root = [one for one in rows if one.source == root]
            assert len(of_root) == (hosts - 1).bit_length()


def test_what_every_member_gets_reaches_each_host_once() -> None:
    lengths = [MIB + 1, 5, 30_000, 2]
    shares = [np.full(n, 7, np.uint8) for n in lengths]
    whole = np.concatenate(shares)
    with Job(Split([0, 0, 1, 2], [1] * 4)) as job:
        job.each(Exchange(ALL_GATHER, shares, [whole] * 4, lengths).made_by)

        assert job.links.nbytes[ROWS] == 2 * sum(lengths)
        # One message for each MiB of a host's rows.
        assert len([one for one in job.links.sent if one.kind == ROWS]) == 2 * (2 + 2)
        assert job.links.senders[ROWS] == {0, 2, 3}


def test_small_rows_go_with_the_records() -> None:
    lengths = [4096] * 4
    shares = [np.full(n, 7, np.uint8) for n in lengths]
    with Job(Split([0, 0, 1, 1], [1] * 4)) as job:
        job.each(
            Exchange(ALL_GATHER, shares, [np.concatenate(shares)] * 4, lengths).made_by
        )

        assert set(job.links.senders) == {RECORD}


@pytest.mark.parametrize("operation", [GATHER, SCATTER])
def test_a_leader_sends_or_gets_what_its_host_has(operation: Operation) -> None:
    exchanges = {one.operation: one for one in exchanges_of(3, 4, 70_000)}
    exchange = exchanges[operation]
    with Job(Split([0, 0, 1, 1], [1] * 4)) as job:
        job.each(exchange.made_by)

        elsewhere = [2, 3] if exchange.root < 2 else [0, 1]
        pairs = {(elsewhere[0], exchange.root)}
        if operation is SCATTER:
            pairs = {(exchange.root, elsewhere[0])}
        rows = [one for one in job.links.sent if one.kind == ROWS]
        assert {(one.source, one.to) for one in rows} == pairs
        assert len(rows) == 1
        assert rows[0].nbytes == sum(exchange.lengths[rank] for rank in elsewhere)


def test_parts_go_straight_from_member_to_member() -> None:
    with Job(Split([0, 0, 1], [1] * 3)) as job:
        job.each(exchanges_of(0, 3, 100)[4].made_by)

        rows = [one for one in job.links.sent if one.kind == ROWS]
        pairs = {(one.source, one.to) for one in rows}
        assert pairs == {(0, 2), (1, 2), (2, 0), (2, 1)}
        assert {one.nbytes for one in rows} == {100}


# --- Calls


def test_exchanges_are_described_and_traced_with_the_groups_root() -> None:
    told: list[tuple[Any, bool]] = []
    with Job(Split([0, 1, 1], [1] * 3)) as job:
        comm = job.members[2].comm
        comm.set_trace(lambda call, began, ended, done: told.append((call, done)))
        x = np.ones(10, np.float32)

        def calls(member: Member) -> None:
            member.exchange(BROADCAST, x, x.copy(), [40] * 3, 2)
            member.comm.run(None, EngineCall(Operation.BARRIER, root=0, name=3))
            if member.rank:
                other = 3 - member.rank
                member.exchange(RECEIVE if member.rank == 1 else SEND, x, x, (), other)

        job.each(calls)

        assert comm.larger_call() == ((SEND, code_of(x.dtype), 0, 0, 1, 10, 0, 0), 2)
        assert told == [
            ((BROADCAST, code_of(x.dtype), 0, 0, 2, 10, 0, 0), True),
            ((BARRIER, 0, 0, 0, 0, 0, 3, 0), True),
            ((SEND, code_of(x.dtype), 0, 0, 1, 10, 0, 0), True),
        ]


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0], [0, 1, 1]], ids=str)
@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_a_message_reaches_its_receiver(hosts: Sequence[int], count: int) -> None:
    size = len(hosts)
    x = np.arange(count, dtype=np.float64)
    with Job(Split([*hosts, max(hosts) + 1], [1] * (size + 1))) as job:

        def called(member: Member) -> bool:
            out = x if member.rank == size - 1 else np.zeros_like(x)
            if member.rank == size - 1:
                member.exchange(SEND, x, x, (), 0)
            elif member.rank == 0:
                member.exchange(RECEIVE, out, out, (), size - 1)
            return member.rank != 0 or np.array_equal(out, x)

        assert all(job.each(called))
        assert set(job.links.senders) == ({MESSAGES} if hosts[-1] else set())


@pytest.mark.parametrize("hosts", [[0, 1], [0, 0, 1]], ids=str)
def test_a_message_of_another_type_is_refused_with_both_descriptions(
    hosts: Sequence[int],
) -> None:
    sent, x = np.ones(3, np.float32), np.ones(4)
    with Job(Split([1, *hosts], [1] * (1 + len(hosts)))) as job:

        def called(member: Member) -> bool:
            if member.rank == 1:
                return member.fails(lambda: member.exchange(SEND, sent, sent, (), 2))
            failed = member.rank == 2 and member.fails(
                lambda: member.exchange(RECEIVE, x, x, (), 1)
            )
            # On a real job, a message about the end does this.
            job.members[1].comm.end(Status.STOPPED, "over")
            return failed

        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(called, job.members[1:3]))[1]
        member = job.members[2]
        theirs = (SEND, code_of(sent.dtype), 0, 0, 2, 3, 0, 0)
        ours = (RECEIVE, code_of(x.dtype), 0, 0, 1, 4, 0, 0)
        ending = member.comm.ending()
        assert ending is not None
        if hosts[1]:
            assert member.mismatches == [(1, theirs)]
        else:
            assert ending[0] == Status.MISMATCH
            assert ending[4:6] == (ours, theirs)


# --- Failures


@pytest.mark.parametrize("operation", [BROADCAST, GATHER, SCATTER, SEND, RECEIVE])
def test_a_root_that_is_no_member_is_refused(operation: Operation) -> None:
    x = np.zeros(8, np.uint8)
    with Job(Split([0, 1], [1, 1])) as job:
        for root in (-1, 2):
            with pytest.raises(ValueError, match=f"The group has no member {root}."):
                job.members[0].exchange(operation, x, x, [4, 4], root)


# The bytes of each member's share.
SHARE = 20_000
# Lengths, and the root, which leads no host.
CALLS = {
    BROADCAST: ([4 * SHARE] * 4, 1),
    ALL_GATHER: ([SHARE] * 4, -1),
    GATHER: ([SHARE] * 4, 1),
    SCATTER: ([SHARE] * 4, 1),
    ALL_TO_ALL: ([SHARE] * 4, -1),
}


@pytest.mark.parametrize("operation", CALLS)
def test_hosts_that_make_different_calls_are_told_so(operation: Operation) -> None:
    with Job(Split([0, 0, 1, 1], [1] * 4)) as job:

        def fails(member: Member) -> bool:
            x = np.zeros(4 * SHARE, np.uint8 if member.rank < 2 else np.int8)
            return member.fails(
                lambda: member.exchange(operation, x, x, *CALLS[operation])
            )

        assert job.each(fails) == [True] * 4
        assert [len(member.mismatches) for member in job.members] == [1, 0, 1, 0]


@pytest.mark.parametrize("operation", CALLS)
@pytest.mark.parametrize("function", ["isend", "irecv", "test"])
def test_an_error_of_mpi_ends_the_call(function: str, operation: Operation) -> None:
    with Job(Split([0, 0, 1, 1], [1] * 4)) as job:
        job.links.errors[function] = 16

        def fails(member: Member) -> bool:
            x = np.zeros(4 * SHARE, np.uint8)
            return member.fails(
                lambda: member.exchange(operation, x, x, *CALLS[operation])
            )

        assert job.each(fails) == [True] * 4
        assert {e for member in job.members for e in member.link_errors} == {16}


def test_an_exception_in_the_middle_of_a_call_gives_its_turn_back() -> None:
    x = np.zeros(100)
    with Job(Split([0, 1], [1, 1])) as job:
        member = job.members[0]
        member.interruption = KeyError("interrupted")
        with pytest.raises(KeyError, match="interrupted"):
            member.exchange(BROADCAST, x, x, [x.nbytes] * 2, 1)

        assert member.comm.in_call() is None


def end_in_the_middle(
    job: Job, operation: Operation, source: Array, out: Array, root: int
) -> None:
    """Let member 0 end a call while it waits for elements of member 2.

    The leaders of both hosts, 0 and 1, have agreed on the call by then.
    """
    first, second, _ = job.members
    length = out.nbytes if operation is BROADCAST else SHARE

    def stop(peer: int, waited: float) -> None:
        if any(nbytes >= SHARE for _, nbytes in job.links.awaited(first.rank)):
            raise TimeoutError

    first.look_while_waiting = stop  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as threads:
        x = np.zeros(3 * SHARE, np.uint8)
        about = [length] * 3, root
        failed = threads.submit(
            lambda: second.fails(lambda: second.exchange(operation, x, x, *about))
        )
        with pytest.raises(TimeoutError):
            first.exchange(operation, source, out, *about)
        second.comm.end(Status.STOPPED, "over")
        assert failed.result()


@pytest.mark.parametrize(
    ("operation", "root"),
    [(BROADCAST, 2), (ALL_GATHER, -1), (GATHER, 0), (ALL_TO_ALL, -1)],
)
def test_an_array_lives_as_long_as_a_message_may_be_written_to_it(
    operation: Operation, root: int
) -> None:
    with Job(Split([0, 1, 1], [1] * 3)) as job:
        source, out = np.zeros(3 * SHARE, np.uint8), np.zeros(3 * SHARE, np.uint8)
        begin, end = out.ctypes.data, out.ctypes.data + out.nbytes
        is_alive = weakref.ref(out)
        end_in_the_middle(job, operation, source, out, root)
        del source, out
        gc.collect()

        late = [at for at, nbytes in job.links.awaited(0) if nbytes >= SHARE]
        assert late
        assert all(begin <= at < end for at in late)
        assert is_alive() is not None


def test_an_array_of_a_call_that_has_succeeded_lives_no_longer() -> None:
    with Job(Split([0, 1], [1, 1])) as job:

        def broadcast(member: Member) -> Any:
            out = np.zeros(3 * SHARE, np.uint8)
            member.exchange(BROADCAST, out, out, [out.nbytes] * 2, 1)
            return weakref.ref(out)

        is_alive, _ = job.each(broadcast)
        gc.collect()

        assert is_alive() is None


def test_memory_of_the_core_lives_as_long_as_a_message_may_be_written_to_it() -> None:
    with Job(Split([0, 1, 1], [1] * 3)) as job:
        x = np.zeros(3 * SHARE, np.uint8)
        end_in_the_middle(job, SCATTER, x, x[:SHARE], 2)
        # In memory that was given back, if any was.
        later = [np.full(SHARE, 7, np.uint8) for _ in range(50)]

        job.links.deliver(np.full(SHARE, 9, np.uint8), 2, 0, ROWS + 0 * TAGS)

        assert all((one == 7).all() for one in later)
