"""The gradients of an optimizer, each reduced as soon as it is computed."""

from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakMethod, ref

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from popdist.negotiation.call_requests import Kind

from ...common.calls.reduce_ops import Adasum, Reduction
from ...common.calls.submission import CallArguments, HorovodHandle
from ...common.compression import Compressor, Contexts, compress_all, decompress_all
from ...common.process_sets import ProcessSet
from ..calls.collectives import sparse_allreduce_async
from ..calls.torch_calls import TORCH_CALLS
from .parameters import groups_of, names_of

# What reduces the gradient of each parameter. An exchange refers to its parameters, so
# strong references from here or from their hooks would keep all of them.
_EXCHANGES: MutableMapping[Tensor, ReferenceType["GradientExchange"]] = (
    WeakIdKeyDictionary()
)


@dataclass(frozen=True, slots=True, eq=False)
class _PendingReduction:
    """A reduction under way: of one parameter's gradient, or of a group's."""

    handle: HorovodHandle
    params: list[Tensor]
    contexts: Contexts


class GradientExchange:
    """The gradients of an optimizer that are being reduced."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named: Iterable[tuple[str, Tensor]] | None,
        *,
        compression: Compressor,
        passes: int,
        reduction: Reduction,
        groups: int | Sequence[Sequence[Tensor]] | None,
        sparse_as_dense: bool,
        process_set: ProcessSet,
    ) -> None:
        self.compression = compression
        self.passes = passes
        self.reduction = reduction
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self.params: list[Tensor] = [
            param for group in optimizer.param_groups for param in group["params"]
        ]
        self.names = names_of(self.params, named)
        self.groups = groups_of(self.params, self.names, groups)
        # How many backward passes are left before a gradient is reduced.
        self._delays = dict.fromkeys(self.params, passes)
        # Reductions under way, by each of their parameters.
        self._under_way: dict[Tensor, _PendingReduction] = {}
        # Parameters of groups whose other gradients are not there yet.
        self._ready: dict[Tensor, set[Tensor]] = {}
        self._hooks: dict[Tensor, RemovableHandle] = {}
        # A parameter whose gradient is reduced by a later exchange.
        self._released: Tensor | None = None
        self._take_over(self.params)

    def add(self, params: Sequence[Tensor]) -> None:
        """Reduce the gradients of these parameters, too."""
        for param in params:
            self.names[param] = f"gradient.added.{len(self.params)}"
            self.params.append(param)
            self._delays[param] = self.passes
        self._take_over(params)

    @property
    def idle(self) -> bool:
        """Whether no gradient is being reduced."""
        return not self._under_way and not self._ready

    def _take_over(self, params: Iterable[Tensor]) -> None:
        """Reduce these gradients in place of earlier exchanges.

        Each is reduced once backward() has computed it, except for Adasum.
        """
        if self.process_set.included() is False:
            return
        computed = WeakMethod(self._computed)

        def hook(param: Tensor) -> None:
            if (method := computed()) is not None:
                method(param)

        for param in params:
            reference = _EXCHANGES.get(param)
            if reference is not None and (earlier := reference()) is not None:
                earlier._release(param)
            _EXCHANGES[param] = ref(self)
            if param.requires_grad and self.reduction.op is not Adasum:
                register: Any = param.register_post_accumulate_grad_hook
                self._hooks[param] = register(hook)

    def _release(self, param: Tensor) -> None:
        self._released = param
        if hook := self._hooks.pop(param, None):
            hook.remove()

    def check(self) -> None:
        """Raise ValueError if a later exchange reduces some of the gradients."""
        if self._released is not None:
            raise ValueError(
                "Another DistributedOptimizer was made later for the parameter "
                f"{self.names[self._released]!r}, and reduces its gradient. Use only "
                "that optimizer, or give each of them other parameters."
            )

    def _computed(self, param: Tensor) -> None:
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
        if len(ready) == sum(param.requires_grad for param in group):
            self._start_group(group)

    def _start_group(self, group: list[Tensor]) -> None:
        del self._ready[group[0]]
        dense = []
        for param in group:
            if self._is_reduced_sparse(param):
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
                gradients[0], name, self.reduction.op, self.process_set
            )
            contexts: Contexts = ()
        else:
            compressed, contexts = compress_all(gradients, self.compression)
            arguments = CallArguments(
                Kind.ALLREDUCE, name, self.process_set, self.reduction
            )
            handle = TORCH_CALLS.begin(arguments, compressed, in_place=True)
        self._under_way |= dict.fromkeys(
            params, _PendingReduction(handle, params, contexts)
        )

    def _is_reduced_sparse(self, param: Tensor) -> bool:
        """Return whether a gradient is reduced by its indices and values."""
        grad = param.grad
        return grad is not None and grad.is_sparse and not self.sparse_as_dense

    def _gradient_of(self, param: Tensor) -> Tensor:
        """Return what is reduced: zeros, where this rank has computed no gradient."""
        if param.grad is None:
            param.grad = torch.zeros_like(param)
        if param.grad.is_sparse and self.sparse_as_dense:
            return param.grad.to_dense()
        return param.grad

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, those too that were not computed here.

        Another rank may have computed them, and waits for this one's.
        """
        if self.process_set.included() is False:
            return
        self.check()
        for first in list(self._ready):
            self._start_group(self.groups[first])
        for param in self.params:
            if param.requires_grad and param not in self._under_way:
                group = self.groups.get(param)
                self._start([param] if group is None else _trained(group))
        finished = list(dict.fromkeys(self._under_way.values()))
        self._under_way.clear()
        self._delays = dict.fromkeys(self.params, self.passes)
        for reduction in finished:
            self._finish(reduction)

    def _finish(self, reduction: _PendingReduction) -> None:
        """Wait for a reduction, and give the parameters the reduced gradients."""
        results = reduction.handle.wait()
        if isinstance(results, Tensor):
            reduction.params[0].grad = results
            return
        tensors = decompress_all(results, reduction.contexts, self.compression)
        for param, reduced in zip(reduction.params, tensors, strict=True):
            if param.grad is None:
                param.grad = reduced
            elif param.grad.is_sparse:
                # Optimizers such as SparseAdam take no other.
                param.grad = reduced.to_sparse(param.grad.sparse_dim())
            elif reduced.data_ptr() != param.grad.data_ptr():
                param.grad.copy_(reduced)

    def forget(self) -> None:
        """Expect all gradients of a step, whatever has been computed and reduced."""
        self._under_way.clear()
        self._ready.clear()
        self.set_passes(self.passes)

    def set_passes(self, passes: int) -> None:
        """Reduce gradients after so many backward passes."""
        self.passes = passes
        self._delays = dict.fromkeys(self.params, passes)


def _trained(group: list[Tensor]) -> list[Tensor]:
    return [param for param in group if param.requires_grad]
