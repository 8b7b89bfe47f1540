import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poprun.plan.host_facts import Machine, Node, parse_ranges
from poprun.plan.placement import (
    Binding,
    choose_strategy,
    fair_threads,
    place,
)
from poprun.words import format_ranges

STRATEGIES = ["spreadnuma", "roundrobin", "spreadcores", "disabled"]

ONE_NODE = Machine(nodes=(Node(index=0, cpus=(0, 1, 2, 3)),))
FOUR_NODES = Machine(
    nodes=(
        Node(index=0, cpus=(0, 1)),
        Node(index=1, cpus=(2, 3)),
        Node(index=2, cpus=(4, 5)),
        Node(index=3, cpus=(6, 7)),
    )
)


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    cpus = draw(st.lists(st.integers(0, 300), min_size=1, max_size=24, unique=True))
    cuts = draw(st.sets(st.integers(1, len(cpus)), max_size=len(cpus)))
    borders = sorted({0, *cuts, len(cpus)})
    return Machine(
        nodes=tuple(
            Node(index=draw(st.sampled_from([index, None])), cpus=tuple(cpus[a:b]))
            for index, (a, b) in enumerate(pairwise(borders))
        )
    )


def bound(*pairs: tuple[tuple[int, ...], tuple[int, ...] | None]) -> list[Binding]:
    return [Binding(cpus=cpus, memory_nodes=nodes) for cpus, nodes in pairs]


def test_spreadnuma_divides_the_nodes_among_the_instances() -> None:
    assert place("spreadnuma", 2, FOUR_NODES) == bound(
        ((0, 1, 2, 3), (0, 1)),
        ((4, 5, 6, 7), (2, 3)),
    )


def test_spreadnuma_leaves_no_node_out_when_they_do_not_divide() -> None:
    assert place("spreadnuma", 3, FOUR_NODES) == bound(
        ((0, 1), (0,)),
        ((2, 3), (1,)),
        ((4, 5, 6, 7), (2, 3)),
    )


def test_spreadnuma_takes_nodes_in_turn_when_there_are_more_instances() -> None:
    assert place("spreadnuma", 5, FOUR_NODES) == bound(
        ((0, 1), (0,)),
        ((2, 3), (1,)),
        ((4, 5), (2,)),
        ((6, 7), (3,)),
        ((0, 1), (0,)),
    )


def test_roundrobin_gives_each_instance_one_node() -> None:
    assert place("roundrobin", 2, FOUR_NODES) == bound(((0, 1), (0,)), ((2, 3), (1,)))


def test_spreadcores_divides_the_cpus_among_the_instances() -> None:
    assert place("spreadcores", 3, FOUR_NODES) == bound(
        ((0, 1), (0,)),
        ((2, 3, 4), (1, 2)),
        ((5, 6, 7), (2, 3)),
    )


def test_spreadcores_takes_cpus_in_turn_when_there_are_more_instances() -> None:
    machine = Machine(nodes=(Node(index=0, cpus=(1, 5)),))

    assert place("spreadcores", 3, machine) == bound(
        ((1,), None), ((5,), None), ((1,), None)
    )


def test_spreadcores_keeps_the_threads_of_a_core_together() -> None:
    machine = Machine(nodes=(Node(index=0, cpus=(0, 4, 1, 5)),))

    assert place("spreadcores", 2, machine) == bound(((0, 4), None), ((1, 5), None))
    assert place("spreadcores", 1, machine) == bound(((0, 1, 4, 5), None))


def test_disabled_leaves_everything_alone() -> None:
    assert place("disabled", 2, FOUR_NODES) == [Binding(), Binding()]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_is_left_alone_where_there_is_one_node(strategy: str) -> None:
    assert [b.memory_nodes for b in place(strategy, 2, ONE_NODE)] == [None, None]


def test_memory_is_left_alone_where_a_node_has_none_that_is_ours() -> None:
    machine = Machine(nodes=(Node(index=0, cpus=(0, 1)), Node(index=None, cpus=(2, 3))))

    assert place("spreadnuma", 2, machine) == bound(((0, 1), (0,)), ((2, 3), None))
    assert place("spreadnuma", 1, machine) == bound(((0, 1, 2, 3), None))


@given(st.sampled_from(STRATEGIES[:-1]), st.integers(1, 40), machines())
def test_no_binding_is_empty_or_leaves_the_machine(
    strategy: str, count: int, machine: Machine
) -> None:
    indices = {node.index for node in machine.nodes}

    bindings = place(strategy, count, machine)

    assert len(bindings) == count
    for binding in bindings:
        assert binding.cpus
        assert set(binding.cpus) <= set(machine.cpus)
        assert binding.memory_nodes is None or set(binding.memory_nodes) <= indices
        assert binding.memory_nodes != ()


@given(st.sampled_from(["spreadnuma", "spreadcores"]), st.data(), machines())
def test_spreading_uses_every_cpu(
    strategy: str, data: st.DataObject, machine: Machine
) -> None:
    count = data.draw(st.integers(1, len(machine.cpus)))

    bindings = place(strategy, count, machine)

    assert {c for b in bindings for c in b.cpus or ()} == set(machine.cpus)


@given(st.data(), machines())
def test_spreadcores_shares_no_cpu_while_there_are_enough(
    data: st.DataObject, machine: Machine
) -> None:
    count = data.draw(st.integers(1, len(machine.cpus)))

    shares = [len(b.cpus or ()) for b in place("spreadcores", count, machine)]

    assert sum(shares) == len(machine.cpus)
    assert max(shares) - min(shares) <= 1


@pytest.mark.parametrize(
    ("numa_aware", "process_placement", "instances_per_host", "strategy"),
    [
        pytest.param(None, None, 2, "spreadnuma", id="several-instances"),
        pytest.param(None, None, 1, "disabled", id="one-instance"),
        pytest.param(True, None, 1, "roundrobin", id="numa-aware"),
        pytest.param(False, None, 2, "disabled", id="not-numa-aware"),
        pytest.param(True, "spreadcores", 2, "spreadcores", id="the-later-name-wins"),
        pytest.param(False, "spreadnuma", 1, "spreadnuma", id="even-over-no"),
        pytest.param(True, "disabled", 2, "disabled", id="even-to-turn-it-off"),
    ],
)
def test_strategy_follows_the_later_option_then_the_earlier_then_the_instances(
    numa_aware: bool | None,
    process_placement: str | None,
    instances_per_host: int,
    strategy: str,
) -> None:
    chosen = choose_strategy(
        numa_aware=numa_aware,
        process_placement=process_placement,
        instances_per_host=instances_per_host,
    )

    assert chosen == strategy


@pytest.mark.parametrize(
    ("masks", "threads"),
    [
        pytest.param([(0, 1, 2, 3)], [4], id="alone"),
        pytest.param([(0, 1), (2, 3)], [2, 2], id="apart"),
        pytest.param([(0, 1, 2, 3)] * 2, [2, 2], id="two-share-all"),
        pytest.param([(0, 1)] * 4, [1, 1, 1, 1], id="more-instances-than-cpus"),
        pytest.param([(0, 1), (2, 3), (0, 1)], [1, 2, 1], id="some-share"),
        pytest.param([(0, 1, 2, 3), (2, 3)], [3, 1], id="one-inside-another"),
        pytest.param([None, None], [2, 2], id="left-alone"),
        pytest.param([None, (0, 1)], [3, 1], id="one-left-alone"),
        pytest.param([tuple(range(12))] * 6, [2] * 6, id="twelve-sixths-are-two"),
        pytest.param([], [], id="none"),
    ],
)
def test_threads_share_the_cpus_fairly(
    masks: list[tuple[int, ...] | None], threads: list[int]
) -> None:
    bindings = [Binding(cpus=mask) for mask in masks]

    assert fair_threads(bindings, ONE_NODE) == threads


@given(st.sampled_from(STRATEGIES), st.integers(1, 40), machines())
def test_threads_beyond_the_first_are_never_more_than_the_cpus(
    strategy: str, count: int, machine: Machine
) -> None:
    threads = fair_threads(place(strategy, count, machine), machine)

    assert min(threads) >= 1
    assert sum(n for n in threads if n > 1) <= len(machine.cpus)


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        ((), ""),
        ((5,), "5"),
        ((0, 1), "0-1"),
        ((0, 1, 2, 3, 8), "0-3,8"),
        ((1, 3, 5, 6, 7, 11), "1,3,5-7,11"),
    ],
)
def test_cpus_are_written_and_read_as_the_kernel_does(
    cpus: tuple[int, ...], text: str
) -> None:
    assert format_ranges(cpus) == text
    assert parse_ranges(f"{text}\n") == cpus


@given(st.sets(st.integers(0, 200)))
def test_what_is_described_is_parsed(cpus: set[int]) -> None:
    assert parse_ranges(format_ranges(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize(
    "text", ["0,,1", "0-", "-1", "all", "\u0663", "0,1-2-3", "0,3-1"]
)
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    assert parse_ranges(text) is None


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([], "A machine has nodes, and each of its nodes has CPUs."),
        ([()], "A machine has nodes, and each of its nodes has CPUs."),
        ([(0, 1), (1,)], "A CPU belongs to one node of a machine only."),
    ],
)
def test_a_machine_that_cannot_be_is_refused(
    nodes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Machine(nodes=tuple(Node(index=None, cpus=cpus) for cpus in nodes))
