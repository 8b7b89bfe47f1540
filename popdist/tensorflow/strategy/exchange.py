"""The calls that a strategy makes of the engine, on the arrays of its replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from popdist.engine._core import address_of
from popdist.engine.calls.array_rows import Array, readable
from popdist.engine.group import Group
from popdist.engine.spec.dtypes import DType, code_of, reduction_code_of
from popdist.groups.replica_group import replicas_of
from popdist.negotiation.named_calls import NamedCall, named_calls_among
from popdist.session import STATE
from popdist.tensorflow.tensors.memory import new_memories, new_memory

# The arrays of the local replicas for one tensor.
ReplicaArrays = Sequence[Array]
# A call of an exchange. It takes the arrays of all local replicas, tensor by tensor,
# and returns one array for each result.
ExchangeCall = Callable[["Exchange", Sequence[Array]], Sequence[Array]]


@dataclass(frozen=True, slots=True)
class Exchange:
    """All replicas of the job, as one instance sees them."""

    # One row for each instance, and one for each replica.
    instances: Group
    replicas: Group

    @classmethod
    def among(cls, group: Group) -> Self:
        """Return the exchange among the instances of a group of all of them."""
        counts = replicas_of(STATE.job.members)
        return cls(group, group if set(counts) == {1} else group.view(counts))

    def all_reduce(self, tensors: Sequence[ReplicaArrays], op: str) -> list[Array]:
        """Return the reduction of each tensor over all replicas."""
        layouts = [(arrays[0].shape, arrays[0].dtype) for arrays in tensors]
        results = new_memories(layouts)
        targets = [_real(result) for result in results]
        # The local replicas share each result.
        tables: dict[DType, list[int]] = {}
        for arrays, target in zip(tensors, targets, strict=True):
            rows = [readable(_real(array)) for array in arrays]
            if any(row.shape != target.shape for row in rows):
                shapes = " and ".join(str(array.shape) for array in arrays)
                raise ValueError(
                    f"The local replicas' tensors have the shapes {shapes}. All "
                    "replicas must have equal ones."
                )
            places = map(address_of, (*rows, target))
            table = tables.setdefault(target.dtype, [])
            table += [target.ndim, *target.shape, *places]
        reduce = self.reduction([*tables], op)
        reduce(*[np.array(table, np.uint64).tobytes() for table in tables.values()])
        return results

    def reduction(
        self, dtypes: Sequence[DType], op: str, *, of_instances: bool = False
    ) -> Callable[..., None]:
        """Return what reduces the arrays of tables: see Group.all_reduce_table.

        Args:
            dtypes: The dtype of each table.
            of_instances: Each instance has one array, in place of one for each replica.

        Raises:
            TypeError: The engine cannot reduce arrays of one of these dtypes so.
        """
        codes = [(code, reduction_code_of(op, code)) for code in map(code_of, dtypes)]
        group = self.instances if of_instances else self.replicas

        def reduce(*tables: bytes) -> None:
            for table, call in zip(tables, codes, strict=True):
                group.all_reduce_table(table, *call)

        return reduce

    def all_gather(self, arrays: ReplicaArrays, axis: int) -> Array:
        """Return the arrays of all replicas, one behind the other along an axis."""
        own = [_with_parts(array) for array in arrays]
        if self.replicas is self.instances:
            parts = self.instances.all_gather(own[0])
        else:
            parts = self.replicas.all_gather(own)
        if arrays[0].dtype.kind == "c":
            parts = [part.view(arrays[0].dtype)[..., 0] for part in parts]
        shape = list(arrays[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        result = new_memory(shape, arrays[0].dtype)
        np.concatenate(parts, axis, out=result)
        return result

    def from_first_instance(self, arrays: Sequence[Array]) -> list[Array]:
        """Return the arrays of instance 0."""
        results = new_memories([(array.shape, array.dtype) for array in arrays])
        for array, result in zip(arrays, results, strict=True):
            self.instances.broadcast(_real(array), 0, out=_real(result))
        return results

    def call_by_name(
        self, name: str, call: ExchangeCall, arrays: Sequence[Array]
    ) -> Sequence[Array]:
        """Return the results of a call that is matched by its name."""

        def carry_out(group: Group, _: str | None) -> Sequence[Array]:
            return call(Exchange.among(group), arrays)

        named = NamedCall(name, "exchange", carry_out)
        handle = named_calls_among(STATE.job.members).submit(named, wait=False)
        return handle.wait()


def _real(array: Array) -> Array:
    """Return the array, or a complex one as its real and imaginary parts."""
    if array.dtype.kind != "c":
        return array
    parts = array.reshape(-1).view(array.real.dtype)
    return parts


def _with_parts(array: Array) -> Array:
    """Return the array, or a complex one with its parts along a last axis."""
    if array.dtype.kind != "c":
        return array
    parts = array[..., None].view(array.real.dtype)
    return parts
