"""The names of typing that annotations use; a run does not import it, which is 5 ms."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, AnyStr, Protocol, TextIO, TypeVar
else:
    Any = AnyStr = Protocol = TextIO = object

    def TypeVar(name):
        """Return a stand-in for a type variable."""
        return object


__all__ = ["TYPE_CHECKING", "Any", "AnyStr", "Protocol", "TextIO", "TypeVar"]
