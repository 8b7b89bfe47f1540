"""The generations of a job's members, as poprun tells them."""

import json
import os
import secrets
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from popdist import generations
from popdist.control import pack
from popdist.errors import ElasticError
from popdist.generations import Generations
from tests.jobs import environments


class Job:
    """An instance whose job can re-form; a test sends it the messages of poprun."""

    def __init__(self) -> None:
        name = f"test-{os.getpid()}-{secrets.token_hex(8)}"
        self.environ = environments([1])[0] | {"POPDIST_CONTROL": f"@{name}/key"}
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
    with closing(Job()) as job:
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
