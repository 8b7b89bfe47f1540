"""Starts of instances again, with hosts and streams that the test plays."""

from typing import Any
from unittest.mock import Mock

from poprun.supervise.member_changes import MemberChanges
from poprun.supervise.membership import StartAgain, first_members
from poprun.supervise.stopping import JobState
from poprun.wire import protocol


def test_an_instance_whose_host_is_lost_before_its_start_is_not_started() -> None:
    hosts: Any = Mock()
    streams: Any = Mock(has_open=lambda rank: True)
    changes = MemberChanges(hosts, streams, Mock(), Mock())
    state = JobState(
        num_instances=2, grace=1.0, membership=first_members(2, refusal="")
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
