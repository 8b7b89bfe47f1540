"""What one call of a command knows: which inventory it asks, and how it shows results.

The options that every command takes are stored here as they are found, on whichever
side of the verb they stand.
"""

import getpass
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from poprun.texts.stdout import write
from poprun.vipu.client.server_address import KEYS, ServerAddress, find_server
from poprun.vipu.commands.views.machine_views import View
from poprun.vipu.commands.views.text_tables import json_value
from poprun.vipu.inventory.interface import Inventory
from poprun.vipu.opening import open_inventory
from poprun.words import printable

DEFAULT_TIMEOUT_S = 10.0


class Session:
    """One call of `vipu` or `vipu-admin`."""

    def __init__(self, program: str, environ: Mapping[str, str]) -> None:
        self._program = program
        self.environ = environ
        # By parameter, those that the command line gives.
        self.given: dict[str, Any] = {}

    @property
    def is_admin(self) -> bool:
        """Whether it asks as an administrator, who sees what all users have."""
        return self._program == "vipu-admin" or bool(self.given.get("admin"))

    def find_server(self) -> ServerAddress | None:
        """Return the server that is meant; None for the embedded inventory.

        Raises:
            VipuRuleError: An option, a variable or a file is not valid.
        """
        return find_server(
            self.environ,
            {key: self.given.get(key.replace("-", "_")) for key in KEYS},
            config_file=self.given.get("config"),
            option_prefix="--api",
        )

    def user(self, server: ServerAddress | None) -> str:
        """Return in whose name partitions are made."""
        if server is not None and server.user:
            return server.user
        try:
            return getpass.getuser()
        except (KeyError, OSError):  # containers run users without an entry
            return str(os.geteuid())

    @contextmanager
    def open(self, server: ServerAddress | None = None) -> Iterator[Inventory]:
        """Open the inventory that is meant, and close it at the end.

        Args:
            server: As `find_server` has returned it, if it was called.

        Raises:
            VipuError: It cannot be opened.
        """
        inventory = open_inventory(
            server or self.find_server(),
            self.environ,
            os.uname().nodename,
            float(self.given.get("api_timeout", DEFAULT_TIMEOUT_S)),
            admin=self.is_admin,
        )
        try:
            yield inventory
        finally:
            inventory.close()

    @property
    def as_json(self) -> bool:
        return bool(self.given.get("json"))

    def report_success(self, verb: str, kind: str, name: str) -> None:
        """Write that a change was made: create partition (p1): success."""
        if self.as_json:
            self.write_json({"command": f"{verb} {kind}", "id": name, "success": True})
        else:
            write(f"{verb} {kind} ({name}): success.\n")

    def warn(self, sentence: str) -> None:
        """Write a warning to stderr."""
        if sys.stderr is not None:
            sys.stderr.write(f"{self._program}: warning: {printable(sentence)}\n")

    def show(self, view: View, value: Any) -> None:
        """Write a value, as JSON or as text."""
        if self.as_json:
            self.write_json(json_value(view.json, value))
        else:
            write(view.text(value))

    def show_all(self, view: View, values: Sequence[Any]) -> None:
        """Write values, as a JSON list or as a table."""
        if self.as_json:
            self.write_json([json_value(view.json, value) for value in values])
        else:
            write(view.table(values))

    def write_json(self, value: Any) -> None:
        write(json.dumps(value, indent=2) + "\n")
