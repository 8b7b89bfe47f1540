"""Where the embedded inventory of a user is on this machine."""

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress

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
