"""Takes hosts into a running attempt: its plan grows, and each gets its instances.

The hosts of a plan are places, each with the same number of instances. A host that
returns takes its own place. Another host takes the first place of a lost one, or a new
place.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from popdist import environment as env
from poprun.host.links import join_link
from poprun.host.remote_host import RemoteHost
from poprun.host_specs import HostSpec
from poprun.job.job_description import make_job
from poprun.job.values import Job
from poprun.plan.assignments import generation_variables, make_plan
from poprun.plan.elastic import Members, settings_with
from poprun.plan.host_facts import HostFacts
from poprun.plan.values import Plan, Request, new_attempt, new_generation
from poprun.reach.connections.agent_connection import AgentConnection
from poprun.reach.connections.agents import AgentStart
from poprun.reach.host_search import SearchQuestion
from poprun.reach.hosts import Preflight
from poprun.reach.own_host.addresses import own_address_towards
from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.reach.remote import RemotePreflight
from poprun.run.context import RunContext
from poprun.run.elastic_hosts import ElasticHosts
from poprun.supervise.arrivals import Handshake, Question
from poprun.supervise.host_search import HostSearch
from poprun.supervise.membership import BeginGeneration
from poprun.wire import protocol
from poprun.wire.call_files import read_call
from poprun.wire.events import Event, HostLost
from poprun.wire.field_types import FilePath

Environ = Mapping[str, str | None]


class RunningGrowth:
    """The plan of an attempt, and the hosts that may join it.

    Args:
        job: The job as the first hosts get it.
        read_request: Returns a request for settings, and a function that returns the
            facts of hosts.
        warn: Says why hosts cannot be found.
    """

    def __init__(
        self,
        plan: Plan,
        job: Job,
        context: RunContext,
        hosts: ElasticHosts,
        read_request: Callable[..., Request],
        warn: Callable[[str], None],
    ) -> None:
        self.plan = plan
        # The memory counters of each host that has joined, from before.
        self.memory: dict[HostSpec, MemoryCounters] = {}
        self._job, self._context, self._hosts = job, context, hosts
        self._read_request, self._warn = read_request, warn
        # The places of lost hosts.
        self._vacant: set[int] = set()
        self._num_joined = 0
        # By instance, on the hosts that have joined: the job as its host gets it.
        self._jobs: dict[int, Job] = {}

    def listen(self, event: Event) -> None:
        if isinstance(event, HostLost) and event.ranks:
            self._vacant.add(self.plan.topology.host_of(event.ranks[0]))

    def environs(self, new: BeginGeneration) -> Mapping[int, Environ]:
        """Return the variables of each member of a generation."""
        links_port, store_port = new.ports[new.members[0]]
        attempt = new_generation(self.plan.attempt, links_port, store_port)
        variables = generation_variables(self.plan, new.members, attempt)
        members = ",".join(map(str, new.members))
        return {
            member: {
                **own,
                env.ENDED_INSTANCES: self._job_of(member).ended_file(new.generation),
                env.ELASTIC_MEMBERS: members,
            }
            for member, own in zip(new.members, variables, strict=True)
        }

    def _job_of(self, rank: int) -> Job:
        return self._jobs.get(rank, self._job)

    def question(self, losses: Counter[str]) -> SearchQuestion | None:
        hosts = self.plan.request.hosts
        present = [h for place, h in enumerate(hosts) if place not in self._vacant]
        share = self.plan.topology.instances_per_host
        # Instances on poprun's own machine run on with it.
        facts = zip(hosts, self.plan.request.facts, strict=True)
        own = [host.name for host, each in facts if each.is_own_host]
        return self._hosts.question_while_running(present, share, losses, own)

    def search(self, question: SearchQuestion) -> HostSearch:
        environ, mark = self._context.environ, self._job.mark
        return HostSearch(question, environ, mark, self._warn)

    def connect(self, host: HostSpec) -> AgentStart:
        # The guard ends the processes with the job's mark.
        environ = {**self._context.environ, env.JOB_ID: self._context.identity}
        return replace(self._context.opener, environ=environ).agent_start(host)

    def handshake(self, host: HostSpec, connection: AgentConnection) -> Handshake:
        """Ask the agent of a host, and return the function that lets the host join."""
        preflight = RemotePreflight(connection, self._context.environ)
        directory = self._context.directory
        answer = yield Question(protocol.DESCRIBE_HOST, directory, HostFacts)
        facts = preflight.with_login(answer)
        memory = yield Question(protocol.READ_MEMORY, None, MemoryCounters)
        # All instances have the same program.
        first = self.plan.assignments[0]
        search_path = first.exports.get("PATH", self._context.environ.get("PATH"))
        look = [list(first.program.argv), search_path, first.cwd]
        path = yield Question(protocol.FIND_PROGRAM, look, FilePath)
        return partial(self._admit, host, preflight, facts, memory, path)

    def _admit(
        self,
        host: HostSpec,
        preflight: RemotePreflight,
        facts: HostFacts,
        memory: MemoryCounters,
        path: str,
    ) -> RemoteHost:
        """Give a host its place in the plan, and let its agent get ready."""
        connection = preflight.connection
        place = self._place_of(host)
        plan = self._plan_with(place, host, facts, connection.hello.address)
        link = self._link(plan, place, connection, path)
        self.plan = plan
        self.memory[host] = memory
        self._vacant.discard(place)
        self._context.hosts.put(host, preflight)
        # Another copy could replace files of its instances.
        self._context.synced.add(host.name)
        return link

    def _place_of(self, host: HostSpec) -> int:
        hosts = self.plan.request.hosts
        own = (place for place in self._vacant if hosts[place].name == host.name)
        return next(own, min(self._vacant, default=len(hosts)))

    def _plan_with(
        self, place: int, host: HostSpec, facts: HostFacts, address: str
    ) -> Plan:
        """Return the plan with a host at a place.

        Args:
            address: An address of that host.
        """
        before, share = self.plan.request, self.plan.topology.instances_per_host
        hosts, all_facts = [*before.hosts], [*before.facts]
        hosts[place : place + 1], all_facts[place : place + 1] = [host], [facts]
        if address and not all_facts[0].address and all_facts[0].is_own_host:
            # A job on this host alone needed none.
            all_facts[0] = Preflight(own_address_towards(address)).facts()
        known = dict(zip(hosts, all_facts, strict=True))
        members = Members(hosts=hosts, num_instances=share * len(hosts))
        settings = settings_with(self._context.settings, members, self._hosts.bounds)
        request = self._read_request(settings, lambda named: [known[h] for h in named])
        return make_plan(
            request.with_files_of(before), self.plan.attempt, self.plan.partition
        )

    def _link(
        self, plan: Plan, place: int, connection: AgentConnection, path: str
    ) -> RemoteHost:
        """Return the link to a host that joins.

        An earlier agent of the job may still run there. So it gets names of its own.

        Args:
            path: The program's file there.
        """
        self._num_joined += 1
        attempt, request = plan.attempt, plan.request
        own = new_attempt(request.identity, attempt.number, request.facts[place])
        name = f"{attempt.name}.{self._num_joined}"
        attempt = replace(attempt, name=name, control=own.control)
        if request.cache_is_temporary:
            cache = f"{request.cache_path}.{self._num_joined}"
            request = replace(request, cache_path=cache)
        seen = make_plan(request, attempt, plan.partition)
        context = self._context
        job = make_job(
            seen,
            context.settings,
            [path] * len(seen.assignments),
            context.environ,
            routes=self._job.routes,
            terminals=self._job.terminals,
            umask=context.umask,
            limits=context.descriptor_limits,
        )
        call = read_call(context.caller_environ)
        link = join_link(job, seen, place, connection, call)
        self._jobs |= dict.fromkeys(link.ranks, job)
        return link
