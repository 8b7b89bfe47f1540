from popdist.call_records import IN_PROGRESS
from poprun.trace.clocks import Clock, ClockReading, clock_of
from poprun.trace.record_files import Call, RecordedGroup
from poprun.trace.timeline import Event
from tests.poprun.trace.samples import BEGIN, MS, call, events, process


def calls_in(some: list[Event], row: int) -> list[Event]:
    return [e for e in some if e.get("cat") == "call" and e["pid"] == row]


def test_each_instance_is_a_row_with_its_name_and_life() -> None:
    made = events()

    names = {e["pid"]: e["args"]["name"] for e in made if e["name"] == "process_name"}
    assert names == {
        0: "poprun",
        1: "instance 0 (PID 100 on here)",
        2: "instance 1 (PID 101 on here)",
        3: "instance 2 (PID 102 on here)",
    }
    assert [e for e in made if e.get("cat") == "life"][2] == {
        "ph": "X",
        "name": "instance 2",
        "cat": "life",
        "pid": 3,
        "tid": 0,
        "ts": 10000.0,
        "dur": 690000.0,
        "args": {"end": "exit code 0", "pid": 102, "host": "here"},
    }


def test_a_call_tells_what_it_was_and_whom_it_waited_for() -> None:
    [first, *_] = calls_in(events(), 2)

    assert first == {
        "ph": "X",
        "name": "all_reduce",
        "cat": "call",
        "pid": 2,
        "tid": 1,
        "ts": 101000.0,
        "dur": 20000.0,
        "args": {
            "call": "group 0, call 1",
            "members": 3,
            "bytes": 4096,
            "waited_us": 19000.0,
            "moved_us": 1000.0,
            "dtype": "float32",
            "reduction": "sum",
            "algorithm": "direct",
            "last_to_begin": 2,
        },
    }


def test_calls_that_belong_together_have_one_name_and_arrows() -> None:
    made = events()

    titles = [[e["args"]["call"] for e in calls_in(made, row)] for row in (1, 2, 3)]
    assert titles[0] == titles[1] == titles[2]
    assert titles[0] == [f"group 0, call {n}" for n in range(1, 6)]
    begins = [e for e in made if e["ph"] == "s"]
    ends = [e for e in made if e["ph"] == "f"]
    # From the late one to the two others, in each of 5 calls.
    assert [e["pid"] for e in begins] == [3] * 10
    assert sorted(e["pid"] for e in ends) == [1] * 5 + [2] * 5
    assert sorted(e["id"] for e in begins) == sorted(e["id"] for e in ends)
    waits = [e for e in made if e.get("cat") == "wait" and e["ph"] == "X"]
    assert {e["name"] for e in waits} == {"waits for instance 2"}
    first = next(e for e in waits if e["pid"] == 1)
    assert (first["ts"], first["dur"]) == (100000, 20000)


def reading(there_ns: int, offset_ms: int) -> ClockReading:
    at = there_ns + offset_ms * MS
    return ClockReading(asked_ns=at, answered_ns=at, there_ns=there_ns)


def test_times_of_another_host_are_on_popruns_clock() -> None:
    # Its clock is 3 s behind, and falls back by 1 ms in a second.
    clock = Clock(first=reading(BEGIN, 3000), last=reading(BEGIN + 1000 * MS, 3001))

    [first, *_] = calls_in(events([process(0, clock)]), 1)

    assert first["ts"] == (100 + 3000 + 0.1) * 1000


def test_of_a_clock_the_quickest_answers_count() -> None:
    readings = [
        ClockReading(asked_ns=0, answered_ns=1000, there_ns=400),
        ClockReading(asked_ns=1000, answered_ns=1100, there_ns=950),
        ClockReading(asked_ns=9000, answered_ns=9050, there_ns=8925),
        ClockReading(asked_ns=9500, answered_ns=9900, there_ns=9500),
    ]

    assert clock_of(readings) == Clock(first=readings[1], last=readings[2])
    assert clock_of(readings[:1]) == Clock(first=readings[0], last=readings[0])
    assert clock_of([]) == Clock()


def test_a_call_in_which_the_process_was_killed_is_marked() -> None:
    killed = call(1, BEGIN + 5 * MS, 0, 0, status=IN_PROGRESS)

    [event] = calls_in(events([process(0, calls=[killed])]), 1)

    assert event["args"]["end"] == "unfinished"
    assert event["args"]["moved_us"] == 0


def test_a_call_of_which_a_part_is_not_recorded_waits_for_none() -> None:
    made = events([process(0), process(1)])

    assert not [e for e in made if e["ph"] in "sf" or e.get("cat") == "wait"]
    assert "last_to_begin" not in calls_in(made, 1)[0]["args"]


def test_messages_are_calls_of_their_own() -> None:
    sent = call(0, BEGIN, BEGIN + MS, 0, operation="send", root=1)

    made = events([process(0, calls=[sent, sent]), process(1, calls=[sent])])

    found = [*calls_in(made, 1), *calls_in(made, 2)]
    assert [e["args"]["call"] for e in found] == ["group 0"] * 3
    assert {e["args"]["to"] for e in found} == {1}


def test_groups_of_one_identity_and_other_members_are_other_groups() -> None:
    other = RecordedGroup(identity="5f-77", purpose="replicas", members=(3, 4))

    made = events([process(0), process(1, groups={0: other})])

    assert calls_in(made, 1)[0]["args"]["call"] == "group 0, call 1"
    assert calls_in(made, 2)[0]["args"]["call"] == "group 1, call 1"


def test_calls_without_room_are_told() -> None:
    [note] = [e for e in events([process(0, lost=7)]) if e["ph"] == "i"]

    assert note["name"] == "7 later calls are not recorded: there was no room"
    assert note["args"] == {"unrecorded": 7}


def test_an_arrow_leads_from_each_send_to_its_recv() -> None:
    def message(operation: str, peer: int, began: int, ended: int) -> Call:
        times = BEGIN + began * MS, BEGIN + ended * MS
        return call(0, *times, 0, operation=operation, root=peer)

    made = events(
        [
            process(0, calls=[message("send", 2, 1, 2), message("send", 2, 3, 4)]),
            process(1, calls=[message("send", 2, 5, 6)]),
            process(
                2,
                calls=[
                    message("recv", 1, 1, 7),
                    message("recv", 0, 8, 9),
                    message("recv", 0, 10, 11),
                    message("recv", 0, 12, 13),  # which no send answers
                ],
            ),
        ]
    )

    arrows = [e for e in made if e.get("cat") == "message"]
    ends = {
        e["id"]: (e["pid"], e["ts"])
        for e in arrows
        if e["ph"] == "f" and e["bp"] == "e"
    }
    begins = {e["id"]: (e["pid"], e["ts"]) for e in arrows if e["ph"] == "s"}
    # From row to row, and when, in us; an arrow ends within the slice of its recv.
    assert sorted((*begins[n], *ends[n]) for n in begins) == [
        (1, 1000.0, 3, 8999.999),
        (1, 3000.0, 3, 10999.999),
        (2, 5000.0, 3, 6999.999),
    ]
    assert begins.keys() == ends.keys()
