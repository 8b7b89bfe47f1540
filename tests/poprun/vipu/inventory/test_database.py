"""The file of an inventory, and what happens when it cannot be used."""

import os
import sqlite3
import subprocess
import sys
import zlib
from contextlib import closing
from pathlib import Path
from threading import Timer

import pytest

from poprun.vipu.errors import (
    InventoryBusyError,
    InventoryCorruptError,
    InventoryFullError,
    InventoryUnavailableError,
    InventoryVersionError,
)
from poprun.vipu.inventory import database
from poprun.vipu.inventory.database import MOST_LOG_PAGES, SCHEMA, VERSION
from poprun.vipu.inventory.embedded import EmbeddedInventory
from poprun.vipu.model import PartitionRequest
from poprun.vipu.opening import open_inventory


@pytest.mark.parametrize("name", ["50%41", "a?b=c", "a#b", "ü 1", "\udcff"])
def test_its_path_may_have_any_characters(tmp_path: Path, name: str) -> None:
    path = tmp_path / name / f"{name}.db"
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(8)
    inventory.close()

    assert [file.name for file in path.parent.iterdir()] == [path.name]


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
        inventory = open_inventory(None, {"POPRUN_VIPU_INVENTORY": str(path)})
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
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(InventoryUnavailableError, match="is no file"):
            EmbeddedInventory(place, host="h1")


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


@pytest.mark.parametrize("word", [b"PRIMARY", b"num_ilds", b"pod64"])
def test_a_damaged_text_is_named(path: Path, word: bytes) -> None:
    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(64)
    path.write_bytes(path.read_bytes().replace(word, word[:-1] + b"\xff"))

    def use() -> None:
        with closing(EmbeddedInventory(path, host="h1")) as inventory:
            inventory.list_clusters()
            inventory.create_partition(PartitionRequest(name="P", size=1))

    with pytest.raises(InventoryCorruptError, match=r"is damaged: .*\. Move it away"):
        use()


def test_the_log_shrinks_when_a_process_that_reads_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MOST_LOG_BYTES", 4096 * MOST_LOG_PAGES)
    log = Path(f"{path}-wal")
    with closing(EmbeddedInventory(path, host="h1", syncs=False)) as inventory:
        inventory.ensure_cluster(8)
        with closing(sqlite3.connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM clusters").fetchall()
            while log.stat().st_size < 8 * MOST_LOG_PAGES * 4096:
                inventory.create_partition(PartitionRequest(name="P", size=1))
                inventory.remove_partition("P")
        for _ in range(2 * MOST_LOG_PAGES):
            inventory.create_partition(PartitionRequest(name="P", size=1))
            inventory.remove_partition("P")

        assert log.stat().st_size < 2 * MOST_LOG_PAGES * 4096


@pytest.mark.parametrize(
    ("age", "step", "advice"),
    [
        ("A newer", 1, "Use that poprun"),
        ("An older", -1, "Move it away, and poprun creates a new one"),
    ],
)
def test_the_inventory_of_another_poprun_is_left_alone(
    path: Path, age: str, step: int, advice: str
) -> None:
    EmbeddedInventory(path, host="h1").close()
    version = VERSION + step
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(InventoryVersionError) as refusal:
        EmbeddedInventory(path, host="h1")

    assert str(refusal.value) == (
        f"{age} poprun made the V-IPU inventory {path}: it has version {version}, and "
        f"this poprun knows {VERSION}. {advice}, or name another place with "
        "POPRUN_VIPU_INVENTORY."
    )


def test_other_tables_have_another_version() -> None:
    # Change both: an inventory that was made before must not be opened.
    assert (VERSION, zlib.crc32(SCHEMA.read_bytes())) == (12, 3286780233)


def fill(inventory: EmbeddedInventory) -> None:
    for number in range(64):
        name = f"P{number}".ljust(60, "x")
        inventory.create_partition(PartitionRequest(name=name, size=1))


def test_a_full_disk_is_named_and_nothing_is_half_done(path: Path) -> None:
    inventory = EmbeddedInventory(path, host="h1")
    inventory.ensure_cluster(64)
    # SQLite answers as on a full disk when a database may not grow.
    with inventory._database.transaction(write=False):
        (pages,) = inventory._db.execute("PRAGMA page_count").fetchone()
    inventory._database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(InventoryFullError) as refusal:
        fill(inventory)

    assert str(refusal.value) == (
        f"There is no space on the disk for the V-IPU inventory {path}. Free some "
        "space, or name another place with POPRUN_VIPU_INVENTORY."
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
        first._database.transaction(write=True),
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
        with inventory._database.transaction(write=True):
            inventory._db.execute("INSERT INTO users VALUES ('eve', 1, 0, '', '')")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert inventory.list_users() == ()
    inventory.close()


def make(inventory: EmbeddedInventory, name: str, size: int = 1) -> None:
    inventory.create_partition(PartitionRequest(name=name, size=size))


def names_in(path: Path) -> list[str]:
    """Return the partitions that another process finds."""
    with closing(sqlite3.connect(path)) as other:
        return [name for (name,) in other.execute("SELECT name FROM partitions")]


def test_changes_made_together_are_one_transaction(path: Path) -> None:
    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(8)
        with inventory.together():
            make(inventory, "P")
            assert [each.name for each in inventory.list_partitions()] == ["P"]
            make(inventory, "Q")
            assert names_in(path) == []

        assert names_in(path) == ["P", "Q"]


@pytest.mark.parametrize("names", [["P", "eve", "Q"], ["eve", "P", "Q"]])
def test_a_change_that_fails_undoes_no_other_that_is_made_with_it(
    path: Path, names: list[str]
) -> None:
    def fail(inventory: EmbeddedInventory) -> None:
        with inventory._database.transaction(write=True):
            inventory._db.execute("INSERT INTO users VALUES ('eve', 1, 0, '', '')")
            raise ZeroDivisionError

    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(8)
        with inventory.together():
            for name in names:
                if name == "eve":
                    with pytest.raises(ZeroDivisionError):
                        fail(inventory)
                else:
                    make(inventory, name)

        assert names_in(path) == ["P", "Q"]
        assert inventory.list_users() == ()


def test_of_changes_made_together_on_a_full_disk_none_is_made(path: Path) -> None:
    with closing(EmbeddedInventory(path, host="h1")) as inventory:
        inventory.ensure_cluster(64)
        with inventory._database.transaction(write=False):
            (pages,) = inventory._db.execute("PRAGMA page_count").fetchone()
        inventory._database.connection.execute(f"PRAGMA max_page_count = {pages}")

        def make_many() -> None:
            with inventory.together():
                make(inventory, "P")
                with pytest.raises(InventoryFullError):
                    fill(inventory)
                make(inventory, "Q")

        with pytest.raises(InventoryFullError, match="There is no space on the disk"):
            make_many()

        assert names_in(path) == []
        make(inventory, "P", 64)


def test_a_lock_refuses_changes_made_together_and_no_look(path: Path) -> None:
    opened = EmbeddedInventory(path, host="h1", timeout_s=0.05)
    with closing(opened), closing(EmbeddedInventory(path, host="h1")) as other:
        opened.ensure_cluster(8)
        with other._database.transaction(write=True), opened.together():
            with pytest.raises(InventoryBusyError):
                make(opened, "P")
            assert len(opened.list_clusters()) == 1


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
    open_inventory(None, {"POPRUN_VIPU_INVENTORY": sys.argv[1]}, 600)
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
        timeout=200,
    ).stdout

    assert said == (
        f"The V-IPU inventory {path} is where file locks do not work: No locks "
        "available. Network file systems need a lock service. Name a place on a local "
        "disk with POPRUN_VIPU_INVENTORY.\n"
    )
    assert [f.name for f in path.parent.iterdir()] == [path.name] * exists
