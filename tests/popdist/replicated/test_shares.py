import pytest

from popdist.replicated.shares import Share, even_share, share_of


def test_the_first_processes_get_one_sample_more() -> None:
    assert [even_share(11, process, 3) for process in range(3)] == [
        Share(offset=0, length=4),
        Share(offset=4, length=4),
        Share(offset=8, length=3),
    ]


def test_full_steps_leave_samples_over_by_which_a_share_may_move() -> None:
    shares = [
        share_of(31, step=4, process=process, processes=3, drop_last=True)
        for process in range(3)
    ]

    assert shares == [
        Share(offset=0, length=8, leftovers=7),
        Share(offset=8, length=8, leftovers=7),
        Share(offset=16, length=8, leftovers=7),
    ]


def test_too_few_samples_for_one_step_each_are_an_error() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        share_of(11, step=4, process=0, processes=3, drop_last=True)

    assert str(raised.value) == (
        "The data set has 11 samples, but 3 processes that load 4 at a time need 12 or "
        "more. Make the batch smaller, or load them with drop_last=False."
    )
