import json
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from meeting import STACKS, Ended, Meeting, run, stop, wait_until

from popdist.engine.meet.group_name import address_of
from popdist.engine.meet.meeting import name_instances
from popdist.engine.meet.messages import (
    Hello,
    MeetingMessage,
    decode_refusal,
    encode_refusal,
)
from popdist.engine.meet.pidfds import started
from popdist.errors import (
    ArenaError,
    CollectiveTimeoutError,
    MismatchError,
    PeerLostError,
    PopdistError,
)

HOST = Hello(rank=0, size=3, pid=42, started=10**12, layout="one")
LAST_WORDS = "Look above for its last output.\n"
# A member says so when it is asked to end.
KEEP = "join()\nprint('met', flush=True)"
# A member that is up, and goes on at SIGUSR1. It has a handler, as a signal that only
# this thread blocks would end the process by way of a thread of numpy's.
UNTIL_SIGNAL = """import threading
told = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: told.set())
print("up", flush=True)
told.wait()
"""
# A member that comes after the report. Its wait lasts longer than until a report once
# member 0 has told it who is missing, however late that is, and no longer before.
TOLD = """
from popdist.engine.meet import deadlines
from popdist.engine.meet.joiner import Joiner
error_in, waited = Joiner._error_in, [0.0]
deadlines.monotonic = lambda: waited[0]
def hear(joiner, message):
    error = error_in(joiner, message)
    print("told", flush=True)
    waited[0] = 100.0
    return error
Joiner._error_in = hear
"""


def anonymous(ended: Ended) -> str:
    """Return what a member printed, without the numbers of processes."""
    return re.sub(r"(P|p)rocess(es)? \d+( and \d+)?", r"\1rocess\2 N", ended.out)


# --- All members come.


@pytest.mark.parametrize("late", [0, 1, 2])
def test_members_may_come_in_any_order(late: int) -> None:
    with Meeting(3) as meeting:
        for rank in {0, 1, 2} - {late}:
            meeting.start(rank, KEEP)
        if late:
            meeting.wait_for_joiners(1)
        meeting.start(late, KEEP)

        assert meeting.finish() == [(0, "met\n", "")] * 3


@pytest.mark.parametrize("name", ["x" * 80, "x" * 1000, "\N{OHM SIGN}" * 60, "/ @\0"])
def test_any_name_is_a_meeting_place(name: str) -> None:
    body = f"name = {name!r}\n{KEEP}"

    assert run(3, body) == [(0, "met\n", "")] * 3


def test_an_address_tells_neither_the_name_nor_other_addresses() -> None:
    names = ["secret.a", "secret.b", "x" * 999 + "1", "x" * 999 + "2", "\udcff"]
    addresses = [address_of(name) for name in names]

    assert len(set(addresses)) == len(names)
    for address in addresses:
        assert re.fullmatch(rb"\0popdist-[0-9a-f]{40}", address)


def test_groups_of_two_names_do_not_disturb_each_other() -> None:
    with Meeting(2) as one, Meeting(2) as other:
        for rank in (0, 1):
            one.start(rank, KEEP)
            other.start(rank, KEEP)

        assert one.finish() + other.finish() == [(0, "met\n", "")] * 4


def test_no_socket_is_left_after_a_meeting() -> None:
    body = """
        join()
        import pathlib
        files = pathlib.Path("/proc/self/fd").iterdir()
        links = [str(file.readlink()) for file in files if file.exists()]
        print([link for link in links if "socket" in link])
    """
    with Meeting(3) as meeting:
        for rank in range(3):
            meeting.start(rank, body)

        assert meeting.finish() == [(0, "[]\n", "")] * 3
        assert meeting.sockets() == 0


STRANGER = """
from popdist.engine.meet.connection import connect
from popdist.engine.meet.group_name import address_of
import select
"""


@pytest.mark.parametrize(
    "packet",
    [
        b"GET / HTTP/1.1",
        b"[" * 100_000,
        b'["ready", null]',
        b'["hello", {"rank": 1}]',
        b'["hello", {"rank": [1], "size": 2, "pid": 1, "started": 1, "layout": "one"}]',
    ],
    ids=["text", "nested", "another kind", "incomplete", "not a number"],
)
def test_one_that_says_something_else_does_not_disturb(packet: bytes) -> None:
    stranger = f"""
        {STRANGER.replace(chr(10), chr(10) + " " * 8)}
        connection = connect(address_of(name))
        connection._socket.send({packet!r})
        select.select([connection], [], [])
        print(connection.receive().packet)
    """
    with Meeting(2) as meeting:
        meeting.start(0, KEEP)
        meeting.wait_for_joiners(0)
        meeting.start(1, stranger)
        meeting.wait_for_end(1)
        meeting.start(1, KEEP)

        said = meeting.finish()
    assert said == [(0, "met\n", ""), (0, "b''\n", ""), (0, "met\n", "")]


def test_those_who_connect_and_go_or_say_nothing_do_not_disturb() -> None:
    stranger = f"""
        {STRANGER.replace(chr(10), chr(10) + " " * 8)}
        mute = [connect(address_of(name)) for _ in range(2)]
        for _ in range(200):
            one = connect(address_of(name))
            if one is not None:
                one.close()
        many = [connect(address_of(name)) for _ in range(300)]
        print("gone", flush=True)
        time.sleep(1000)
    """
    with Meeting(2) as meeting:
        meeting.start(0, KEEP)
        meeting.wait_for_joiners(0)
        pid = meeting.start(1, stranger)
        meeting.wait_for_line(1)
        meeting.start(1, KEEP)
        meeting.wait_for_end(0)
        os.kill(pid, signal.SIGKILL)
        first, _, last = meeting.finish()

    assert (first, last) == ((0, "met\n", ""),) * 2


@pytest.mark.parametrize(
    "packet",
    [
        b"Zoo",
        b'["refusal", ["PeerLostError"]]',
        b'["refusal", ["OSError", "", []]]',
        b'["refusal", ["PeerLostError", "", "x"]]',
    ],
)
def test_a_member_that_says_what_it_cannot_mean_is_named(packet: bytes) -> None:
    garbled = f"""
        from popdist.engine.meet import joiner
        receive = joiner.Joiner._receive
        def say_more(self, wanted):
            joiner.Joiner._receive = receive
            self._connection._socket.send({packet!r})
            return receive(self, wanted)
        joiner.Joiner._receive = say_more
        join()
    """
    with Meeting(3) as meeting:
        meeting.start(0)
        meeting.wait_for_joiners(0)
        pid = meeting.start(1, garbled)
        meeting.start(2)
        ended = meeting.finish()

    refusal = (
        f"MismatchError: Instance 1 (process {pid}) sent instance 0 {packet!r} while "
        "the instances met, which is not a valid message. Start all of them with the "
        "same installation of popdist.\n"
    )
    assert ended == [(0, refusal, "")] * 3


@pytest.mark.parametrize(
    "packet",
    [
        b"Zoo",
        b'["missing", []]',
        b'["missing", [9]]',
        b'["refusal", null]',
        b'["welcome", [[1]]]',
    ],
)
def test_a_member_0_that_says_what_it_cannot_mean_is_named(packet: bytes) -> None:
    garbled = f"""
        from popdist.engine.meet import leader
        def say_it(self, fd):
            for joiner in self._joiners.values():
                joiner._socket.send({packet!r})
            time.sleep(1)
        leader.Leader.welcome = say_it
        join()
    """
    with Meeting(2) as meeting:
        pid = meeting.start(0, garbled)
        meeting.start(1)
        _, ended = meeting.finish()

    assert ended.out.startswith(
        f"MismatchError: Instance 0 (process {pid}) sent instance 1 {packet!r} "
    )


def test_one_that_says_nothing_is_sent_away_when_all_have_come() -> None:
    stranger = """
        from popdist.engine.meet.connection import connect
        from popdist.engine.meet import messages
        from popdist.engine.meet.group_name import address_of
        import select
        connection = connect(address_of(name))
        select.select([connection], [], [])
        raise messages.decode_refusal(connection.receive().value)
    """
    with Meeting(2) as meeting:
        meeting.start(0, KEEP)
        meeting.wait_for_joiners(0)
        meeting.start(1, stranger)
        wait_until(lambda: meeting.sockets() == 2)
        meeting.start(1, KEEP)
        first, mute, last = meeting.finish()

    assert (first, last) == ((0, "met\n", ""), (0, "met\n", ""))
    assert mute.out == (
        "MismatchError: All 2 instances of this group have already joined, and this "
        "process is one too many. Start one process for each instance.\n"
    )


# --- A member does not come.


def test_those_who_wait_in_vain_name_the_ones_that_are_absent() -> None:
    # For member 0 no time passes until it has heard of member 3, and then all of it.
    body = """
        from popdist.engine.meet import deadlines
        from popdist.engine.meet.leader import Leader
        admit, waited = Leader._admit, [0.0]
        deadlines.monotonic = lambda: waited[0]
        def admit_and_wait(*arguments):
            admit(*arguments)
            waited[0] = 5.0
        Leader._admit = admit_and_wait
        join(timeout=5)
    """
    with Meeting(4) as meeting:
        meeting.start(3)
        meeting.start(0, body)
        ended = meeting.finish()

    refusal = (
        "CollectiveTimeoutError: Instance 0 has waited 5 s for instances 1 and 2 to "
        "join the group of instances 0 to 3. Look above for their last output. If "
        "they were only slow, raise POPDIST_TIMEOUT.\n"
    )
    assert ended == [(0, refusal, "")] * 2


def test_those_who_wait_for_member_0_name_it() -> None:
    with Meeting(2) as meeting:
        meeting.start(1, "join(timeout=1)")
        (ended,) = meeting.finish()

    assert ended.out.startswith(
        "CollectiveTimeoutError: Instance 1 has waited 1.25 s for instance 0 to join"
    )


def test_a_stall_is_reported_once_and_the_meeting_goes_on() -> None:
    with Meeting(4) as meeting:
        meeting.start(0, "join(stall=0.5)\nprint('met')")
        meeting.wait_for_joiners(0)
        meeting.wait_for_report(0)
        meeting.start(2, TOLD + "join(stall=0.5)\nprint('met')")
        meeting.wait_for_line(1)
        meeting.start(1, KEEP)
        meeting.wait_for_joiners(2)
        meeting.start(3, KEEP)
        ended = meeting.finish()

    report = (
        r"popdist: instance 0 has waited [\d.]+ s for instances 1, 2 and 3 "
        r"to join the group of instances 0 to 3, and gives up after 200 s\.\n" + STACKS
    )
    assert [e.out for e in ended] == ["met\n"] * 4
    assert re.fullmatch(report, ended[0].err)
    assert [e.err for e in ended[1:]] == ["", "", ""]


def test_one_that_comes_after_the_report_does_not_repeat_it() -> None:
    with Meeting(3) as meeting:
        body = "join(stall=0.1)\nprint('met')"
        late = meeting.start(1, UNTIL_SIGNAL + TOLD + body)
        meeting.wait_for_line(0)
        meeting.start(0, body)
        meeting.wait_for_report(1)
        os.kill(late, signal.SIGUSR1)
        meeting.wait_for_line(0)
        meeting.start(2, KEEP)
        ended = meeting.finish()

    assert [e.out for e in ended] == ["met\n"] * 3
    assert ended[1].err.count(" has waited ") == 1
    assert [ended[0].err, ended[2].err] == ["", ""]


def test_a_stopped_member_0_is_reported_by_the_others() -> None:
    with Meeting(2) as meeting:
        pid = meeting.start(0, KEEP)
        meeting.wait_for_joiners(0)
        stop(pid)
        meeting.start(1, "join(stall=0.2)\nprint('met')")
        meeting.wait_for_report(1)
        os.kill(pid, signal.SIGCONT)
        ended = meeting.finish()

    assert [e.out for e in ended] == ["met\n"] * 2
    assert re.fullmatch(
        r"popdist: instance 1 has waited [\d.]+ s for instance 0 to join the group "
        r"of instances 0 and 1, and gives up after 201 s\.\n" + STACKS,
        ended[1].err,
    )


@pytest.mark.parametrize("waits", [0, 1])
def test_a_report_that_cannot_be_printed_does_not_end_the_meeting(waits: int) -> None:
    full = """
        os.dup2(os.open("/dev/full", os.O_WRONLY), 2)
        join(stall=0.1)
        print("met")
    """
    with Meeting(2) as meeting:
        meeting.start(waits, full)
        time.sleep(1)
        meeting.start(1 - waits, KEEP)
        ended = meeting.finish()

    assert [e.out for e in ended] == ["met\n"] * 2


# --- A member dies.


def test_a_dead_member_is_named_before_an_absent_one_comes() -> None:
    told = """
        try:
            join()
        except PeerLostError as error:
            print(error.instances, flush=True)
    """
    with Meeting(3) as meeting:
        meeting.start(0, told)
        meeting.wait_for_joiners(0)
        victim = meeting.start(1)
        meeting.wait_for_joiners(1)
        os.kill(victim, signal.SIGKILL)
        # Only the members that have come are told so far.
        meeting.wait_for_line(0)
        meeting.start(2)
        *_, late = meeting.finish()

    assert late.out.startswith(f"PeerLostError(1,): Instance 1 (process {victim})")


def test_members_may_meet_again_right_after_a_failure() -> None:
    again = """
        try:
            join()
        except PopdistError:
            print("failed", flush=True)
        join()
        print("met", flush=True)
    """
    with Meeting(3) as meeting:
        meeting.start(0, again)
        meeting.wait_for_joiners(0)
        meeting.start(1, "join(layout='two')")
        meeting.wait_for_line(0)
        meeting.wait_for_end(1)
        meeting.start(1, KEEP)
        meeting.start(2, KEEP)
        ended = meeting.finish()

    assert [one.out for one in ended[2:]] == ["met\n"] * 2


@pytest.mark.parametrize("victim", [1, 2, 3])
def test_a_member_that_is_killed_is_named_by_all_others(victim: int) -> None:
    with Meeting(5) as meeting:
        pids = [meeting.start(0)]
        pids += [meeting.start(rank) for rank in (1, 2, 3)]
        meeting.wait_for_joiners(3)
        os.kill(pids[victim], signal.SIGKILL)
        meeting.start(4)
        ended = meeting.finish()

    lost = (
        f"PeerLostError({victim},): Instance {victim} (process {pids[victim]}) ended "
        f"or gave up while the instances met. {LAST_WORDS}"
    )
    assert ended.pop(victim) == (-signal.SIGKILL, "", "")
    assert ended == [(0, lost, "")] * 4


def test_when_member_0_is_killed_all_others_name_it() -> None:
    with Meeting(4) as meeting:
        pids = [meeting.start(rank) for rank in range(3)]
        meeting.wait_for_joiners(2)
        os.kill(pids[0], signal.SIGKILL)
        ended = meeting.finish()

    lost = (
        f"PeerLostError(0,): Instance 0 (process {pids[0]}) ended or gave up while the "
        f"instances met. {LAST_WORDS}"
    )
    assert ended == [(-signal.SIGKILL, "", ""), (0, lost, ""), (0, lost, "")]


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_member_that_dies_with_the_memory_in_hand_is_named(victim: int) -> None:
    dying = """
        arena.Arena.attach = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        join()
    """
    ended = run(3, "join()", {victim: dying})

    lost = (
        f"PeerLostError({victim},): Instance {victim} (process N) ended or gave up "
        f"while the instances met. {LAST_WORDS}"
    )
    assert ended.pop(victim).code == -signal.SIGKILL
    assert [anonymous(e) for e in ended] == [lost] * 2


@pytest.mark.parametrize(("late", "lost"), [(2, 0), (2, 1), (0, 1)])
def test_a_member_that_takes_the_memory_over_late_has_the_reason_all_have(
    late: int, lost: int
) -> None:
    fails = """
        def fail(*_):
            raise MemoryError("none left")
        arena.Arena.attach = fail
        join()
    """
    # It looks at the other members when one of them is gone.
    waits = f"""
        attach = arena.Arena.attach
        def attach_late(self, fd, members):
            while os.path.exists(f"/proc/{{members[{lost}].pid}}"): time.sleep(0.01)
            return attach(self, fd, members)
        arena.Arena.attach = attach_late
        join()
    """
    with Meeting(3) as meeting:
        for rank in range(3):
            meeting.start(rank, {1: fails, late: waits}.get(rank, "join()"))
        meeting.wait_for_end(lost)
        ended = meeting.finish()

    refusal = (
        "ArenaError: Instance 1 could not join the others: MemoryError: none left. "
        "Look above for its output.\n"
    )
    assert [ended[0], ended[2]] == [(0, refusal, "")] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_is_known_and_ends_before_it_comes_is_named_at_once(rank: int) -> None:
    with Meeting(3) as meeting:
        victim = meeting.start(2, "time.sleep(1000)")
        meeting.start(
            rank,
            f"known = {{9: Pidfd({victim}, os.pidfd_open({victim}))}}\n"
            "print('ready', flush=True)\n"
            "join(instances=(7, 8, 9), known=known)",
        )
        meeting.wait_for_line(1)
        os.kill(victim, signal.SIGKILL)
        _, ended = meeting.finish()

    lost = (
        "PeerLostError(9,): Instance 9 ended before it could join the group of "
        f"instances 7, 8 and 9. {LAST_WORDS}"
    )
    assert ended == (0, lost, "")


@pytest.mark.parametrize("rank", [0, 1])
def test_one_whose_pidfd_the_program_has_closed_is_waited_for(rank: int) -> None:
    with Meeting(3) as meeting:
        late = meeting.start(2, UNTIL_SIGNAL + KEEP)
        meeting.wait_for_line(0)
        meeting.start(1 - rank, KEEP)
        waiting = meeting.start(
            rank,
            f"""
            known = {{2: Pidfd({late}, os.pidfd_open({late}))}}
            def close(*_):
                os.close(known[2].fileno())
                print('closed', flush=True)
            signal.signal(signal.SIGUSR1, close)
            join(known=known)
            """,
        )
        # Both have their sockets by then, which take none of the numbers of files.
        meeting.wait_for_joiners(1)
        os.kill(waiting, signal.SIGUSR1)
        meeting.wait_for_line(2)
        time.sleep(0.3)
        os.kill(late, signal.SIGUSR1)
        ended = meeting.finish()

    assert [(e.code, e.err) for e in ended] == [(0, "")] * 3
    assert [e.out for e in ended] == ["met\n", "met\n", ""]


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_ends_before_it_comes_is_named_if_the_launcher_says_so(
    rank: int, tmp_path: Path
) -> None:
    file = tmp_path / "ended"
    with Meeting(3) as meeting:
        meeting.start(
            rank,
            f"print('ready', flush=True)\n"
            f"join(instances=(7, 8, 9), ended_file={str(file)!r})",
        )
        meeting.wait_for_line(0)
        # Others than its members, and a number that is being written.
        file.write_text("1\n90\n")
        time.sleep(0.5)
        with file.open("a") as more:
            more.write("9\n")
        (ended,) = meeting.finish()

    lost = (
        "PeerLostError(9,): Instance 9 ended before it could join the group of "
        f"instances 7, 8 and 9. {LAST_WORDS}"
    )
    assert ended == (0, lost, "")


def test_when_member_0_gives_up_because_of_a_known_one_that_one_is_named() -> None:
    with Meeting(3) as meeting:
        victim = meeting.start(2, "time.sleep(1000)")
        # It ends with a member at its door, which it has not let in.
        meeting.start(
            0,
            f"""
            from popdist.engine.meet.connection import listen
            from popdist.engine.meet.group_name import address_of
            import select
            listener = listen(address_of(name), size)
            select.select([listener], [], [])
            pidfd = os.pidfd_open({victim})
            os.kill({victim}, signal.SIGKILL)
            select.select([pidfd], [], [])
            """,
        )
        meeting.start(1, f"join(known={{2: Pidfd({victim}, os.pidfd_open({victim}))}})")
        *_, ended = meeting.finish()

    assert ended.out.startswith("PeerLostError(2,): Instance 2 ended before it could")


def test_when_member_0_gives_up_because_of_one_in_the_launcher_s_file_that_is_named(
    tmp_path: Path,
) -> None:
    file = tmp_path / "ended"
    with Meeting(3) as meeting:
        # It ends before it has accepted the connection of another member.
        meeting.start(
            0,
            f"""
            from popdist.engine.meet.connection import listen
            from popdist.engine.meet.group_name import address_of
            import select
            listener = listen(address_of(name), size)
            select.select([listener], [], [])
            open({str(file)!r}, "w").write("2\\n")
            """,
        )
        meeting.start(1, f"join(ended_file={str(file)!r})")
        *_, ended = meeting.finish()

    assert ended.out.startswith("PeerLostError(2,): Instance 2 ended before it could")


def test_members_are_called_by_the_names_of_their_instances() -> None:
    wrong = "join(instances=(4, 6), layout='two')"
    with Meeting(2) as meeting:
        meeting.start(0, "join(instances=(4, 6))")
        pid = meeting.start(1, wrong)
        ended = meeting.finish()

    refusal = (
        f"MismatchError: Instance 6 (process {pid}) lays the shared memory out as "
        "'two', but instance 4 as 'one'. Give all instances the same settings and the "
        "same installation of popdist.\n"
    )
    assert ended == [(0, refusal, "")] * 2


def test_a_lost_member_is_known_by_its_instance() -> None:
    with Meeting(3) as meeting:
        join = "join(instances=(4, 6, 8))"
        pids = [meeting.start(rank, join) for rank in range(2)]
        meeting.wait_for_joiners(1)
        os.kill(pids[1], signal.SIGKILL)
        meeting.start(2, "join(instances=(4, 6, 8))")
        first, _, last = meeting.finish()

    lost = (
        f"PeerLostError(6,): Instance 6 (process {pids[1]}) ended or gave up while "
        f"the instances met. {LAST_WORDS}"
    )
    assert (first, last) == ((0, lost, ""),) * 2


def test_a_process_that_only_has_the_number_of_a_member_is_none() -> None:
    body = """
        started = meet.started
        meet.started = lambda pid: 7 if pid == os.getpid() else started(pid)
        join()
    """
    ended = run(2, "join()", {1: body})

    lost = (
        "PeerLostError(1,): Instance 1 (process N) ended or gave up while the "
        f"instances met. {LAST_WORDS}"
    )
    assert [anonymous(e) for e in ended] == [lost] * 2


@pytest.mark.parametrize("victim", [0, 1])
def test_ctrl_c_ends_the_wait_and_the_others_know(victim: int) -> None:
    with Meeting(3) as meeting:
        pids = [meeting.start(rank) for rank in range(2)]
        meeting.wait_for_joiners(1)
        os.kill(pids[victim], signal.SIGINT)
        if victim == 1:
            meeting.start(2)
        ended = meeting.finish()

    assert ended[victim].err.endswith("KeyboardInterrupt\n")
    for other in ended[:victim] + ended[victim + 1 :]:
        assert other.out.startswith(
            f"PeerLostError({victim},): Instance {victim} (process {pids[victim]}) "
        )
    assert meeting.sockets() == 0


def test_ctrl_c_ends_the_wait_for_member_0() -> None:
    with Meeting(2) as meeting:
        pid = meeting.start(1, "print('ready', flush=True)\njoin()")
        meeting.wait_for_line(0)
        os.kill(pid, signal.SIGINT)
        (ended,) = meeting.finish()

    assert ended.err.endswith("KeyboardInterrupt\n")


# --- A stranger comes.


def test_a_layout_of_its_own_is_reported_to_all_and_names_both_sides() -> None:
    with Meeting(4) as meeting:
        for rank in (0, 1):
            meeting.start(rank)
        meeting.wait_for_joiners(1)
        pid = meeting.start(2, "join(layout='two')")
        meeting.start(3)
        ended = meeting.finish()

    refusal = (
        f"MismatchError: Instance 2 (process {pid}) lays the shared memory out as "
        "'two', but instance 0 as 'one'. Give all instances the same settings and the "
        "same installation of popdist.\n"
    )
    assert ended == [(0, refusal, "")] * 4


def test_a_group_of_another_size_is_reported_to_all() -> None:
    # Member 0 stays for the third, which never comes, and only then raises.
    hasty = """
        leader.LINGER = 0.1
        join()
    """
    ended = run(2, hasty, {1: "size = 3\njoin()"})

    refusal = (
        "MismatchError: Instance 1 (process N) expects a group of 3 instances, but "
        "instance 0 expects 2. All of them must name the same group.\n"
    )
    assert [anonymous(e) for e in ended] == [refusal] * 2


def test_members_of_a_larger_group_are_told_though_member_0_expects_fewer() -> None:
    with Meeting(3) as meeting:
        meeting.start(0, "size = 2\njoin()")
        meeting.wait_for_joiners(0)
        meeting.start(1)
        meeting.wait_for_end(1)
        meeting.start(2)
        ended = meeting.finish()

    refusal = (
        "MismatchError: Instance 1 (process N) expects a group of 3 instances, but "
        "instance 0 expects 2. All of them must name the same group.\n"
    )
    assert [anonymous(e) for e in ended] == [refusal] * 3


def test_a_rank_that_two_processes_have_is_reported_to_all() -> None:
    with Meeting(3) as meeting:
        for rank in (0, 1):
            meeting.start(rank)
        meeting.wait_for_joiners(1)
        meeting.start(1)
        ended = meeting.finish()

    refusal = (
        "MismatchError: Processes N both say that they are instance 1 of this group. "
        "Give each process of the group a rank of its own.\n"
    )
    assert [anonymous(e) for e in ended] == [refusal] * 3


def test_one_that_takes_the_place_of_a_known_one_is_refused_alone() -> None:
    with Meeting(3) as meeting:
        real = meeting.start(1, UNTIL_SIGNAL + KEEP)
        meeting.wait_for_line(0)
        known = f"known = {{1: Pidfd({real}, os.pidfd_open({real}))}}"
        meeting.start(0, f"{known}\njoin(known=known)\nprint('met', flush=True)")
        meeting.wait_for_joiners(0)
        false = meeting.start(1)
        meeting.wait_for_end(2)
        os.kill(real, signal.SIGUSR1)
        meeting.start(2, KEEP)
        ended = meeting.finish()

    assert ended.pop(2).out == (
        f"MismatchError: Process {false} says that it is instance 1, but that is "
        f"process {real}. A process that an instance starts takes no part in its "
        "collectives: make the calls in the instance itself.\n"
    )
    assert ended == [(0, "met\n", "")] * 3


def test_one_that_listens_in_place_of_a_known_one_is_not_believed() -> None:
    with Meeting(2) as meeting:
        false = meeting.start(0)
        meeting.wait_for_joiners(0)
        real = meeting.start(0, UNTIL_SIGNAL + KEEP)
        meeting.wait_for_line(1)
        known = f"known = {{0: Pidfd({real}, os.pidfd_open({real}))}}"
        meeting.start(1, f"{known}\njoin(known=known)\nprint('met', flush=True)")
        meeting.wait_for_end(0)
        os.kill(real, signal.SIGUSR1)
        ended = meeting.finish()

    assert ended.pop(0).out == (
        f"MismatchError: Process {false} says that it is instance 0, but that is "
        f"process {real}. A process that an instance starts takes no part in its "
        "collectives: make the calls in the instance itself.\n"
    )
    assert [e.out.strip() for e in ended] == ["met"] * 2


def test_a_second_member_0_is_refused() -> None:
    with Meeting(2) as meeting:
        pid = meeting.start(0)
        meeting.wait_for_joiners(0)
        meeting.start(0)
        meeting.wait_for_end(1)
        meeting.start(1)
        first, second, third = meeting.finish()

    assert (first, third) == ((0, "", ""), (0, "", ""))
    address = address_of(meeting.name)[1:].decode()
    assert second.out == (
        f"ArenaError: The socket {address!r} is in use: process {pid} is already "
        "instance 0 of this group. Start one process for each instance.\n"
    )


NO_PROC = """
def started(pid):
    raise arena.ArenaError("/proc is not mounted here.")
meet.started = started
join()
"""


@pytest.mark.parametrize("member", [0, 1, 2])
def test_all_get_the_error_of_a_member_that_cannot_take_part(member: int) -> None:
    ended = run(3, "join()", {member: NO_PROC})

    assert [one.out for one in ended] == [
        "ArenaError: /proc is not mounted here.\n"
    ] * 3


# --- Other users.

OTHER_USER = "os.setuid(65534)\n"
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@AS_ROOT
@pytest.mark.parametrize("other", [0, 1])
def test_a_member_of_another_user_than_member_0_says_so_at_once(other: int) -> None:
    begin = {other: OTHER_USER}
    with Meeting(2) as meeting:
        # It needs no time to start once member 0 counts the seconds.
        joiner = meeting.start(1, begin.get(1, "") + UNTIL_SIGNAL + "join()")
        meeting.wait_for_line(0)
        leader = meeting.start(0, begin.get(0, "") + "join(timeout=5)")
        meeting.wait_for_joiners(0)
        os.kill(joiner, signal.SIGUSR1)
        second, first = meeting.finish()

    users = (65534, 0) if other == 0 else (0, 65534)
    assert second.out == (
        f"ArenaError: Process {leader} of user {users[0]} listens where instance 0 "
        f"should, but instance 1 belongs to user {users[1]}. Start all instances as "
        "the same user, and the job again.\n"
    )
    assert first.out.endswith(
        f" Process {joiner} of user {users[1]} has tried to join: start all instances "
        "as the same user.\n"
    )


@AS_ROOT
def test_another_user_that_comes_without_the_name_does_not_disturb() -> None:
    stranger = f"""
        {OTHER_USER}
        {STRANGER.replace(chr(10), chr(10) + " " * 8)}
        many = [connect(address_of(name)) for _ in range(300)]
        for one in many:
            if one is not None:
                try:
                    one._socket.send(b'["refusal", ["ArenaError", "", []]]')
                except ConnectionError:
                    pass
        print("said", flush=True)
        time.sleep(1000)
    """
    with Meeting(2) as meeting:
        meeting.start(0, KEEP)
        meeting.wait_for_joiners(0)
        pid = meeting.start(1, stranger)
        meeting.wait_for_line(1)
        meeting.start(1, KEEP)
        meeting.wait_for_end(0)
        os.kill(pid, signal.SIGKILL)
        first, _, last = meeting.finish()

    assert (first, last) == ((0, "met\n", ""),) * 2


@AS_ROOT
def test_an_address_that_another_user_holds_is_an_error() -> None:
    squatter = f"""
        {OTHER_USER}
        from popdist.engine.meet.connection import listen
        from popdist.engine.meet.group_name import address_of
        listener = listen(address_of(name), 1)
        time.sleep(1000)
    """
    with Meeting(2) as meeting:
        pid = meeting.start(0, squatter)
        meeting.wait_for_joiners(0)
        meeting.start(0)
        meeting.wait_for_end(1)
        os.kill(pid, signal.SIGKILL)
        _, ended = meeting.finish()

    address = address_of(meeting.name)[1:].decode()
    assert ended.out == (
        f"ArenaError: Instance 0 cannot listen at the socket {address!r}: process "
        f"{pid} of user 65534 does. Start all instances as the same user, and the job "
        "again.\n"
    )


@AS_ROOT
def test_members_in_two_time_namespaces_meet() -> None:
    away = """
if "AWAY" not in os.environ:
    os.environ["AWAY"] = "1"
    os.set_inheritable(int(sys.argv[4]), True)
    away = ["unshare", "--fork", "--time", "--boottime", "100000"]
    os.execvp("unshare", [*away, *sys.orig_argv])
"""
    ended = run(3, KEEP, {1: away + KEEP})

    assert ended == [(0, "met\n", "")] * 3


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "pidfd_open",
            "The kernel refuses pidfd_open (Operation not permitted), by which popdist "
            "sees whether the other instances are alive. Allow it in the seccomp "
            "profile of "
            "the container, or use Linux 5.3 or newer.",
        ),
        (
            "memfd_create",
            "The kernel refuses memfd_create (Operation not permitted), by which "
            "popdist makes the memory that instances share. Allow it in the seccomp "
            "profile of the container.",
        ),
    ],
)
def test_a_forbidden_system_call_is_named(call: str, words: str) -> None:
    forbid = f"""
        def forbidden(*_):
            raise PermissionError(1, os.strerror(1))
        os.{call} = forbidden
        join()
    """
    ended = run(2, forbid)

    assert ended[0].out == f"ArenaError: {words}\n"
    assert ended[1].out.startswith("ArenaError: The kernel refuses")


def test_a_machine_without_proc_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.open", missing)
    monkeypatch.setattr("os.path.exists", lambda _: False)

    with pytest.raises(ArenaError) as refusal:
        started(1)

    monkeypatch.undo()
    assert str(refusal.value) == (
        "/proc is not mounted here, but popdist reads it to see whether the other "
        "instances are alive. Mount it: mount -t proc proc /proc."
    )


def missing(*_: object) -> None:
    raise FileNotFoundError


def test_members_in_two_user_namespaces_meet() -> None:
    away = """
if "AWAY" not in os.environ:
    os.environ["AWAY"] = "1"
    os.set_inheritable(int(sys.argv[4]), True)
    os.execvp("unshare", ["unshare", "--map-root-user", *sys.orig_argv])
"""
    ended = run(3, KEEP, {1: away + KEEP})

    assert ended == [(0, "met\n", "")] * 3


def test_another_version_is_reported_to_all() -> None:
    newer = """
        from popdist.engine.meet import messages
        meet.Hello = lambda *fields: messages.Hello(*fields, version=9)
        join()
    """
    ended = run(3, "join()", {2: newer})

    refusal = (
        "MismatchError: Instance 2 (process N) speaks version 9 of how instances meet, "
        "but instance 0 speaks version 4. Start all of them with the same "
        "installation of popdist.\n"
    )
    assert [anonymous(e) for e in ended] == [refusal] * 3


@pytest.mark.parametrize(
    ("hello", "objection"),
    [
        pytest.param(
            HOST._replace(rank=3),
            "Process 42 says that it is member 3, but a group of 3 has place for 1 "
            "to 2 beside instance 0.",
            id="rank-beyond-the-size",
        ),
        pytest.param(
            HOST._replace(rank=1, pid=7),
            "Instance 1 (process 42) calls itself process 7, so it is in another PID "
            "namespace than instance 0. Start the instances of a host in one "
            "container, or in containers that share their PID namespace.",
            id="another-pid-namespace",
        ),
        pytest.param(HOST._replace(rank=2), None, id="a-good-one"),
    ],
)
def test_the_objection_to_a_hello_has_the_values(
    hello: Hello, objection: str | None
) -> None:
    assert hello.objection(HOST, 42, (0, 1, 2)) == objection


# --- What they say.


def test_a_hello_is_read_as_it_was_written() -> None:
    packet = json.dumps(("hello", HOST._asdict())).encode()

    assert Hello.decode(MeetingMessage.decode(packet)) == HOST


@pytest.mark.parametrize(
    "error",
    [
        ArenaError("\N{OHM SIGN}"),
        MismatchError("a"),
        CollectiveTimeoutError("t"),
        PeerLostError("lost", (3, 12)),
        PeerLostError("lost", ()),
    ],
)
def test_a_refusal_is_raised_as_it_was_told(error: PopdistError) -> None:
    told = decode_refusal(json.loads(json.dumps(encode_refusal(error))))

    assert (type(told), str(told)) == (type(error), str(error))
    assert vars(told) == vars(error)


def test_an_error_of_another_kind_is_told_as_one_of_the_arena() -> None:
    told = decode_refusal(encode_refusal(PopdistError("other")))

    assert (type(told), str(told)) == (ArenaError, "other")


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "instance 3"),
        ([1, 2], "instances 1 and 2"),
        ([0, 4, 12], "instances 0, 4 and 12"),
        (range(64), "instances 0 to 63"),
        ([0, 1, 2, 5, 6, 7, 8, 10], "instances 0, 1, 2, 5 to 8 and 10"),
    ],
)
def test_instances_are_named_as_in_a_sentence(ranks: Sequence[int], words: str) -> None:
    assert name_instances(ranks) == words
