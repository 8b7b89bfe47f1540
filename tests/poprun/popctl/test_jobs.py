import json
import os
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from poprun.errors import JobRequestError, OptionError
from poprun.popctl import jobs
from poprun.popctl.jobs import (
    JobConnection,
    choose_job,
    connect,
    job_and_instance,
    listening_names,
)
from poprun.wire import protocol
from poprun.wire.channel import Channel

Answer = Callable[[Channel], None]


class FakeJob:
    """Listens as a job does, in a thread, and answers each request alike."""

    def __init__(self, identity: str, answer: bytes = b"") -> None:
        self.identity = identity
        self._answer = answer
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.bind(f"\0{protocol.CLIENTS_NAME}{identity}")
        self._sock.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            with peer:
                if peer.recv(1000):
                    peer.sendall(self._answer)

    def close(self) -> None:
        self._sock.shutdown(socket.SHUT_RDWR)
        # The thread may be about to accept from the descriptor, whatever it is by then.
        self._thread.join()
        self._sock.close()


@pytest.fixture(autouse=True)
def own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give fake jobs names that no popctl of another test takes for jobs."""
    prefix = f"popctl-test-{os.getpid()}-"
    monkeypatch.setattr(protocol, "CLIENTS_NAME", prefix)
    monkeypatch.setattr(jobs, "NAME", rf"@{prefix}([0-9a-f]{{32}})")
    monkeypatch.setattr(jobs, "ANSWER_S", 200.0)


@pytest.fixture
def start_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeJob]]:
    """Start fake jobs, which are all that popctl finds."""
    started: list[FakeJob] = []

    def start(beginning: str, answer: bytes = b"") -> FakeJob:
        random = os.urandom(16).hex()
        started.append(FakeJob(beginning + random[len(beginning) :], answer))
        return started[-1]

    monkeypatch.setattr(
        jobs,
        "listening_names",
        lambda: sorted(set(listening_names()) & {job.identity for job in started}),
    )
    yield start
    for job in started:
        job.close()


def test_only_sockets_that_listen_and_are_named_after_a_job_are_jobs(
    start_job: Callable[..., FakeJob],
) -> None:
    job = start_job("")
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(f"\0{protocol.CLIENTS_NAME}../../etc")
        other.listen()
        names = listening_names()

    assert job.identity in names
    assert all(len(name) == 32 for name in names)


def test_a_job_is_named_by_the_beginning_of_its_id_or_not_at_all(
    start_job: Callable[..., FakeJob],
) -> None:
    first = start_job("aa1")
    connection = choose_job(None)
    assert connection.identity == first.identity
    connection.close()

    second = start_job("aa2")
    connection = choose_job("aa2")
    assert (connection.identity, connection.pid) == (second.identity, os.getpid())
    connection.close()


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        (None, "2 jobs are running. Choose one of them:"),
        ("a", "The ids of 2 jobs begin with 'a'. Choose one of them:"),
        ("b", "There is no job 'b'. These jobs run:"),
    ],
)
def test_a_word_that_means_no_job_or_several_is_refused_with_their_programs(
    start_job: Callable[..., FakeJob], word: str | None, sentence: str
) -> None:
    first, second = (start + os.urandom(15).hex() for start in ("a1", "a2"))
    views = [
        {
            "id": first,
            "elapsed": 65.5,
            "program": ["python", "a b.py", "x\n" + "y" * 60],
        },
        {"id": second, "elapsed": 7.0, "program": ["./solve"]},
    ]
    for view in views:
        answer = protocol.pack(protocol.JOB_SHOWN, json.dumps(view).encode())
        start_job(str(view["id"]), answer)

    with pytest.raises(JobRequestError) as refused:
        choose_job(word)

    assert str(refused.value) == (
        f"{sentence}\n"
        rf"    {first[:8]}  1:05 old  python 'a b.py' 'x\n{'y' * 39}…"
        "\n"
        f"    {second[:8]}  0:07 old  ./solve"
    )


def test_a_job_that_is_busy_is_listed_without_its_program(
    start_job: Callable[..., FakeJob],
) -> None:
    refusal = protocol.pack(protocol.REQUEST_REFUSED, b"The job has 16 other clients.")
    names = [start_job(start, refusal).identity[:8] for start in ("a1", "a2")]

    with pytest.raises(JobRequestError) as refused:
        choose_job("b")

    assert str(refused.value) == (
        f"There is no job 'b'. These jobs run:\n    {names[0]}  no answer  (PID "
        f"{os.getpid()})\n    {names[1]}  no answer  (PID {os.getpid()})"
    )


def test_without_a_job_a_sentence_says_so(start_job: Callable[..., FakeJob]) -> None:
    with pytest.raises(JobRequestError, match=r"^No job of user \w+ runs on this mach"):
        choose_job(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_is_no_client_of_another_users_job() -> None:
    identity = os.urandom(16).hex()
    ready, is_ready = os.pipe()
    end, may_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(65534, 65534, 65534)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(f"\0{protocol.CLIENTS_NAME}{identity}")
            sock.listen()
            os.write(is_ready, b".")
            os.read(end, 1)
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        assert identity in listening_names()
        assert connect(identity) is None
    finally:
        os.write(may_end, b".")
        os.waitpid(pid, 0)
        for descriptor in (ready, is_ready, end, may_end):
            os.close(descriptor)


def test_a_job_that_has_just_ended_is_none() -> None:
    assert connect(os.urandom(16).hex()) is None


def test_jobs_are_shown_the_oldest_first(start_job: Callable[..., FakeJob]) -> None:
    for beginning, started in (("a", 3.0), ("b", 1.0), ("c", 2.0)):
        view = json.dumps({"id": beginning, "started": started}).encode()
        start_job(beginning, protocol.pack(protocol.JOB_SHOWN, view))
    start_job("d")  # ends meanwhile

    views, refusals, _ = jobs.show_jobs()
    assert [view["id"] for view in views] == ["b", "c", "a"]
    assert refusals == []


def test_a_job_whose_queue_of_connections_is_full_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    identity = os.urandom(16).hex()
    monkeypatch.setattr(jobs, "ANSWER_S", 0.1)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{protocol.CLIENTS_NAME}{identity}")
        listener.listen(0)
        first = connect(identity)
        with pytest.raises(JobRequestError, match="accepts no connection"):
            connect(identity)
    assert first is not None
    first.close()


def test_a_job_that_accepts_no_connection_hides_no_other(
    start_job: Callable[..., FakeJob], monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = "b" + os.urandom(16).hex()[1:]
    view = json.dumps({"id": "a"}).encode()
    running = start_job("a", protocol.pack(protocol.JOB_SHOWN, view))
    monkeypatch.setattr(jobs, "listening_names", lambda: [stopped, running.identity])
    own_jobs = jobs.own_jobs

    def connect_to_all() -> tuple[list[JobConnection], dict[str, JobRequestError]]:
        # The job that accepts connections may take its time to answer.
        with monkeypatch.context() as hurry:
            hurry.setattr(jobs, "ANSWER_S", 0.1)
            return own_jobs()

    monkeypatch.setattr(jobs, "own_jobs", connect_to_all)
    sentence = f"Job {stopped[:8]} accepts no connection."
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{protocol.CLIENTS_NAME}{stopped}")
        listener.listen(0)
        first = connect(stopped)
        views, refusals, _ = jobs.show_jobs()
        chosen = choose_job("a")
        for word in ("b", None):
            with pytest.raises(JobRequestError, match=sentence):
                choose_job(word)
    assert first is not None
    first.close()
    chosen.close()

    assert [view["id"] for view in views] == ["a"]
    assert [str(refusal).startswith(sentence) for refusal in refusals] == [True]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["cafe", "1"], ("cafe", 1)),
        (["1"], (None, 1)),
        (["123456", "01"], ("123456", 1)),
    ],
)
def test_a_short_number_at_the_end_is_an_instance(
    words: list[str], named: tuple[str | None, int]
) -> None:
    assert job_and_instance(words, needs_instance=True) == named


@pytest.mark.parametrize("words", [[], ["cafe"], ["1", "cafe"], ["a", "b", "1"]])
def test_words_that_name_no_instance_are_refused(words: list[str]) -> None:
    with pytest.raises(OptionError) as raised:
        job_and_instance(words, needs_instance=True)

    typed = " ".join(words)
    problem = (
        f"'{typed}' is not a job and an instance"
        if words
        else "The instance is missing"
    )
    assert str(raised.value) == (
        f"{problem}: write JOB INSTANCE, or only INSTANCE if a single job is running."
    )


def test_an_instance_may_be_left_out_where_all_are_meant() -> None:
    assert job_and_instance([], needs_instance=False) == (None, None)
    assert job_and_instance(["cafe"], needs_instance=False) == ("cafe", None)
