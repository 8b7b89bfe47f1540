"""The order and the times in which processes are asked for their stacks."""

from math import inf

from poprun.supervise.stacks import ANSWER_S, QUIET_S, Stacks


class Job:
    """Shims that are asked, and a stderr."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.stderr = {0: b"", 1: b""}
        self.stacks = Stacks(self.ask, self.stderr.__getitem__, self.said.append)

    def ask(self, rank: int, pid: int) -> None:
        self.said.append(f"-> {rank} {pid}")

    def take(self) -> list[str]:
        said, self.said[:] = list(self.said), []
        return said


def label(rank: int, pid: int) -> list[str]:
    return [f"Python stacks of instance {rank} (PID {pid}):", f"-> {rank} {pid}"]


def test_programs_come_first_and_their_children_then_one_after_the_other() -> None:
    job = Job()
    job.stacks.start([0, 1], now=0)
    assert job.take() == ["-> 0 0"]

    job.stacks.answer(0, [10, 11], now=0)
    assert job.take() == label(0, 10)
    for now in (0.1, 0.2):
        job.stderr[0] += b"a line\n"
        job.stacks.tick(now)
    assert (job.take(), job.stacks.deadline()) == ([], 0.2 + QUIET_S)
    job.stacks.tick(0.2 + QUIET_S)
    assert job.take() == ["-> 1 0"]

    job.stacks.answer(1, [20], now=1)
    assert job.take() == label(1, 20)
    job.stacks.tick(1 + ANSWER_S)
    assert job.take() == label(0, 11)
    assert not job.stacks.over
    job.stacks.tick(1 + 2 * ANSWER_S)
    assert (job.take(), job.stacks.over, job.stacks.deadline()) == ([], True, inf)


def test_an_instance_without_python_costs_no_time() -> None:
    job = Job()
    job.stacks.start([0], now=0)
    job.stacks.answer(0, [], now=0.001)

    assert (job.take(), job.stacks.over) == (["-> 0 0"], True)


def test_a_shim_that_does_not_answer_is_passed_over() -> None:
    job = Job()
    job.stacks.start([0, 1], now=0)
    job.stacks.tick(ANSWER_S)
    job.stacks.answer(0, [10], now=ANSWER_S)

    assert job.take() == ["-> 0 0", "-> 1 0"]


def test_a_job_without_shims_is_over_at_once() -> None:
    job = Job()
    job.stacks.start([], now=0)

    assert job.stacks.over


def test_who_was_not_asked_is_told_of() -> None:
    job = Job()
    job.stacks.start([0, 1], now=0)
    job.take()
    job.stacks.stop()

    assert job.take() == [
        "There was not enough time to get the Python stacks of all processes."
    ]
    assert job.stacks.over
    job.stacks.answer(0, [10], now=1)
    job.stacks.tick(1e9)
    assert job.take() == []
