"""What is looked up on the hosts of a job: one object for each of them."""

import os
import resource
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from poprun.errors import HostUnreachableError
from poprun.host_specs import HostSpec
from poprun.plan.host_facts import HostFacts, Machine, Node
from poprun.reach.hosts import Preflight, Preflights
from poprun.reach.own_host.out_of_memory import MemoryCounters

MACHINE = Machine(nodes=(Node(index=0, cpus=(0,)),))
A, B = HostSpec(name="a"), HostSpec(name="b")


class FakePreflight:
    """A host at the end of a connection that the test plays."""

    def __init__(self, host: HostSpec) -> None:
        self.name = host.name
        self.looked_up = 0
        self.calls: list[str] = []

    def facts(self) -> HostFacts:
        self.looked_up += 1
        return HostFacts(
            machine=Machine(nodes=(Node(index=0, cpus=(0,)),)),
            free_port=1,
            links_port=2,
            cwd=f"/{self.name}",
        )

    def find_program(
        self, argv: Sequence[str], search_path: str | None, cwd: str
    ) -> str:
        return f"{cwd}/{argv[0]}"

    def read_memory_counters(self) -> MemoryCounters:
        return MemoryCounters(kills=len(self.name))

    @property
    def connection(self) -> "FakePreflight":
        return self

    def hang_up(self) -> None:
        self.calls.append("hang up")

    def end(self) -> None:
        self.calls.append("end")


def test_each_host_is_asked_by_its_own_object_and_described_once() -> None:
    opened: list[FakePreflight] = []

    def open_hosts(hosts: Sequence[HostSpec]) -> Any:
        opened.extend(map(FakePreflight, hosts))
        return dict(zip(hosts, opened[-len(hosts) :], strict=True))

    hosts = Preflights(open_hosts)

    assert [facts.cwd for facts in hosts.describe([A, B, A])] == ["/a", "/b", "/a"]
    assert hosts[B].find_program(["train"], None, "/b") == "/b/train"
    assert hosts.read_memory_counters([A, B]) == {
        A: MemoryCounters(kills=1),
        B: MemoryCounters(kills=1),
    }
    assert [(one.name, one.looked_up) for one in opened] == [("a", 1), ("b", 1)]


def test_hosts_are_reached_again_even_after_one_could_not_be() -> None:
    opened: list[FakePreflight] = []

    def open_hosts(hosts: Sequence[HostSpec]) -> Any:
        new = {host: FakePreflight(host) for host in hosts}
        opened.extend(new.values())
        return new

    def refuse(hosts: Sequence[HostSpec]) -> Any:
        raise HostUnreachableError("b is away.")

    preflights = Preflights(open_hosts)
    preflights.describe([A, B])
    with pytest.raises(HostUnreachableError):
        preflights.reopen([A, B], refuse)
    preflights.reopen([A, B, A], open_hosts)

    assert [host.calls for host in opened] == [["hang up", "end"]] * 2 + [[]] * 2
    assert [f.cwd for f in preflights.describe([A, B])] == ["/a", "/b"]
    assert preflights.read_memory_counters([A, B])[B] == MemoryCounters(kills=1)


def test_all_hosts_are_planned_as_this_one() -> None:
    facts = Preflights().describe([A, B])

    assert facts[0] is facts[1]
    assert facts[0].cwd == os.getcwd()


def test_this_host_tells_what_instances_get_from_it() -> None:
    facts = Preflight().facts()

    assert facts.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert facts.stack_limit == resource.getrlimit(resource.RLIMIT_STACK)[0]
    assert os.path.isfile(f"{facts.interpreter}/sitecustomize.py")
    assert facts.machine.nodes


@pytest.mark.parametrize(
    "number", [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP]
)
def test_this_host_tells_which_signals_the_caller_ignores(
    number: signal.Signals,
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert number in Preflight().facts().ignored_signals
        signal.signal(number, signal.SIG_DFL)
        assert number not in Preflight().facts().ignored_signals
    finally:
        signal.signal(number, before)
