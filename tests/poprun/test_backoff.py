"""The waits before the same thing is tried again."""

from poprun.backoff import doubled_wait, restart_wait


def test_each_wait_is_twice_the_one_before_up_to_the_longest() -> None:
    waits = [doubled_wait(0.5, number, 3.0) for number in range(5)]

    assert waits == [0.5, 1, 2, 3, 3]


def test_a_restart_waits_for_a_minute_at_most_even_after_thousands() -> None:
    waits = [restart_wait(number) for number in (0, 1, 5, 6, 5000)]

    assert waits == [1, 2, 32, 60, 60]
