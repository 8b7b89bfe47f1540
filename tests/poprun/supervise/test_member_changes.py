"""Starts of instances again, with hosts and streams that the test plays."""

import signal
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from poprun.host.remote_host import RemoteHost
from poprun.supervise.job_state import JobState, Phase
from poprun.supervise.member_changes import MemberChanges
from poprun.supervise.membership import EndJoin, LetGo, StartAgain, first_members
from poprun.wire import protocol


def test_an_instance_whose_host_is_lost_before_its_start_is_not_started() -> None:
    hosts: Any = Mock()
    streams: Any = Mock(has_open=lambda rank: True)
    changes = MemberChanges(hosts, streams, Mock(), Mock())
    state = JobState(
        num_instances=2, grace=1.0, membership=first_members(("a",) * 2, refusal="")
    )
    for rank in range(2):
        changes.act(StartAgain(rank=rank))
    changes.start_again(state)

    changes.note_end(1, state.membership)
    # Another host has the instance by now.
    streams.has_open = lambda rank: False
    changes.start_again(state)

    starts = [call.args for call in hosts.of.return_value.tell.call_args_list]
    assert starts == [(protocol.START_AGAIN, 0)]


def test_a_host_that_has_failed_to_join_ends_when_its_output_has_come() -> None:
    host = Mock(spec=RemoteHost, ranks=(2, 3), finished=False)
    hosts, streams = Mock(of={2: host}.__getitem__), Mock(has_open=lambda rank: True)
    changes = MemberChanges(hosts, streams, Mock(), Mock())
    changes.act(EndJoin(rank=2, why="x"))
    state = JobState(num_instances=4)
    changes.end_hosts(state, 0.0)
    assert not host.lose_closed.called

    streams.has_open = lambda rank: False
    # A job that stops ends all of its hosts.
    changes.end_hosts(replace(state, phase=Phase.STOPPING), 0.0)
    assert not host.lose_closed.called
    changes.act(EndJoin(rank=2, why="x"))
    host.lose_closed.side_effect = lambda why: setattr(host, "finished", True)
    changes.end_hosts(state, 0.0)
    changes.end_hosts(state, 0.0)
    host.lose_closed.assert_called_once_with("x")


def test_a_host_leaves_when_its_instances_have_ended() -> None:
    host = Mock(spec=RemoteHost, ranks=(2, 3), finished=False)
    host.lose_closed.side_effect = lambda why: setattr(host, "finished", True)
    hosts, streams = Mock(of={2: host}.__getitem__), Mock(has_open=lambda rank: False)
    changes = MemberChanges(hosts, streams, Mock(), Mock())
    state = JobState(num_instances=4, gone=frozenset({2}))
    changes.act(LetGo(rank=2, why="x"))
    changes.end_hosts(state, changes.deadline - 1)
    assert not host.lose_closed.called

    changes.end_hosts(replace(state, gone=frozenset({2, 3})), changes.deadline - 1)
    host.lose_closed.assert_called_once_with("x")
    assert not host.tell.called
    assert changes.deadline == inf


def test_instances_that_stay_on_a_host_that_leaves_are_ended_step_by_step() -> None:
    host = Mock(spec=RemoteHost, ranks=(2, 3), finished=False)
    hosts, streams = Mock(of={2: host}.__getitem__), Mock(has_open=lambda rank: True)
    changes = MemberChanges(hosts, streams, Mock(), Mock())
    state, times = JobState(num_instances=4, grace=7.0), list[float]()
    changes.act(LetGo(rank=2, why="x"))
    for _ in range(3):
        times.append(changes.deadline)
        changes.end_hosts(state, changes.deadline)

    assert [call.args for call in host.tell.call_args_list] == [
        (protocol.SIGNAL, signal.SIGTERM),
        (protocol.KILL,),
    ]
    assert [times[1] - times[0], times[2] - times[1]] == pytest.approx([7.0, 1.0])
    host.lose_closed.assert_called_once_with("x")
