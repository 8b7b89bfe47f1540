"""The running jobs of this user, found by the names of their sockets.

No job leaves anything on disk for this, so nothing is stale: a socket in the abstract
namespace disappears with the poprun that listens there. Any user can listen under any
name, so only a listener of the caller's own user is a job; poprun, too, accepts its own
user alone.
"""

import errno
import json
import os
import re
import select
import shlex
import socket
import time
from collections.abc import Sequence

from poprun.errors import JobRequestError, OptionError
from poprun.output.terminal import clock
from poprun.popctl.job_table import View
from poprun.texts.tables import aligned, cut, one_line
from poprun.users import user_name
from poprun.wire import protocol
from poprun.wire.channel import Channel, peer_of

SOCKETS = "/proc/net/unix"
# In a line of that file: the flags of a listening socket, and its name.
LISTENS = "00010000"
NAME = rf"@{protocol.CLIENTS_NAME}([0-9a-f]{{32}})"
# A job that is not suspended answers within milliseconds, even on a loaded machine.
ANSWER_S = 5.0
RETRY_S = 0.02
# How much of an id is shown: two jobs hardly ever have this prefix in common.
SHOWN = 8
NO_ANSWER = "no answer"
# This much of a program's command line is enough to recognise the job.
MOST_COLUMNS = 60

# The kind of a message, and its fields.
Message = tuple[int, list[bytes]]


class JobConnection:
    """A connection to the poprun of a job, for one request."""

    def __init__(self, identity: str, sock: socket.socket) -> None:
        self.identity = identity
        self.name = identity[:SHOWN]
        self.pid = peer_of(sock)[0]
        self._channel = Channel(sock)
        self._messages: list[Message] = []

    def fileno(self) -> int:
        return self._channel.fileno()

    def send(self, kind: int, *fields: bytes | int) -> None:
        """Send the request."""
        self._channel.tell(kind, protocol.VERSION, b"", *fields)

    def take(self) -> list[Message] | None:
        """Return the messages that have come; None if poprun has closed the connection.

        It returns the messages that have come before.
        """
        return self._channel.receive()

    def receive(self, timeout: float | None) -> Message | None:
        """Return the next message, or None when poprun has closed the connection.

        Raises:
            JobRequestError: No message has come in time.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._messages:
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([self._channel], [], [], wait)[0]:
                raise JobRequestError(
                    f"Job {self.name} does not answer. Its poprun (PID {self.pid}) may "
                    "be suspended: see 'ps -o stat'."
                )
            received = self.take()
            if received is None:
                return None
            self._messages = received
        return self._messages.pop(0)

    def close(self) -> None:
        self._channel.close()


def listening_names() -> list[str]:
    """Return the ids of the jobs of all users on this machine.

    Raises:
        JobRequestError: The kernel does not show its sockets.
    """
    try:
        with open(SOCKETS, encoding="utf-8", errors="replace") as file:
            rows = [line.split() for line in file]
    except OSError as error:
        raise JobRequestError(
            f"popctl finds jobs through {SOCKETS}, which cannot be read: "
            f"{error.strerror}."
        ) from None
    listening = (row[7] for row in rows if len(row) == 8 and row[3] == LISTENS)
    return sorted(
        {match[1] for name in listening if (match := re.fullmatch(NAME, name))}
    )


def connect(identity: str, deadline: float | None = None) -> JobConnection | None:
    """Connect to a job; None if it has ended, or is another user's.

    Args:
        deadline: When to give up, by default after the time that a job may take to
            answer.

    Raises:
        JobRequestError: The queue of connections that wait to be accepted is full.
    """
    deadline = time.monotonic() + ANSWER_S if deadline is None else deadline
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        error = sock.connect_ex(b"\0" + (protocol.CLIENTS_NAME + identity).encode())
        if not error and peer_of(sock)[1] == os.geteuid():
            return JobConnection(identity, sock)
        sock.close()
        if error in (0, errno.ECONNREFUSED):
            return None
        if error != errno.EAGAIN or time.monotonic() >= deadline:
            raise JobRequestError(
                f"Job {identity[:SHOWN]} accepts no connection. Its poprun may be "
                "suspended, or belong to another user. To control another job, give "
                "its id."
            )
        time.sleep(RETRY_S)


def own_jobs() -> tuple[list[JobConnection], dict[str, JobRequestError], int]:
    """Connect to all jobs of this user.

    Return the connections, by id the errors of jobs that accept no connection, and the
    number of other users' jobs. A job that accepts none may be another user's, too.
    """
    deadline = time.monotonic() + ANSWER_S
    connections, refusals, others = [], {}, 0
    for identity in listening_names():
        try:
            if (connection := connect(identity, deadline)) is not None:
                connections.append(connection)
            else:
                others += 1
        except JobRequestError as error:
            refusals[identity] = error
    return connections, refusals, others


def choose_job(prefix: str | None) -> JobConnection:
    """Connect to the job with an id that begins with a prefix; None: the only job.

    Raises:
        JobRequestError: There is no such job, or there are several.
    """
    jobs, refusals, _ = own_jobs()
    chosen = [job for job in jobs if job.identity.startswith(prefix or "")]
    refused = [refusals[name] for name in refusals if name.startswith(prefix or "")]
    if refused:
        for job in jobs:
            job.close()
        raise refused[0]
    if not jobs:
        raise JobRequestError(no_jobs())
    if not chosen:
        raise JobRequestError(
            f"There is no job {prefix!r}. These jobs run:\n{_list_of(jobs)}"
        )
    for job in jobs:
        if job not in chosen:
            job.close()
    if len(chosen) == 1:
        return chosen[0]
    which = f"{len(chosen)} jobs are running"
    if prefix:
        which = f"The ids of {len(chosen)} jobs begin with {prefix!r}"
    raise JobRequestError(f"{which}. Choose one of them:\n{_list_of(chosen)}")


def _list_of(jobs: Sequence[JobConnection]) -> str:
    """Return a line for each job, with its program; their connections are closed."""
    rows = [
        (view["id"][:SHOWN], f"{clock(view['elapsed'])} old", program_of(view))
        if "program" in view
        else (view["id"][:SHOWN], view["phase"], f"(PID {view['pid']})")
        for view in _ask_all(jobs)
    ]
    return "\n".join(f"    {line}" for line in aligned(rows))


def program_of(view: View) -> str:
    """Return the beginning of a job's command line, for a user to recognise it."""
    return cut(one_line(shlex.join(view["program"])), MOST_COLUMNS)


def no_jobs() -> str:
    """Return the sentence that this user has no job."""
    return f"No job of user {user_name()} runs on this machine."


def show_job(job: JobConnection) -> View:
    """Return what a job says of itself and its instances.

    Raises:
        JobRequestError: It does not answer, or has ended.
    """
    job.send(protocol.SHOW_JOB, 0, 1)
    return read_view(job, ANSWER_S)


def read_view(job: JobConnection, timeout: float) -> View:
    """Return the next description of a job that it sends.

    Raises:
        JobRequestError: It does not answer, or has ended.
    """
    message = job.receive(timeout)
    if message is not None and message[0] == protocol.JOB_SHOWN:
        view: View = json.loads(message[1][0])
        return view
    raise JobRequestError(explain_end(job, message))


def explain_end(job: JobConnection, message: Message | None) -> str:
    """Return why a request is not carried out.

    Args:
        message: The last message, None if the job has closed the connection.
    """
    kind, fields = message or (0, [])
    if kind == protocol.REQUEST_REFUSED:
        return fields[0].decode(errors="replace")
    if kind == protocol.JOB_ENDED:
        cause = fields[1].decode(errors="replace")
        ended = f"Job {job.name} has ended with exit code {int(fields[0])}."
        return f"{ended} {cause}".rstrip()
    return (
        f"Job {job.name} has closed the connection: it has ended, or its poprun was "
        "killed."
    )


def show_jobs() -> tuple[list[View], list[JobRequestError], int]:
    """Return the descriptions of all jobs of this user, the oldest first.

    A job that does not answer has only an id, the PID of its poprun, and a phase. The
    other values are the errors of jobs that accept no connection, and the number of
    other users' jobs.
    """
    jobs, refusals, others = own_jobs()
    views = sorted(_ask_all(jobs), key=lambda view: view.get("started", 0.0))
    return views, [*refusals.values()], others


def _ask_all(jobs: Sequence[JobConnection]) -> list[View]:
    """Return the descriptions of jobs, and close their connections."""
    for job in jobs:
        job.send(protocol.SHOW_JOB, 0, 0)
    deadline = time.monotonic() + ANSWER_S
    views: list[View] = []
    for job in jobs:
        try:
            kind, fields = job.receive(max(0.0, deadline - time.monotonic())) or (0, [])
        except JobRequestError:
            kind, fields = protocol.REQUEST_REFUSED, []
        job.close()
        if kind == protocol.JOB_SHOWN:
            views.append(json.loads(fields[0]))
        # It has no answer, or too many other clients. Any other has ended meanwhile.
        elif kind == protocol.REQUEST_REFUSED:
            views.append({"id": job.identity, "pid": job.pid, "phase": NO_ANSWER})
    return views


def job_and_instance(
    arguments: Sequence[str], *, needs_instance: bool
) -> tuple[str | None, int | None]:
    """Return the job and the instance that the arguments of a subcommand name.

    A last argument of one to five digits is an instance.

    Raises:
        OptionError: They name none.
    """
    instance = None
    rest = list(arguments)
    if rest and re.fullmatch("[0-9]{1,5}", rest[-1]):
        instance = int(rest.pop())
    if len(rest) > 1 or (needs_instance and instance is None):
        problem = "The instance is missing"
        if arguments:
            problem = f"{' '.join(arguments)!r} is not a job and an instance"
        raise OptionError(
            f"{problem}: write JOB INSTANCE, or only INSTANCE if a single job is "
            "running."
        )
    return (rest[0] if rest else None), instance
