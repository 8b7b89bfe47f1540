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
            self._compiled = [(one, one.training) for one in model.modules()]
        others = [one for one, flag in self._compiled if one.training != flag]
        for one in others:
            one.training = not one.training
        try:
            yield
        finally:
            for one in others:
                one.training = not one.training
