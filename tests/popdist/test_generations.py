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
from popdist.errors import ElasticError
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
    {"generation": 1, "why": "Instance 1 has ended.", "environ": {"NEW": "yes"}},
)


def change(kind: str) -> tuple[int, dict[str, object]]:
    return generations.MEMBERS_CHANGE, {"kind": kind, "why": f"One is {kind}."}


def test_only_changes_after_the_answer_belong_to_the_new_generation(job: Job) -> None:
    job.send(change("lost"), REFORMED, change("added"))

    job.generations.reform(job.environ, 100, lambda: None)

    assert job.generations.pending() == ("added", "One is added.")


def test_an_interrupted_call_is_repeated_for_the_same_generation(
    job: Job,
) -> None:
    begun = list[int]()

    def begin() -> None:
        begun.append(job.generations.current)
        if len(begun) == 1:
            raise KeyboardInterrupt

    job.send(REFORMED)
    with pytest.raises(KeyboardInterrupt):
        job.generations.reform(job.environ, 100, begin)
    del job.environ["NEW"]
    job.generations.reform(job.environ, 100, begin)

    assert (begun, job.environ["NEW"]) == ([1, 1], "yes")


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
