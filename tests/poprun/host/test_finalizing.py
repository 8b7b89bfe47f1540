"""When a wait in MPI_Finalize is a failure, when a warning, and when nothing."""

from math import inf

from poprun.host.finalizing import END_S, WARN_S, Finalizing
from poprun.wire.events import FailedInFinalize, WaitsInFinalize

EXIT_3 = 3 << 8


def job(size: int = 3) -> Finalizing:
    return Finalizing(size)


def test_nothing_is_due_without_a_word() -> None:
    assert job().deadline() == inf
    assert job().due(1e9) == []


def test_a_failed_instance_has_failed_when_it_does_not_end() -> None:
    finalizing = job()
    finalizing.note("a", 1, EXIT_3, own=True, now=10)

    assert finalizing.deadline() == 10 + END_S
    assert finalizing.due(10.4) == []
    failed = FailedInFinalize(rank=1, status=EXIT_3, at_ns=10_000_000_000)
    assert finalizing.due(10.5) == [failed]
    assert (finalizing.due(1e9), finalizing.deadline()) == ([], inf)


def test_one_that_ends_has_its_own_exit_status() -> None:
    finalizing = job()
    finalizing.note("a", 1, EXIT_3, own=True, now=10)
    finalizing.end(1)

    assert finalizing.due(1e9) == []
    finalizing.note("b", 1, EXIT_3, own=True, now=10)
    assert finalizing.deadline() == inf


def test_an_unknown_exit_status_is_a_warning_and_nothing_more() -> None:
    finalizing = job()
    finalizing.note("a", 1, None, own=True, now=10)

    assert finalizing.due(10 + WARN_S - 0.1) == []
    assert finalizing.due(10 + WARN_S) == [WaitsInFinalize(rank=1)]
    assert finalizing.deadline() == inf


def test_the_exit_status_of_a_process_below_is_not_the_instances() -> None:
    finalizing = job()
    finalizing.note("a", 1, EXIT_3, own=False, now=10)

    assert finalizing.due(10 + END_S) == []
    assert finalizing.due(10 + WARN_S) == [WaitsInFinalize(rank=1)]


def test_a_process_below_that_ends_in_time_is_nothing() -> None:
    finalizing = job()
    finalizing.note("a", 1, EXIT_3, own=False, now=10)
    finalizing.forget("a")

    assert finalizing.due(1e9) == []


def test_there_is_one_warning() -> None:
    finalizing = job()
    finalizing.note("a", 1, None, own=True, now=10)
    finalizing.note("b", 2, None, own=True, now=11)

    assert finalizing.due(1e9) == [WaitsInFinalize(rank=1)]


def test_there_is_no_warning_where_nothing_else_runs() -> None:
    finalizing = job()
    finalizing.note("a", 0, None, own=True, now=10)
    finalizing.note("b", 1, None, own=True, now=10)
    finalizing.end(2)

    assert finalizing.due(1e9) == []


def test_an_instance_that_does_not_exist_is_none() -> None:
    finalizing = job()
    finalizing.note("a", 3, None, own=False, now=10)

    assert finalizing.deadline() == inf


def test_one_that_succeeds_may_wait_as_long_as_it_takes() -> None:
    finalizing = job()
    finalizing.note("a", 1, 0, own=True, now=10)
    finalizing.note("b", 2, 0, own=False, now=10)

    assert finalizing.deadline() == inf
