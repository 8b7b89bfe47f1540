"""A trace sees all calls of a group, whatever way they take."""

import sys
import time
from typing import Any

import numpy as np
import pytest

from popdist.engine.spec.dtypes import DTYPES, REDUCTIONS
from popdist.engine.spec.operations import Operation, number_of
from popdist.errors import CollectiveAbortedError, GroupUnusableError, MismatchError
from tests.popdist.engine.members import SMALL, Me, group_of, results

FLOAT32, UINT8 = DTYPES["float32"], DTYPES["uint8"]


@pytest.mark.usefixtures("each_transport")
def test_a_trace_is_told_of_each_call_that_is_over() -> None:
    def member(me: Me) -> Any:
        group = me.join()
        calls: list[Any] = []
        x = np.ones(3, np.float32)
        group.barrier()
        group.set_trace(lambda *call: calls.append(call))
        before = time.monotonic_ns()
        group.all_reduce(x, "max", out=x)
        group.view([1, 1]).all_reduce([x], "max")
        group.broadcast(x, 1, async_op=True).wait()
        group.barrier(name="a")
        if me.rank:
            group.send(x, 0)
        else:
            group.recv(x, 1)
        with pytest.raises(MismatchError):
            group.broadcast(x, me.rank)
        after = time.monotonic_ns()
        group.set_trace(None)
        with pytest.raises(Exception, match="This group ended"):
            group.barrier()
        times = [at for _, began, ended, _ in calls for at in (began, ended)]
        assert [before, *times, after] == sorted([before, *times, after])
        return [(*call, succeeded) for call, _, _, succeeded in calls]

    for rank, calls in enumerate(results(2, member)):
        reduction = (Operation.ALL_REDUCE, FLOAT32, REDUCTIONS["max"], 0, -1, 3, 0, 0)
        point = Operation.SEND if rank else Operation.RECEIVE
        assert calls == [
            (*reduction, True),
            (*reduction, True),
            (Operation.BROADCAST, FLOAT32, 0, 0, 1, 3, 0, 0, True),
            (Operation.BARRIER, 0, 0, 0, 0, 0, number_of("a"), 0, True),
            (point, FLOAT32, 0, 0, 1 - rank, 3, 0, 0, True),
            (Operation.BROADCAST, FLOAT32, 0, 0, rank, 3, 0, 0, False),
        ]


def test_an_error_of_a_trace_is_reported_and_breaks_no_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("of the trace")

    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    group = group_of("alone", 0, 1, tuning=SMALL)
    group.set_trace(broken)

    assert group.all_reduce(np.ones(2)).tolist() == [1, 1]
    assert [str(one.exc_value) for one in reported] == ["of the trace"]


def test_a_trace_may_close_the_view_whose_call_has_failed() -> None:
    def member(me: Me) -> str:
        group = me.join()
        view = group.view(None)
        if me.rank == 1:
            while not group.transport.member.comm.recent(0)[0]:
                time.sleep(0.001)
            group.abort("enough")
            return "enough"
        group.set_trace(lambda *_: view.close())
        with pytest.raises(CollectiveAbortedError) as failed:
            view.grouped_all_reduce([np.ones(3)], out=[np.ones(3)])
        with pytest.raises(GroupUnusableError):
            view.barrier()
        return str(failed.value)

    assert results(2, member) == ["enough", "enough"]
