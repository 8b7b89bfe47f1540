import os
from pathlib import Path

from poprun.plan.host_facts import Machine, Node
from poprun.plan.placement import place
from poprun.reach.own_host.numa_nodes import read_machine

STATUS = "Name:\tpython\nCpus_allowed_list:\t0-63\nMems_allowed_list:\t{}\n"


def tree(root: Path, nodes: dict[int, str], has_memory: str | None = None) -> Path:
    directory = root / "devices" / "system" / "node"
    directory.mkdir(parents=True)
    (directory / "possible").write_text("0-1023\n")
    for index, cpulist in nodes.items():
        (directory / f"node{index}").mkdir()
        (directory / f"node{index}" / "cpulist").write_text(f"{cpulist}\n")
    if has_memory is not None:
        (directory / "has_memory").write_text(f"{has_memory}\n")
    return root


def siblings(root: Path, lists: dict[int, str]) -> None:
    for cpu, text in lists.items():
        directory = root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        directory.mkdir(parents=True)
        (directory / "thread_siblings_list").write_text(f"{text}\n")


def test_each_node_is_listed_with_its_cpus(tmp_path: Path) -> None:
    tree(tmp_path, {1: "2-3", 0: "0-1"}, has_memory="0-1")

    found = read_machine(tmp_path, status=STATUS.format("0-1"), affinity=range(4))

    assert found == Machine(
        nodes=(Node(index=0, cpus=(0, 1)), Node(index=1, cpus=(2, 3)))
    )


def test_only_the_cpus_of_the_callers_mask_are_listed(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-3", 1: "4-7", 2: "8-11"})

    found = read_machine(tmp_path, status=STATUS.format("0-2"), affinity={1, 9, 10})

    assert found == Machine(
        nodes=(Node(index=0, cpus=(1,)), Node(index=2, cpus=(9, 10)))
    )


def test_holes_left_by_offline_cpus_are_no_trouble(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0,2,5-6", 1: ""})

    found = read_machine(tmp_path, status=STATUS.format("0-1"), affinity={0, 2, 5, 6})

    assert found == Machine(nodes=(Node(index=0, cpus=(0, 2, 5, 6)),))


def test_a_node_whose_memory_is_not_ours_is_not_named(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-1", 1: "2-3"}, has_memory="0-1")

    found = read_machine(tmp_path, status=STATUS.format("1"), affinity=range(4))

    assert found == Machine(
        nodes=(Node(index=None, cpus=(0, 1)), Node(index=1, cpus=(2, 3)))
    )


def test_a_node_without_memory_is_not_named(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-1", 1: "2-3"}, has_memory="0")

    found = read_machine(tmp_path, status=STATUS.format("0-1"), affinity=range(4))

    assert found == Machine(
        nodes=(Node(index=0, cpus=(0, 1)), Node(index=None, cpus=(2, 3)))
    )


def test_a_kernel_that_limits_no_memory_allows_every_node(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0", 1: "1"})

    found = read_machine(tmp_path, status="Name:\tpython\n", affinity={0, 1})

    assert found == Machine(nodes=(Node(index=0, cpus=(0,)), Node(index=1, cpus=(1,))))


def test_cpus_of_no_known_node_form_one_of_their_own(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-1"})

    found = read_machine(tmp_path, status=STATUS.format("0"), affinity=range(4))

    assert found == Machine(
        nodes=(Node(index=0, cpus=(0, 1)), Node(index=None, cpus=(2, 3)))
    )


def test_a_container_that_hides_the_nodes_is_one_node(tmp_path: Path) -> None:
    found = read_machine(tmp_path, status="", affinity={3, 1})

    assert found == Machine(nodes=(Node(index=None, cpus=(1, 3)),))


def test_a_file_that_makes_no_sense_is_taken_as_missing(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-1", 1: "2-?"})

    found = read_machine(tmp_path, status=STATUS.format("none"), affinity={0, 1, 2})

    assert found == Machine(
        nodes=(Node(index=0, cpus=(0, 1)), Node(index=None, cpus=(2,)))
    )


def test_the_threads_of_a_core_stand_next_to_each_other(tmp_path: Path) -> None:
    tree(tmp_path, {0: "0-3"})
    siblings(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})

    found = read_machine(tmp_path, status=STATUS.format("0"), affinity=range(4))

    assert found == Machine(nodes=(Node(index=0, cpus=(0, 2, 1, 3)),))


def test_256_nodes_are_taken_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tree(tmp_path, {index: str(index) for index in range(256)}, has_memory="0-255")

    found = read_machine(tmp_path, status=STATUS.format("0-255"), affinity=range(256))

    assert [node.index for node in found.nodes] == list(range(256))
    assert place("spreadnuma", 64, found)[63].memory_nodes == (252, 253, 254, 255)


def test_this_machine_is_described_by_its_own_kernel() -> None:
    assert set(read_machine().cpus) == os.sched_getaffinity(0)
