"""The patterns that a compiler applies to a graph: recorded, and without effect."""

from collections.abc import Sequence
from typing import Self

from .enums import PatternsLevel

# Patterns that are attributes of Patterns, too.
ATTRIBUTES = """
    PreUniRepl PostNRepl SoftMaxGradDirect NlllWithSoftMaxGradDirect OpToIdentity
    SubtractArg1GradOp MulArgGradOp MatMulOp MatMulLhsGradOp MatMulRhsGradOp InPlace
"""


class Patterns:
    """The enabled patterns. Nothing is compiled here, so none is applied."""

    def __init__(
        self, level: PatternsLevel | Sequence[str] = PatternsLevel.Default
    ) -> None:
        """Enable the patterns of a level, or patterns by their names."""
        # By their names; the others are as the level has them.
        self._enabled: dict[str, bool] = {}
        self._others = False
        if isinstance(level, PatternsLevel):
            self._others = level > PatternsLevel.NoPatterns
        else:
            self._enabled = dict.fromkeys(level, True)

    def isPatternEnabled(self, name: str) -> bool:
        """Return whether a pattern is enabled."""
        return self._enabled.get(name, self._others)

    def enablePattern(self, name: str, enabled: bool) -> Self:
        """Enable or disable a pattern, and return the patterns."""
        self._enabled[name] = enabled
        return self

    def enableRuntimeAsserts(self, enabled: bool) -> Self:
        """Do nothing, and return the patterns: none is applied."""
        return self

    def __getattr__(self, name: str) -> bool:
        self._check(name)
        return self.isPatternEnabled(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in ("_enabled", "_others"):
            super().__setattr__(name, value)
        else:
            self._check(name)
            self.enablePattern(name, bool(value))

    def _check(self, name: str) -> None:
        """Raise AttributeError if a pattern is no attribute."""
        if name not in ATTRIBUTES.split():
            raise AttributeError(
                f"Patterns has no attribute {name}. Use isPatternEnabled() and "
                "enablePattern() for patterns by name.",
                name=name,
                obj=self,
            )
