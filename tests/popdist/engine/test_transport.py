"""Rows of memory that no numpy array stands for, as torch tensors are."""

import ctypes
import struct
from typing import Any

import numpy as np
import pytest

from popdist.engine.call_table import CallFields, EngineCall
from popdist.engine.group import Group
from popdist.engine.rows import Rows
from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS, code_of, item_bytes_of
from popdist.engine.spec.operations import Operation
from tests.popdist.engine.members import SMALL, Me, group_of, results
from tests.popdist.other_transports import ThreadTransport

BFLOAT16 = DTYPES["bfloat16"]
SUM = REDUCTIONS["sum"]


def alone() -> Group:
    return group_of("alone", 0, 1, tuning=SMALL)


def bfloat16(*numbers: float) -> Any:
    """Return a buffer of bfloat16: the upper halves of float32."""
    halves = [struct.unpack("<I", struct.pack("<f", n))[0] >> 16 for n in numbers]
    return (ctypes.c_uint16 * len(numbers))(*halves)


def numbers_in(buffer: Any) -> list[float]:
    return [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in buffer]


def rows_at(*buffers: Any, dtype: int = BFLOAT16) -> Rows:
    places = tuple(ctypes.addressof(buffer) for buffer in buffers)
    return Rows(places, (len(buffers[0]),), dtype, buffers)


def test_bfloat16_is_reduced_by_its_address_alone() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        x, total = bfloat16(1.5, me.rank, -2), bfloat16(0, 0, 0)
        pairs = [(rows_at(x), rows_at(total))]
        group.submit(
            "all_reduce", lambda: group.transport.all_reduce(pairs, SUM), async_op=False
        )
        group.transport.all_reduce([(rows_at(x), rows_at(x))], REDUCTIONS["max"])
        return numbers_in(total), numbers_in(x)

    assert results(3, member) == [([4.5, 3, -6], [1.5, 2, -2])] * 3


def test_every_operation_takes_rows_by_their_addresses() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        carry = group.transport
        me_and_ten = bfloat16(me.rank + 1, 10)
        found = {}

        out = bfloat16(0, 0)
        carry.reduce(rows_at(me_and_ten), rows_at(out), SUM, 1)
        found["reduce"] = numbers_in(out) if me.rank == 1 else [3, 20]
        part = bfloat16(0)
        carry.reduce_scatter(rows_at(me_and_ten), rows_at(part), SUM)
        found["reduce_scatter"] = numbers_in(part)
        whole = bfloat16(0, 0, 0, 0)
        carry.all_gather(rows_at(me_and_ten), rows_at(whole), [4, 4])
        found["all_gather"] = numbers_in(whole)
        whole = bfloat16(0, 0, 0, 0)
        carry.gather(rows_at(me_and_ten), rows_at(whole), [4, 4], 0)
        found["gather"] = numbers_in(whole)
        carry.scatter(rows_at(whole), rows_at(out), [4, 4], 0)
        found["scatter"] = numbers_in(out)
        carry.all_to_all(rows_at(me_and_ten), rows_at(out))
        found["all_to_all"] = numbers_in(out)
        carry.broadcast(rows_at(me_and_ten), 1)
        found["broadcast"] = numbers_in(me_and_ten)
        if me.rank == 0:
            carry.send(rows_at(bfloat16(7, 8)), 1)
        else:
            carry.receive(rows_at(me_and_ten), 0)
            found["receive"] = numbers_in(me_and_ten)
        carry.barrier()
        return found

    both = {"reduce": [3, 20], "all_gather": [1, 10, 2, 10], "broadcast": [2, 10]}
    assert results(2, member) == [
        both
        | {
            "reduce_scatter": [3],
            "gather": [1, 10, 2, 10],
            "scatter": [1, 10],
            "all_to_all": [1, 2],
        },
        both
        | {
            "reduce_scatter": [20],
            "gather": [0, 0, 0, 0],
            "scatter": [2, 10],
            "all_to_all": [10, 10],
            "receive": [7, 8],
        },
    ]


def test_rows_that_do_not_fit_are_refused_before_the_core_sees_them() -> None:
    x, three = bfloat16(1, 2), bfloat16(1, 2, 3)
    group = alone()
    carry = group.transport
    other = rows_at(x, dtype=DTYPES["float16"])
    refused = [
        (
            lambda: carry.all_reduce([(rows_at(x), rows_at(three))], SUM),
            "Give rows of one length",
        ),
        (lambda: carry.all_reduce([(rows_at(x), other)], SUM), "one dtype"),
        (
            lambda: carry.all_reduce([(rows_at(x, x), rows_at(x))], SUM),
            "2 rows are to be reduced into 1",
        ),
        (lambda: carry.broadcast(rows_at(x, x), 0), "The array has 2 rows"),
        (
            lambda: carry.all_gather(rows_at(x), rows_at(three), [4]),
            "The target has 6 bytes",
        ),
        (
            lambda: carry.reduce_scatter(rows_at(x), rows_at(three), SUM),
            "equal shares of 2",
        ),
        (lambda: Rows((ctypes.addressof(x) + 1,), (1,), BFLOAT16), "multiple of 2"),
        (lambda: Rows((1,), (1,), 13), "The dtype code is 13"),
    ]
    for call, words in refused:
        with pytest.raises(ValueError, match=words):
            call()

    assert group.all_reduce(np.ones(2)).tolist() == [1, 1]


class Loopback(ThreadTransport):
    """A transport of one member that writes down what it is asked for."""

    requests: list[Any]

    def run(self, fields: CallFields) -> None:
        call = EngineCall(*fields)
        shapes = [source.shape for source, _ in call.arrays]
        self.requests.append((call.operation, shapes, call.root))
        super().run(fields)


def test_a_group_calls_nothing_but_its_transport() -> None:
    [transport] = Loopback.of(1)
    transport.requests = []
    group = Group(transport, replicas=[2])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    sums = x.sum(axis=0).tolist()
    assert group.grouped_all_reduce([x])[0].tolist() == [sums] * 2
    assert group.broadcast(x).tolist() == [x[0].tolist()] * 2
    assert transport.requests == [
        (Operation.ALL_REDUCE, [(3,)], -1),
        (Operation.BROADCAST, [(3,)], 0),
    ]


def test_the_sizes_of_elements_are_those_of_their_dtypes() -> None:
    for name in DTYPES:
        if name != "bfloat16":
            assert item_bytes_of(code_of(np.dtype(name))) == np.dtype(name).itemsize
    assert item_bytes_of(BFLOAT16) == 2
