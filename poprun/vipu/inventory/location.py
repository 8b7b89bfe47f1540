"""Where the embedded inventory of a user is on this machine."""

import re
from collections.abc import Mapping
from pathlib import Path

from poprun.vipu.vipu_errors import InventoryUnavailableError

# Names the file of the inventory.
VARIABLE = "POPRUN_VIPU_INVENTORY"


def find_inventory(environ: Mapping[str, str], host: str) -> Path:
    """Return the path of the inventory, whether or not it exists.

    Homes are shared between machines on many sites, but emulated IPUs belong to one
    machine, and SQLite's WAL mode works on one machine only. So its name is part of
    the path.
    """
    named = environ.get(VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    # Only a launch that needs an inventory gets here.
    import platformdirs

    machine = re.sub(r"[^A-Za-z0-9.-]", "_", host)[:128] or "localhost"
    state = platformdirs.user_state_path("poprun", appauthor=False)
    if not state.is_absolute():
        raise InventoryUnavailableError(
            "This user has no home directory, where the V-IPU inventory would be. "
            f"Name a file for it with {VARIABLE}, or run with --offline-mode=1."
        )
    return state / "vipu" / machine / "inventory.db"
