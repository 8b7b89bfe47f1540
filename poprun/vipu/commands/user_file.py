"""The configuration file of a new user, with the access key: alice.vipu-cli.hcl."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from poprun.vipu.client.server_address import (
    DEFAULT_HOST,
    ServerAddress,
    create_config,
    write_config,
)
from poprun.vipu.errors import InventoryError
from poprun.vipu.rules.checks import check_name


class UserFile(NamedTuple):
    """A file that only its owner can read, opened before there is a key to lose."""

    path: str
    descriptor: int

    def write(self, server: ServerAddress | None, user: str, access_key: str) -> None:
        """Write how the user reaches a server; without one, the usual address."""
        address = server or ServerAddress(DEFAULT_HOST)
        address = address._replace(user=user, access_key=access_key)
        write_config(os.dup(self.descriptor), address)


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
        file = UserFile(path, create_config(path))
    except FileExistsError as error:
        raise InventoryError(
            f"The file {path} of another access key is here already. Move or remove "
            "it, or change the directory."
        ) from error
    except OSError as error:
        raise _unwritable(path, error) from error
    try:
        yield file
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise _unwritable(path, error) from error
        raise
    finally:
        os.close(file.descriptor)


def _unwritable(path: str, error: OSError) -> InventoryError:
    return InventoryError(
        f"The file {path} for the access key cannot be written: {error.strerror}. "
        "Change to a directory that can be written to."
    )
