"""A secure server: users show keys, see their own, and others' leases are theirs."""

import datetime
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from conftest import wait_for
from vipu_servers import COMMAND, Server, acquisition, serving

from poprun import __version__
from poprun.vipu import liveness
from poprun.vipu.client.server_address import find_server, read_config
from poprun.vipu.client.server_inventory import ServerInventory
from poprun.vipu.errors import (
    AccessError,
    InUseError,
    NoSpaceError,
    ServerReplyError,
    ServerUnreachableError,
    UnknownNameError,
    VipuError,
)
from poprun.vipu.model import ClusterRequest, PartitionRequest


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the certificate of an authority, and a server's."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    return directory


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, authority: Path
) -> Iterator[Server]:
    with serving(
        tmp_path_factory.mktemp("vipu") / "server.db",
        "--secure",
        f"--tls-cert={authority / 'cert.pem'}",
        f"--tls-key={authority / 'key.pem'}",
    ) as started:
        yield started
        assert "Traceback" not in started.log.read_text()


@pytest.fixture
def admin(server: Server, authority: Path) -> ServerInventory:
    """What vipu-admin sees with the file that the server wrote at its first start."""
    file = server.database.with_name("admin.vipu-cli.hcl")
    address = find_server({}, config_file=file)
    assert address is not None
    address = address._replace(ca_cert=str(authority / "ca.pem"))
    made = ServerInventory(address, timeout_s=200, admin=True)
    server.clients.append(made)
    return made


@pytest.fixture
def users(
    server: Server, admin: ServerInventory, authority: Path
) -> Iterator[dict[str, ServerInventory]]:
    """Alice and Bob, who are no administrators."""
    found = {}
    for name in ("alice", "bob"):
        key = admin.create_user(name)
        found[name] = server.inventory(
            user=name, access_key=key, tls=True, ca_cert=str(authority / "ca.pem")
        )
    yield found
    for partition in admin.list_partitions():
        admin.remove_partition(partition.name, force=True)
    for name in found:
        admin.remove_user(name)


def test_the_first_administrators_key_is_in_a_file_of_the_user(server: Server) -> None:
    file = server.database.with_name("admin.vipu-cli.hcl")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    config = read_config(file)
    assert len(config.pop("api-access-key")) == 24
    assert config == {
        "api-host": "127.0.0.1",
        "api-port": str(server.port),
        "api-user-id": "admin",
        "api-tls": "yes",
    }
    assert server.first_line.startswith(
        f"vipu-server 0.1.0 listens at https://127.0.0.1:{server.port} (TLS and access "
        "keys); inventory "
    )


def test_without_the_right_key_nothing_is_answered(
    server: Server, authority: Path, users: dict[str, ServerInventory]
) -> None:
    tls = {"tls": True, "ca_cert": str(authority / "ca.pem")}
    with pytest.raises(AccessError, match="requires a user and an access key"):
        server.inventory(**tls).list_partitions()
    for user, key in (("alice", "wrong"), ("nobody", "wrong"), ("alice", "é")):
        with pytest.raises(AccessError, match="user or the access key is not accepted"):
            server.inventory(user=user, access_key=key, **tls).list_partitions()


def test_a_user_owns_what_they_make_and_sees_no_other(
    users: dict[str, ServerInventory], admin: ServerInventory
) -> None:
    alice, bob = users["alice"], users["bob"]
    assert alice.create_partition(PartitionRequest(name="A", size=4)).owner == "alice"
    assert bob.create_partition(PartitionRequest(name="B", size=4)).owner == "bob"

    assert [p.name for p in alice.list_partitions()] == ["A"]
    assert [p.name for p in admin.list_partitions()] == ["A", "B"]
    assert [p.name for p in admin.list_partitions("bob")] == ["B"]
    with pytest.raises(UnknownNameError, match=r"Existing partitions: A\.$"):
        alice.get_partition("B")
    for change in (alice.reset_partition, alice.remove_partition):
        with pytest.raises(UnknownNameError):
            change("B")
    with pytest.raises(UnknownNameError):
        alice.remove_partition("B", force=True)


def test_nobody_asks_in_the_name_of_another(
    users: dict[str, ServerInventory],
) -> None:
    bob = users["bob"]
    with pytest.raises(AccessError, match="user 'alice', but with the access key of"):
        bob.acquire(acquisition("P"))
    with pytest.raises(AccessError):
        bob.create_partition(PartitionRequest(name="P", size=4, owner="alice"))
    with pytest.raises(AccessError):
        bob.list_partitions("alice")


def test_who_is_no_administrator_changes_no_clusters(
    users: dict[str, ServerInventory], server: Server
) -> None:
    with pytest.raises(AccessError, match="User bob is not an administrator"):
        users["bob"].create_cluster(ClusterRequest(name="c1", num_machines=1))
    with pytest.raises(AccessError):
        users["bob"].list_users()
    address = users["bob"]._connections._address
    as_admin = ServerInventory(address, timeout_s=200, admin=True)
    with pytest.raises(AccessError):
        as_admin.list_partitions()
    as_admin.close()


def test_the_id_of_a_lease_is_the_right_to_it(
    users: dict[str, ServerInventory],
    admin: ServerInventory,
    server: Server,
    authority: Path,
) -> None:
    alice, bob = users["alice"], users["bob"]
    grant = alice.acquire(acquisition("P"))
    assert bob.list_leases() == bob.list_reservations() == ()
    assert [lease.id for lease in alice.list_leases()] == [grant.lease.id[:8]]
    assert [lease.id for lease in admin.list_leases()] == [grant.lease.id]

    # An instance needs no key: it has the id.
    tls = {"tls": True, "ca_cert": str(authority / "ca.pem")}
    instance = server.inventory(**tls)
    assert instance.attach(grant.lease.id, 0, liveness.identify())
    with pytest.raises(InUseError):
        alice.remove_partition("P")
    instance.release(grant.lease.id)
    assert admin.list_leases() == ()


@pytest.fixture
def limited(
    server: Server, admin: ServerInventory, authority: Path
) -> Iterator[dict[str, ServerInventory]]:
    """Carol and Dan, who are limited to allocation a1 of one of two clusters."""
    admin.create_cluster(ClusterRequest(name="c2", num_machines=4))
    names = [agent.name for agent in admin.list_agents("c2")]
    admin.create_allocation("a1", "c2", names[:2])
    found = {}
    for name in ("carol", "dan"):
        key = admin.create_user(name, ["a1"])
        found[name] = server.inventory(
            user=name, access_key=key, tls=True, ca_cert=str(authority / "ca.pem")
        )
    yield found
    for partition in admin.list_partitions():
        admin.remove_partition(partition.name, force=True)
    # They stay limited, now to nothing.
    admin.remove_allocation("a1")
    with pytest.raises(AccessError, match="User carol may use no allocation"):
        found["carol"].create_partition(PartitionRequest(name="P", size=4))
    assert found["carol"].list_clusters() == ()
    for name in found:
        admin.remove_user(name)
    admin.remove_cluster("c2")


def test_a_user_with_allocations_uses_and_sees_no_others(
    limited: dict[str, ServerInventory], admin: ServerInventory
) -> None:
    carol = limited["carol"]
    assert carol.create_partition(PartitionRequest(name="P", size=8)).allocation == "a1"

    with pytest.raises(NoSpaceError, match="all 8 IPUs of allocation a1 are in use"):
        carol.create_partition(PartitionRequest(name="Q", size=4))
    with pytest.raises(AccessError) as refusal:
        carol.create_partition(PartitionRequest(name="Q", size=16, cluster="pod64"))
    assert str(refusal.value) == (
        "User carol may use no allocation of cluster pod64. Ask the administrator for "
        "one: vipu-admin create user NAME --allocations NAMES."
    )
    for other in ("pod64", "c2"):
        with pytest.raises(AccessError, match=f"may not use allocation {other}"):
            carol.create_partition(PartitionRequest(name="Q", size=4, allocation=other))
        with pytest.raises(AccessError, match=f"may not see allocation {other}"):
            carol.get_allocation(other)
    for look in (carol.get_cluster, carol.list_free_blocks, carol.list_agents):
        with pytest.raises(AccessError, match="User carol may not see cluster pod64"):
            look("pod64")
    with pytest.raises(AccessError, match="User carol may not see agent ag0"):
        carol.get_agent("ag0")
    assert [a.name for a in carol.list_allocations()] == ["a1"]
    assert [c.name for c in carol.list_clusters()] == ["c2"]
    assert [a.name for a in carol.list_agents()] == ["ag16", "ag17"]
    assert admin.get_user("carol").is_limited


def test_the_users_of_an_allocation_share_its_partitions(
    limited: dict[str, ServerInventory], users: dict[str, ServerInventory]
) -> None:
    carol, dan, bob = limited["carol"], limited["dan"], users["bob"]
    carol.create_partition(PartitionRequest(name="C", size=4, reconfigurable=True))
    bob.create_partition(PartitionRequest(name="B", size=4))

    assert [p.name for p in dan.list_partitions()] == ["C"]
    assert [p.name for p in bob.list_partitions()] == ["B"]
    with pytest.raises(UnknownNameError):
        bob.remove_partition("C")
    holder = replace(acquisition("C").holder, user="dan")
    asked = acquisition("C", holder=holder, create=None)
    lease = dan.acquire(asked).lease.id
    assert [r.lease.holder.user for r in carol.list_reservations()] == ["dan", "dan"]
    assert [r.lease.id for r in carol.list_reservations()] == [lease[:8]] * 2
    assert bob.list_reservations() == ()
    with pytest.raises(InUseError, match="user dan"):
        carol.remove_partition("C")
    dan.release(lease)
    dan.remove_partition("C")
    assert carol.list_partitions() == ()


def test_a_removed_user_is_out_at_once(
    users: dict[str, ServerInventory], admin: ServerInventory
) -> None:
    assert users["bob"].list_partitions() == ()
    admin.remove_user("bob")
    with pytest.raises(AccessError):
        users["bob"].list_partitions()
    admin.create_user("bob")  # the fixture removes it


COPY = (
    "Copy the server's certificate, or its authority's, to this machine, and add to "
    '~/.vipu/vipu-cli.hcl a line with its path: api-ca-cert = "/path/of/cert.pem"'
)


def test_a_certificate_that_is_not_trusted_gets_the_line_to_write(
    server: Server,
) -> None:
    with pytest.raises(ServerReplyError) as refusal:
        server.inventory(tls=True).list_partitions()
    assert str(refusal.value) == (
        f"No encrypted connection to the V-IPU server 127.0.0.1:{server.port} can be "
        f"made: unable to get local issuer certificate. {COPY}"
    )


PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("host", "not_after", "reason"),
    [
        (
            "other.example",
            None,
            r"IP address mismatch, .* '127\.0\.0\.1'\. Name the server as its "
            r"certificate does, or .* a certificate of 127\.0\.0\.1\.$",
        ),
        ("127.0.0.1", PAST, r"has expired\. Ask the server's administrator"),
    ],
)
def test_a_certificate_that_does_not_hold_is_refused(
    tmp_path: Path, host: str, not_after: datetime.datetime | None, reason: str
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    before = PAST - datetime.timedelta(days=1) if not_after else None
    issued = authority.issue_cert(host, not_before=before, not_after=not_after)
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    both = tmp_path / "both.pem"
    with serving(
        tmp_path / "s.db", f"--tls-cert={both}", f"--tls-key={both}"
    ) as server:
        inventory = server.inventory(tls=True, ca_cert=str(tmp_path / "ca.pem"))
        with pytest.raises(ServerReplyError, match=reason):
            inventory.list_partitions()


def test_a_client_without_tls_is_told_about_it(server: Server) -> None:
    with pytest.raises(ServerReplyError, match='set api-tls = "yes" if it has TLS'):
        server.inventory().list_partitions()


def test_a_missing_file_of_certificates_gets_a_sentence(server: Server) -> None:
    with pytest.raises(ServerUnreachableError) as refusal:
        server.inventory(tls=True, ca_cert="/nowhere/ca.pem").list_partitions()
    assert str(refusal.value) == (
        "The file /nowhere/ca.pem with the certificate of the V-IPU server 127.0.0.1:"
        f"{server.port} cannot be read: No such file or directory. {COPY}"
    )


def test_a_certificate_that_is_none_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    file = str(tmp_path / "cert.pem")
    done = subprocess.run(
        [*COMMAND, "--port=0", f"--tls-cert={file}", f"--tls-key={file}"],
        capture_output=True,
        text=True,
    )

    assert done.returncode == 2
    assert done.stderr.startswith(
        f"vipu-server: error: The certificate {file} with the key "
    )
    assert len(done.stderr.splitlines()) == 1


def test_a_server_that_is_started_again_keeps_its_users(
    tmp_path: Path,
) -> None:
    with serving(tmp_path / "s.db", "--secure") as server:
        file = tmp_path / "admin.vipu-cli.hcl"
        before = file.read_text()
        assert server.stop() == 0
        server.restart()
        address = find_server({}, config_file=file)
        assert address is not None
        inventory = ServerInventory(address, timeout_s=200)
        server.clients.append(inventory)

        assert [user.name for user in inventory.list_users()] == ["admin"]
        assert file.read_text() == before


# Sees other machines where the test connects from, and has 8 connections for all.
CROWDED = """
import sys
from poprun.vipu.server import http_server, serve
http_server.is_loopback = lambda host: host == "127.0.0.1"
http_server.REQUEST_TIMEOUT_S, http_server.CHECK_TICKS = 2, 1
serve._most_connections = lambda: 8
sys.exit(serve.main())
"""


def test_connections_without_a_handshake_are_counted_and_given_up(
    tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vipu_servers.COMMAND", [sys.executable, "-c", CROWDED])
    cert, key = authority / "cert.pem", authority / "key.pem"
    arguments = (f"--tls-cert={cert}", f"--tls-key={key}", "--secure")
    with serving(tmp_path / "server.db", *arguments) as server, ExitStack() as stack:
        place = ("127.0.0.1", server.port)
        silent = [
            stack.enter_context(socket.create_connection(place, 30, ("127.0.0.66", 0)))
            for _ in range(4)
        ]
        for connection in reversed(silent):  # those that are too many are closed first
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
        assert server.log.read_text() == ""

        address = server.address(tls=True, ca_cert=str(authority / "ca.pem"))
        inventory = ServerInventory(address, timeout_s=200)

        def is_answered() -> bool:
            # It, too, is given up if its handshake takes long on a busy machine.
            with suppress(VipuError):
                return inventory.server_version() == __version__
            return False

        wait_for(is_answered, "the answer to a client with a handshake")
        inventory.close()
