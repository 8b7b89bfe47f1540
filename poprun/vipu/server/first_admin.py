"""The first administrator of a secure server, whose access key goes to a file."""

from pathlib import Path

from poprun.vipu.client.server_address import (
    ServerAddress,
    create_config,
    write_config,
)
from poprun.vipu.errors import InventoryUnavailableError
from poprun.vipu.inventory.interface import Inventory

NAME = "admin"


def make_first_admin(
    inventory: Inventory, database: Path, host: str, port: int, *, tls: bool
) -> Path | None:
    """Make an administrator if there is none, with a configuration file for vipu.

    Returns the file, which only this user can read; None if there was one already.

    Raises:
        InventoryUnavailableError: The file cannot be written.
    """
    if any(user.is_admin for user in inventory.list_users()):
        return None
    path = database.with_name(f"{NAME}.vipu-cli.hcl")
    access_key = inventory.create_user(NAME, is_admin=True)
    address = ServerAddress(host, port, NAME, access_key, tls)
    try:
        path.unlink(missing_ok=True)
        write_config(create_config(path), address)
    except OSError as error:
        inventory.remove_user(NAME)
        raise InventoryUnavailableError(
            f"The access key of the first administrator cannot be written to {path}: "
            f"{error.strerror}. Name a directory that can be written to, with "
            "--database."
        ) from error
    return path
