"""DistributedOptimizer: an optimizer whose gradients are reduced among the ranks.

A gradient is reduced as soon as backward() has computed it, beside the rest of
backward(). step() waits for all of them.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from popdist.negotiation.call_requests import Kind

from ...common.calls.reduce_ops import Adasum, Average, Reduction
from ...common.calls.submission import CallArguments
from ...common.compression import Compressor, compress_all, decompress_all
from ...common.optimizer_arguments import checked_passes, checked_reduction
from ...common.process_sets import ProcessSet, global_process_set
from ..calls.torch_calls import TORCH_CALLS
from ..compression import Compression
from .gradient_exchange import GradientExchange


class _DistributedOptimizer(torch.optim.Optimizer):
    """The part of a DistributedOptimizer that comes before its optimizer's class."""

    _exchange: GradientExchange
    # Whether synchronize() was called since the last step, and step() is to call it.
    _synchronized = False
    _should_synchronize = True

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes one step has."""
        return self._exchange.passes

    @property
    def _parameter_names(self) -> dict[Tensor, str]:
        """The name of each parameter: programs read it, as Horovod has it."""
        return self._exchange.names

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce gradients after so many backward passes from now on."""
        self._exchange.set_passes(checked_passes(passes))

    # Any, because torch has no type for a group.
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, whose gradients are reduced from now on."""
        super().add_param_group(param_group)
        self._exchange.add(self.param_groups[-1]["params"])

    def synchronize(self) -> None:
        """Wait until all gradients are reduced.

        step() does so itself. Call it to use the gradients before step(), as clipping
        does, and step() within skip_synchronize() then.
        """
        self._exchange.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let step() in this block use the gradients as they are."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    # Any, because torch has no type for a state.
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over a state, and forget gradients that are being reduced.

        An elastic job does so after each change of ranks, which may have left some.
        """
        self._exchange.forget()
        self._synchronized = False
        super().load_state_dict(state_dict)

    # Any, because the classes of torch have different arguments here.
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the reduced gradients, and make the optimizer's step."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize(), but "
                    "after optimizer.synchronize(): the gradients are reduced once "
                    "more. Call step() within optimizer.skip_synchronize().",
                    stacklevel=2,
                )
            if closure is None or not self._exchange.idle:
                self.synchronize()
            if closure is not None:
                closure = self._synchronized_after(closure)
        self._synchronized = False
        return super().step(closure)

    def _synchronized_after(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure that waits for the gradients that this one computes."""

        def compute() -> Any:
            loss = closure()
            self._exchange.synchronize()
            return loss

        return compute

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Make the gradients zero, or None, as the optimizer does.

        Raises:
            AssertionError: Gradients are being reduced.
        """
        if not self._exchange.idle:
            raise AssertionError(
                "optimizer.zero_grad() was called while gradients are being reduced, "
                "which would change what other ranks get. Call optimizer.step() or "
                "optimizer.synchronize() after backward() first."
            )
        super().zero_grad(*args, **kwargs)


class _AdasumOptimizer(_DistributedOptimizer):
    """Makes a step by the rank's own gradients, and combines the ranks' changes."""

    def synchronize(self) -> None:
        """Do nothing: step() combines the changes of parameters, not gradients."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Refuse: with Adasum no step is possible without the other ranks."""
        raise AssertionError(
            "skip_synchronize() is not possible with op=Adasum: step() itself combines "
            "the changes of the ranks. Call step() outside of it."
        )
        yield

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make the optimizer's step, and combine the ranks' changes of parameters."""
        exchange = self._exchange
        exchange.check()
        trained = [param for param in exchange.params if param.requires_grad]
        before = [param.detach().clone() for param in trained]
        # Past the step() of the class between: this one synchronizes nothing.
        result = super(_DistributedOptimizer, self).step(closure)
        changes = [
            param.detach() - start for param, start in zip(trained, before, strict=True)
        ]
        compressed, contexts = compress_all(changes, exchange.compression)
        combine = CallArguments(
            Kind.ALLREDUCE, None, exchange.process_set, Reduction(Adasum)
        )
        handle = TORCH_CALLS.begin(combine, compressed, in_place=True, now=True)
        reduced = handle.wait()
        with torch.no_grad():
            changes = decompress_all(reduced, contexts, exchange.compression)
            for param, start, change in zip(trained, before, changes, strict=True):
                param.copy_(start + change)
        return result


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """Return an optimizer like the given one, whose gradients all ranks reduce.

    It is of a subclass of the given one's class, and shares its parameters, options
    and state. It takes the place of earlier ones for the same parameters.

    Args:
        optimizer: What makes the step.
        named_parameters: Names of its parameters, such as model.named_parameters(), by
            which the ranks' gradients are matched.
        compression: What gradients are turned into before they are reduced.
        backward_passes_per_step: How many gradients are added up before they are
            reduced.
        op: Average, Sum or Adasum.
        gradient_predivide_factor: For an Average: what gradients are divided by before
            they are added up. After that, they are multiplied by it, and divided by
            the number of ranks.
        num_groups: An earlier name of `groups`, for a number.
        groups: Which gradients are reduced together: a number of groups, or lists of
            parameters.
        sparse_as_dense: Reduce sparse gradients as dense ones. They are sparse again
            before the step.
        process_set: The ranks that take part.

    Raises:
        ValueError: The arguments are not valid.
    """
    if num_groups:
        warnings.warn(
            "num_groups is an earlier name of groups. Use groups instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    exchange = GradientExchange(
        optimizer,
        named_parameters,
        compression=compression,
        passes=checked_passes(backward_passes_per_step),
        reduction=checked_reduction(op, gradient_predivide_factor),
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    return _wrapped(optimizer, exchange)


def _wrapped(
    optimizer: torch.optim.Optimizer, exchange: GradientExchange
) -> torch.optim.Optimizer:
    """Return an optimizer of a subclass that reduces gradients by an exchange."""
    base = (
        _AdasumOptimizer if exchange.reduction.op is Adasum else _DistributedOptimizer
    )
    kind = type(optimizer)
    if issubclass(kind, _DistributedOptimizer):
        kind = kind.__bases__[-1]
    # Any: it is of both classes.
    wrapped: Any = object.__new__(type(kind.__name__, (base, kind), {}))
    # A scheduler may have replaced step() in the given optimizer by one of its own.
    wrapped.__dict__.update(vars(optimizer))
    wrapped.__dict__.pop("step", None)
    wrapped._exchange = exchange
    result: torch.optim.Optimizer = wrapped
    return result
