from poprun.doubts import FOREVER, Doubts

DEATH = b"Traceback (most recent call last):\n  ...\nValueError: no such layer\n"


def test_who_says_nothing_like_a_death_is_never_asked() -> None:
    doubts = Doubts()
    doubts.heard(0, b"loss 0.1\n", now=1)

    assert doubts.deadline() == FOREVER
    assert doubts.to_ask(now=100) == []


def test_an_instance_is_asked_when_it_has_been_quiet_after_a_traceback() -> None:
    doubts = Doubts()
    doubts.heard(3, DEATH, now=1)

    assert doubts.deadline() == 1.5
    assert doubts.to_ask(now=1.4) == []
    assert doubts.to_ask(now=1.5) == [3]


def test_more_words_put_it_off() -> None:
    doubts = Doubts()
    doubts.heard(3, DEATH, now=1)
    doubts.heard(3, DEATH + b"trying again\n", now=1.3)

    assert doubts.to_ask(now=1.5) == []
    assert doubts.to_ask(now=1.8) == [3]


def test_a_traceback_that_is_long_past_counts_no_more() -> None:
    doubts = Doubts()
    doubts.heard(3, DEATH, now=1)
    doubts.heard(3, b"epoch 2\n", now=1.3)

    assert doubts.deadline() == FOREVER


def test_it_is_asked_again_after_ever_longer_waits() -> None:
    doubts = Doubts()
    doubts.heard(3, DEATH, now=0)
    waits, now = [], 0.0
    for _ in range(9):
        waits.append(doubts.deadline() - now)
        now = doubts.deadline()
        assert doubts.to_ask(now) == [3]

    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]


def test_who_has_ended_is_not_asked_whatever_comes_late() -> None:
    doubts = Doubts()
    doubts.heard(3, DEATH, now=1)
    doubts.end(3)
    doubts.heard(3, DEATH, now=1.1)

    assert doubts.deadline() == FOREVER
