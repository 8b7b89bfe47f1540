"""The program that looks for more hosts while an elastic job runs.

poprun starts it by host_search_entry.py, and it ends with poprun. Its stdout is a
socket, from which it reads poprun's questions, and to which it writes the answers, one
on a line. It looks at the hosts every INTERVAL_S. It starts commands such as ssh and
waits for them, which poprun must not do while it supervises a job.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Self

from poprun.backoff import doubled_wait
from poprun.errors import PoprunError
from poprun.helpers import own_process, processes
from poprun.host_specs import HostSpec, parse_hosts
from poprun.log import Log
from poprun.plan.elastic import Bounds, Members, find_growth
from poprun.reach.discovery import name_hosts
from poprun.reach.remote import HostOpener

# Each look may be a login on each host that the job could use.
INTERVAL_S = 10.0
# The longest pause between two looks at a host that does not answer.
LONGEST_PAUSE_S = 640.0
LINK = 1
READ_SIZE = 1 << 16
# How long the processes of a search may take to end after SIGKILL.
END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """The question which hosts give a job more instances."""

    members: Members
    bounds: Bounds
    # How often the job has lost each host.
    losses: Mapping[str, int]
    # The options that name the hosts, and say how to reach them.
    settings: Mapping[str, Any]
    # Messages of wire/protocol.py that an agent must not refuse, each with its value.
    checks: Sequence[tuple[int, Any]] = ()
    # The machines that the job uses or cannot use now, by their ids.
    machines: Sequence[str] = ()
    # The hosts that have the folder of --sync, where the job runs on while others join:
    # they get all copies first. None if that is done before the next attempt.
    synced: Sequence[str] | None = None

    def encode(self) -> bytes:
        """Return the line that `decode` reads."""
        value = asdict(self) | {
            "members": [str(host) for host in self.members.hosts],
            "num_instances": self.members.num_instances,
        }
        return json.dumps(value).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        value = json.loads(line)
        hosts = parse_hosts(",".join(value.pop("members")))
        number = value.pop("num_instances")
        bounds = Bounds(**value.pop("bounds"))
        members = Members(hosts=hosts, num_instances=number)
        return cls(members=members, bounds=bounds, **value)


class Search:
    """The looks at the hosts for one question.

    Args:
        name_hosts: Returns all hosts that the job may use.
        probe: Returns a sentence for each of these hosts that cannot be used.
    """

    def __init__(
        self,
        question: SearchQuestion,
        name_hosts: Callable[[], Sequence[HostSpec]],
        probe: Callable[[Sequence[HostSpec]], Mapping[HostSpec, str]],
    ) -> None:
        self._question = question
        self._name_hosts, self._probe = name_hosts, probe
        self._began = time.monotonic()
        # By host: when it was last looked at, and how often it has been.
        self._looks: dict[str, tuple[float, int]] = {}

    def look(self, now: float) -> Sequence[HostSpec]:
        """Return the hosts that can be used, if the job has more instances on them.

        Raises:
            PoprunError: The hosts are not known.
        """
        question = self._question
        present = question.members.names
        due = [
            host
            for host in self._name_hosts()
            if host.name in present or now >= self._next_look(host.name)
        ]
        larger = find_growth(due, question.members, question.bounds)
        if larger is None:
            return ()
        new = [host for host in larger.hosts if host.name not in present]
        failures = self._probe(new)
        for host in new:
            _, number = self._looks.get(host.name, (now, 0))
            self._looks[host.name] = now, number + 1
        answering = [host for host in new if host not in failures]
        usable = [host for host in due if host.name in present or host in answering]
        is_enough = find_growth(usable, question.members, question.bounds) is not None
        return usable if is_enough else ()

    def _next_look(self, name: str) -> float:
        """Return when to look at a host.

        A host that comes and goes must not stop the job each time.
        """
        losses = self._question.losses.get(name, 0)
        last, number = self._looks.get(name, (self._began, 0))
        return last + doubled_wait(INTERVAL_S, losses + number, LONGEST_PAUSE_S)


def make_search(environ: Mapping[str, str], question: SearchQuestion) -> Search:
    """Return the search with the commands of this machine.

    Args:
        environ: The environment of the commands.
    """
    opener = HostOpener(
        settings=question.settings,
        environ=environ,
        log=Log(0, lambda text: None),
        show_phase=lambda phase: None,
    )
    return Search(
        question,
        lambda: name_hosts(question.settings, environ) or (),
        lambda hosts: opener.probe(
            hosts, question.checks, question.machines, question.synced
        ),
    )


def serve(make: Callable[[SearchQuestion], Search]) -> None:
    """Answer poprun's questions until it closes the socket."""
    received, search, due = b"", None, 0.0
    poll = processes.poll_on(LINK)
    while True:
        wait = float("inf") if search is None else max(0.0, due - time.monotonic())
        if poll.poll(processes.poll_timeout(wait)):
            data = os.read(LINK, READ_SIZE)
            if not data:
                return
            *lines, received = (received + data).split(b"\n")
            if lines:
                search = make(SearchQuestion.decode(lines[-1]))
                due = time.monotonic() + INTERVAL_S
            continue
        assert search is not None
        answer: dict[str, Any] = {}
        try:
            if hosts := search.look(time.monotonic()):
                answer = {"hosts": [str(host) for host in hosts]}
        except PoprunError as error:
            answer = {"failure": str(error)}
        if answer:
            os.write(LINK, json.dumps(answer).encode() + b"\n")
        # Processes that the commands have left.
        processes.reap()
        due = time.monotonic() + INTERVAL_S


def main(poprun: int, environ: Mapping[str, str]) -> None:
    """Serve poprun until it ends, and end all processes below this one after that.

    Args:
        poprun: The pid of poprun, the parent of this process.
    """

    def find() -> list[processes.Process]:
        return processes.descendants([os.getpid()])

    def end(*_: object) -> None:
        processes.end(find, 0, END_S, all_children=True)
        os._exit(0)

    # Whatever a discovery script starts stays below this process.
    own_process.become_subreaper()
    signal.signal(signal.SIGTERM, end)
    try:
        if own_process.die_with_parent(signal.SIGTERM, poprun):
            serve(partial(make_search, environ))
    finally:
        # Also if poprun has closed the socket while an answer was written.
        end()
