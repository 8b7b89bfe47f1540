"""The generations of a job's members, as poprun tells them."""

import json
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from popdist import generations
from popdist.control import pack
from popdist.errors import CollectiveTimeoutError, ElasticError
from popdist.generations import Generations
from poprun.wire.protocol import Decoder
from tests.jobs import environments


class Job:
    """An instance whose job can re-form; a test sends it the messages of poprun."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        name = f"test-{os.getpid()}-{secrets.token_hex(8)}"
        self.environ = {**environ, "POPDIST_CONTROL": f"@{name}/key"}
        self.generations = Generations()
        with (
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
            ThreadPoolExecutor(1) as threads,
        ):
            listener.bind(b"\0" + name.encode())
            listener.listen(1)
            refusal = threads.submit(self.generations.refusal, self.environ)
            self._poprun = listener.accept()[0]
            answer = json.dumps({"generation": 0, "refusal": ""}).encode()
            self._poprun.sendall(pack(generations.ELASTIC_KNOWN, answer))
            assert refusal.result() == ""
        # What the instance has told: the version, the key and its number.
        [(_, self.told)] = Decoder().feed(self._poprun.recv(1000))

    def send(self, *messages: tuple[int, dict[str, object]]) -> None:
        """Send messages which arrive together."""
        packed = [pack(kind, json.dumps(value).encode()) for kind, value in messages]
        self._poprun.sendall(b"".join(packed))

    def received(self) -> list[int]:
        """Return the kinds of the messages that the instance has sent."""
        return [kind for kind, _ in Decoder().feed(self._poprun.recv(1000))]

    def close_poprun(self) -> None:
        self._poprun.close()

    def close(self) -> None:
        self.close_poprun()
        # It closes the connection.
        self.generations.after_fork()


@pytest.fixture
def job() -> Iterator[Job]:
    with closing(Job(environments([1])[0])) as job:
        yield job


REFORMED = (
    generations.REFORMED,
    {
        "generation": 1,
        "why": "Instance 1 has ended.",
        "environ": {"NEW": "yes", "POPDIST_ELASTIC_JOINS": None},
    },
)


def change(kind: str) -> tuple[int, dict[str, object]]:
    return generations.MEMBERS_CHANGE, {"kind": kind, "why": f"One is {kind}."}


def test_only_changes_after_the_answer_belong_to_the_new_generation(job: Job) -> None:
    job.send(change("lost"), REFORMED, change("added"))

    job.generations.reform(job.environ, 100, lambda: None)

    assert job.generations.pending() == ("added", "One is added.")


def test_a_loss_is_told_before_instances_that_join(job: Job) -> None:
    job.send(change("added"), change("lost"))

    assert job.generations.await_loss(100)
    assert job.generations.pending() == ("lost", "One is lost.")


def test_an_interrupted_call_is_repeated_for_the_same_generation(
    job: Job,
) -> None:
    begun = list[tuple[int, str]]()

    def begin() -> None:
        begun.append((job.generations.current, job.environ["NEW"]))
        if len(begun) == 1:
            raise KeyboardInterrupt

    job.send(REFORMED)
    with pytest.raises(KeyboardInterrupt):
        job.generations.reform(job.environ, 100, begin)
    del job.environ["NEW"]
    job.generations.reform(job.environ, 100, begin)

    # Until it has begun, other threads find the earlier generation.
    assert begun == [(0, "yes"), (0, "yes")]
    assert job.generations.current == 1


def test_a_call_after_one_that_took_too_long_tells_poprun_nothing_again(
    job: Job,
) -> None:
    with pytest.raises(CollectiveTimeoutError, match=r"not re-formed within 0.01 s"):
        job.generations.reform(job.environ, 0.01, lambda: None)
    job.send(REFORMED)
    job.generations.reform(job.environ, 100, lambda: None)

    assert job.received() == [generations.REFORM]
    assert job.generations.current == 1


def test_an_instance_that_joins_by_its_first_re_forming_does_not_join_again(
    job: Job,
) -> None:
    job.environ["POPDIST_ELASTIC_JOINS"] = "1"
    job.send(REFORMED)
    job.generations.reform(job.environ, 100, lambda: None)

    job.generations.join(job.environ, 0.01)

    assert (job.generations.current, job.generations.lacks_state) == (1, True)


def test_a_fork_of_an_instance_cannot_re_form(job: Job) -> None:
    job.send(REFORMED)
    job.generations.reform(job.environ, 100, lambda: None)

    job.generations.after_fork()

    assert job.generations.current == 1
    with pytest.raises(ElasticError, match=r"^This process was forked from an inst"):
        job.generations.check(job.environ)


def test_a_sentence_says_that_poprun_has_ended(job: Job) -> None:
    job.close_poprun()

    with pytest.raises(ElasticError, match=r"it has ended, or does not know this job"):
        job.generations.reform(job.environ, 100, lambda: None)


def test_a_process_that_a_member_starts_tells_the_number_of_its_instance(
    job: Job,
) -> None:
    variables = {"OMPI_COMM_WORLD_RANK": "1", "POPDIST_ELASTIC_MEMBERS": "3,0"}
    reformed = {"generation": 1, "why": "", "environ": variables}
    job.send((generations.REFORMED, reformed))
    job.generations.reform(job.environ, 100, lambda: None)

    with closing(Job(job.environ)) as started:
        assert started.environ["OMPI_COMM_WORLD_RANK"] == "1"
        assert started.told == job.told == [b"1", b"key", b"0"]


def test_a_wait_for_a_loss_ends_when_poprun_tells_of_it_or_ends(job: Job) -> None:
    job.send(change("added"))
    assert not job.generations.await_loss(0.01)

    with ThreadPoolExecutor(1) as threads:
        is_lost = threads.submit(job.generations.await_loss, 100)
        job.send(change("lost"))
        assert is_lost.result()

    job.send(REFORMED)
    job.generations.reform(job.environ, 100, lambda: None)
    job.close_poprun()
    assert not job.generations.await_loss(100)
