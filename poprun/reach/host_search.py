"""The program that looks at the hosts while an elastic job runs.

poprun starts it by host_search_entry.py, and it ends with poprun. Its stdout is a
socket: it reads poprun's question from it and writes the answers to it, one on a
line. It looks at the hosts every few seconds. It starts commands such as ssh and waits
for them, which poprun must not do while it supervises a job.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
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
# How long the processes of a search may take to end after SIGKILL.
END_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuestion:
    """The question which hosts give a job more instances, and which are to leave."""

    members: Members
    bounds: Bounds
    # How often the job has lost each host.
    losses: Mapping[str, int]
    # The options that name the hosts, and say how to reach them.
    settings: Mapping[str, Any]
    # Messages of wire/protocol.py that an agent must not refuse, each with its value.
    checks: Sequence[tuple[int, Any]] = ()
    # The hosts of the job that stay even if they are named no longer.
    staying: Sequence[str] = ()
    # The machines that the job uses or cannot use now, by their ids.
    machines: Sequence[str] = ()
    # The hosts with the folder of --sync, if the job runs on while others join:
    # they get all copies first. None if that is done before the next attempt.
    synced: Sequence[str] | None = None
    # How often to look at the hosts.
    interval_s: float = INTERVAL_S

    def find_growth(
        self, usable: Sequence[HostSpec], missing: Collection[str]
    ) -> Members | None:
        """Return the members with which the job has more instances.

        Args:
            missing: The hosts of the job that are named no longer.
        """
        leaving = {*missing} - {*self.staying}
        return find_growth(usable, self.members, self.bounds, leaving)

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
        report: Gets these sentences.
    """

    def __init__(
        self,
        question: SearchQuestion,
        name_hosts: Callable[[], Sequence[HostSpec]],
        probe: Callable[[Sequence[HostSpec]], Mapping[HostSpec, str]],
        report: Callable[[str], None],
    ) -> None:
        self._question = question
        self._name_hosts, self._probe, self._report = name_hosts, probe, report
        self._began = time.monotonic()
        # By host: when it was last looked at, and how often it has been.
        self._looks: dict[str, tuple[float, int]] = {}
        # The job's hosts that were not named last.
        self._absent: Set[str] = frozenset()
        # The hosts that two answers in succession did not have: a list may be read
        # while it is written.
        self.missing: Set[str] = frozenset()

    def look(self, now: float) -> Sequence[HostSpec]:
        """Return the hosts that can be used, if the job has more instances on them.

        Hosts that are named no longer do not count as hosts of the job.

        Raises:
            PoprunError: The hosts are not known.
        """
        question = self._question
        present = question.members.names
        # A look without an answer interrupts the succession.
        absent_before, self._absent = self._absent, frozenset()
        named = self._name_hosts()
        self._absent = present - {host.name for host in named}
        self.missing = absent_before & self._absent
        due = [
            host
            for host in named
            if host.name in present or now >= self._next_look(host.name)
        ]
        larger = question.find_growth(due, self.missing)
        if larger is None:
            return ()
        new = [host for host in larger.hosts if host.name not in present]
        failures = self._probe(new)
        for sentence in failures.values():
            self._report(sentence)
        for host in new:
            _, number = self._looks.get(host.name, (now, 0))
            self._looks[host.name] = now, number + 1
        answering = [host for host in new if host not in failures]
        usable = [host for host in due if host.name in present or host in answering]
        is_enough = question.find_growth(usable, self.missing) is not None
        return usable if is_enough else ()

    def _next_look(self, name: str) -> float:
        """Return when to look at a host.

        A host that comes and goes must not stop the job each time.
        """
        losses = self._question.losses.get(name, 0)
        last, number = self._looks.get(name, (self._began, 0))
        return last + doubled_wait(
            self._question.interval_s, losses + number, LONGEST_PAUSE_S
        )


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
        _report,
    )


def serve(environ: Mapping[str, str]) -> None:
    """Answer poprun's question until it closes the socket."""
    with open(LINK, "rb", closefd=False) as file:
        line = file.readline()
    if not line:
        return
    question = SearchQuestion.decode(line)
    search = make_search(environ, question)
    poll = processes.poll_on(LINK)
    while not poll.poll(processes.poll_timeout(question.interval_s)):
        try:
            usable = search.look(time.monotonic())
            _answer(
                {
                    "hosts": [str(host) for host in usable],
                    "missing": sorted(search.missing),
                }
            )
        except PoprunError as error:
            _report(f"{error} The job runs on as it is.")
        # Processes that the commands have left.
        processes.reap()


def _report(failure: str) -> None:
    _answer({"failure": failure})


def _answer(answer: Mapping[str, Any]) -> None:
    os.write(LINK, json.dumps(answer).encode() + b"\n")


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
            serve(environ)
    finally:
        # Also if poprun has closed the socket while an answer was written.
        end()
