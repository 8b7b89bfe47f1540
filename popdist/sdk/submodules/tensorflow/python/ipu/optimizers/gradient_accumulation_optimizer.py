"""Optimizers that change the weights once in several micro-batches."""

from typing import Any

from ..gradient_accumulation import (
    GradientAccumulationReductionMethod,
    apply_accumulated,
    check_count,
    parse_method,
)
from .cross_replica_optimizer import CrossReplicaOptimizer
from .ipu_optimizer import IpuOptimizer

_SUM = GradientAccumulationReductionMethod.SUM


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
        name: str = "GradientAccumulationOptimizerV2",
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
            name: Its name.
        """
        super().__init__(opt, name)
        self._steps = check_count("num_mini_batches", num_mini_batches)
        self._dtype = dtype
        self._method = parse_method(reduction_method)

    def apply_gradients(
        self, grads_and_vars: Any, global_step: Any = None, name: str | None = None
    ) -> Any:
        """Add gradients; with the last micro-batch's, apply the sums."""
        pairs = [(grad, var) for grad, var in grads_and_vars if grad is not None]
        variables = [variable for _, variable in pairs]
        dtypes = [
            self._dtype(variable) if callable(self._dtype) else self._dtype
            for variable in variables
        ]

        def apply(sums: list[tuple[Any, Any]]) -> Any:
            return self._opt.apply_gradients(sums, global_step, name)

        return apply_accumulated(apply, pairs, self._steps, dtypes, self._method)


class GradientAccumulationOptimizer(GradientAccumulationOptimizerV2):
    """The older of the two, which does the same."""

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "GradientAccumulationOptimizer",
    ) -> None:
        super().__init__(opt, num_mini_batches, name=name)


class CrossReplicaGradientAccumulationOptimizerV2(GradientAccumulationOptimizerV2):
    """Adds the gradients of several micro-batches, and applies the replicas' mean."""

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        offload_weight_update_variables: bool | None = None,
        replicated_optimizer_state_sharding: bool = False,
        dtype: Any = None,
        reduction_method: Any = _SUM,
        name: str = "CrossReplicaGradientAccumulationOptimizerV2",
    ) -> None:
        """Wrap an optimizer; the base class has the same arguments."""
        super().__init__(
            CrossReplicaOptimizer(opt),
            num_mini_batches,
            dtype=dtype,
            reduction_method=reduction_method,
            name=name,
        )


class CrossReplicaGradientAccumulationOptimizer(
    CrossReplicaGradientAccumulationOptimizerV2
):
    """The older of the two, which does the same."""

    def __init__(
        self,
        opt: Any,
        num_mini_batches: int,
        verify_usage: bool = True,
        name: str = "CrossReplicaGradientAccumulationOptimizer",
    ) -> None:
        super().__init__(opt, num_mini_batches, name=name)
