"""Which instances have not begun a call of torch's gloo."""

import pytest

from poprun.supervise.group_calls import BACKWARD, GroupCalls
from poprun.wire.events import UsageMeasured

WORLD, PAIR = 7, 9


def usage(
    rank: int, *group_calls: int, number: int = 0, operation: str = "", cpu: float = 0.0
) -> UsageMeasured:
    """Return a measurement; with a number, of an instance that waits in WORLD."""
    return UsageMeasured(
        rank=rank,
        cpu_s=cpu,
        memory_kib=0,
        num_processes=1,
        operation=operation or ("all_reduce" if number else ""),
        waited_s=6.0 if number else 0.0,
        group=WORLD if number else 0,
        number=number,
        members=(0, 1, 3) if number else (),
        group_calls=group_calls,
    )


@pytest.mark.parametrize(
    ("others", "missing"),
    [
        pytest.param((), (1, 3), id="not-measured"),
        pytest.param((usage(1, WORLD, 4), usage(3, WORLD, 5)), (1,), id="behind"),
        pytest.param((usage(1, PAIR, 5), usage(3, WORLD, 6)), (1,), id="another-group"),
        pytest.param(
            (usage(1, WORLD, 4), usage(3, WORLD, 5), usage(1, PAIR, 1, WORLD, 5)),
            (),
            id="all-have-come",
        ),
    ],
)
def test_those_that_have_begun_fewer_calls_of_the_group_are_missing(
    others: tuple[UsageMeasured, ...], missing: tuple[int, ...]
) -> None:
    calls = GroupCalls()
    waiting = usage(0, WORLD, 5, PAIR, 2, number=5)
    for each in (waiting, *others):
        calls.note(each)

    complete = calls.complete(waiting)

    assert complete.missing == missing
    # Otherwise it is not the others that the call takes long for.
    assert complete.waited_s == (6.0 if missing else 0.0)


def test_what_popdist_has_measured_stays_as_it_is() -> None:
    own = UsageMeasured(
        rank=0,
        cpu_s=0.0,
        memory_kib=0,
        num_processes=1,
        operation="reduce",
        waited_s=3.0,
        missing=(2,),
        num_calls=4,
    )

    assert GroupCalls().complete(own) == own


@pytest.mark.parametrize(
    ("times", "cpu", "waits"),
    [
        pytest.param((0.0,), (5.0,), False, id="measured-once"),
        pytest.param((0.0, 10.0), (5.0, 5.1), True, id="idle"),
        pytest.param((0.0, 10.0), (5.0, 6.5), False, id="computes"),
        # The kernel's clock ticks: what it shows of a moment is no rate.
        pytest.param((0.0, 10.0, 10.1), (5.0, 5.1, 5.2), True, id="twice-at-once"),
    ],
)
def test_a_backward_pass_waits_only_if_it_uses_no_cpu(
    times: tuple[float, ...], cpu: tuple[float, ...], waits: bool
) -> None:
    clock = iter(times)
    calls = GroupCalls(lambda: next(clock))
    for seconds in cpu:
        last = usage(0, WORLD, 5, number=5, operation=BACKWARD, cpu=seconds)
        calls.note(last)

    assert (calls.complete(last).waited_s > 0) is waits
