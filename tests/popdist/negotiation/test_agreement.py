"""The order of calls as a value: no processes, no threads, no tensors."""

import itertools
import random

from popdist.negotiation.agreement import Agreement, Decision
from popdist.negotiation.call_requests import Kind, Request

ONE = (("float32", (2, 3)),)


def allreduce(name: str | None, **changes: object) -> Request:
    return Request(Kind.ALLREDUCE, name, **{"tensors": ONE, **changes})


class Members:
    """An agreement for each member, which all get the same messages."""

    def __init__(self, size: int) -> None:
        self.each = [Agreement(range(size)) for _ in range(size)]

    def round(self, *requests: list[Request]) -> list[Decision]:
        """Announce what each member requests, and return what all of them decide."""
        messages = [
            one.encode(mine) for one, mine in zip(self.each, requests, strict=True)
        ]
        decisions = [one.feed(messages) for one in self.each]
        assert all(found == decisions[0] for found in decisions)
        return decisions[0]


def names(decisions: list[Decision]) -> list[str]:
    return [decision.name for decision in decisions]


def test_a_call_is_decided_once_all_members_have_requested_it() -> None:
    members = Members(3)

    assert members.round([allreduce("a")], [allreduce("b")], []) == []
    assert [one.lacks(0) for one in members.each] == [True] * 3
    assert members.each[0].describe_stall(0, allreduce("a"), "a", 1.6) == (
        "instance 0 has waited 2 s in allreduce 'a' for instances 1, 2, which make "
        "other calls."
    )
    assert names(members.round([], [allreduce("a")], [allreduce("a")])) == ["a"]
    found = members.round([allreduce("b")], [], [allreduce("b")])
    assert names(found) == ["b"]
    assert [found[0].error, found[0].requests] == [None, (allreduce("b"),) * 3]
    assert [one.lacks(0) for one in members.each] == [False] * 3


def test_calls_of_one_name_are_matched_in_the_order_of_each_member() -> None:
    members = Members(2)
    first, second = (allreduce("a", root=root) for root in (0, 1))

    assert members.round([first, second], []) == []
    decided = members.round([first], [first, second, first])

    assert [one.requests for one in decided] == [
        (first, first),
        (second, second),
        (first, first),
    ]


def test_members_that_wait_for_each_other_for_good_are_told_apart_by_calls() -> None:
    agreements = [Agreement(range(2)) for _ in range(2)]

    def feed(*messages: bytes) -> list[list[Decision]]:
        return [one.feed(messages) for one in agreements]

    assert feed(agreements[0].encode([allreduce("a")], True), b"") == [[], []]
    blocked = agreements[0].encode([], True)
    feed(blocked, agreements[1].encode([allreduce("b")]))
    assert not any(one.is_deadlocked for one in agreements)
    feed(blocked, agreements[1].encode([]))
    assert not any(one.is_deadlocked for one in agreements)
    feed(blocked, blocked)
    assert all(one.is_deadlocked for one in agreements)
    assert {one.describe_deadlock(0.7) for one in agreements} == {
        "Named collectives were called in different orders: instance 0 is in allreduce "
        "'a', but instance 1 waits in allreduce 'b', and has for 0.7 s, with all its "
        "threads that make such calls. Call them in one order, from threads, or with "
        "async_op=True."
    }


def test_every_order_of_requests_comes_to_one_order_of_calls() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        members = Members(4)
        left = [[allreduce(f"x{i}") for i in range(7)] for _ in range(4)]
        for requests in left:
            chance.shuffle(requests)
        decided: list[str] = []
        while any(left):
            now = []
            for requests in left:
                count = chance.randrange(4)
                now.append(requests[:count])
                del requests[:count]
            decided += names(members.round(*now))

        assert sorted(decided) == [f"x{i}" for i in range(7)]


def test_calls_without_a_name_are_matched_by_their_numbers() -> None:
    members = Members(2)
    gather = Request(Kind.ALLGATHER, None, ONE)

    assert members.round([allreduce(None)], [gather]) == []
    assert names(members.round([gather], [allreduce(None)])) == [
        "allreduce.noname.0",
        "allgather.noname.0",
    ]
    twice = [allreduce(None), allreduce(None)]
    assert names(members.round(twice, twice)) == [
        "allreduce.noname.1",
        "allreduce.noname.2",
    ]


def test_a_repeated_call_is_announced_by_a_number() -> None:
    members = Members(2)
    long = allreduce("a name that is repeated in every step")
    first = members.each[0].encode([long])

    members.round([long], [long])

    assert len(members.each[0].encode([long])) < 12 < len(first)
    assert names(members.round([long], [long])) == [long.name]


def test_all_members_forget_repeated_calls_alike() -> None:
    members = Members(2)
    for i in range(5000):
        one = allreduce(f"call {i}")
        assert names(members.round([one], [one])) == [one.name]

    known = [allreduce(f"call {i}") for i in (0, 4999)]
    assert names(members.round(known, known[::-1])) == ["call 0", "call 4999"]


def test_requests_that_differ_are_an_error_that_names_both() -> None:
    rows = (("float32", (4, 3)),)
    cases = {
        "shapes differ in allreduce 'x': rank 0 has [2, 3], but rank 1 has [4, 3]": (
            allreduce("x"),
            allreduce("x", tensors=rows),
        ),
        "dtypes differ in allreduce 'x': rank 0 has float32, but rank 1 has int8": (
            allreduce("x"),
            allreduce("x", tensors=(("int8", (2, 3)),)),
        ),
        "numbers of tensors differ in allreduce 'x': rank 0 has 1, but rank 1 has 2": (
            allreduce("x"),
            allreduce("x", tensors=ONE * 2),
        ),
        "operations differ in allreduce 'x': rank 0 has allreduce, but rank 1 has "
        "broadcast": (allreduce("x"), Request(Kind.BROADCAST, "x", ONE)),
        "root ranks differ in broadcast 'x': rank 0 has 0, but rank 1 has 1": (
            Request(Kind.BROADCAST, "x", ONE, root=0),
            Request(Kind.BROADCAST, "x", ONE, root=1),
        ),
        "scale factors differ in allreduce 'x': rank 0 has (0.5, 1.0), but rank 1 has "
        "(1.0, 1.0)": (allreduce("x", prescale=0.5), allreduce("x")),
        "shapes differ in allgather 'x': rank 0 has [2, 3], but rank 1 has [2]": (
            Request(Kind.ALLGATHER, "x", ONE),
            Request(Kind.ALLGATHER, "x", (("float32", (2,)),)),
        ),
    }
    for text, (one, other) in cases.items():
        (decision,) = Members(2).round([one], [other])

        assert decision.error is not None
        assert decision.error.startswith(f"The ranks' {text}."), decision.error


def test_the_first_dimension_may_differ_in_a_gather() -> None:
    one = Request(Kind.ALLGATHER, "x", ONE)
    other = Request(Kind.ALLGATHER, "x", (("float32", (7, 3)),))

    (decision,) = Members(2).round([one], [other])

    assert decision.error is None


def test_a_member_that_has_joined_is_not_waited_for() -> None:
    members = Members(3)

    def join(time: int) -> Request:
        return Request(Kind.JOIN, "join", counts=(time,))

    members.round([], [join(1)], [])
    (reduced,) = members.round([allreduce(None)], [], [allreduce(None)])
    assert reduced.requests == (allreduce(None), None, allreduce(None))
    assert reduced.error is None
    gather = Request(Kind.ALLGATHER, None, ONE)
    (refused,) = members.round([gather], [], [gather])
    assert refused.error == (
        "allgather 'allgather.noname.0' cannot be made, because rank 1 has joined: "
        "only allreduce and barrier can. Call join() after it on all ranks."
    )
    (ended,) = members.round([join(3)], [], [join(2)])
    assert (ended.name, ended.last) == ("join", 0)

    # The calls without a name that it was not needed for count as its own.
    every = [[allreduce(None)]] * 3
    assert names(members.round(*every)) == ["allreduce.noname.1"]


def test_splits_are_announced_with_each_call() -> None:
    members = Members(2)
    for splits in itertools.permutations((1, 2)):
        one = Request(Kind.ALLTOALL, "x", ONE, counts=splits)
        other = Request(Kind.ALLTOALL, "x", ONE, counts=(0, 0))

        (decision,) = members.round([one], [other])

        assert [r.counts for r in decision.requests if r] == [splits, (0, 0)]
