import re

import pytest

from poprun.trace.analysis import (
    TraceError,
    analyse,
    conclusion,
    duration_text,
    slowest,
)
from poprun.trace.page import MOST_CALLS, as_page, tick_length
from poprun.trace.record_files import RecordedGroup, Span
from poprun.trace.summary_tables import as_text, tables
from tests.poprun.trace.samples import (
    BEGIN,
    LATE,
    MS,
    calls_of,
    document,
    events,
    process,
)


def test_the_tables_say_who_waited_for_whom() -> None:
    assert as_text(analyse(document()), 2) == (
        "The instances waited 195 ms for each other in total; 100 % of that was "
        "for instance 2, which was the last to begin 5 of 5 calls.\n\ninstance   "
        "                   calls   bytes  waited  moved  last  others waited\n"
        "instance 0 (PID 100 on here)      5  20 KiB  100 ms   5 ms     0        "
        "   0 us\ninstance 1 (PID 101 on here)      5  20 KiB   95 ms   5 ms     "
        "0           0 us\ninstance 2 (PID 102 on here)      5  20 KiB    0 us   "
        "5 ms     5         195 ms\n\nwaited for  instance 2\ninstance 0      "
        "100 ms\ninstance 1       95 ms\ninstance 2           -\n\nspans  of     "
        "     times   total  longest\nstep   instance 0      1  100 ms   100 ms\n"
        "step   instance 1      1  100 ms   100 ms\nstep   instance 2      1  "
        "100 ms   100 ms\n\nslowest calls     operation  bytes      at   took  "
        "waited in all        last  late by\ngroup 0, call 1  all_reduce  4 KiB  "
        "100 ms  21 ms          39 ms  instance 2    20 ms\ngroup 0, call 2  "
        "all_reduce  4 KiB  200 ms  21 ms          39 ms  instance 2    20 ms\n"
    )


def test_a_call_that_not_all_have_recorded_says_nothing_of_who_was_late() -> None:
    summary = analyse(document(events([process(0), process(2)])))

    assert summary.waits == {}
    assert [one.is_complete for one in slowest(summary.joint_calls, 1)] == [False]


def test_a_job_without_calls_is_told() -> None:
    assert conclusion(analyse(document(events([])))) == (
        "No instance recorded any popdist calls. Calls of gloo, NCCL and MPI are "
        "not recorded. If the program uses gloo, add --torch-backend popdist."
    )


OURS = {"poprun": "0.1.0"}


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "its JSON is not an object"),
        ({}, "its otherData does not name poprun"),
        ({"traceEvents": []}, "its otherData does not name poprun"),
        ({"otherData": ["poprun"]}, "its otherData does not name poprun"),
        ({"otherData": OURS}, "it has no list of traceEvents"),
        ({"otherData": OURS, "traceEvents": [{}]}, "one of its events lacks 'ph'"),
        (
            {"otherData": OURS, "traceEvents": [3]},
            "one of its events has a value of another type",
        ),
    ],
)
def test_another_file_is_refused(document: object, why: str) -> None:
    with pytest.raises(TraceError, match=f"^{why}$"):
        analyse(document)


INCOMPLETE = (
    "The trace is incomplete and contains no calls: poprun writes them when "
    "the job ends. The job is still running, poprun was killed, or the file "
    "could not be written."
)


def test_an_incomplete_trace_says_so_and_draws_nothing() -> None:
    about = {"poprun": "0.1.0", "complete": "no: poprun has not come to its end"}
    summary = analyse({"otherData": about, "traceEvents": []})

    assert as_text(summary, 10) == f"{INCOMPLETE}\n"
    page = as_page(summary, "killed")
    assert f'<p class="conclusion">{INCOMPLETE}</p>' in page
    assert "<svg" not in page


@pytest.mark.parametrize(
    ("lost", "processes"),
    [
        ((0, 7, 0), "the last 7 of instance 1."),
        ((5, 7, 0), "the last 7 of instance 1, the last 5 of instance 0."),
        (
            (1, 2, 3, 4, 5, 6),
            "the last 6 of instance 5, the last 5 of instance 4, the last 4 of "
            "instance 3, the last 3 of instance 2, and those of 2 more processes.",
        ),
    ],
)
def test_calls_without_room_are_told(lost: tuple[int, ...], processes: str) -> None:
    some = [process(rank, lost=number) for rank, number in enumerate(lost)]
    summary = analyse(document(events(some)))

    sentence = (
        "Some calls are missing from the trace, because there was no room for them: "
        f"{processes}"
    )
    assert as_text(summary, 10).splitlines()[2] == sentence
    assert f'<p class="gap">{sentence}</p>' in as_page(summary, "full")


def test_one_instance_has_no_calls_with_waits() -> None:
    alone = RecordedGroup(identity="5f-77", purpose="replicas", members=(2,))
    summary = analyse(document(events([process(LATE, groups={0: alone})])))

    assert "instance 2 (PID 102 on here)      5" in as_text(summary, 10)
    assert "slowest calls" not in as_text(summary, 10)
    assert 'id="slowest"' not in as_page(summary, "alone")


def test_spans_come_by_the_most_time_of_one_instance() -> None:
    def spans(rank: int) -> list[Span]:
        load = Span(
            name="load",
            thread=71,
            began_ns=BEGIN,
            ended_ns=BEGIN + (300 if rank == LATE else 2) * MS,
        )
        steps = [
            Span(
                name="step",
                thread=71,
                began_ns=BEGIN + n * MS,
                ended_ns=BEGIN + 4 * n * MS,
            )
            for n in (1, 2)
        ]
        return [*steps, load]

    some = [process(rank, spans=spans(rank)) for rank in range(3)]
    summary = analyse(document(events(some)))

    def shown(most_names: int) -> tuple[list[list[str]], str]:
        [table] = [t for t in tables(summary, 0, most_names, 0) if t.name == "spans"]
        return [[cell.text for cell in row] for row in table.rows], table.note

    loads = [
        ["load", "instance 0", "1", "2 ms", "2 ms"],
        ["load", "instance 1", "1", "2 ms", "2 ms"],
        ["load", "instance 2", "1", "300 ms", "300 ms"],
    ]
    steps = [["step", f"instance {rank}", "2", "9 ms", "6 ms"] for rank in range(3)]
    note = "1 more names are not shown; their spans took less time."
    assert shown(1) == (loads, note)
    assert shown(2) == ([*loads, *steps], "")
    assert '<table id="spans">' in as_page(summary, "spans")


@pytest.mark.parametrize(
    ("end", "length"),
    [(1.0, 0.1), (710_000.0, 100_000.0), (1_010_000, 200_000), (2.1e6, 5e5), (7, 1)],
)
def test_ticks_are_one_two_or_five_apart(end: float, length: float) -> None:
    assert tick_length(end) == pytest.approx(length)


def test_the_page_has_a_row_for_each_and_needs_no_network() -> None:
    page = as_page(analyse(document()), "a <job>")

    assert "<title>a &lt;job&gt;</title>" in page
    assert page.count('<g class="row"') == 4
    assert re.findall('text-anchor="middle">(.*?)</text>', page)[:2] == ["0", "100 ms"]
    assert page.count('<rect class="wait"') == 10
    assert page.count('<rect class="move"') == 15
    assert page.count('<rect class="span"') == 3
    assert "<script" not in page
    assert "http" not in page
    assert "src=" not in page


def test_very_many_calls_are_drawn_as_shares() -> None:
    number = MOST_CALLS // 3 + 10
    many = [process(r, calls=calls_of(r, number)) for r in range(3)]

    page = as_page(analyse(document(events(many))), "many")

    assert page.count("<rect") < 4 * 2 * 600 + 100
    assert "show how much of it was spent waiting and moving data" in page


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 us"),
        (12.34, "12.3 us"),
        (4560, "4.56 ms"),
        (1.5e6, "1.5 s"),
        (3.6e9, "3600 s"),
    ],
)
def test_times_are_short(us: float, text: str) -> None:
    assert duration_text(us) == text
