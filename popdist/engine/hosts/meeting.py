"""The members of a group over several hosts find each other, by short messages."""

from _blake2 import blake2b
from collections.abc import Callable, Iterator, Sequence
from time import monotonic, sleep
from typing import Any

from popdist.engine import _core
from popdist.engine.hosts.hosts_member import HostsMember
from popdist.engine.hosts.layout import Layout
from popdist.engine.hosts.links import LinkError, unanswered
from popdist.engine.hosts.links_thread import start
from popdist.engine.hosts.world import JobHosts, World
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import decode_refusal, encode_refusal
from popdist.engine.meet.pidfds import lost
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.tuning import Tuning
from popdist.errors import ArenaError, MismatchError, PopdistError

# How long a member sleeps between two looks for messages, at most.
_PAUSE = 0.005
# For how long member 0 waits for further members after one of them did not fit.
_LATE_SECONDS = 2.0


class MeetOverHosts:
    """One member's meeting with the others of a group."""

    def __init__(self, meeting: Meeting, job_hosts: JobHosts) -> None:
        self._meeting, self._hosts = meeting, job_hosts

    def hosts(self) -> list[int]:
        """Return each member's host; links tell it if the launcher does not."""
        hosts = self._hosts.hosts or self.world().hosts
        return [hosts[instance] for instance in self._meeting.instances]

    def world(self) -> World:
        """Return the linked instances, once all of the job have started links."""
        world = start(self._hosts, self._meeting)
        world.ended_file = self._meeting.ended_file
        return world

    def run(self, simd: str | None, tuning: Tuning | None) -> HostsMember:
        """Meet the members of this host, and then the members of other hosts."""
        # First of all: another instance may wait for this one to start its links, to
        # make another group.
        world, meeting, name = self.world(), self._meeting, self._name()
        layout = Layout(meeting.rank, meeting.instances, self.hosts())
        here = meeting._replace(
            name=f"{name}.host{self.hosts()[meeting.rank]}",
            rank=layout.local_rank,
            instances=[meeting.instances[rank] for rank in layout.local_ranks],
        )
        local = ShmMember(here, simd, tuning)
        try:
            tag = world.new_tag(_core.MESSAGE_KINDS)
            exchange = _Exchange(world, local, meeting)
            shared = name.removeprefix(self._hosts.shared_name)
            uid, tags = exchange.run(shared, tag, self._hosts.version)
            return HostsMember(
                world, local, layout, uid=uid, tags=tags, meeting=meeting
            )
        except BaseException as error:
            local.close()
            if isinstance(error, LinkError):
                # The error of the links may follow from a death.
                world.find_deaths()
                meeting.check_file()
                _raise_for_dead(world, meeting)
                raise ArenaError(
                    f"{meeting.own_name} could not reach another host to make the "
                    f"group of {meeting.name_all()}: {world.links.explain(error.code)}."
                ) from error
            raise

    def _name(self) -> str:
        """Return the group's name, looked up until there is one."""
        name = self._meeting.name
        if isinstance(name, str):
            return name
        deadline = self._meeting.deadline()
        while (text := name()) is None:
            self._meeting.check_file()
            deadline.check(lambda: self._meeting.name_of([0]))
            sleep(_PAUSE)
        return text


class _Exchange:
    """The hellos of all members to member 0, and its answers."""

    def __init__(self, world: World, local: ShmMember, meeting: Meeting) -> None:
        self._world, self._local, self._meeting = world, local, meeting
        self._hellos: dict[int, dict[str, Any]] = {}
        self._group = ""

    def run(self, name: str, tag: int, version: str) -> tuple[str, list[int]]:
        """Return the unique name of the group, and the first tag of each member.

        Args:
            name: The name of the group on all hosts.
            tag: The first tag of this member.
        """
        meeting, mail = self._meeting, self._world.mail
        self._group = blake2b(name.encode(), digest_size=16).hexdigest()
        hello = {"kind": "hello", "group": self._group, "rank": meeting.rank}
        hello |= {"size": meeting.size, "tag": tag, "version": version}
        hello["layout"] = f"{_core.arena_layout():016x}"
        if meeting.rank == 0:
            return self._lead(hello)
        mail.send(meeting.instances[0], hello)
        for _ in self._waits(lambda: [0]):
            for answer in mail.of("welcome", self._group):
                if answer["to"] == tag:
                    if "error" in answer:
                        raise decode_refusal(answer["error"])
                    return answer["uid"], answer["tags"]
        raise AssertionError("unreachable")

    def _lead(self, own: dict[str, Any]) -> tuple[str, list[int]]:
        instances, size = self._meeting.instances, self._meeting.size
        hellos = self._hellos = {0: own}
        try:
            for _ in self._waits(lambda: [r for r in range(size) if r not in hellos]):
                for hello in self._receive_hellos():
                    _check_version(instances[0], own, hello, self._world.names)
                    _check_alike(instances, own, hello)
                if len(hellos) == size:
                    break
        except PopdistError as error:
            if isinstance(error, MismatchError):
                self._receive_late()
            self._answer({"error": encode_refusal(error)})
            raise
        uid = f"{instances[0]}.{own['tag']}"
        tags = [hellos[rank]["tag"] for rank in range(size)]
        self._answer({"uid": uid, "tags": tags})
        return uid, tags

    def _receive_hellos(self) -> Iterator[dict[str, Any]]:
        for hello in self._world.mail.of("hello", self._group):
            self._hellos[hello["rank"]] = hello
            yield hello

    def _receive_late(self) -> None:
        """Wait a little for members that come later, to tell them of an error, too."""
        until = monotonic() + _LATE_SECONDS
        instances = self._meeting.instances
        while monotonic() < until:
            self._world.find_deaths()
            list(self._receive_hellos())
            come = {instances[rank] for rank in self._hellos}
            if set(instances) <= come | self._world.dead.keys():
                return
            sleep(_PAUSE)

    def _answer(self, answer: dict[str, Any]) -> None:
        for rank, hello in self._hellos.items():
            instance = self._meeting.instances[rank]
            if rank != 0 and self._world.may_reach(instance):
                to = {"kind": "welcome", "group": self._group, "to": hello["tag"]}
                self._world.mail.send(instance, to | answer)
        self._world.mail.flush(0.2)

    def _waits(self, missing: Callable[[], list[int]]) -> Iterator[None]:
        """Yield for each look for messages, and raise if others will not come.

        Args:
            missing: Returns the members that are waited for.
        """
        deadline, pause = self._meeting.deadline(), 0.0
        while True:
            yield
            self._world.find_deaths()
            self._meeting.check()
            self._meeting.check_file()
            for instance, pidfd in self._local.arena.watching().items():
                if not pidfd.is_of_a_live_process:
                    raise lost(instance, pidfd.pid)
            _raise_for_dead(self._world, self._meeting)
            deadline.check(lambda: self._meeting.name_of(missing()))
            sleep(pause)
            pause = min(pause + 0.0002, _PAUSE)


def _raise_for_dead(world: World, meeting: Meeting) -> None:
    """Raise PeerLostError if a member is known to have died."""
    for instance in meeting.instances:
        if instance in world.dead:
            # It may live, on a host that this one or instance 0's does not reach.
            if silence := world.links.failed.get(instance, 0):
                other = f"Instance {instance} on {world.names[instance]}"
                own = f"{meeting.name_of([meeting.rank])} on {world.names[world.rank]}"
                if world.rank:
                    own += f", or instance 0 on {world.names[0]},"
                raise unanswered(other, own, silence, instance)
            raise lost(instance)


def _check_version(
    instance: int, own: dict[str, Any], other: dict[str, Any], hosts: Sequence[str]
) -> None:
    """Raise MismatchError where another popdist may divide calls in another way."""
    if own["version"] != other["version"]:
        raise MismatchError(
            f"Instance {instance} on {hosts[instance]} has popdist {own['version']}, "
            f"but instance {other['from']} on {hosts[other['from']]} has popdist "
            f"{other['version']}. Install the same version on all hosts."
        )


def _check_alike(
    instances: Sequence[int], own: dict[str, Any], other: dict[str, Any]
) -> None:
    for what in ("size", "layout"):
        if own[what] != other[what]:
            raise MismatchError(
                f"Instance {instances[0]} has a group of {own['size']} members and "
                f"layout {own['layout']}, but instance {other['from']} one of "
                f"{other['size']} and layout {other['layout']}. Start all instances "
                "with the same installation of popdist, and let them make the same "
                "groups."
            )
