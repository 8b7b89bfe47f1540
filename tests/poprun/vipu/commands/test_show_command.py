"""The picture of the pods: who has which IPUs."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from vipu_commands import Environ, Run, inventories

from poprun.vipu import liveness
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.leases import Acquisition, Grant, Holder
from poprun.vipu.model import PartitionRequest

pytestmark = inventories

Make = Callable[..., None]
Hold = Callable[..., Grant]


@pytest.fixture
def pod(make: Make, hold: Hold) -> None:
    """A pod with two partitions, one of which a job has half of."""
    make(
        "vipu-admin create cluster c16 --preset pod16",
        "vipu create partition p4 --size 4 --reconfigurable",
        "vipu create partition q --size 2",
    )
    hold("p4", 2)


def picture(text: str) -> str:
    """Return the first part, without the table."""
    return text.partition("\n\n")[0]


def test_each_ipu_has_a_character(pod: None, run: Run) -> None:
    result = run("vipu show")

    assert picture(result.out) == (
        "c16: 16 IPUs, 10 free, at most 8 next to each other\n"
        " ag0 to ag3  AAaa bb.. .... ...."
    )
    rows = [
        [cell.strip() for cell in line.split("|")][:6]
        for line in result.out.partition("\n\n")[2].splitlines()
        if "|" in line
    ]
    assert rows[0] == ["", "Partition", "Size", "Held", "State", "User"]
    assert rows[1] == ["A", "p4", "4", "2", "ACTIVE", "bob"]
    assert rows[2][:5] == ["B", "q", "2", "0", "ACTIVE"]
    assert (result.code, result.err) == (0, "")


def test_racks_and_machines_in_trouble_are_named(make: Make, run: Run) -> None:
    make(
        "vipu-admin create cluster c8 --num-agents 4 --num-ilds 2",
        "vipu-admin update agent ag3 --status down",
        "vipu-admin create cluster c4 --num-agents 1",
    )

    assert run("vipu show").out == (
        "c8: 16 IPUs, 16 free\n"
        " ILD 0\n"
        " ag0 to ag1  .... ....\n"
        " ILD 1\n"
        " ag2 to ag3  .... ....  ag3 is down\n"
        "\n"
        "c4: 4 IPUs, 4 free\n"
        " ag4  ....\n"
    )
    assert run("vipu show c4").out == "c4: 4 IPUs, 4 free\n ag4  ....\n"
    assert "There is no cluster 'c5'" in run("vipu show c5").err


def test_without_a_cluster_there_is_nothing_to_show(run: Run) -> None:
    assert run("vipu show") == (0, "There is no cluster.\n", "")


def test_jobs_that_wait_are_listed(pod: None, run: Run, inventory: Inventory) -> None:
    holder = Holder(user="carol", job="j8", host="h1", process=liveness.identify())
    inventory.wait_in_queue(
        Acquisition(
            holder=holder,
            partition="own",
            num_children=1,
            ipus_per_child=16,
            create=PartitionRequest(name="own", size=16),
            lease="1" * 32,
        )
    )

    [row] = [line for line in run("vipu show").out.splitlines() if "carol" in line]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[:6] == ["1", "16", "-", "carol", "j8", "h1"]


def test_as_json_each_ipu_is_an_object(pod: None, run: Run) -> None:
    [cluster] = json.loads(run("vipu show --json").out)["clusters"]

    assert (cluster["id"], cluster["size"], cluster["free"]) == ("c16", 16, 10)
    [ild] = cluster["ipu_link_domains"]
    assert ild["ipus"][1:6:4] == [
        {"id": "ag0:1", "free": False, "partition": "p4", "held": True},
        {"id": "ag1:1", "free": False, "partition": "q", "held": False},
    ]
    assert ild["ipus"][6] == {
        "id": "ag1:2",
        "free": True,
        "partition": None,
        "held": False,
    }
    assert [p["id"] for p in cluster["partitions"]] == ["p4", "q"]


def test_lists_of_clusters_say_how_many_ipus_are_free(pod: None, run: Run) -> None:
    assert run("vipu list clusters").out.splitlines()[2].split("|")[5].strip() == "10"
    assert re.search(
        r"Free +\| 10, at most 8 next to each other\n", run("vipu get cluster c16").out
    )
    assert json.loads(run("vipu get cluster c16 --json").out)["free"] == 10


CODE = (
    "import sys; from poprun.vipu.commands.entry_points import vipu; sys.exit(vipu())"
)


def on_terminal(environ: Environ, *words: str) -> str:
    """Return what the command writes to a terminal."""
    main, replica = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", CODE, *words],
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        stdout=replica,
    )
    os.close(replica)
    parts = []
    try:
        while data := os.read(main, 65536):
            parts.append(data)
            if parts.count(data) == 2:  # --watch
                process.terminate()
    except OSError:
        pass  # its end
    os.close(main)
    process.wait(200)
    return b"".join(parts).decode().replace("\r\n", "\n")


def test_a_terminal_gets_colours_unless_it_wants_none(
    pod: None, environ: Environ
) -> None:
    environ = {**environ, "TERM": "xterm"}
    cells = "\x1b[30;42mA\x1b[0m" * 2 + "\x1b[32ma\x1b[0m" * 2

    assert f" ag0 to ag3  {cells} " in on_terminal(environ, "show")
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert " ag0 to ag3  AAaa bb.. " in on_terminal({**environ, **plain}, "show")


def test_watching_draws_the_picture_again(pod: None, environ: Environ) -> None:
    shown = on_terminal(
        {**environ, "TERM": "xterm", "NO_COLOR": "1"},
        *("show", "--watch", "--interval=0.1"),
    )

    assert shown.count("\x1b[H\x1b[Jc16: 16 IPUs, 10 free") >= 2
