"""Scopes of operations for IPUs: devices, shards and attributes of a compiler."""

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

_UNUSED_SHARD = -1


class _Shards:
    """The highest shard that a computation has named; the compiler begins anew."""

    highest = _UNUSED_SHARD


@contextmanager
def ipu_scope(device: str) -> Iterator[None]:
    """Put operations on an IPU, emulated by the CPU; variables are resources.

    Args:
        device: Such as /device:IPU:0.
    """
    v1 = tf.compat.v1
    with (
        v1.device(device),
        v1.variable_scope(
            v1.get_variable_scope(), use_resource=True, auxiliary_name_scope=False
        ),
    ):
        yield


@contextmanager
def ipu_shard(index: int | list[int] | tuple[int, ...]) -> Iterator[None]:
    """Put operations on one IPU of several: all are computed by the same CPU.

    Args:
        index: The IPU of the device.
    """
    indices = [index] if isinstance(index, int) else index
    _Shards.highest = max(_Shards.highest, *indices)
    yield


@contextmanager
def counted_shards() -> Iterator[list[int]]:
    """Yield a list that gets the number of IPUs in the operations' names."""
    counts: list[int] = []
    before, _Shards.highest = _Shards.highest, _UNUSED_SHARD
    try:
        yield counts
        counts.append(max(1, _Shards.highest + 1))
    finally:
        _Shards.highest = before


@contextmanager
def outside_compilation_scope(name: str = "outside") -> Iterator[None]:
    """Run operations on the host within a program for an IPU: it is the same CPU."""
    with tf.name_scope(name):
        yield


@contextmanager
def _attribute(*_: object, **__: object) -> Iterator[None]:
    """Give operations an attribute for an IPU's compiler, which changes no result."""
    yield


def frontend_attribute(
    attribute_name: str, attribute_value: str, restore_to: str | None = None
) -> object:
    """Give operations an attribute for an IPU's compiler; it changes nothing here."""
    return _attribute(attribute_name, attribute_value, restore_to)


def ipu_jit_scope(ipu_scope: int) -> object:
    """Compile operations as one program for an IPU; it changes nothing here."""
    return _attribute(ipu_scope)


def partials_type(override: object) -> object:
    """Set the type of partial sums on an IPU; CPUs add in the type of the operands."""
    return _attribute(override)


def stochastic_rounding(override: object) -> object:
    """Round at random on an IPU; CPUs round to the nearest."""
    return _attribute(override)
