"""One call of `vipu` or `vipu-admin`: its options, its inventory, its output."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from poprun.texts.stdout import write, write_error
from poprun.users import user_name
from poprun.vipu.client.server_address import KEYS, ServerAddress, find_server
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.opening import open_inventory
from poprun.words import printable

DEFAULT_TIMEOUT_S = 10.0


class Session:
    """One call of `vipu` or `vipu-admin`."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self.environ = environ
        # The global options of the command line, by parameter.
        self.given: dict[str, Any] = {}

    @property
    def is_admin(self) -> bool:
        """Whether the user is an administrator and sees the partitions of all users."""
        return self._program == "vipu-admin" or "admin" in self.given

    @property
    def as_json(self) -> bool:
        return "json" in self.given

    @cached_property
    def server(self) -> ServerAddress | None:
        """The server; None for the embedded inventory.

        Raises:
            VipuRuleError: An option, a variable or a file is not valid.
        """
        return find_server(
            self.environ,
            {key: self.given.get(key.replace("-", "_")) for key in KEYS},
            config_file=self.given.get("config"),
            option_prefix="--api",
        )

    @cached_property
    def inventory(self) -> Inventory:
        """The inventory, opened on first use.

        Raises:
            VipuError: It cannot be opened.
        """
        timeout_s = float(self.given.get("api_timeout", DEFAULT_TIMEOUT_S))
        return open_inventory(self.server, self.environ, timeout_s, admin=self.is_admin)

    def close(self) -> None:
        """Close the inventory, if it is open."""
        if inventory := vars(self).pop("inventory", None):
            inventory.close()

    def user(self) -> str:
        """Return the owner of new partitions."""
        return (self.server.user if self.server else "") or user_name()

    def warn(self, sentence: str) -> None:
        """Write a warning to stderr."""
        write_error(f"{self._program}: warning: {printable(sentence)}\n")

    def show(self, result: object) -> None:
        """Write the result of a command: a text, or a value as JSON."""
        if not isinstance(result, str):
            result = json.dumps(result, indent=2) + "\n"
        write(result)
