"""Horovod's calls, in the module from which programs import them."""

from functools import partial
from typing import Any

import tensorflow as tf

from popdist.tensorflow.tensors.memory import Tensor

from ..common.calls import waiting
from ..common.calls.reduce_ops import Adasum, Average, Max, Min, Product, Sum, choose_op
from ..common.calls.submission import BASICS as _basics
from ..common.process_sets import ProcessSet, global_process_set
from ..common.ranks import *  # noqa: F403
from ..common.util import num_rank_is_power_2 as check_num_rank_power_of_2
from .calls import number_of_call
from .collectives import (
    allgather,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
)


def handle_average_backwards_compatibility(op: int | None, average: bool | None) -> int:
    """Return the operation that the arguments op and average of a call ask for."""
    return choose_op(op, average)


@tf.autograph.experimental.do_not_convert
def barrier(process_set: ProcessSet = global_process_set) -> Any:
    """Return when all ranks of the process set have called it."""
    result = number_of_call(partial(waiting.begin_barrier, process_set))
    return None if tf.executing_eagerly() else result.op


@tf.autograph.experimental.do_not_convert
def join() -> Tensor:
    """Wait until all ranks have called this, and return the rank that did so last.

    Meanwhile this rank takes part in the allreduces and barriers of the others. It
    contributes zeros to a Sum and an Average, which still divides by all ranks, and a
    neutral element to other operations. Other calls fail on the ranks that make them.
    """
    return number_of_call(waiting.begin_join)


def size_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return the number of ranks in a process set, as a tensor; 0 without this rank."""
    ranks = _basics._get_process_set_ids_and_ranks().get(process_set_id, [])
    return tf.constant(len(ranks), name=name)


def rank_op(name: str | None = None) -> Tensor:
    """Return the number of this process among all ranks, as a tensor."""
    return tf.constant(_basics.rank(), name=name)


def local_size_op(name: str | None = None) -> Tensor:
    """Return the number of ranks on this host, as a tensor."""
    return tf.constant(_basics.local_size(), name=name)


def local_rank_op(name: str | None = None) -> Tensor:
    """Return the number of this process on its host, as a tensor."""
    return tf.constant(_basics.local_rank(), name=name)


def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Tensor:
    """Return 1 if this rank is in a process set, else 0, as a tensor."""
    ranks = _basics._get_process_set_ids_and_ranks().get(process_set_id, [])
    return tf.constant(int(_basics.rank() in ranks), name=name)
