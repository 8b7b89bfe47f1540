"""The state of a training with PyTorch, and handlers of its objects."""

from typing import Any

import torch

from ...common.elastic import ObjectState, StateHandler
from ..functions import broadcast_optimizer_state, broadcast_parameters
from .sampler import ElasticSampler


class ModelStateHandler(StateHandler):
    """A model of torch. Its tensors are broadcast in place."""

    def share(self) -> None:
        """Take rank 0's weights, on all ranks."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)


class OptimizerStateHandler(StateHandler):
    """An optimizer of torch, which may not have made a step on all ranks."""

    def share(self) -> None:
        """Take rank 0's options and state, on all ranks."""
        broadcast_optimizer_state(self.value, root_rank=0)
        # Ranks that stay may have computed some gradients of a step, and new ones none.
        self.write(self.value.state_dict())


class SamplerStateHandler(StateHandler):
    """A sampler with a state_dict()."""


# A class of objects, and its handler.
_Registry = list[tuple[type[Any], type[StateHandler]]]

_handler_registry: _Registry = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> _Registry:
    """Return the classes of objects that have handlers; the first one counts."""
    return _handler_registry


def set_handler_registry(registry: _Registry) -> None:
    """Replace the classes of objects that have handlers."""
    _handler_registry[:] = registry


class TorchState(ObjectState):
    """The state of a training: models, optimizers, samplers, and other objects."""

    # Any: objects of all types.
    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **kwargs: Any,
    ) -> None:
        """Keep the objects as they are now.

        Args:
            model: A model, the attribute `model`.
            optimizer: An optimizer, the attribute `optimizer`.
            kwargs: More objects, by the names of the attributes.
        """
        objects = {"model": model, "optimizer": optimizer, **kwargs}
        handlers: dict[str, StateHandler] = {}
        for name, value in objects.items():
            for kind, handler in _handler_registry:
                if isinstance(value, kind):
                    handlers[name] = handler(value)
                    break
        self._handlers = handlers
        super().__init__(
            **{name: value for name, value in objects.items() if name not in handlers}
        )
