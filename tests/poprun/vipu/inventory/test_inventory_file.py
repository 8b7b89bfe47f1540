"""The file of an inventory: where it is, and what happens when it cannot be used."""

import os
import sqlite3
import stat
import subprocess
import sys
import zlib
from contextlib import closing, suppress
from pathlib import Path
from threading import Timer

import pytest

from poprun.vipu.errors import (
    InventoryBusyError,
    InventoryCorruptError,
    InventoryFullError,
    InventoryUnavailableError,
    InventoryVersionError,
    NoSpaceError,
    UnknownNameError,
)
from poprun.vipu.inventory import schema
from poprun.vipu.inventory.database import MOST_LOG_PAGES
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.inventory.location import find_inventory
from poprun.vipu.leases import Holder
from poprun.vipu.opening import open_inventory
from poprun.vipu.requests import Acquisition, PartitionRequest


def test_the_inventory_is_in_the_state_directory_under_the_name_of_the_machine(
    tmp_path: Path,
) -> None:
    home = {"HOME": str(tmp_path)}

    assert find_inventory(home, "h1") == (
        f"{tmp_path}/.local/state/poprun/vipu/h1/inventory.db"
    )
    assert find_inventory(home | {"XDG_STATE_HOME": "/state"}, "../h1") == (
        "/state/poprun/vipu/.._h1/inventory.db"
    )
    assert find_inventory(home | {"XDG_STATE_HOME": "state"}, "h1") == find_inventory(
        home, "h1"
    )
    named = home | {"POPRUN_VIPU_INVENTORY": "/x/y.db"}
    assert find_inventory(named, "h1") == "/x/y.db"


def test_a_relative_path_begins_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert find_inventory({"POPRUN_VIPU_INVENTORY": "y.db"}, "h1") == f"{tmp_path}/y.db"


@pytest.mark.parametrize("name", ["50%41", "a?b=c", "a#b", "ü 1", "\udcff"])
def test_its_path_may_have_any_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.db"
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(8)
    inventory.close()

    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_home_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(InventoryUnavailableError, match=r"/gone, .* does not exist"):
        find_inventory({"HOME": f"{tmp_path}/gone"}, "h1")


def test_a_home_that_is_none_is_named() -> None:
    with pytest.raises(InventoryUnavailableError) as refusal:
        find_inventory({"HOME": "nowhere"}, "h1")

    assert str(refusal.value) == (
        "This user has no home directory, where the V-IPU inventory would be. Name a "
        "file for it with POPRUN_VIPU_INVENTORY."
    )


def test_only_the_user_can_read_it(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(1)

    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    inventory.close()
    assert [file.name for file in path.parent.iterdir()] == ["inventory.db"]


@pytest.mark.parametrize("umask", [0, 0o777])
def test_its_directories_are_for_the_user_alone_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    path = tmp_path / "state" / "poprun" / "vipu" / "h1" / "inventory.db"
    before = os.umask(umask)
    try:
        inventory = EmbeddedInventory(path, host="h1")
        inventory.ensure_cluster(1)
    finally:
        os.umask(before)

    made = [directory for directory in path.parents if tmp_path in directory.parents]
    assert [stat.S_IMODE(d.stat().st_mode) for d in made] == [0o700] * 4
    assert {stat.S_IMODE(f.stat().st_mode) for f in path.parent.iterdir()} == {0o600}
    inventory.close()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """An inventory where poprun puts it by default."""
    path = tmp_path / "poprun" / "vipu" / "h1" / "inventory.db"
    EmbeddedInventory(path, host="h1").close()
    return path


@pytest.mark.parametrize("what", [".", "inventory.db", "..", "../.."])
@pytest.mark.parametrize("mode", [0o777, 0o707, 0o770])
def test_what_others_can_write_to_is_refused(
    own: Path, what: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = Path(os.path.normpath(own.parent / what))
    open_to_all.chmod(mode)
    own_group = "poprun.vipu.inventory.private_place._is_own_group"
    monkeypatch.setattr(own_group, lambda _: False)
    with pytest.raises(InventoryUnavailableError) as refusal:
        EmbeddedInventory(own, host="h1")

    kind = "file" if open_to_all == own else "directory"
    place = str(open_to_all)
    assert str(refusal.value) == (
        f"Other users can write to the {kind} {place} of the V-IPU inventory. See that "
        f"it is as it should be, and run: chmod go-w {place}; or name another place "
        "with POPRUN_VIPU_INVENTORY."
    )
    open_to_all.chmod(0o700)
    EmbeddedInventory(own, host="h1").close()


@pytest.mark.parametrize("what", [".", "inventory.db", "inventory.db-wal", ".."])
def test_what_belongs_to_another_user_is_refused(
    own: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Path(os.path.normpath(own.parent / what))
    if what.endswith("-wal"):
        theirs.touch(mode=0o600)
    status = os.lstat(theirs)
    lstat = os.lstat

    def seen(path: str) -> os.stat_result:
        found = lstat(path)
        if not os.path.samestat(found, status):
            return found
        return os.stat_result((*found[:4], 54321, *found[5:]))

    monkeypatch.setattr(os, "lstat", seen)
    with pytest.raises(InventoryUnavailableError) as refusal:
        EmbeddedInventory(own, host="h1")

    kind = "file" if theirs.name.startswith("inventory") else "directory"
    assert str(refusal.value) == (
        f"The {kind} {theirs} of the V-IPU inventory belongs to another user, 54321. "
        "Remove it, or name another place with POPRUN_VIPU_INVENTORY."
    )


def test_links_are_followed_to_what_no_other_user_can_write(
    own: Path, tmp_path: Path
) -> None:
    (tmp_path / "link.db").symlink_to(own)
    EmbeddedInventory(tmp_path / "link.db", host="h1").close()
    own.parent.chmod(0o777)
    with pytest.raises(InventoryUnavailableError, match="Other users can write"):
        EmbeddedInventory(tmp_path / "link.db", host="h1")

    # In /tmp others can make files, but not replace any.
    own.parent.chmod(0o1777)
    EmbeddedInventory(tmp_path / "link.db", host="h1").close()


def test_a_job_does_not_wait_for_the_disk_and_loses_nothing(path: Path) -> None:
    log = Path(f"{path}-wal")
    inventory = EmbeddedInventory(path, host="h1", syncs=False)
    inventory.ensure_cluster(8)
    inventory.create_partition(PartitionRequest(name="P", size=8))
    inventory.close()
    assert log.stat().st_size > 0

    again = EmbeddedInventory(path, host="h1")
    assert again.get_partition("P").size == 8
    again.close()
    assert not log.exists()


def test_the_log_of_many_jobs_stays_short(path: Path) -> None:
    for number in range(40):
        inventory = EmbeddedInventory(path, host="h1", syncs=False)
        inventory.ensure_cluster(8)
        inventory.create_partition(PartitionRequest(name=f"P{number}", size=1))
        inventory.remove_partition(f"P{number}")
        inventory.close()

    # One more transaction may be in it, and each page has a header.
    assert Path(f"{path}-wal").stat().st_size < 2 * MOST_LOG_PAGES * 4096


def test_it_is_opened_again_as_it_was(path: Path) -> None:
    for _ in range(2):
        inventory = open_inventory(None, {"POPRUN_VIPU_INVENTORY": str(path)}, "h1")
        inventory.ensure_cluster(8)
        inventory.close()

    inventory = EmbeddedInventory(path, host="h1")
    assert [cluster.name for cluster in inventory.list_clusters()] == ["pod64"]
    inventory.close()


def test_a_place_that_cannot_be_is_an_error_of_its_own(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InventoryUnavailableError) as refusal:
        EmbeddedInventory(file / "vipu" / "inventory.db", host="h1")

    assert str(refusal.value) == (
        f"The V-IPU inventory {file}/vipu/inventory.db cannot be opened: Not a "
        "directory. Name another place with POPRUN_VIPU_INVENTORY."
    )
    with pytest.raises(InventoryUnavailableError, match="is no file"):
        EmbeddedInventory(tmp_path, host="h1")


@pytest.mark.parametrize("content", [b"", b"no database" * 100])
def test_what_is_no_inventory_is_not_touched(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InventoryCorruptError) as refusal:
        EmbeddedInventory(path, host="h1")

    assert f"{path} is " in str(refusal.value)
    assert "Move it away" in str(refusal.value)
    assert path.read_bytes() == content


def test_a_damaged_inventory_is_named(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(65536)
    inventory.close()
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(InventoryCorruptError, match=r"is damaged: .*malformed"):
        EmbeddedInventory(path, host="h1")


@pytest.mark.parametrize(
    ("edit", "damage"),
    [
        ("clusters SET topology = 'ring'", "topology in its table clusters is 'ring'"),
        ("clusters SET num_ilds = 'two'", "num_ilds in its table clusters is 'two'"),
        ("clusters SET ild_size = 0", "ild_size in its table clusters is 0"),
        ("agents SET status = 'busy'", "status in its table agents is 'busy'"),
        ("allocations SET free_ipus = 1", "free_ipus in its table allocations is 1"),
        ("partitions SET state = 'on'", "state in its table partitions is 'on'"),
        ("partitions SET blocks = 'x'", "blocks in its table partitions is 'x'"),
        ("partitions SET created = 'now'", "created in its table partitions is 'now'"),
        ("leases SET pid = 'x'", "pid in its table leases is 'x'"),
        (
            "devices SET pid = 1",
            "its table devices has only some of pid, start_time, boot_id, "
            "pid_namespace",
        ),
        (
            "leases SET id = 'x'",
            "its table devices names one of its leases that is not there",
        ),
    ],
)
def test_an_inventory_that_was_edited_by_hand_is_named_with_the_value(
    path: Path, holder: Holder, edit: str, damage: str
) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(8)
    request = PartitionRequest(name="P", size=8, num_gcds=2)
    inventory.acquire(
        Acquisition(
            holder=holder,
            partition="P",
            num_children=2,
            ipus_per_child=4,
            create=request,
        )
    )
    inventory.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {edit}")
    connection.close()
    inventory = EmbeddedInventory(path, host="h1")
    with pytest.raises(InventoryCorruptError) as refusal:
        use(inventory)

    assert str(refusal.value) == (
        f"The V-IPU inventory {path} is damaged: {damage}. Move it away, and poprun "
        "makes a new one; the partitions in it are lost."
    )
    inventory.close()


def test_no_edit_by_hand_leaves_a_value_out(path: Path) -> None:
    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(8)
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="NOT NULL"),
    ):
        connection.execute("UPDATE allocations SET name = NULL")


def use(inventory: EmbeddedInventory) -> None:
    """List what there is, and ask for more than there is."""
    inventory.list_agents()
    inventory.list_allocations()
    inventory.list_partitions()
    inventory.list_leases()
    inventory.list_reservations()
    for name in ("Q", "R"):
        with suppress(NoSpaceError):
            inventory.create_partition(PartitionRequest(name=name, size=64))
    with suppress(UnknownNameError):
        inventory.create_partition(PartitionRequest(name="S", size=1, allocation="A"))


@pytest.mark.parametrize(
    ("age", "step", "advice"),
    [
        ("A newer", 1, "Use that poprun"),
        ("An older", -1, "Move it away, and poprun makes a new one"),
    ],
)
def test_the_inventory_of_another_poprun_is_left_alone(
    path: Path, age: str, step: int, advice: str
) -> None:
    EmbeddedInventory(path, host="h1").close()
    version = schema.VERSION + step
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(InventoryVersionError) as refusal:
        EmbeddedInventory(path, host="h1")

    assert str(refusal.value) == (
        f"{age} poprun made the V-IPU inventory {path}: it has version {version}, and "
        f"this poprun knows {schema.VERSION}. {advice}, or name another place with "
        "POPRUN_VIPU_INVENTORY."
    )


def test_other_tables_have_another_version() -> None:
    # Change both: an inventory that was made before must not be opened.
    assert (schema.VERSION, zlib.crc32(schema.SCRIPT.encode())) == (6, 4113700829)


def fill(inventory: EmbeddedInventory) -> None:
    for number in range(64):
        name = f"P{number}".ljust(60, "x")
        inventory.create_partition(PartitionRequest(name=name, size=1))


def test_a_full_disk_is_named_and_nothing_is_half_done(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(64)
    # SQLite answers as on a full disk when a database may not grow.
    with inventory._transaction(write=False) as db:
        (pages,) = db.execute("PRAGMA page_count").fetchone()
    inventory._database._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(InventoryFullError) as refusal:
        fill(inventory)

    assert str(refusal.value) == (
        f"There is no room on the disk for the V-IPU inventory {path}. Make room, or "
        "name another place with POPRUN_VIPU_INVENTORY."
    )
    names = [partition.name for partition in inventory.list_partitions()]
    assert 0 < len(names) < 64
    for name in names:
        inventory.remove_partition(name)
    assert inventory.create_partition(PartitionRequest(name="P", size=64)).size == 64
    inventory.close()


WITH_LITTLE_ROOM = """
import resource, sys
from pathlib import Path
from threading import Timer
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.errors import InventoryError

resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), -1))
try:
    EmbeddedInventory(Path(sys.argv[1]), host="h1").ensure_cluster(65536)
except InventoryError:
    sys.exit(0)
sys.exit(1)
"""


@pytest.mark.parametrize("room", [0, 5000, 50_000, 500_000])
def test_an_inventory_for_which_there_is_no_room_leaves_nothing_unusable(
    path: Path, room: int
) -> None:
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", WITH_LITTLE_ROOM, str(path), str(room)]
    assert subprocess.run(command, env=environ).returncode == 0

    left = {file.name for file in path.parent.iterdir()}
    assert left <= {"inventory.db", "inventory.db-wal", "inventory.db-shm"}
    inventory = EmbeddedInventory(path, host="h1")
    assert inventory.ensure_cluster(64) is not None
    inventory.close()


def test_a_lock_that_is_held_too_long_is_named(path: Path) -> None:
    first = EmbeddedInventory(path, host="h1")
    second = EmbeddedInventory(path, host="h1", timeout_s=0.05)
    with (
        first._transaction(write=True),
        pytest.raises(InventoryBusyError) as refusal,
    ):
        second.ensure_cluster(8)

    assert str(refusal.value) == (
        f"Other processes kept the V-IPU inventory {path} locked for 0.05 s. Try again."
    )
    assert second.ensure_cluster(8) is not None
    first.close()
    second.close()


def test_a_change_that_fails_is_undone(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")

    def fail() -> None:
        with inventory._transaction(write=True) as db:
            db.execute("INSERT INTO users VALUES ('eve', 1, 0, '', '')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert inventory.list_users() == ()
    inventory.close()


def test_what_starts_fast_imports_no_database() -> None:
    code = (
        "import sys, poprun.run, poprun.vipu.rules, poprun.vipu.leases;"
        "sys.exit('sqlite3' in sys.modules)"
    )
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}

    assert subprocess.run([sys.executable, "-c", code], env=environ).returncode == 0


def test_an_inventory_that_is_locked_as_a_whole_is_waited_for(path: Path) -> None:
    EmbeddedInventory(path, host="h1").close()
    with closing(sqlite3.connect(path, check_same_thread=False)) as other:
        # As SQLite does by itself while the log is recovered or removed.
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN IMMEDIATE")
        unlock = Timer(0.3, other.close)
        unlock.start()

        EmbeddedInventory(path, host="h1", timeout_s=60).close()

        unlock.join()


# What the C library answers where no file can be locked.
NO_LOCKS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/types.h>

static int refuse(const char *name, int file, int command, void *argument)
{
    if (command == F_GETLK || command == F_SETLK || command == F_SETLKW) {
        errno = ENOLCK;
        return -1;
    }
    int (*next)(int, int, ...) = (int (*)(int, int, ...))dlsym(RTLD_NEXT, name);
    return next(file, command, argument);
}
#define DEFINE(name)                                    \\
    int name(int file, int command, ...)                \\
    {                                                   \\
        va_list rest;                                   \\
        va_start(rest, command);                        \\
        void *argument = va_arg(rest, void *);          \\
        va_end(rest);                                   \\
        return refuse(#name, file, command, argument);  \\
    }
#undef fcntl
DEFINE(fcntl)
DEFINE(fcntl64)
#undef lockf
int lockf(int file, int command, off_t size) { errno = ENOLCK; return -1; }
int lockf64(int file, int command, off64_t size) { errno = ENOLCK; return -1; }
"""
OPEN = """
import sys
from poprun.vipu.opening import open_inventory
from poprun.vipu.errors import InventoryUnavailableError
try:
    open_inventory(None, {"POPRUN_VIPU_INVENTORY": sys.argv[1]}, "h1", 600)
except InventoryUnavailableError as error:
    print(error)
"""


@pytest.mark.parametrize("exists", [True, False])
def test_where_files_cannot_be_locked_it_is_said_at_once(
    path: Path, tmp_path: Path, exists: bool
) -> None:
    if exists:
        EmbeddedInventory(path, host="h1").close()
    shim = tmp_path / "no_locks.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", shim, "-x", "c", "-", "-ldl"],
        input=NO_LOCKS.encode(),
        check=True,
    )
    said = subprocess.run(
        [sys.executable, "-c", OPEN, path],
        env=os.environ | {"LD_PRELOAD": str(shim), "PYTHONPATH": ":".join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=50,
    ).stdout

    assert said == (
        f"The V-IPU inventory {path} is where file locks do not work: No locks "
        "available. Network file systems need a lock service. Name a place on a local "
        "disk with POPRUN_VIPU_INVENTORY.\n"
    )
    assert [f.name for f in path.parent.iterdir()] == [path.name] * exists
