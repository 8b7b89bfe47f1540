"""The place of a user's embedded inventory, made and checked for this user alone.

A user who can write to the directory of an inventory can replace the inventory.
"""

import grp
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress

from poprun.users import user_name
from poprun.vipu.errors import InventoryUnavailableError

# Names the file of the inventory.
VARIABLE = "POPRUN_VIPU_INVENTORY"


def find_inventory(environ: Mapping[str, str], host: str) -> str:
    """Return the path of the inventory, whether or not it exists.

    Homes are shared between machines on many sites, but emulated IPUs belong to one
    machine, and SQLite's WAL mode works on one machine only. So its name is part of
    the path.
    """
    path = environ.get(VARIABLE)
    if path:
        return os.path.join(os.getcwd(), path)
    return os.path.join(_directory(environ, host), "inventory.db")


def find_server_inventory(environ: Mapping[str, str], host: str, port: int) -> str:
    """Return the path of the inventory that a server at a port has for itself."""
    return os.path.join(_directory(environ, host), f"server-{port}.db")


def _directory(environ: Mapping[str, str], host: str) -> str:
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG rule for relative paths: ignore it
        state = os.path.join(_home(environ), ".local", "state")
    machine = re.sub(r"[^A-Za-z0-9.-]", "_", host)[:128] or "localhost"
    return os.path.join(state, "poprun", "vipu", machine)


def _home(environ: Mapping[str, str]) -> str:
    home = environ.get("HOME", "")
    if not home:
        with suppress(KeyError):  # containers run users without an entry
            home = pwd.getpwuid(os.getuid()).pw_dir
    if os.path.isdir(home) and os.path.isabs(home):
        return home
    place = "where the V-IPU inventory would be"
    problem = f"This user has no home directory, {place}."
    if os.path.isabs(home):
        problem = f"The home directory {home}, {place}, does not exist."
    raise InventoryUnavailableError(f"{problem} Name a file for it with {VARIABLE}.")


_ELSEWHERE = "name another place with POPRUN_VIPU_INVENTORY"
# The files that SQLite keeps beside a database.
_SUFFIXES = ("", "-wal", "-shm", "-journal")


def make_private(directory: str) -> None:
    """Make a directory, and those above it, for this user alone, whatever the umask."""
    if os.path.isdir(directory):
        return
    make_private(os.path.dirname(directory) or ".")
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:  # another process was faster, or it is no directory
        return
    if stat.S_IMODE(os.lstat(directory).st_mode) != 0o700:
        os.chmod(directory, 0o700)


def check_private(path: str) -> None:
    """Check that no other user can replace or write a file, or make it if it is absent.

    Raises:
        InventoryUnavailableError: One can.
    """
    if os.path.islink(path):
        _check(path, "file", os.lstat(path))
        path = os.path.realpath(path)
    places = [(directory, "directory") for directory in _directories_of(path)]
    places += [(path + suffix, "file") for suffix in _SUFFIXES]
    for place, kind in places:
        with suppress(FileNotFoundError):
            _check(place, kind, os.lstat(place))
            _check(place, kind, os.stat(place))


def _directories_of(path: str) -> Iterator[str]:
    """Iterate over the directory of a file, and those above it that are V-IPU's own."""
    directory = os.path.dirname(path) or "."
    yield directory
    vipu = os.path.dirname(directory)
    poprun = os.path.dirname(vipu)
    if (os.path.basename(vipu), os.path.basename(poprun)) == ("vipu", "poprun"):
        yield vipu
        yield poprun


def _check(path: str, kind: str, status: os.stat_result) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise InventoryUnavailableError(
            f"The {kind} {path} of the V-IPU inventory belongs to another user, "
            f"{user_name(status.st_uid)}. Remove it, or {_ELSEWHERE}."
        )
    mode = status.st_mode
    # In a sticky directory, as /tmp, others can make files, but not replace ours. The
    # mode of a symbolic link means nothing.
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        return
    by_group = mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    if mode & stat.S_IWOTH or by_group:
        raise InventoryUnavailableError(
            f"Other users can write to the {kind} {path} of the V-IPU inventory. Check "
            f"that its contents are right, and run: chmod go-w {path}; or {_ELSEWHERE}."
        )


def _is_own_group(number: int) -> bool:
    """Return whether a group has no member but this user, as many systems make one."""
    try:
        user = pwd.getpwuid(os.geteuid())
        group = grp.getgrgid(number)
    except KeyError:
        return False
    is_primary = user.pw_gid == number and group.gr_name == user.pw_name
    return is_primary and set(group.gr_mem) <= {user.pw_name}
