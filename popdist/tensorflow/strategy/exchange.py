"""The calls that a strategy makes of the engine, on the arrays of its replicas."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from popdist.engine.calls.rows import Array
from popdist.engine.group import Group
from popdist.engine.handle import Handle
from popdist.negotiation.named_calls import NamedCall, named_calls_among
from popdist.replicated.sums import is_one_node
from popdist.session import STATE
from popdist.tensorflow.tensors.memory import new_memories, new_memory

# What each local replica has of one tensor.
ReplicaArrays = Sequence[Array]
# A call of an exchange: what it makes of arrays, of which each tensor has one for each
# local replica, one tensor after the other.
ExchangeCall = Callable[["Exchange", Sequence[Array]], Sequence[Array]]

_NOTHING = np.empty(0, np.uint8)
# From here on local replicas' arrays are added up before they are exchanged.
_LONG_BYTES = 1 << 18


@dataclass(frozen=True, slots=True)
class Exchange:
    """All replicas of the job, as one instance sees them."""

    # One row for each instance, and one for each replica.
    instances: Group
    replicas: Group

    @classmethod
    def among(cls, group: Group) -> Self:
        """Return the exchange among the instances of a group of all of them."""
        counts = STATE.rows(STATE.job.members)
        return cls(group, group if set(counts) == {1} else group.view(counts))

    def all_reduce(self, tensors: Sequence[ReplicaArrays], op: str) -> list[Array]:
        """Return the reduction of each tensor over all replicas."""
        layouts = [(arrays[0].shape, arrays[0].dtype) for arrays in tensors]
        results = new_memories(layouts)
        if self.replicas is self.instances:
            rows = [_real(arrays[0]) for arrays in tensors]
            self.instances.grouped_all_reduce(
                rows, op, out=[_real(result) for result in results]
            )
            return results
        if self._adds_local_first(results):
            for arrays, result in zip(tensors, results, strict=True):
                self._own.reduce(list(arrays), out=result)
            if self.instances.size > 1:
                self.instances.grouped_all_reduce(results, out=results)
            for result in results if op == "mean" else ():
                np.divide(result, self.replicas.num_replicas, out=result)
            return results
        # Each replica gets the result, of which one is enough.
        spare = [
            [np.empty_like(_real(array)) for array in arrays[1:]] for arrays in tensors
        ]
        self.replicas.grouped_all_reduce(
            [[_real(array) for array in arrays] for arrays in tensors],
            op,
            out=[
                [_real(result), *others]
                for result, others in zip(results, spare, strict=True)
            ],
        )
        return results

    def _adds_local_first(self, results: Sequence[Array]) -> bool:
        """Return whether the sums of local replicas are nodes of the engine's tree.

        They are worth a call of their own where arrays are long: all replicas of a
        group get results of their own otherwise.
        """
        if sum(result.nbytes for result in results) < _LONG_BYTES:
            return False
        # Those of 16 bits would be rounded in between, and others are no plain sums.
        plain = all(result.dtype in (np.float32, np.float64) for result in results)
        return plain and is_one_node(self.replicas.replicas)

    @property
    def _own(self) -> Group:
        """The group of the local replicas alone."""
        rank = STATE.job.place.rank
        return STATE.group("local", (rank,)).view((self.replicas.num_local_replicas,))

    def all_gather(self, arrays: ReplicaArrays, axis: int) -> Array:
        """Return the arrays of all replicas, one behind the other along an axis."""
        if self.replicas is self.instances:
            parts = self.instances.all_gather(arrays[0])
        else:
            parts = self.replicas.all_gather(list(arrays))
        shape = list(arrays[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        result = new_memory(shape, arrays[0].dtype)
        np.concatenate(parts, axis, out=result)
        return result

    def from_first_instance(self, array: Array) -> Array:
        """Return the array of instance 0."""
        result = new_memory(array.shape, array.dtype)
        self.instances.broadcast(array, 0, out=result)
        return result

    def request(
        self, name: str, call: ExchangeCall, arrays: Sequence[Array]
    ) -> Handle[Sequence[Array]]:
        """Begin a call that is matched by its name."""

        def carry_out(group: Group, _: str | None) -> Sequence[Array]:
            return call(Exchange.among(group), arrays)

        def complete(_: Group, __: Array) -> Sequence[Array]:
            # Nothing travels with requests, because the array of the call is empty.
            raise AssertionError(name)

        named = NamedCall(name, "exchange", _NOTHING, carry_out, complete)
        return named_calls_among(STATE.job.members).submit(named, wait=False)


def _real(array: Array) -> Array:
    """Return the array, or a complex one as its real and imaginary parts."""
    if array.dtype.kind != "c":
        return array
    parts = array.reshape(-1).view(array.real.dtype)
    return parts
