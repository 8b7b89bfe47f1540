"""What options were called in older releases of PopTorch."""

from collections.abc import Callable
from typing import Self

from .._logging import warn_deprecated
from ..enums import OutputMode
from .popart_options import _PopartOptions


class _OldNames:
    """A part of Options: each name warns once, and does what the new one does."""

    _popart: _PopartOptions
    outputMode: Callable[..., Self]

    def anchorMode(
        self, anchor_mode: OutputMode, anchor_return_period: int | None = None
    ) -> Self:
        """Set the output mode: its name in older releases."""
        warn_deprecated("Options.anchorMode", "Options.outputMode")
        return self.outputMode(anchor_mode, anchor_return_period)

    @property
    def Popart(self) -> _PopartOptions:
        """Options of PopART: their name in older releases."""
        warn_deprecated("Options.Popart", "Options._Popart")
        return self._popart
