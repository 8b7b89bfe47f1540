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
from torch.utils.hooks import RemovableHandle

from ..common.process_sets import ProcessSet, global_process_set
from .compression import Compression, Compressor
from .mpi_ops import sparse_allreduce_async
from .parameters import groups_of, names_of
from .reduce_ops import Adasum, Average, ReduceOp, Sum, choose_op
from .submission import Handle, reduce_tensors


class _Gradient:
    """What is under way for one parameter's gradient, or a group's."""

    def __init__(
        self, handle: Handle, params: list[Tensor], contexts: list[Any]
    ) -> None:
        self.handle = handle
        self.params = params
        self.contexts = contexts


class _Exchange:
    """The gradients of an optimizer that are being reduced."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Iterable[tuple[str, Tensor]] | None,
        *,
        compression: Compressor,
        passes: int,
        op: ReduceOp,
        predivide: float,
        groups: int | Sequence[Sequence[Tensor]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.compression = compression
        self.passes = passes
        self.op = op
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.params: list[Tensor] = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        self.names = names_of(self.params, named)
        self.groups = groups_of(self.params, self.names, groups)
        self._scales = 1.0 / predivide, predivide
        # How many backward passes are left before a gradient is reduced.
        self._delays = dict.fromkeys(self.params, passes)
        # What is under way, by the first parameter of a group.
        self._under_way: dict[Tensor, _Gradient] = {}
        # Parameters of groups whose other gradients are not there yet.
        self._ready: dict[Tensor, set[Tensor]] = {}
        self._hooks: list[RemovableHandle] = []

    def add(self, params: Sequence[Tensor]) -> None:
        """Reduce the gradients of these parameters, too."""
        for param in params:
            self.names[param] = f"gradient.added.{len(self.params)}"
            self.params.append(param)
            self._delays[param] = self.passes
            if self._hooks:
                self._hook(param)

    @property
    def idle(self) -> bool:
        """Whether no gradient is being reduced."""
        return not self._under_way and not self._ready

    def hook(self) -> None:
        """Reduce each gradient once backward() has computed it."""
        for param in self.params:
            self._hook(param)

    def _hook(self, param: Tensor) -> None:
        if param.requires_grad:
            register: Any = param.register_post_accumulate_grad_hook
            self._hooks.append(register(self.computed))

    def computed(self, param: Tensor) -> None:
        """Take the gradient that a backward pass has just computed."""
        if param in self._under_way or self._delays[param] <= 0:
            raise AssertionError(
                f"A gradient of {self.names[param]!r} was computed once more than the "
                f"{self.passes} times that backward_passes_per_step allows. Call "
                "step() after that many, or raise backward_passes_per_step."
            )
        self._delays[param] -= 1
        if self._delays[param] == 0:
            self._add(param)

    def _add(self, param: Tensor) -> None:
        group = self.groups.get(param)
        if group is None:
            self._start([param])
            return
        ready = self._ready.setdefault(group[0], set())
        ready.add(param)
        if len(ready) == sum(one.requires_grad for one in group):
            self._start_group(group)

    def _start_group(self, group: list[Tensor]) -> None:
        del self._ready[group[0]]
        dense = []
        for param in group:
            if param.grad is not None and param.grad.is_sparse:
                self._start([param])
            elif param.requires_grad:
                dense.append(param)
        if dense:
            self._start(dense)

    def _start(self, params: list[Tensor]) -> None:
        """Begin to reduce the gradients of some parameters together."""
        gradients = [self._gradient_of(param) for param in params]
        name = self.names[params[0]]
        if gradients[0].is_sparse:
            handle = sparse_allreduce_async(
                gradients[0], name, self.op, self.process_set
            )
            contexts: list[Any] = [None]
        else:
            pairs = [self.compression.compress(one) for one in gradients]
            contexts = [context for _, context in pairs]
            handle = reduce_tensors(
                [small for small, _ in pairs],
                name,
                self.op,
                self._scales,
                self.process_set,
                list,
                in_place=True,
                now=False,
            )
        gradient = _Gradient(handle, params, contexts)
        for param in params:
            self._under_way[param] = gradient

    def _gradient_of(self, param: Tensor) -> Tensor:
        """Return a parameter's gradient: zeros, where this rank has computed none."""
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        if param.grad.is_sparse and self.sparse_as_dense:
            param.grad = param.grad.to_dense()
        return param.grad

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, those too that were not computed here.

        Another rank may have computed them, and waits for this one's.
        """
        if self.process_set.included() is False:
            return
        for first in list(self._ready):
            self._start_group(self.groups[first])
        for param in self.params:
            if param.requires_grad and param not in self._under_way:
                group = self.groups.get(param)
                self._start([param] if group is None else _trained(group))
        finished = list(dict.fromkeys(self._under_way.values()))
        self._under_way.clear()
        self._delays = dict.fromkeys(self.params, self.passes)
        for gradient in finished:
            self._finish(gradient)

    def _finish(self, gradient: _Gradient) -> None:
        results = gradient.handle.wait()
        if isinstance(results, Tensor):
            gradient.params[0].grad = results
            return
        for param, result, context in zip(
            gradient.params, results, gradient.contexts, strict=True
        ):
            reduced = self.compression.decompress(result, context)
            if param.grad is None:
                param.grad = reduced
            elif reduced.data_ptr() != param.grad.data_ptr():
                param.grad.copy_(reduced)

    def set_passes(self, passes: int) -> None:
        """Reduce gradients after so many backward passes."""
        self.passes = passes
        self._delays = dict.fromkeys(self.params, passes)


def _trained(group: list[Tensor]) -> list[Tensor]:
    return [param for param in group if param.requires_grad]


class _DistributedOptimizer(torch.optim.Optimizer):
    """The part of a DistributedOptimizer that comes before its optimizer's class."""

    _exchange: _Exchange
    _synchronized: bool
    _should_synchronize: bool

    @property
    def backward_passes_per_step(self) -> int:
        """How many backward passes one step has."""
        return self._exchange.passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Reduce gradients after so many backward passes from now on."""
        self._exchange.set_passes(_checked_passes(passes))

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
        trained = [param for param in exchange.params if param.requires_grad]
        before = [param.detach().clone() for param in trained]
        # Past the step() of the class between: this one synchronizes nothing.
        result = super(_DistributedOptimizer, self).step(closure)
        changes = [
            param.detach() - start for param, start in zip(trained, before, strict=True)
        ]
        pairs = [exchange.compression.compress(change) for change in changes]
        reduced = reduce_tensors(
            [small for small, _ in pairs],
            None,
            Adasum,
            (1.0, 1.0),
            exchange.process_set,
            list,
            in_place=True,
            now=True,
        ).wait()
        with torch.no_grad():
            for param, start, change, (_, context) in zip(
                trained, before, reduced, pairs, strict=True
            ):
                param.copy_(start + exchange.compression.decompress(change, context))
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
    and state.

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
        sparse_as_dense: Turn sparse gradients into dense ones before.
        process_set: The ranks that take part.

    Raises:
        ValueError: The arguments are not valid.
    """
    chosen = choose_op(op, None)
    if gradient_predivide_factor != 1.0 and chosen is not Average:
        raise ValueError(
            f"gradient_predivide_factor is {gradient_predivide_factor} with "
            f"op={chosen.name}, but it is supported with op=Average only."
        )
    if chosen not in (Average, Sum, Adasum):
        raise ValueError(
            f"op is {chosen.name}, but gradients are reduced by Average, Sum or Adasum."
        )
    if num_groups:
        warnings.warn(
            "num_groups is an earlier name of groups. Use groups instead.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    exchange = _Exchange(
        optimizer,
        named_parameters,
        compression=compression,
        passes=_checked_passes(backward_passes_per_step),
        op=chosen,
        predivide=gradient_predivide_factor,
        groups=groups,
        sparse_as_dense=sparse_as_dense,
        process_set=process_set,
    )
    base = _AdasumOptimizer if chosen is Adasum else _DistributedOptimizer
    kind = type(optimizer)
    made: Any = object.__new__(type(kind.__name__, (base, kind), {}))
    # A scheduler may have replaced step() in the given optimizer by one of its own.
    given = {name: one for name, one in vars(optimizer).items() if name != "step"}
    made.__dict__.update(given)
    made._exchange = exchange
    made._synchronized = False
    made._should_synchronize = True
    if chosen is not Adasum and (process_set.included() is not False):
        exchange.hook()
    found: torch.optim.Optimizer = made
    return found


def _checked_passes(passes: int) -> int:
    if passes < 1:
        raise ValueError(
            f"backward_passes_per_step is {passes}, but must be 1 or more."
        )
    return passes
