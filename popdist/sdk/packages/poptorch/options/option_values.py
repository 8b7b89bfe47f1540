"""OptionValues: named values of known types, which can be frozen.

Any: each option has the type of its default.
"""

import copy
from enum import Enum
from typing import Any, Self

from ..errors import raise_frozen, require


class Freezable:
    """Options that a model or a loader freezes: a change raises AttributeError."""

    _is_frozen: bool

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Refuse a change of frozen options, with an AttributeError."""
        if option != "_is_frozen" and self.__dict__.get("_is_frozen", False):
            raise_frozen()

    def _set_frozen(self, frozen: bool) -> None:
        self.__dict__["_is_frozen"] = frozen

    def _freeze(self) -> None:
        self._set_frozen(True)

    def _unfreeze(self) -> None:
        self._set_frozen(False)

    def __setattr__(self, name: str, value: Any) -> None:
        self.checkIsFrozen(name)
        object.__setattr__(self, name, value)

    def __deepcopy__(self, memory: dict[int, Any]) -> Self:
        """Return a copy that is not frozen."""
        copied = self.__class__.__new__(self.__class__)
        memory[id(self)] = copied
        copied.__dict__.update(copy.deepcopy(self.__dict__, memory))
        copied.__dict__["_is_frozen"] = False
        return copied


class OptionValues(Freezable):
    """A set of options. Subclasses have a method for each that sets it."""

    _values: dict[str, Any]

    def __init__(self, **defaults: Any) -> None:
        self._values = defaults
        self._is_frozen = False

    def set(self, **values: Any) -> Self:
        """Change options, and return them all.

        Raises:
            AttributeError: The options are frozen.
            AssertionError: There is no such option, or it is of another type.
        """
        self.checkIsFrozen()
        for name, value in values.items():
            require(name in self._values, f"Invalid option {name}")
            expected = type(self._values[name])
            require(
                isinstance(value, expected),
                f"Unexpected type {type(value)} for option {name}: "
                f"it must be a {expected}.",
            )
            self._values[name] = value
        return self

    def createOrSet(self, **values: Any) -> Self:
        """Change or add options, and return them all."""
        self.checkIsFrozen()
        for name, value in values.items():
            if name in self._values:
                self.set(**{name: value})
            else:
                self._values[name] = value
        return self

    def exists(self, name: str) -> bool:
        """Return whether this option has a value."""
        return name in self._values

    def deleteIfExists(self, name: str) -> None:
        """Forget the value of an option."""
        self.checkIsFrozen()
        self._values.pop(name, None)

    def update(self, other: dict[str, Any]) -> dict[str, Any]:
        """Return the other dictionary with these options added, enums as numbers."""
        for name, value in self._values.items():
            other[name] = value.value if isinstance(value, Enum) else value
        return other

    def toDict(self) -> dict[str, Any]:
        """Return the options as a dictionary, enums as numbers."""
        return self.update({})

    def __getattr__(self, name: str) -> Any:
        # Called for names without an ordinary attribute. `_values` is none before
        # __init__ and while an object is copied.
        values = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"Invalid attribute {name}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        is_property = isinstance(getattr(type(self), name, None), property)
        if name.startswith("_") or is_property:
            super().__setattr__(name, value)
        else:
            self.set(**{name: value})

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self._values.items())
        return f"{type(self).__name__}({body})"
