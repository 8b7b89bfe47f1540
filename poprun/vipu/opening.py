"""Open the inventory that a user means: a server's, or the embedded one."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from poprun.vipu.client.server_address import ServerAddress
from poprun.vipu.inventory.location import find_inventory

if TYPE_CHECKING:
    from poprun.vipu.inventory.interface import Inventory


def open_inventory(
    address: ServerAddress | None,
    environ: Mapping[str, str],
    timeout_s: float = 10.0,
    *,
    admin: bool = False,
    syncs: bool = True,
    is_copy: bool = False,
) -> "Inventory":
    """Open the inventory at an address, or this user's on this machine.

    The embedded one is made on first use.

    Args:
        address: Returned by `server_address.find_server`; None for the embedded one.
        environ: Says where the embedded one is.
        timeout_s: How long to wait for a reply, or while other processes write.
        syncs: Whether closing the embedded one waits for the disk.
        is_copy: Open a copy of the embedded one, to see what would happen.
        admin: Ask as an administrator, who sees the partitions of all users.

    Raises:
        VipuError: It cannot be reached or opened.
    """
    if address is None:
        from poprun.vipu.inventory.embedded import EmbeddedInventory

        host = os.uname().nodename
        path = find_inventory(environ, host)
        return EmbeddedInventory(
            path, host=host, timeout_s=timeout_s, syncs=syncs, is_copy=is_copy
        )
    from poprun.vipu.client.server_inventory import ServerInventory

    return ServerInventory(address, timeout_s=timeout_s, admin=admin)
