"""Options of PopART, which no CPU has a use for: they are kept as they are."""

from typing import Any, Self

from ..errors import require_type
from .option_values import Freezable


class _PopartOptions(Freezable):
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
        require_type("level", level, int)
        require_type("patterns", patterns, dict)
        self.set("patterns_level", level)
        return self.set("patterns", patterns)

    def __repr__(self) -> str:
        body = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        return f"{type(self).__name__}({body})"
