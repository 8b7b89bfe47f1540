"""The configuration file of a new user, with the access key: alice.vipu-cli.hcl."""

import os
from functools import partial

from poprun.vipu.client.server_address import ServerAddress, is_loopback
from poprun.vipu.inventory.interface import Inventory


def create_user(
    inventory: Inventory,
    path: str | os.PathLike[str],
    address: ServerAddress,
    name: str,
    allocations: tuple[str, ...] = (),
    *,
    is_admin: bool = False,
) -> str:
    """Make a user, and write how to reach a server to a file; return the access key.

    Only the owner of the file can read it. It is made before the user, so that no key
    is lost, and removed if the user cannot be made.

    Raises:
        OSError: It exists, or cannot be written.
        VipuError: The user cannot be made.
    """
    private = partial(os.open, mode=0o600)
    with open(path, "x", encoding="utf-8", opener=private) as file:
        try:
            access_key = inventory.create_user(name, allocations, is_admin=is_admin)
            address = address._replace(user=name, access_key=access_key)
            try:
                file.write(_config_text(address))
                file.flush()
            except OSError:
                inventory.remove_user(name)
                raise
        except BaseException:
            os.unlink(path)
            raise
    return access_key


def _config_text(address: ServerAddress) -> str:
    """Return a configuration as `server_address.read_config` reads it.

    Whether the server has TLS is written if it is otherwise than such servers are.
    """
    values = {
        "api-host": address.host,
        "api-port": str(address.port),
        "api-user-id": address.user,
        "api-access-key": address.access_key,
    }
    if address.tls == is_loopback(address.host):
        values["api-tls"] = "yes" if address.tls else "no"
    if address.ca_cert:
        values["api-ca-cert"] = os.path.abspath(address.ca_cert)
    return "".join(f'{key} = "{value}"\n' for key, value in values.items())
