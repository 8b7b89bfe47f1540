import json

import pytest

from poprun.plan.drawing import as_json, render, render_compact
from poprun.plan.topology import Topology

# Each is what PopRun prints, or, for several hosts and ILDs, what its layout gives.
TABLES = [
    pytest.param(
        {"num_instances": 1, "num_replicas": 1},
        ["localhost"],
        """\
 ===============
| poprun top... |
|===============|
| hosts     | . |
|-----------|---|
| ILDs      | 0 |
|-----------|---|
| instances | 0 |
|-----------|---|
| replicas  | 0 |
 ---------------
[0]: localhost""",
        id="one-instance-one-replica",
    ),
    pytest.param(
        {"num_instances": 2, "num_replicas": 2},
        ["localhost"],
        """\
 ===================
|  poprun topology  |
|===================|
| hosts     |  [0]  |
|-----------|-------|
| ILDs      |   0   |
|-----------|-------|
| instances | 0 | 1 |
|-----------|-------|
| replicas  | 0 | 1 |
 -------------------
[0]: localhost""",
        id="two-instances",
    ),
    pytest.param(
        {"num_instances": 2, "num_replicas": 8},
        ["localhost"],
        """\
 ===========================================
|              poprun topology              |
|===========================================|
| hosts     |           localhost           |
|-----------|-------------------------------|
| ILDs      |               0               |
|-----------|-------------------------------|
| instances |       0       |       1       |
|-----------|-------------------------------|
| replicas  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
 -------------------------------------------""",
        id="two-instances-eight-replicas",
    ),
    pytest.param(
        {"num_instances": 1, "num_replicas": 4},
        ["gc-poplar-02"],
        """\
 ===========================
|      poprun topology      |
|===========================|
| hosts     | gc-poplar-02  |
|-----------|---------------|
| ILDs      |       0       |
|-----------|---------------|
| instances |       0       |
|-----------|---------------|
| replicas  | 0 | 1 | 2 | 3 |
 ---------------------------""",
        id="a-named-host",
    ),
    pytest.param(
        {"num_instances": 1, "num_replicas": 16, "ipus_per_replica": 4},
        ["localhost"],
        """\
 ===========================================================================================
|                                      poprun topology                                      |
|===========================================================================================|
| hosts     |                                   localhost                                   |
|-----------|-------------------------------------------------------------------------------|
| ILDs      |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| instances |                                       0                                       |
|-----------|-------------------------------------------------------------------------------|
| replicas  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  | 10 | 11 | 12 | 13 | 14 | 15 |
 -------------------------------------------------------------------------------------------""",  # noqa: E501
        id="sixteen-replicas",
    ),
    pytest.param(
        {"num_instances": 4, "num_replicas": 4},
        ["localhost"],
        """\
 ===========================
|      poprun topology      |
|===========================|
| hosts     |   localhost   |
|-----------|---------------|
| ILDs      |       0       |
|-----------|---------------|
| instances | 0 | 1 | 2 | 3 |
|-----------|---------------|
| replicas  | 0 | 1 | 2 | 3 |
 ---------------------------""",
        id="four-instances",
    ),
    pytest.param(
        {"num_instances": 4, "num_replicas": 8, "num_ilds": 4, "num_hosts": 2},
        ["node-1", "node-2.example.org"],
        """\
 ===========================================
|              poprun topology              |
|===========================================|
| hosts     |    node-1     |      [1]      |
|-----------|-------------------------------|
| ILDs      |   0   |   1   |   2   |   3   |
|-----------|-------------------------------|
| instances |   0   |   1   |   2   |   3   |
|-----------|-------------------------------|
| replicas  | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
 -------------------------------------------
[1]: node-2.example.org""",
        id="several-hosts-and-ilds",
    ),
    pytest.param(
        {"num_instances": 11, "num_replicas": 22, "num_hosts": 11},
        [f"gc-poplar-{number}" for number in range(11)],
        """\
 =========================================================================================================================
|                                                     poprun topology                                                     |
|=========================================================================================================================|
| hosts     |  [0]    |  [1]    |  [2]    |  [3]    |  [4]    |  [5]    |  [6]    |  [7]    |  [8]    |  [9]    |  [10]   |
|-----------|-------------------------------------------------------------------------------------------------------------|
| ILDs      |                                                      0                                                      |
|-----------|-------------------------------------------------------------------------------------------------------------|
| instances |   0     |   1     |   2     |   3     |   4     |   5     |   6     |   7     |   8     |   9     |   10    |
|-----------|-------------------------------------------------------------------------------------------------------------|
| replicas  | 0  | 1  | 2  | 3  | 4  | 5  | 6  | 7  | 8  | 9  | 10 | 11 | 12 | 13 | 14 | 15 | 16 | 17 | 18 | 19 | 20 | 21 |
 -------------------------------------------------------------------------------------------------------------------------
[0]: gc-poplar-0
[1]: gc-poplar-1
[2]: gc-poplar-2
[3]: gc-poplar-3
[4]: gc-poplar-4
[5]: gc-poplar-5
[6]: gc-poplar-6
[7]: gc-poplar-7
[8]: gc-poplar-8
[9]: gc-poplar-9
[10]: gc-poplar-10""",  # noqa: E501
        id="ten-or-more-are-left-justified-before-they-are-centred",
    ),
]


@pytest.mark.parametrize(("counts", "hosts", "table"), TABLES)
def test_table_is_that_of_poprun_byte_for_byte(
    counts: dict[str, int], hosts: list[str], table: str
) -> None:
    assert render(Topology(**counts), hosts) == table


def test_a_name_needs_a_space_on_either_side_of_it() -> None:
    topology = Topology(num_instances=4, num_replicas=4)

    fits = render(topology, ["thirteen-long"]).splitlines()
    assert fits[3] == "| hosts     | thirteen-long |"
    assert fits[-1] == " ---------------------------"

    too_long = render(topology, ["fourteen--long"]).splitlines()
    assert too_long[3] == "| hosts     |      [0]      |"
    assert too_long[-1] == "[0]: fourteen--long"


def test_a_foot_note_without_room_is_dots() -> None:
    topology = Topology(num_instances=12, num_replicas=12, num_hosts=12)
    hosts = [f"node-{number}" for number in range(12)]

    table = render(topology, hosts).splitlines()

    assert table[3] == "| hosts    " + " | .." * 12 + " |"
    assert table[-1] == "[11]: node-11"


def test_a_table_of_64_instances_is_not_wrapped() -> None:
    table = render(Topology(num_instances=64, num_replicas=64), ["localhost"])

    lines = table.splitlines()
    assert len(lines) == 11
    # The first and the last line have no corner at their right end.
    assert {len(line) for line in lines} == {332, 333}
    assert lines[-2].endswith("| 62 | 63 |")


def test_a_narrow_terminal_gets_a_line_for_each_host() -> None:
    topology = Topology(num_instances=16, num_replicas=64, num_ilds=4, num_hosts=2)

    assert render_compact(topology, ["node-1", "node-2"], 80) == (
        "poprun topology\n"
        "node-1: ILDs 0-1, instances 0-7, replicas 0-31 (4 each)\n"
        "node-2: ILDs 2-3, instances 8-15, replicas 32-63 (4 each)"
    )


def test_the_compact_form_breaks_lines_between_its_parts() -> None:
    topology = Topology(num_instances=16, num_replicas=64, num_hosts=1)

    assert render_compact(topology, ["localhost"], 24) == (
        "poprun topology\n"
        "localhost: ILD 0,\n"
        "  instances 0-15,\n"
        "  replicas 0-63 (4 each)"
    )


def test_the_compact_form_cuts_its_title_but_never_a_name() -> None:
    topology = Topology(num_instances=1, num_replicas=2)

    assert render_compact(topology, ["gc-poplar-02"], 12) == (
        "poprun to...\ngc-poplar-02:\n  ILD 0,\n  instance 0,\n  replicas 0-1"
    )


def test_the_compact_form_fills_a_line_to_its_last_column() -> None:
    topology = Topology(num_instances=2, num_replicas=2)

    assert render_compact(topology, ["node-1"], 42) == (
        "poprun topology\nnode-1: ILD 0, instances 0-1, replicas 0-1"
    )
    assert render_compact(topology, ["node-1"], 41) == (
        "poprun topology\nnode-1: ILD 0, instances 0-1,\n  replicas 0-1"
    )


@pytest.mark.parametrize("width", [20, 21, 33, 40, 79, 200])
def test_the_compact_form_is_never_wider_than_the_terminal(width: int) -> None:
    topology = Topology(num_instances=64, num_replicas=128, num_ilds=2, num_hosts=16)
    hosts = [f"node-{number}" for number in range(16)]

    lines = render_compact(topology, hosts, width).splitlines()

    assert max(map(len, lines)) <= width
    assert [line.partition(":")[0] for line in lines if ":" in line] == hosts


def test_json_says_where_each_instance_and_its_replicas_are() -> None:
    topology = Topology(
        num_instances=2, num_replicas=4, ipus_per_replica=8, num_ilds=2, num_hosts=2
    )

    assert json.loads(as_json(topology, ["node-1", "node-2"])) == {
        "num_instances": 2,
        "num_replicas": 4,
        "ipus_per_replica": 8,
        "hosts": ["node-1", "node-2"],
        "ilds": [0, 1],
        "instances": [
            {
                "index": 0,
                "host": "node-1",
                "ild": 0,
                "local_index": 0,
                "replicas": [0, 1],
            },
            {
                "index": 1,
                "host": "node-2",
                "ild": 1,
                "local_index": 0,
                "replicas": [2, 3],
            },
        ],
    }


def test_no_form_ends_with_a_newline() -> None:
    topology = Topology()

    assert not render(topology, ["localhost"]).endswith("\n")
    assert not render_compact(topology, ["localhost"], 80).endswith("\n")
    assert not as_json(topology, ["localhost"]).endswith("\n")
