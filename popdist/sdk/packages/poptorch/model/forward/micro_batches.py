"""The inputs of one call, divided into micro-batches.

Any: a model's forward takes objects of all kinds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from ...errors import Error
from ..run_settings import RunSettings
from .signature import ForwardArguments, Signature

# Kernels may round differently where memory is aligned differently. New tensors are
# aligned so, and micro-batches are, too: one gives the same result in any split.
_ALIGNMENT = 64


class BatchDimensionError(Error, AssertionError):
    """The inputs cannot be divided into micro-batches."""


def _is_float64(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64


class Inputs:
    """The inputs of one call.

    The first dimension of every tensor holds the micro-batches of all device
    iterations; in each iteration, the gradient accumulation steps; in each step, the
    replicas. Tensors without dimensions, and all that is no tensor, go to every
    micro-batch as they are.
    """

    def __init__(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        settings: RunSettings,
        arguments: ForwardArguments,
    ) -> None:
        """Flatten the inputs.

        Raises:
            BatchDimensionError: The first dimension of a tensor cannot be divided.
            Error: A tensor has no elements.
        """
        self._settings = settings
        self._arguments = arguments
        # The structure; None if all arguments are tensors without names.
        self._spec: TreeSpec | None = None
        if not kwargs and all(type(arg) is torch.Tensor for arg in args):
            self.leaves: list[Any] = list(args)
        else:
            self.leaves, self._spec = tree_flatten((tuple(args), dict(kwargs)))
        # The tensors that are divided: index, tensor, rows of a micro-batch.
        self._divided: list[tuple[int, torch.Tensor, int]] = []
        # Parts of the last micro-batch, and the copies of them that it consists of.
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for index, leaf in enumerate(self.leaves):
            if isinstance(leaf, torch.Tensor) and leaf.dim() > 0:
                if not leaf.numel():
                    raise Error(
                        "Zero-sized tensors are unsupported (Got shape "
                        f"{list(leaf.shape)}). Give inputs with elements."
                    )
                self._divided.append((index, leaf, self._rows_of(index, leaf)))

    @property
    def has_float64(self) -> bool:
        """Whether a tensor has the type float64."""
        return any(map(_is_float64, self.leaves))

    def in_float32(self) -> "Inputs":
        """Return the inputs with tensors of float64 converted to float32."""
        leaves = [leaf.float() if _is_float64(leaf) else leaf for leaf in self.leaves]
        args, kwargs = self._unflattened(leaves)
        return Inputs(args, kwargs, self._settings, self._arguments)

    def signature(self) -> Signature:
        """Return what must be equal in all calls, in whatever order inputs are given.

        Raises:
            MissingArgumentError: An argument that has no default is missing.
        """
        return self._arguments.signature(*self._unflattened(self.leaves))

    def micro_batch(
        self, device_iteration: int, step: int, replica: int
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of one forward pass."""
        settings = self._settings
        index = settings.micro_batch_index(device_iteration, step, replica)
        leaves = list(self.leaves)
        self._copies.clear()
        for at, tensor, rows in self._divided:
            # A slice takes half as long as a tensor's own method for this.
            part = tensor[index * rows : (index + 1) * rows]
            if not part.requires_grad:
                # A change in place makes no gradients for other micro-batches.
                part = part.detach()
            leaves[at] = part
            shared = settings.input_group_size > 1
            if shared or part.data_ptr() % _ALIGNMENT:
                leaves[at] = part.clone()
                if not shared:
                    self._copies.append((part, leaves[at]))
        return self._unflattened(leaves)

    def keep_changes(self) -> None:
        """Let the inputs be as the last micro-batch has left its part of them.

        Inputs that replicas share stay as they were, the same for all.
        """
        for part, copied in self._copies:
            # torch counts changes in place.
            if copied._version:
                part.detach().copy_(copied.detach())

    def sample(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the first micro-batch, copied: changes of it leave no trace."""
        args, kwargs = tree_map_only(
            torch.Tensor, torch.clone, self.micro_batch(0, 0, 0)
        )
        return args, kwargs

    def _unflattened(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self._spec is None:
            return tuple(leaves), {}
        args, kwargs = tree_unflatten(leaves, self._spec)
        return args, kwargs

    def _rows_of(self, index: int, tensor: torch.Tensor) -> int:
        settings = self._settings
        rows, remainder = divmod(tensor.shape[0], settings.micro_batches)
        if remainder or not rows:
            raise BatchDimensionError(
                f"Invalid batch dimension: In the input {self._name(index)}, the batch "
                f"dimension ({tensor.shape[0]}) must be a multiple of "
                "poptorch.Options.deviceIterations "
                f"({settings.device_iterations}) * "
                f"poptorch.Options.replicationFactor ({settings.replicas}) / "
                "poptorch.Options.inputReplicaGrouping "
                f"({settings.input_group_size}) * "
                "poptorch.Options.Training.gradientAccumulation "
                f"({settings.gradient_accumulation}) = {settings.micro_batches} "
                "because it is used to calculate the batch size which will be executed "
                "on the device in any given iteration. Give a batch of that multiple, "
                "as poptorch.DataLoader with drop_last=True does."
            )
        return rows

    def _name(self, index: int) -> str:
        """Return what the user calls a tensor of the inputs."""
        args, kwargs = self._unflattened(list(range(len(self.leaves))))
        for position, value in enumerate(args):
            if index in tree_flatten(value)[0]:
                return str(position)
        for name, value in kwargs.items():
            if index in tree_flatten(value)[0]:
                return repr(name)
        return str(index)
