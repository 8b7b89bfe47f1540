"""Optimizers that wrap tf.compat.v1.train's."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from .gradient_accumulation import (
    GradientAccumulationReductionMethod,
    apply_accumulated,
    check_count,
    parse_method,
)
from .ops.cross_replica_ops import cross_replica_mean
from .refusals import LOSS_SCALING, add_modules, refused

_SUM = GradientAccumulationReductionMethod.SUM

AutomaticLossScalingOptimizer = refused("AutomaticLossScalingOptimizer", LOSS_SCALING)


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


class ShardedOptimizer(IpuOptimizer):
    """Wraps an optimizer: gradients are computed where their variables are."""


class CrossReplicaOptimizer(IpuOptimizer):
    """Wraps an optimizer, and gives it the mean of all replicas' gradients."""

    def __init__(self, opt: Any, name: str = "CrossReplicaOptimizer") -> None:
        super().__init__(opt, name)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Return the operation that applies the means."""
        pairs = [
            (
                None
                if grad is None
                else cross_replica_mean(tf.convert_to_tensor(grad)),
                variable,
            )
            for grad, variable in grads_and_vars
        ]
        return super().apply_gradients(pairs, global_step, name)


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


class GradientAccumulationOptimizerV2(IpuOptimizer):
    """Adds the gradients of several micro-batches, and then applies their sum.

    It counts its own calls: call it in a loop, once for each micro-batch.
    """

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = _SUM,
        name: str | None = None,
    ) -> None:
        """Wrap an optimizer.

        Args:
            opt: The optimizer.
            num_mini_batches: How many micro-batches make one step.
            offload_weight_update_variables: Whether an IPU keeps the optimizer's state
                outside the chip.
            replicated_optimizer_state_sharding: Whether its replicas share that.
            dtype: The type of the sums, or a function that returns it for a variable's
                gradient; None for the gradients'.
            reduction_method: Whether the sum is applied, or a mean.
            name: Its name; None for its class's.
        """
        super().__init__(opt, name)
        self._steps = check_count("num_mini_batches", num_mini_batches)
        self._dtype = dtype
        self._method = parse_method(reduction_method)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Add gradients; with the last micro-batch's, apply the sums."""
        return apply_accumulated(
            lambda sums: self._opt.apply_gradients(sums, global_step, name),
            grads_and_vars,
            self._steps,
            self._dtype,
            self._method,
        )


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """The older of the two, which does the same."""

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(opt, num_mini_batches, name=name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Adds the gradients of several micro-batches, and applies the replicas' mean."""

    def __init__(self, opt: Any, *args: Any, **kwargs: Any) -> None:
        """Wrap an optimizer; the base class has the same arguments."""
        super().__init__(CrossReplicaOptimizer(opt), *args, **kwargs)


class CrossReplicaGradientAccumulationOptimizer(
    GradientAccumulationOptimizer, CrossReplicaGradientAccumulationOptimizerV2
):
    """The older of the two, which does the same."""


add_modules(__name__)
