"""The attributes of an optimizer that are constants of a compiled model."""

from collections.abc import Mapping
from typing import Any

from ..errors import ArgumentsError


class VariableAttributes:
    """The attributes of an optimizer that may change while a model is compiled.

    Attributes with a given value are variable, and defaults are constants, unless they
    are marked otherwise.
    """

    # Any: attributes of any type.
    def __init__(self, attributes: Mapping[str, Any]) -> None:
        """Take the attributes with their values; None for those that were not given."""
        self._attributes = set(attributes)
        self._constants = {n for n, value in attributes.items() if value is None}

    def isConstant(self, attr: str) -> bool:
        """Return whether the attribute is a constant; unknown ones are not."""
        return attr in self._constants

    def markAsConstant(self, attr: str) -> None:
        """Let compiled models rely on the attribute to stay as it is.

        Raises:
            ArgumentsError: The optimizer has no such attribute.
        """
        self._check(attr)
        self._constants.add(attr)

    def markAsVariable(self, attr: str) -> None:
        """Let the attribute change while a model is compiled.

        Raises:
            ArgumentsError: The optimizer has no such attribute.
        """
        self._check(attr)
        self._constants.discard(attr)

    def _check(self, attr: str) -> None:
        if attr not in self._attributes:
            raise ArgumentsError(
                f"The optimizer has no attribute {attr!r}. It has "
                f"{', '.join(sorted(self._attributes))}."
            )
