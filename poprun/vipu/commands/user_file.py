"""The configuration file of a new user, with the access key: alice.vipu-cli.hcl."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from poprun.vipu.client.server_address import (
    DEFAULT_HOST,
    DEFAULT_PORT,
    ServerAddress,
    is_loopback,
)
from poprun.vipu.errors import InventoryError
from poprun.vipu.rules.checks import check_name


class UserFile:
    """A file that only its owner can read, opened before there is a key to lose."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )

    def write(self, server: ServerAddress | None, user: str, access_key: str) -> None:
        """Write how the user reaches a server; without one, the usual address."""
        lines = {
            "api-host": DEFAULT_HOST if server is None else server.host,
            "api-port": str(DEFAULT_PORT if server is None else server.port),
            "api-user-id": user,
            "api-access-key": access_key,
        }
        if server is not None and server.tls == is_loopback(server.host):
            lines["api-tls"] = "yes" if server.tls else "no"
        if server is not None and server.ca_cert:
            lines["api-ca-cert"] = os.path.abspath(server.ca_cert)
        text = "".join(f'{key} = "{value}"\n' for key, value in lines.items())
        with open(self._descriptor, "w", encoding="utf-8", closefd=False) as file:
            file.write(text)

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def new_user_file(user: str) -> Iterator[UserFile]:
    """Make the file of a user in the working directory; remove it on an error.

    Raises:
        VipuRuleError: It is no name of a user.
        InventoryError: The file exists, or cannot be written.
    """
    check_name("user", user)
    path = f"{user}.vipu-cli.hcl"
    try:
        file = UserFile(path)
    except FileExistsError as error:
        raise InventoryError(
            f"The file {path} of another access key is here already. Move or remove "
            "it, or change the directory."
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield file
    except OSError as error:
        os.unlink(path)
        raise _unwritable(path, error) from error
    except BaseException:
        os.unlink(path)
        raise
    finally:
        file.close()


def _unwritable(path: str, error: OSError) -> InventoryError:
    return InventoryError(
        f"The file {path} for the access key cannot be written: {error.strerror}. "
        "Change to a directory that can be written to."
    )
