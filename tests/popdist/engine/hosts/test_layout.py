"""The tree of hosts by which a row is broadcast."""

import pytest

from popdist.engine.hosts.layout import Layout


def layouts_of(hosts: list[int]) -> list[Layout]:
    return [Layout(rank, range(len(hosts)), hosts) for rank in range(len(hosts))]


def test_five_hosts_are_three_steps_from_the_root() -> None:
    layouts = layouts_of([0, 1, 2, 3, 4])

    assert [one.broadcast_tree(0) for one in layouts] == [
        (None, [4, 2, 1]),
        (0, []),
        (0, [3]),
        (2, []),
        (0, []),
    ]


def test_a_root_sends_in_place_of_its_leader() -> None:
    layouts = layouts_of([0, 0, 1, 1, 2])

    assert [one.broadcast_tree(3) for one in layouts] == [
        (3, []),
        (3, []),
        (None, []),
        (None, [0, 4]),
        (3, []),
    ]


@pytest.mark.parametrize("hosts", range(2, 20))
@pytest.mark.parametrize("root", [0, 1])
def test_each_host_gets_the_row_once(hosts: int, root: int) -> None:
    layouts = layouts_of([rank // 2 for rank in range(2 * hosts)])

    trees = [one.broadcast_tree(root) for one in layouts]

    sent = [(rank, to) for rank, (_, targets) in enumerate(trees) for to in targets]
    received = [
        (source, one.rank)
        for one, (source, _) in zip(layouts, trees, strict=True)
        if one.is_leader and source is not None
    ]
    assert sorted(sent) == sorted(received)
    assert len({to for _, to in sent}) == hosts - 1
    assert max(len(targets) for _, targets in trees) == (hosts - 1).bit_length()
