"""The tables and sentences of the original, byte for byte; scripts parse them."""

from collections.abc import Callable

import pytest
from vipu_commands import Run, inventories

pytestmark = inventories

CLUSTER = "vipu-admin create cluster c1 --num-agents 4"

Make = Callable[..., None]


def test_list_partitions_is_the_table_of_the_original(make: Make, run: Run) -> None:
    make(
        "vipu-admin create cluster c64_1-16 --preset pod64",
        "vipu create partition p64 --size 64",
    )

    assert run("vipu list partitions").out == (
        " Partition   | Cluster  | ILDs | GW Routing | ILD Routing | Size | GCDs"
        " | State\n"
        "-----------------------------------------------------------------------------"
        "----\n"
        " p64         | c64_1-16 | 1    | DEFAULT    | RINGSWNC    | 64   | 1   "
        " | ACTIVE\n"
        "-----------------------------------------------------------------------------"
        "----\n"
    )


def test_list_allocations_is_the_table_of_the_original(make: Make, run: Run) -> None:
    make(
        *(f"vipu-admin create agent ag{n} --host 10.1.2.{n}" for n in range(6)),
        "vipu-admin create cluster alloc-1 --agents ag0,ag1,ag2,ag3,ag4,ag5",
        "vipu-admin create allocation alloc-2 --agents ag4,ag5",
    )

    assert run("vipu list allocations").out == (
        "---------------------------------\n"
        " Allocation ID | Agents\n"
        "---------------------------------\n"
        " alloc-1       | ag0 ag1 ag2 ag3\n"
        " alloc-2       | ag4 ag5\n"
        "---------------------------------\n"
    )


def test_list_ipu_attrs_begins_as_that_of_the_original(make: Make, run: Run) -> None:
    make("vipu-admin create cluster c4 --preset pod4")

    lines = run("vipu list ipu-attrs").out.splitlines(keepends=True)

    assert "".join(lines[:13]) == (
        " Agent      | IPU | Attribute                         | Value\n"
        "---------------------------------------------------------------------------\n"
        " ag0        | 0   | board ipu index                   | 1\n"
        "            |     | board serial number               | 0024.0002.8203921\n"
        "            |     | board type                        | M2000\n"
        "            |     | clock                             | 1330MHz\n"
        "            |     | driver version                    | 1.0.58\n"
        "            |     | firmware major version            | 2\n"
        "            |     | firmware minor version            | 4\n"
        "            |     | firmware patch version            | 4\n"
        "            |     | firmware version                  | 2.4.4\n"
        "            |     | hexopt active size (bytes)        | 0\n"
        "            |     | hexopt total size (bytes)         | 0\n"
    )
    assert [line.split("|")[1].strip() for line in lines[2:-1]].count("3") == 1


def test_get_agent_begins_as_that_of_the_original(make: Make, run: Run) -> None:
    make("vipu-admin create agent ag10 --host 10.1.2.10 --port 8080")

    lines = run("vipu-admin get agent ag10").out.splitlines(keepends=True)

    assert "".join(lines[:16]) == (
        "-----------------------------------------------------------------\n"
        " Agent ID             | ag10\n"
        " Host                 | 10.1.2.10\n"
        " Port                 | 8080\n"
        " Status               | Up\n"
        " Exporter             | http://10.1.2.10:2112/metrics\n"
        " Platform             | ipum-p2\n"
        " Manufacturer         | Graphcore\n"
        " Discovery Mode       | DM_GCDA\n"
        " Virm version         | master-1189-1493e2a\n"
        " Runtime version      | 1.0.48\n"
        " Board serial number  | 8203921-0007\n"
        " Part number          | GC-ADA2-00-ES1 Rev. C\n"
        " GWSW Version         | 2.0.5\n"
        " IPUoF server version | v1.3.3\n"
        " Num of IPUs          | 4\n"
    )
    assert " ".join(lines[17].split()) == (
        "IPU | PCI | Device | Firmware | Architecture | Num Tiles"
    )
    assert len(lines[19:-1]) == 4


def test_discover_agents_lists_the_machines_that_are_up(make: Make, run: Run) -> None:
    make(
        "vipu-admin create agent ag1 --host 10.1.2.1",
        "vipu-admin create agent ag2 --host 10.1.2.2",
        "vipu-admin update agent ag2 --status down",
    )

    header, rule, *rows, end = run("vipu-admin discover agent").out.splitlines()

    assert [name.strip() for name in header.split("|")] == [
        "Host",
        "Port",
        "Network Interface",
        "Time Since Last Seen",
        "Agent Auto-Add ID",
    ]
    assert rule == end
    assert [row.split()[0] for row in rows] == ["10.1.2.1"]


def test_an_administrator_sees_allocations_and_owners_in_front(
    make: Make, run: Run
) -> None:
    make(
        "vipu-admin create cluster c1 --num-agents 4",
        "vipu create partition p1 --size 4",
    )

    header, _, row, _ = run("vipu-admin list partitions").out.splitlines()

    assert [cell.strip() for cell in header.split("|")[:3]] == [
        "Allocation",
        "Owner",
        "Partition",
    ]
    assert row.split("|")[2].strip() == "p1"


def test_a_list_of_nothing_is_an_empty_table(run: Run) -> None:
    result = run("vipu list partitions")

    header, *rules = result.out.splitlines()
    assert header.split()[0] == "Partition"
    assert {character for rule in rules for character in rule} == {"-"}
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    "line",
    [
        "vipu-admin create agent ag1 --host 10.1.2.1 --port 8080",
        "vipu-admin update agent ag1 --status down",
        "vipu-admin remove agent ag1",
        "vipu-admin create cluster c1 --num-agents 4",
        "vipu-admin create allocation a1 --agents ag0,ag1",
        "vipu create partition p1 --size 4 --cluster c1",
        "vipu update partition p1 --size 2",
        "vipu reset partition p1",
        "vipu remove partition p1",
        "vipu-admin remove allocation a1",
        "vipu-admin remove cluster c1",
    ],
)
def test_a_change_is_reported_in_one_line(make: Make, run: Run, line: str) -> None:
    before = {
        "remove agent ag1": ["vipu-admin create agent ag1 --host h"],
        "update agent ag1": ["vipu-admin create agent ag1 --host h"],
        "create allocation a1": [CLUSTER],
        "remove allocation a1": [
            CLUSTER,
            "vipu-admin create allocation a1 --agents ag0",
        ],
        "create partition p1": [CLUSTER],
        "remove cluster c1": [CLUSTER],
        "update partition p1": [CLUSTER, "vipu create partition p1 --size 4"],
        "reset partition p1": [CLUSTER, "vipu create partition p1 --size 4"],
        "remove partition p1": [CLUSTER, "vipu create partition p1 --size 4"],
    }
    _, verb, kind, name, *_ = line.split()
    make(*before.get(f"{verb} {kind} {name}", []))

    result = run(line)

    assert result == (0, f"{verb} {kind} ({name}): success.\n", "")
