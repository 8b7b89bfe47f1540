"""The base class of poprun's values: frozen, with named fields.

It takes the place of dataclasses and named tuples, which compile methods for each
class: that takes 0.1 to 0.6 ms for each of the 80 that a launch defines, and importing
dataclasses another 14 ms, because it imports inspect. Records share their methods.
"""

from poprun.annotations import TYPE_CHECKING

# Of typing and dataclasses only the type checker needs anything here.
if TYPE_CHECKING:
    from dataclasses import replace
    from typing import Any, ClassVar, dataclass_transform
else:

    def dataclass_transform(**_: object) -> object:
        return lambda cls: cls

    def replace(record, /, **changes):
        """Return a record with other contents of some fields."""
        return type(record)(**{**vars(record), **changes})


__all__ = ["Record", "replace"]


@dataclass_transform(frozen_default=True)
class Record:
    """An object with the fields that its class annotates, and their defaults.

    It compares and hashes as its contents, and cannot be changed.
    """

    __match_args__: "ClassVar[tuple[str, ...]]"
    _defaults: "ClassVar[dict[str, Any]]"

    def __init_subclass__(cls) -> None:
        names = tuple(cls.__annotations__)
        cls.__match_args__ = names  # type: ignore[misc]  # mypy has its own
        cls._defaults = {n: vars(cls)[n] for n in names if n in vars(cls)}

    def __init__(self, *contents: "Any", **named: "Any") -> None:
        names = self.__match_args__
        by_position = dict(zip(names, contents, strict=False))
        fields = {**self._defaults, **by_position, **named}
        if fields.keys() != set(names) or len(contents) > len(names):
            raise TypeError(f"{type(self).__name__} has the fields {names}.")
        vars(self).update(fields)
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the contents: for classes that have rules."""

    def __setattr__(self, name: str, content: object) -> None:
        raise AttributeError(f"{type(self).__name__} cannot be changed.")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in self.__match_args__))

    def __repr__(self) -> str:
        fields = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
        return f"{type(self).__name__}({', '.join(fields)})"
