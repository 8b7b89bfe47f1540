"""An optimizer with a function of the program for its gradients."""

from collections.abc import Callable
from typing import Any

from .ipu_optimizer import IpuOptimizer


class MapGradientOptimizer(IpuOptimizer):
    """Wraps an optimizer, and gives it what a function makes of each gradient."""

    def __init__(
        self,
        wrapped_optimizer: Any,
        gradient_mapping_function: Callable[[Any, Any], Any],
        name: str = "MapGradientOptimizer",
    ) -> None:
        """Wrap an optimizer.

        Args:
            wrapped_optimizer: The optimizer.
            gradient_mapping_function: Takes a gradient and its variable, and returns
                the gradient to apply.
            name: Its name.
        """
        super().__init__(wrapped_optimizer, name)
        self._map = gradient_mapping_function

    def compute_gradients(
        self, loss: Any, var_list: Any = None, **kwargs: Any
    ) -> list[tuple[Any, Any]]:
        """Return what the function makes of the gradients, and their variables."""
        return [
            (grad if grad is None else self._map(grad, variable), variable)
            for grad, variable in super().compute_gradients(loss, var_list, **kwargs)
        ]
