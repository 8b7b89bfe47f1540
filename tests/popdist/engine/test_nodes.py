"""Reductions of a job of several hosts: each reduces to nodes, which are completed."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from popdist.engine import _core
from popdist.engine.rows import Rows
from popdist.engine.spec import reference
from popdist.engine.spec.dtypes import (
    DTYPES,
    REDUCTIONS,
    accumulation,
    accumulation_code_of,
    code_of,
)
from popdist.engine.spec.tree import nodes_of, nodes_of_parts
from popdist.errors import MismatchError
from tests.popdist.engine import samples
from tests.popdist.engine.host_reductions import HostReductions
from tests.popdist.engine.members import (
    LONG,
    SMALL,
    Me,
    errors,
    group_of,
    results,
    run,
)
from tests.popdist.engine.samples import Array, same, sample

# Hosts, and the replicas of each of their members.
Hosts = list[list[int]]

SUM = REDUCTIONS["sum"]

SPLITS: list[Hosts] = [
    [[1]],
    [[1, 1]],
    [[3], [2]],
    [[1, 1], [1, 1]],
    [[1], [1, 1], [1]],
    [[2, 1], [1, 2, 1]],
    [[1, 4], [3], [2, 5]],
    [[5, 3], [1], [9, 1, 1]],
]


def drawn_split(seed: int) -> Hosts:
    dice = np.random.default_rng(seed)
    hosts: Hosts = [[] for _ in range(int(dice.integers(2, 4)))]
    for host in hosts:
        host.extend(int(n) for n in dice.integers(1, 7, int(dice.integers(1, 4))))
    return hosts


def rows_of(x: Array) -> Rows:
    """Return the rows of an array with a leading axis."""
    assert x.flags.c_contiguous
    places = tuple(x.ctypes.data + i * x.strides[0] for i in range(len(x)))
    return Rows(places, x.shape[1:], code_of(x.dtype), x)


def shares_of(count: int, members: int, dice: np.random.Generator) -> list[int]:
    """Share out elements: to one leader, or somehow to all."""
    if dice.random() < 0.3:
        return [count] + [0] * (members - 1)
    cuts = sorted(int(n) for n in dice.integers(0, count + 1, members - 1))
    return [int(n) for n in np.diff([0, *cuts, count])]


def equal_but_for_nans(found: Array, expected: Array) -> bool:
    if found.dtype.kind != "f":
        return same(found, expected)
    both = np.isnan(found) & np.isnan(expected)
    return same(np.where(both, 0, found), np.where(both, 0, expected))


class Instance:
    """A member of a job of hosts: of its host's group, and of one of all instances."""

    def __init__(self, me: Me, hosts: Hosts) -> None:
        self.hosts = hosts
        self.places = [(h, i) for h, host in enumerate(hosts) for i in range(len(host))]
        self.host, self.rank = self.places[me.rank]
        self.parts = [sum(host) for host in hosts]
        self.base = sum(self.parts[: self.host])
        own = hosts[self.host]
        usual = {"timeout": LONG, "stall": LONG, "tuning": SMALL}
        self.job = me.join(replicas=[n for host in hosts for n in host])
        self.network = group_of(f"{me.name}-net", me.rank, me.size, **usual)
        self.group = group_of(
            f"{me.name}-{self.host}", self.rank, len(own), replicas=own, **usual
        )

    def reduce_to_nodes(self, x: Array, op: str, lengths: Sequence[int]) -> Array:
        nodes = len(list(nodes_of(self.base, self.base + self.parts[self.host])))
        found = np.zeros((nodes, lengths[self.rank]), accumulation(x.dtype))
        HostReductions(self.group.transport).reduce_to_nodes(
            rows_of(x), rows_of(found), REDUCTIONS[op], lengths, self.base
        )
        return found

    def all_nodes(self, found: Array) -> list[Array]:
        """Return the nodes of all hosts, each in one piece."""
        told = self.network.all_gather(found.ravel())
        nodes: list[Array] = []
        for host in range(len(self.hosts)):
            begin = sum(self.parts[:host])
            count = len(list(nodes_of(begin, begin + self.parts[host])))
            shares = [
                share.reshape(count, -1)
                for share, (other, _) in zip(told, self.places, strict=True)
                if other == host
            ]
            nodes += list(np.concatenate(shares, axis=1))
        return nodes

    def complete(
        self, nodes: Sequence[Array], dtype: Any, op: str, lengths: Sequence[int]
    ) -> Array:
        """Complete this member's share, and gather those of its host."""
        begin = sum(lengths[: self.rank])
        mine = np.stack([n[begin : begin + lengths[self.rank]] for n in nodes])
        out = np.zeros((1, mine.shape[1]), dtype)
        carry = self.group.transport
        HostReductions(carry).complete_nodes(
            rows_of(mine), rows_of(out), REDUCTIONS[op], self.parts
        )
        whole = np.zeros((1, sum(lengths)), dtype)
        nbytes = [n * whole.itemsize for n in lengths]
        carry.all_gather(rows_of(out), rows_of(whole), nbytes)
        return np.asarray(whole[0])


@pytest.mark.parametrize(
    "hosts", [*SPLITS, *map(drawn_split, range(2))], ids=lambda hosts: str(hosts)
)
def test_any_split_into_hosts_gives_the_bits_of_one_host(hosts: Hosts) -> None:
    cases = [
        (dtype, op, count)
        for dtype in samples.DTYPES
        for op in REDUCTIONS
        for count in ((0, 3001) if op != "sum" else (1, 33, 9001))
        if dtype.kind != "b" or op != "mean"
    ]

    def member(me: Me) -> Any:
        own = Instance(me, hosts)
        # All members draw the same.
        wrong = []
        for seed, (dtype, op, count) in enumerate(cases):
            inputs = [
                [sample([seed, h, i], (n, count), dtype) for i, n in enumerate(host)]
                for h, host in enumerate(hosts)
            ]
            dice = np.random.default_rng([seed, own.host])
            lengths = shares_of(count, len(hosts[own.host]), dice)
            x = inputs[own.host][own.rank]
            before = x.copy()
            found = own.reduce_to_nodes(x, op, lengths)
            begin = sum(lengths[: own.rank])
            exact = reference.reduce_to_nodes(inputs[own.host], op, base=own.base)
            expected = np.stack([n[begin : begin + found.shape[1]] for n in exact])
            row = own.complete(own.all_nodes(found), dtype, op, lengths)
            at_once = own.job.all_reduce(x, op, reproducible=True)
            everything = [x for host in inputs for x in host]
            if not (
                same(x, before)
                and equal_but_for_nans(found, expected)
                and same(row, at_once[0])
                and same(row, reference.all_reduce(everything, op))
            ):
                wrong.append((str(dtype), op, count, lengths))
        return wrong

    size = sum(map(len, hosts))
    assert results(size, member) == [[]] * size


@pytest.mark.parametrize("dtype", samples.DTYPES, ids=str)
def test_every_simd_level_completes_nodes_to_the_same_bits(
    dtype: np.dtype[Any],
) -> None:
    parts = [3, 1, 4, 2]
    ops = [op for op in REDUCTIONS if dtype.kind != "b" or op != "mean"]
    for level in _core.simd_levels():
        group = group_of("alone", 0, 1, simd=level, tuning=SMALL)
        for op in ops:
            for count in (1, 9, 64, 5003):
                x = sample(count, (sum(parts), count), dtype)
                nodes = np.stack(
                    [
                        node
                        for i, n in enumerate(parts)
                        for node in reference.reduce_to_nodes(
                            [x[sum(parts[:i]) : sum(parts[:i]) + n]],
                            op,
                            base=sum(parts[:i]),
                        )
                    ]
                )
                out = np.zeros((2, count), dtype)
                HostReductions(group.transport).complete_nodes(
                    rows_of(nodes), rows_of(out), REDUCTIONS[op], parts
                )
                row = reference.all_reduce([x], op)
                assert same(out, np.stack([row, row])), (level, op, count)
        group.close()


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 1, [(0, 1)]),
        (0, 6, [(0, 4), (4, 6)]),
        (1, 8, [(1, 2), (2, 4), (4, 8)]),
        (3, 13, [(3, 4), (4, 8), (8, 12), (12, 13)]),
        (5, 5, []),
    ],
)
def test_nodes_are_the_largest_aligned_spans(
    begin: int, end: int, expected: list[tuple[int, int]]
) -> None:
    assert [(n.start, n.stop) for n in nodes_of(begin, end)] == expected


def test_nodes_of_parts_follow_each_other() -> None:
    spans = [(n.start, n.stop) for n in nodes_of_parts([3, 0, 2])]

    assert spans == [(0, 2), (2, 3), (3, 4), (4, 5)]


def test_the_largest_job_is_reduced_to_nodes_and_completed() -> None:
    # As many nodes as a part can have, and as many as there can be in all.
    parts = [1, 4094, 1]
    group = group_of("alone", 0, 1, replicas=[4094], tuning=SMALL)
    x = np.ones((4094, 3), np.float16)
    found = np.zeros((len(list(nodes_of(1, 4095))), 3), np.float32)
    HostReductions(group.transport).reduce_to_nodes(
        rows_of(x), rows_of(found), SUM, [3], 1
    )
    out = np.zeros((1, 3), np.float16)
    ends = np.ones((1, 3), np.float32)
    nodes = np.concatenate([ends, found, ends])
    HostReductions(group.transport).complete_nodes(
        rows_of(nodes), rows_of(out), SUM, parts
    )

    assert found[:, 0].tolist() == [len(n) for n in nodes_of(1, 4095)]
    assert out.tolist() == [[4096] * 3]


def test_nodes_that_do_not_fit_are_refused_before_the_core_sees_them() -> None:
    group = group_of("alone", 0, 1, replicas=[3], tuning=SMALL)
    carry = HostReductions(group.transport)
    x, two = np.ones((3, 4), np.float16), np.zeros((2, 4), np.float32)
    out = np.zeros((1, 4), np.float16)
    refused: list[tuple[Any, str]] = [
        (
            lambda: carry.reduce_to_nodes(rows_of(x), rows_of(two[:1]), SUM, [4], 0),
            "has 1 rows of 4 float32, but must have 2 of 4 float32",
        ),
        (
            lambda: carry.reduce_to_nodes(rows_of(x), rows_of(x[:2]), SUM, [4], 0),
            "has 2 rows of 4 float16, but must have 2 of 4 float32",
        ),
        (
            lambda: carry.reduce_to_nodes(rows_of(x), rows_of(two), SUM, [3], 0),
            r"The lengths are \[3\], but must be .* 1 members, and 4 in all",
        ),
        (
            lambda: carry.reduce_to_nodes(rows_of(x), rows_of(two), SUM, [4], 4094),
            "3 replicas from number 4094 on, but a job can have 1 to 4096",
        ),
        (
            lambda: carry.complete_nodes(rows_of(two), rows_of(out), SUM, [3, 1]),
            "The source has 2 rows of 4 float32, but must have 3",
        ),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()
    assert group.all_reduce(np.ones((3, 2))).tolist() == [[3, 3]] * 3


def test_members_that_disagree_on_a_part_are_told_so() -> None:
    def member(me: Me) -> None:
        group = me.join()
        x = np.ones((1, 4), np.float32)
        lengths = [[4, 0], [0, 4]][me.rank]
        out = np.zeros((len(list(nodes_of(0, 2))), lengths[me.rank]), np.float32)
        HostReductions(group.transport).reduce_to_nodes(
            rows_of(x), rows_of(out), SUM, lengths, 0
        )

    found = errors(run(2, member))

    assert [error is not None and error[0] for error in found] == [MismatchError] * 2
    assert all("reduce_to_nodes (sum) of 4 float32" in str(error) for error in found)


def test_codes_of_accumulation_types_are_those_of_the_dtypes() -> None:
    for dtype in samples.DTYPES:
        code = accumulation_code_of(code_of(dtype))
        assert code == DTYPES[accumulation(dtype).name]
