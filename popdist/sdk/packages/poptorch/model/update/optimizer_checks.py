"""The optimizers that can train a model on IPUs, and their attributes."""

import logging

from torch import optim
from torch.optim import Optimizer

from ... import optim as extended
from ..._logging import logger
from ...errors import require

_TORCH_CLASSES = (optim.SGD, optim.Adam, optim.AdamW, optim.RMSprop)
_EXTENDED_CLASSES = (extended.SGD, extended.Adam, extended.AdamW, extended.RMSprop)
_CLASSES = (*_TORCH_CLASSES, *_EXTENDED_CLASSES, extended.LAMB)
# Subclasses of these that were warned of.
_warned: set[type[Optimizer]] = set()
_OWN_ATTRIBUTES = {"defaults", "state", "param_groups"}


def check_supported(optimizer: Optimizer) -> None:
    """Refuse optimizers that PopTorch has no counterpart of.

    Raises:
        AssertionError: It is of another class than those that PopTorch supports, or its
            groups differ in what they cannot.
        ValueError: It asks for a variant that PopTorch does not support.
    """
    require(
        isinstance(optimizer, _CLASSES),
        f"Unsupported optimizer type {type(optimizer).__name__}. Supported are SGD, "
        "Adam, AdamW and RMSprop of torch.optim and of poptorch.optim, "
        "poptorch.optim.LAMB, and subclasses of these.",
    )
    for group in optimizer.param_groups:
        if group.get("amsgrad"):
            raise ValueError(
                "Only non-amsgrad Adam/AdamW optimizers are supported by PopTorch. "
                "Make the optimizer with amsgrad=False."
            )
    centered = {bool(group.get("centered")) for group in optimizer.param_groups}
    require(
        len(centered) == 1,
        "All parameter groups must have the same value for the 'centered' attribute.",
    )
    if type(optimizer) not in _CLASSES:
        _warn_of_subclass(type(optimizer), device_class(optimizer))


def device_class(optimizer: Optimizer) -> type[Optimizer]:
    """Return the supported class that an optimizer is of, or is derived from."""
    return next(cls for cls in type(optimizer).__mro__ if cls in _CLASSES)


def _warn_of_subclass(subclass: type[Optimizer], base: type[Optimizer]) -> None:
    """Warn once of each subclass."""
    if subclass in _warned:
        return
    _warned.add(subclass)
    logger.warning(
        "Poptorch does not run Python optimizer code directly. %s is a subclass of "
        "%s.%s, and trains as that does: its own step() is not called.",
        subclass.__name__,
        base.__module__.rpartition(".")[0],
        base.__name__,
    )


class ExpectedAttributes:
    """Warns of attributes that an optimizer gets after a model has taken it over.

    They have no effect on the model, such as a loss_scaling in a group.
    """

    def __init__(self, optimizer: Optimizer, is_relaxed: bool) -> None:
        """Expect the attributes that the optimizer has now.

        Args:
            is_relaxed: Whether unexpected attributes are logged at level debug only.
        """
        self._level = logging.DEBUG if is_relaxed else logging.WARNING
        self._logged: set[str] = set()
        self._of_groups = {
            name
            for group in (*optimizer.param_groups, optimizer.defaults)
            for name in group
        }
        self._of_optimizer = _attributes(optimizer)

    def check(self, optimizer: Optimizer) -> None:
        """Log, once each, which attributes this optimizer has beside the expected."""
        unexpected = {
            "default group variable": set(optimizer.defaults) - self._of_groups,
            "optimizer attribute": _attributes(optimizer) - self._of_optimizer,
        }
        for index, group in enumerate(optimizer.param_groups):
            unexpected[f"group {index} attribute"] = set(group) - self._of_groups
        for kind, names in unexpected.items():
            message = (
                f"Ignoring unexpected {kind} in {type(optimizer).__name__} optimizer: "
                f"{sorted(names)}"
            )
            if names and message not in self._logged:
                self._logged.add(message)
                logger.log(self._level, "%s", message)


def _attributes(optimizer: Optimizer) -> set[str]:
    # Without those that torch itself sets while it is used.
    return {
        name
        for name in vars(optimizer)
        if name not in _OWN_ATTRIBUTES and not name.startswith("_")
    }
