"""Options.Precision."""

from typing import Self

import torch

from .. import autocasting
from ..enums import HalfFloatCastingBehavior
from ..errors import require
from .option_values import OptionValues
from .popart_options import _PopartOptions

PARTIALS = {torch.float32: "float", torch.float16: "half"}


class _PrecisionOptions(OptionValues):
    """The operations in float16 and in float32.

    The types of a model's tensors decide, and automatic casts where the model asks for
    them. The rest is recorded, and has no effect on a CPU.
    """

    def __init__(self, popart_options: _PopartOptions) -> None:
        super().__init__(
            autocast_enabled=True,
            autocast_policy=autocasting.default,
            half_float_casting=HalfFloatCastingBehavior.Default,
        )
        self._popart_options = popart_options

    def autocastEnabled(self, autocast_enabled: bool) -> Self:
        """Set whether models that ask for automatic casts get them."""
        if not isinstance(autocast_enabled, bool):
            raise ValueError("autocastEnabled must be set to either True or False")
        return self.set(autocast_enabled=autocast_enabled)

    def autocastPolicy(self, autocast_policy: autocasting.Policy) -> Self:
        """Set the operations that automatic casts give float16 and float32."""
        if not isinstance(autocast_policy, autocasting.Policy):
            raise ValueError(
                "autocastPolicy must be set to an instance of "
                "poptorch.autocasting.Policy"
            )
        return self.set(autocast_policy=autocast_policy)

    def halfFloatCasting(self, half_float_casting: HalfFloatCastingBehavior) -> Self:
        """Set the type for mixed inputs that torch refuses.

        By default to float16. It holds from the first region with automatic casts on.
        """
        if not isinstance(half_float_casting, HalfFloatCastingBehavior):
            raise ValueError(
                "halfFloatCasting must be set to "
                "poptorch.HalfFloatCastingBehavior.FloatDowncastToHalf or "
                "poptorch.HalfFloatCastingBehavior.HalfUpcastToFloat or "
                "poptorch.Default"
            )
        return self.set(half_float_casting=half_float_casting)

    def runningStatisticsAlwaysFloat(self, value: bool) -> Self:
        """Record whether running statistics of batch norms are always float32."""
        if not isinstance(value, bool):
            raise ValueError("runningStatisticsAlwaysFloat needs to be set to a bool")
        return self.createOrSet(running_statistics_always_float=value)

    def enableFloatingPointExceptions(self, enabled: bool) -> Self:
        """Set whether an operation that yields infinity or no number raises."""
        require(
            isinstance(enabled, bool),
            "enableFloatingPointExceptions needs to be set to a bool",
        )
        self._popart_options.set("enableFloatingPointChecks", enabled)
        return self

    def enableStochasticRounding(self, enabled: bool) -> Self:
        """Record whether the device rounds to float16 at random."""
        self._popart_options.set("enableStochasticRounding", enabled)
        return self

    def setPartialsType(self, dtype: torch.dtype) -> Self:
        """Record the type of partial sums in products and convolutions."""
        if dtype not in PARTIALS:
            raise ValueError(
                "parameter to setPartialsType should be either torch.float or "
                f"torch.half, not {dtype}"
            )
        self._popart_options.set("partialsTypeMatMuls", PARTIALS[dtype])
        self._popart_options.setForConvolutions("partialsType", PARTIALS[dtype])
        return self
