"""The operations of an inventory as data, from its methods as they are declared.

Requests to a server, their documentation and the options of the commands are made
from `inventory.interface`.
"""

import inspect
import json
from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from poprun.vipu.errors import VipuRuleError
from poprun.vipu.inventory.interface import Inventory, operation_names
from poprun.vipu.wire import from_json

# mypy takes only those that are spelled out.
_named_tuple: Any = namedtuple


class Operation(NamedTuple):
    """One method of the inventory, to be called through the network."""

    name: str
    summary: str
    # A named tuple of its arguments.
    arguments: Any
    result: Any

    def read(self, body: bytes) -> dict[str, Any]:
        """Return the arguments of a request.

        Raises:
            VipuRuleError: They are not valid.
        """
        try:
            # json itself would take UTF-16 as well.
            value = json.loads(body.decode())
            arguments = from_json(self.arguments, value, of_request=True)
        except (ValueError, RecursionError) as error:
            raise VipuRuleError(
                f"The request for {self.name} is not valid: {error}."
            ) from error
        return dict(arguments._asdict())


def operations() -> Mapping[str, Operation]:
    """Return all operations, by name."""
    return {name: operation(name) for name in operation_names()}


@cache
def operation(name: str) -> Operation:
    """Return the operation of a name."""
    method = getattr(Inventory, name)
    signature = inspect.signature(method)
    parameters = list(signature.parameters.values())[1:]
    arguments = _named_tuple(
        "".join(map(str.capitalize, name.split("_"))),
        [parameter.name for parameter in parameters],
        defaults=[p.default for p in parameters if p.default is not p.empty],
    )
    arguments.__annotations__ = {p.name: p.annotation for p in parameters}
    return Operation(
        name=name,
        summary=inspect.getdoc(method) or name.replace("_", " ").capitalize() + ".",
        arguments=arguments,
        result=signature.return_annotation,
    )
