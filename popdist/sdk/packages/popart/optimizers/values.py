"""The values of optimizers, by weight."""

from collections.abc import Mapping

from ..errors import popart_exception

# A value, and whether it never changes.
Pair = tuple[float, bool]


class OptimizerValue:
    """One value of an optimizer, and whether it never changes."""

    def __init__(self, val: float | Pair = 0.0, isConst: bool = True) -> None:
        if isinstance(val, tuple):
            val, isConst = val
        self._value, self._constant = float(val), bool(isConst)

    def val(self) -> float:
        """Return the value."""
        return self._value

    def isConst(self) -> bool:
        """Return whether it never changes."""
        return self._constant


class OptimizerValueMap:
    """One value of an optimizer for each weight."""

    def __init__(
        self, default: OptimizerValue, specific: Mapping[str, OptimizerValue]
    ) -> None:
        self._default, self._specific = default, dict(specific)

    def getDefault(self) -> OptimizerValue:
        """Return the value of weights that have none of their own."""
        return self._default

    def get(self, id: str) -> OptimizerValue:
        """Return the value of a weight."""
        return self._specific.get(id, self._default)


def check_constant(name: str, old: OptimizerValue, new: OptimizerValue) -> None:
    """Raise popart_exception if a value changes that never changes."""
    if old.isConst() and (old.val() != new.val() or not new.isConst()):
        raise popart_exception(
            f"The optimizer's {name} is constant and cannot change from {old.val()} to "
            f"{new.val()}. Create the session with a value that is not constant, such "
            f"as ({old.val()}, False)."
        )


def parse_value(name: str, pair: Pair) -> OptimizerValue:
    """Return a value that a program gives as a tuple."""
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise popart_exception(
            f"The optimizer's {name} is {pair!r}, but must be a tuple of a number and "
            "whether it never changes, such as (0.1, False)."
        )
    return OptimizerValue(pair)
