"""The state of a training: models, optimizers, samplers, and other objects."""

from copy import deepcopy
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ...common.elastic import ObjectState
from ..functions import (
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from ..ranks.basics import rank
from .sampler import ElasticSampler


# Any, because what has a state_dict() has no common class.
class _Part:
    """A part of a state that has a state_dict()."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.save()

    def save(self) -> None:
        self._saved = deepcopy(self.value.state_dict())

    def restore(self) -> None:
        # A copy, because an optimizer goes on with the tensors that it loads.
        self.value.load_state_dict(deepcopy(self._saved))

    def sync(self) -> None:
        self._take_over()
        self.save()

    def _take_over(self) -> None:
        """Take over the state of rank 0."""
        self.value.load_state_dict(broadcast_object(self.value.state_dict()))


class _ModelPart(_Part):
    def _take_over(self) -> None:
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class _OptimizerPart(_Part):
    def _take_over(self) -> None:
        broadcast_optimizer_state(self.value, root_rank=0)


_PARTS: tuple[tuple[type, type[_Part]], ...] = (
    (torch.nn.Module, _ModelPart),
    (torch.optim.Optimizer, _OptimizerPart),
    (LRScheduler, _Part),
    (ElasticSampler, _Part),
)


def _part_of(value: object) -> _Part | None:
    for kind, part in _PARTS:
        if isinstance(value, kind):
            return part(value)
    return None


class TorchState(ObjectState):
    """A state of models, optimizers, schedulers, samplers, and objects.

    Each is an attribute. An attribute that is set to another model, optimizer,
    scheduler or sampler is saved as it is then.
    """

    _parts: dict[str, _Part]

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a state.

        Args:
            model: The attribute of this name.
            optimizer: The attribute of this name.
            kwargs: The other attributes. What is no model, optimizer, scheduler or
                ElasticSampler must be an object that can be pickled.
        """
        values = {**kwargs, "model": model, "optimizer": optimizer}
        found = {name: _part_of(value) for name, value in values.items()}
        self.__dict__["_parts"] = {name: one for name, one in found.items() if one}
        for name, part in self._parts.items():
            self.__dict__[name] = part.value
        rest = {name: values[name] for name, part in found.items() if part is None}
        super().__init__(bcast_object=broadcast_object, get_rank=rank, **rest)

    def save(self) -> None:
        """Keep everything as it is now."""
        for part in self._parts.values():
            part.save()
        super().save()

    def restore(self) -> None:
        """Return to what was saved."""
        for part in self._parts.values():
            part.restore()
        super().restore()

    def sync(self) -> None:
        """Take over the state of rank 0, and save it. All ranks must call it."""
        for part in self._parts.values():
            part.sync()
        super().sync()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._parts:
            part = _part_of(value)
            if part is None:
                raise ValueError(
                    f"The state's attribute {name!r} is a "
                    f"{type(self._parts[name].value).__name__}, but is set to "
                    f"{value!r}. Set it to an object of that kind."
                )
            self._parts[name] = part
        super().__setattr__(name, value)
