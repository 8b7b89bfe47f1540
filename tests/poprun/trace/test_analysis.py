import pytest

from poprun.trace.analysis import TraceError, analyse, conclusion, in_time, slowest
from poprun.trace.page import MOST_CALLS, as_page
from poprun.trace.tables import as_text
from tests.poprun.trace.samples import calls_of, document, events, process


def test_the_tables_say_who_waited_for_whom() -> None:
    assert as_text(analyse(document()), 2) == (
        "The instances have waited 195 ms for each other, added up; 100 % of that for "
        "instance 2, which began 5 of 5 calls last.\n"
        "\n"
        "            calls   bytes  waited  moved  last  others waited\n"
        "instance 0      5  20 KiB  100 ms   5 ms     0           0 us\n"
        "instance 1      5  20 KiB   95 ms   5 ms     0           0 us\n"
        "instance 2      5  20 KiB    0 us   5 ms     5         195 ms\n"
        "\n"
        "waited for  instance 2\n"
        "instance 0      100 ms\n"
        "instance 1       95 ms\n"
        "instance 2           -\n"
        "\n"
        "slowest calls     operation  bytes      at   took  waited in all        last"
        "  late by\n"
        "group 0, call 1  all_reduce  4 KiB  100 ms  21 ms          39 ms  instance 2"
        "    20 ms\n"
        "group 0, call 2  all_reduce  4 KiB  200 ms  21 ms          39 ms  instance 2"
        "    20 ms\n"
    )


def test_a_call_that_not_all_have_recorded_says_nothing_of_who_was_late() -> None:
    summary = analyse(document(events([process(0), process(2)])))

    assert summary.waits == {}
    assert [one.is_complete for one in slowest(summary.together, 1)] == [False]


def test_a_job_without_calls_is_told() -> None:
    assert conclusion(analyse(document(events([])))) == (
        "No instance has recorded a call of popdist's."
    )


@pytest.mark.parametrize(
    "document",
    [[], {}, {"traceEvents": []}, {"traceEvents": [{}], "otherData": {"poprun": ""}}],
)
def test_another_file_is_refused(document: object) -> None:
    with pytest.raises(TraceError):
        analyse(document)


def test_the_page_has_a_row_for_each_and_needs_no_network() -> None:
    page = as_page(analyse(document()), "a <job>")

    assert "<title>a &lt;job&gt;</title>" in page
    assert page.count('<g class="row"') == 4
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
    assert "are the shares of waiting and moving" in page


@pytest.mark.parametrize(
    ("us", "text"),
    [(0, "0 us"), (12.34, "12.3 us"), (4560, "4.56 ms"), (1.5e6, "1.5 s")],
)
def test_times_are_short(us: float, text: str) -> None:
    assert in_time(us) == text
