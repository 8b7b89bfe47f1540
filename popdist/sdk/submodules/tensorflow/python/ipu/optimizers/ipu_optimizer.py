"""The base of optimizers that wrap one of TensorFlow's own."""

from typing import Any

import tensorflow as tf


class IpuOptimizer(tf.compat.v1.train.Optimizer):
    """Passes all on to the optimizer that it wraps."""

    def __init__(self, opt: Any, name: str | None = None) -> None:
        super().__init__(False, name=name or type(self).__name__)
        if not isinstance(opt, tf.compat.v1.train.Optimizer):
            raise TypeError(
                f"{type(self).__name__} wraps an optimizer of tf.compat.v1.train, and "
                f"{type(opt).__name__} is not one. For a Keras optimizer, use "
                "ipu.keras.optimizers."
            )
        self._opt = opt

    def compute_gradients(
        self, loss: Any, var_list: Any = None, **kwargs: Any
    ) -> list[tuple[Any, Any]]:
        """Return gradients and their variables, as the wrapped optimizer does."""
        pairs: list[tuple[Any, Any]] = self._opt.compute_gradients(
            loss, var_list=var_list, **kwargs
        )
        return pairs

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Return the operation that changes the variables."""
        return self._opt.apply_gradients(grads_and_vars, global_step, name)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """Return a slot of the wrapped optimizer."""
        return self._opt.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """Return the names of the slots of the wrapped optimizer."""
        return self._opt.get_slot_names(*args, **kwargs)

    def variables(self) -> Any:
        """Return the variables of the wrapped optimizer."""
        return self._opt.variables()
