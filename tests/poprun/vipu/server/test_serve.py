"""vipu-server: starts, serves, ends, and loses nothing when it is killed."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from conftest import wait_for
from vipu_servers import COMMAND, Server, acquisition, serving

from poprun.vipu import liveness
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.errors import (
    InUseError,
    InventoryBusyError,
    LeaseEndedError,
    NameTakenError,
    NoSpaceError,
    UnknownNameError,
    VipuError,
    VipuRuleError,
)
from poprun.vipu.launch.held_devices import HeldDevices
from poprun.vipu.leases import Holder
from poprun.vipu.model import (
    AgentStatus,
    ClusterRequest,
    PartitionChange,
    PartitionRequest,
    PartitionState,
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "server.db") as started:
        yield started


def connections(server: Server) -> int:
    found = psutil.Process(server.process.pid).net_connections()
    return sum(c.status == psutil.CONN_ESTABLISHED for c in found)


def refused(*arguments: str | Path) -> str:
    """Return the one line that vipu-server ends with."""
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_server_says_where_it_listens_and_ends_with_0(server: Server) -> None:
    assert server.first_line == (
        f"vipu-server 0.1.0 listens at http://127.0.0.1:{server.port} (no access "
        f"keys); inventory {server.database}\n"
    )
    assert server.stop() == 0
    assert server.log.read_text() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_in_spite_of_open_connections(
    server: Server, number: int
) -> None:
    with server.connect(), server.connect() as other:
        other.sendall(b"POST /user/acquire HTTP/1.1\r\n")
        server.process.send_signal(number)

        assert server.process.wait(200) == 0


def test_what_is_asked_works_as_in_the_embedded_inventory(server: Server) -> None:
    inventory = server.inventory()
    assert inventory.ensure_cluster(4096) is None
    made = inventory.create_cluster(ClusterRequest(name="c8", num_machines=2))
    assert made == inventory.get_cluster("c8")
    assert [cluster.name for cluster in inventory.list_clusters()] == ["pod64", "c8"]
    agents = inventory.list_agents("c8")
    assert inventory.set_agent_status(agents[1].name, AgentStatus.DOWN).status == "down"
    assert inventory.get_agent(agents[1].name).status is AgentStatus.DOWN
    inventory.create_user("alice")
    allocation = inventory.create_allocation("a1", "c8", [agents[0].name], ["alice"])
    assert allocation == inventory.get_allocation("a1")
    assert [user.name for user in inventory.list_users()] == ["alice"]
    assert inventory.get_user("alice").allocations == ("a1",)

    request = PartitionRequest(name="P", size=4, owner="alice", allocation="a1")
    partition = inventory.create_partition(request)
    assert partition.state is PartitionState.ACTIVE
    assert inventory.list_partitions() == (partition,)
    changed = inventory.update_partition("P", PartitionChange(num_gcds=2))
    assert changed.num_gcds == 2
    assert inventory.reset_partition("P").generation == 2
    grant = inventory.acquire(acquisition("P", 4, create=None))
    me = liveness.identify()
    assert inventory.attach(grant.lease.id, 0, me) == grant.children[0]
    (parent, child) = inventory.list_reservations("P")
    assert (parent.process, child.process) == (None, me)
    inventory.detach(grant.lease.id, 0, me)
    with pytest.raises(InUseError, match="user alice, job j1, host h1"):
        inventory.remove_partition("P")
    assert inventory.renew(grant.lease.id) == grant.lease
    inventory.release(grant.lease.id)
    with pytest.raises(LeaseEndedError):
        inventory.get_lease(grant.lease.id)
    inventory.remove_partition("P")
    assert inventory.end_dead_leases() == inventory.list_leases() == ()

    inventory.remove_allocation("a1")
    inventory.remove_user("alice")
    inventory.remove_cluster("c8")
    inventory.create_agent("new", "10.0.0.1")
    inventory.remove_agent("new")
    inventory.close()


def test_a_refusal_has_the_class_and_the_sentence_of_the_embedded_one(
    server: Server,
) -> None:
    inventory = server.inventory()
    with pytest.raises(
        UnknownNameError, match=r"no cluster 'c1'\. Existing clusters: pod64"
    ):
        inventory.get_cluster("c1")
    with pytest.raises(VipuRuleError, match="128 IPUs, but cluster pod64 has 64"):
        inventory.acquire(acquisition("P", 128))
    # A server keeps the rules of the original.
    with pytest.raises(VipuRuleError, match="power of two"):
        inventory.create_partition(PartitionRequest(name="P", size=3))
    inventory.create_partition(PartitionRequest(name="P", size=4, owner="bob"))
    with pytest.raises(NameTakenError, match="of user bob"):
        inventory.create_partition(PartitionRequest(name="P", size=4))
    with pytest.raises(NameTakenError, match="of another user"):
        inventory.acquire(acquisition("P", 4), user="alice")


def test_lists_do_not_show_whole_ids_of_leases(server: Server) -> None:
    inventory = server.inventory()
    grant = inventory.acquire(acquisition("P"))
    whole, shown = grant.lease.id, grant.lease.id[:8]

    assert grant.partition.lease == whole
    assert [lease.id for lease in inventory.list_leases()] == [shown]
    assert {r.lease.id for r in inventory.list_reservations()} == {shown}
    assert inventory.get_partition("P").lease == shown
    assert inventory.list_partitions()[0].lease == shown
    assert inventory.renew(whole).id == whole
    inventory.release(shown)
    assert len(inventory.list_leases()) == 1


def test_a_lease_of_another_host_ends_when_it_is_not_renewed(server: Server) -> None:
    inventory = server.inventory()
    asked = acquisition("P", lease_s=1)
    process = replace(asked.holder.process, boot_id="elsewhere")
    asked = replace(asked, holder=replace(asked.holder, process=process))
    lease = inventory.acquire(asked).lease

    # The server's own sweep ends it: to get a lease ends none.
    def has_ended() -> bool:
        try:
            assert inventory.get_lease(lease.id) == lease
        except LeaseEndedError:
            return True
        return False

    wait_for(has_ended, "the end of the lease")
    assert inventory.list_partitions() == ()


def test_a_killed_server_goes_on_with_what_it_had_granted(server: Server) -> None:
    inventory = server.inventory()
    kept = inventory.create_partition(PartitionRequest(name="K", size=8))
    grant = inventory.acquire(acquisition("P", 4))

    server.kill()
    server.restart()

    # The old connection is gone; the client makes a new one.
    assert inventory.renew(grant.lease.id) == grant.lease
    assert inventory.get_partition("K") == kept
    assert inventory.attach(grant.lease.id, 0, liveness.identify()) == grant.children[0]
    inventory.release(grant.lease.id)
    assert inventory.list_partitions() == (kept,)
    assert server.stop() == 0


def test_a_server_that_is_killed_at_any_time_sells_nothing_twice(
    server: Server,
) -> None:
    ended = threading.Event()
    overlaps: list[str] = []
    granted = [0] * 8

    def work(number: int) -> None:
        while not ended.is_set():
            inventory = server.inventory()
            try:
                grant = inventory.acquire(acquisition(f"P{number}", 8))
            except VipuError:
                continue
            granted[number] += 1
            try:
                mine = grant.partition.blocks
                for other in inventory.list_partitions():
                    same = set(other.blocks) & set(mine)
                    if same and other.name != f"P{number}":
                        overlaps.append(f"{other} {grant}")
            except VipuError:
                pass
            for _ in range(1000):
                try:
                    server.inventory().release(grant.lease.id)
                    break
                except VipuError:
                    time.sleep(0.02)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    try:
        for round_number in range(1, 5):
            wait_for(
                lambda wanted=20 * round_number: sum(granted) >= wanted, "20 grants"
            )
            server.kill()
            server.restart()
    finally:
        ended.set()
        for thread in threads:
            thread.join()

    assert overlaps == []


def test_50_clients_at_once_get_what_there_is_and_no_more(server: Server) -> None:
    start = threading.Barrier(50)
    grants, refusals = [], []

    def contend(number: int) -> None:
        inventory = server.inventory()
        start.wait()
        try:
            grants.append(inventory.acquire(acquisition(f"P{number}", 4)))
        except NoSpaceError as error:
            refusals.append(str(error))

    threads = [threading.Thread(target=contend, args=(n,)) for n in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    positions = [p for g in grants for b in g.partition.blocks for p in b.positions]
    assert sorted(positions) == list(range(64))
    assert len(refusals) == 34


def test_metrics_health_and_the_schema_are_there(server: Server) -> None:
    inventory = server.inventory()
    inventory.acquire(acquisition("P", 4))
    with pytest.raises(UnknownNameError):
        inventory.get_partition("Q")

    def get(path: str) -> bytes:
        reply = server.exchange(
            b"GET %s HTTP/1.0\r\nHost: localhost\r\n\r\n" % path.encode()
        )
        assert reply.startswith(b"HTTP/1.1 200 OK\r\n"), reply
        return reply.partition(b"\r\n\r\n")[2]

    metrics = get("/metrics").decode()
    assert 'vipu_requests_total{operation="acquire",result="ok"} 1.0' in metrics
    not_found = 'vipu_requests_total{operation="get_partition",result="not_found"} 1.0'
    assert not_found in metrics
    assert 'vipu_ipus_in_partitions{cluster="pod64"} 4.0' in metrics
    assert "vipu_leases 1.0" in metrics
    assert json.loads(get("/health")) == {"status": "ok"}
    schema = json.loads(get("/openapi.json"))
    assert "/user/acquire" in schema["paths"]
    assert "/user/create_cluster" not in schema["paths"]


def test_a_server_beyond_this_machine_needs_tls_and_access_keys(tmp_path: Path) -> None:
    sentence = (
        "vipu-server: error: At 0.0.0.0 other machines could connect, so vipu-server "
        "listens there only with --secure, --tls-cert and --tls-key; without them, "
        "listen at 127.0.0.1."
    )
    assert refused("--host", "0.0.0.0") == sentence
    assert refused("--host", "0.0.0.0", "--secure") == sentence
    assert refused("--tls-cert", tmp_path / "c.pem") == (
        "vipu-server: error: TLS needs both --tls-cert and --tls-key. Give both."
    )


def test_a_port_in_use_gets_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert refused("--port", str(port), "--database", tmp_path / "x.db") == (
            f"vipu-server: error: The server cannot listen at 127.0.0.1:{port}: "
            "Address already in use. Choose another with --host or --port."
        )
    assert not (tmp_path / "x.db").exists()


def test_a_database_that_is_none_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database" * 1000)
    done = subprocess.run(
        [*COMMAND, "--port", "0", "--database", tmp_path / "x.db"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 125
    assert done.stderr.startswith(
        f"vipu-server: error: The V-IPU inventory {tmp_path}/x.db is"
    )
    assert "Traceback" not in done.stderr


def test_the_way_out_of_a_place_that_does_not_do_is_the_servers_option() -> None:
    done = subprocess.run(
        [*COMMAND, "--port=0", "--database=/proc/none/x.db"],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr == (
        "vipu-server: error: The V-IPU inventory /proc/none/x.db cannot be opened: No "
        "such file or directory. Name another place with --database.\n"
    )


@pytest.mark.parametrize(
    ("argument", "sentence"),
    [
        (
            "--timeout=nan",
            "Invalid value for '--timeout': 'nan' is neither a number of seconds nor a "
            "duration such as 90s, 5m or 1h30m.",
        ),
        ("--nonsense", "No such option '--nonsense'."),
        ("extra", "Got unexpected extra argument (extra)"),
    ],
)
def test_a_mistake_is_one_sentence(argument: str, sentence: str) -> None:
    assert refused(argument) == f"vipu-server: error: {sentence}"


def test_a_locked_inventory_is_a_refusal_and_not_a_stuck_server(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "s.db", "--timeout", "0.5") as server:
        inventory = server.inventory()
        with sqlite3.connect(tmp_path / "s.db", isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(
                InventoryBusyError, match=r"kept the V-IPU inventory .* locked"
            ):
                inventory.acquire(acquisition("P"))
            assert inventory.list_clusters()
            other.execute("ROLLBACK")
        other.close()
        assert inventory.acquire(acquisition("P"))
    assert os.path.getsize(server.log) == 0


def test_requests_that_wait_for_a_lock_do_not_keep_a_server_from_ending(
    tmp_path: Path,
) -> None:
    # One after the other they would wait for 100 s.
    with serving(tmp_path / "s.db", "--timeout", "1") as server:
        other = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")

        def ask() -> None:
            with pytest.raises(VipuError):
                server.inventory().acquire(acquisition("P"))

        threads = [threading.Thread(target=ask) for _ in range(100)]
        for thread in threads:
            thread.start()
        # All have connected: each keeps its connection while it waits.
        wait_for(lambda: connections(server) >= 100, "100 connections")

        assert server.stop() == 0

        for thread in threads:
            thread.join()
        other.close()


def test_what_is_not_installed_gets_a_sentence() -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; "
        "from poprun.vipu.server.start import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (
        125,
        "vipu-server: error: uvicorn is not installed. Install what the server needs "
        "from poprun's source folder: pip install '.[vipu]'\n",
    )


@contextmanager
def stopped(server: Server) -> Iterator[None]:
    server.process.send_signal(signal.SIGSTOP)
    yield
    server.process.send_signal(signal.SIGCONT)


@contextmanager
def killed(server: Server) -> Iterator[None]:
    server.kill()
    yield
    server.restart()


@pytest.mark.parametrize("away", [stopped, killed])
def test_a_server_that_was_away_gives_no_ipus_of_a_living_job_to_another(
    tmp_path: Path, away: Callable[[Server], AbstractContextManager[None]]
) -> None:
    lease_s = 4.0
    elsewhere = Holder(
        user="alice",
        job="j1",
        host="h2",
        process=replace(liveness.identify(), boot_id="another-boot"),
    )
    with serving(tmp_path / "server.db", "--pod=pod4") as server:
        asked = acquisition("P", size=4, holder=elsewhere, lease_s=lease_s)
        grant = server.inventory().acquire(asked)
        address = server.address()
        held = HeldDevices(
            lambda: ServerInventory(address, timeout_s=200), grant, 200.0
        )
        held.tick(held.deadline(0.0))
        with away(server):
            time.sleep(1.5 * lease_s)
        others = server.inventory()

        limit = time.monotonic() + 1.5 * lease_s
        while time.monotonic() < limit:
            with pytest.raises(NoSpaceError, match="user alice, job j1, host h2"):
                others.acquire(acquisition("Q", size=4, job="j2"))
            time.sleep(0.2)
        assert held.release()
        assert held.loss == ""
        assert others.acquire(acquisition("Q", size=4, job="j2")).created
