"""Options of PopART, which no CPU has a use for: they are kept as they are."""

import copy
from typing import Any, Self

from ..errors import raise_frozen, require


class _PopartOptions:
    """Options by the names of PopART's session options."""

    def __init__(self) -> None:
        self._is_frozen = False
        self.options: dict[str, Any] = {
            "instrumentWithHardwareCycleCounter": False,
            "rearrangeAnchorsOnHost": False,
        }

    def set(self, key: str, value: Any) -> Self:
        """Record one option; PopART's enums are given as numbers."""
        self.checkIsFrozen()
        self.options[key] = value
        return self

    def setEngineOptions(self, engine_options: dict[str, str]) -> Self:
        """Record the options of Poplar's engine."""
        return self.set("engineOptions", engine_options)

    def setForConvolutions(self, name: str, value: Any) -> Self:
        """Record one of the options of convolutions, and keep the others."""
        others = self.options.get("convolutionOptions", {})
        return self.set("convolutionOptions", {**others, name: value})

    def setPatterns(self, patterns: dict[str, bool], level: int = 2) -> Self:
        """Record which patterns PopART's compiler applies, and from which level on."""
        require(isinstance(level, int), f"level is {level!r}, but must be an int.")
        require(
            isinstance(patterns, dict), f"patterns is {patterns!r}, but must be a dict."
        )
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def checkIsFrozen(self, option: str | None = None) -> None:
        """Refuse a change of frozen options, with an AttributeError."""
        if option != "_is_frozen" and self.__dict__.get("_is_frozen", False):
            raise_frozen()

    def _set_frozen(self, frozen: bool) -> None:
        self.__dict__["_is_frozen"] = frozen

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

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({body})"
