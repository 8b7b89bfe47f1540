"""Whether the modules of a model are in training mode: as when it was compiled."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


class TrainingFlags:
    """The training flags of a model's modules, which PopTorch compiles in."""

    def __init__(self) -> None:
        self._compiled: list[tuple[nn.Module, bool]] | None = None

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Run the model as it is now, and at later calls as it is now, too."""
        if self._compiled is None:
            self._compiled = [(module, module.training) for module in model.modules()]
        others = [module for module, flag in self._compiled if module.training != flag]
        for module in others:
            module.training = not module.training
        try:
            yield
        finally:
            for module in others:
                module.training = not module.training
