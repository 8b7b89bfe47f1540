"""The members of a group over several hosts find each other, by short messages."""

from _blake2 import blake2b
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic, sleep
from typing import Any

from popdist.engine import _core
from popdist.engine.hosts.hosts_member import HostsMember
from popdist.engine.hosts.layout import Layout
from popdist.engine.hosts.links_thread import start
from popdist.engine.hosts.world import JobHosts, World
from popdist.engine.meet.deadlines import Deadline
from popdist.engine.meet.meeting import Meeting
from popdist.engine.meet.messages import decode_refusal, encode_refusal
from popdist.engine.meet.pidfds import lost
from popdist.engine.shm.shm_member import ShmMember
from popdist.engine.tuning import Tuning
from popdist.errors import MismatchError, PopdistError

# How long a member sleeps between two looks for messages, at most.
_PAUSE = 0.005
# For how long member 0 waits for further members after one of them did not fit.
_LATE_SECONDS = 2.0


class MeetOverHosts:
    """One member's meeting with the others of a group."""

    def __init__(self, meeting: Meeting, job_hosts: JobHosts) -> None:
        self.rank, self.instances = meeting.rank, tuple(meeting.instances)
        self._meeting, self._hosts = meeting, job_hosts
        self._name = meeting.name
        self._world: World | None = None

    def hosts(self) -> list[int]:
        """Return each member's host; links tell it if the launcher does not."""
        hosts = self._hosts.hosts or self.world().hosts
        return [hosts[instance] for instance in self.instances]

    def world(self) -> World:
        """Return the linked instances, once all of the job have started links."""
        if self._world is None:
            self._world = start(self._hosts, self._meeting)
            self._world.ended_file = self._meeting.ended_file
        return self._world

    def run(self, simd: str | None, tuning: Tuning | None) -> HostsMember:
        """Meet the members of this host, and then the members of other hosts."""
        # First of all: another instance may wait for this one to start its links, to
        # make another group.
        world = self.world()
        layout = Layout(self.rank, self.instances, self.hosts())
        local = self._meet_on_host(layout, simd, tuning)
        try:
            begin = world.new_tag(_core.MESSAGE_KINDS)
            uid, tags = self._meet_all(world, layout, local, begin)
            return HostsMember(
                world, local, layout, uid=uid, tags=tags, meeting=self._meeting
            )
        except BaseException:
            local.close()
            raise

    def _meet_on_host(
        self, layout: Layout, simd: str | None, tuning: Tuning | None
    ) -> ShmMember:
        instances = [self.instances[rank] for rank in layout.local_ranks]
        meeting = self._meeting._replace(
            name=f"{self._text()}.host{self.hosts()[self.rank]}",
            rank=layout.local_rank,
            instances=instances,
        )
        return ShmMember(meeting, simd, tuning)

    def _meet_all(
        self, world: World, layout: Layout, local: ShmMember, begin: int
    ) -> tuple[str, list[int]]:
        """Return the name of the group, and the first tag of each member."""
        name = self._text().removeprefix(self._hosts.shared_name).encode()
        group = blake2b(name, digest_size=16).hexdigest()
        size = len(self.instances)
        hello = {"kind": "hello", "group": group, "rank": self.rank, "size": size}
        hello |= {"tag": begin, "layout": f"{_core.arena_layout():016x}"}
        hello["version"] = self._hosts.version
        if self.rank == 0:
            return self._lead(world, local, group, hello)
        world.mail.send(self.instances[0], hello)
        deadline = self._meeting.deadline()
        for pause in _pauses():
            for answer in world.mail.of("welcome", group):
                if answer["to"] == begin:
                    if "error" in answer:
                        raise decode_refusal(answer["error"])
                    return answer["uid"], answer["tags"]
            self._look(world, local, deadline, [0])
            sleep(pause)
        raise AssertionError("unreachable")

    def _lead(
        self, world: World, local: ShmMember, group: str, own: dict[str, Any]
    ) -> tuple[str, list[int]]:
        hellos = {0: own}
        deadline, size = self._meeting.deadline(), len(self.instances)
        uid = f"{self.instances[0]}.{own['tag']}"
        try:
            for pause in _pauses():
                for hello in world.mail.of("hello", group):
                    hellos[hello["rank"]] = hello
                    _check_version(self.instances[0], own, hello, world.names)
                    _check_alike(self.instances, own, hello)
                if len(hellos) == size:
                    break
                missing = [rank for rank in range(size) if rank not in hellos]
                self._look(world, local, deadline, missing)
                sleep(pause)
        except PopdistError as error:
            if isinstance(error, MismatchError):
                self._receive_late(world, group, hellos)
            self._answer(world, group, hellos, {"error": encode_refusal(error)})
            raise
        tags = [hellos[rank]["tag"] for rank in range(size)]
        self._answer(world, group, hellos, {"uid": uid, "tags": tags})
        return uid, tags

    def _receive_late(
        self, world: World, group: str, hellos: dict[int, dict[str, Any]]
    ) -> None:
        """Wait a little for members that come later, to tell them of an error, too."""
        until = monotonic() + _LATE_SECONDS
        while monotonic() < until:
            world.find_deaths()
            for hello in world.mail.of("hello", group):
                hellos[hello["rank"]] = hello
            come = {self.instances[rank] for rank in hellos}
            if set(self.instances) <= come | world.dead.keys():
                return
            sleep(_PAUSE)

    def _answer(
        self,
        world: World,
        group: str,
        hellos: Mapping[int, dict[str, Any]],
        answer: dict[str, Any],
    ) -> None:
        for rank, hello in hellos.items():
            if rank != 0 and world.may_reach(self.instances[rank]):
                to = {"kind": "welcome", "group": group, "to": hello["tag"]}
                world.mail.send(self.instances[rank], to | answer)
        world.mail.flush(0.2)

    def _look(
        self, world: World, local: ShmMember, deadline: Deadline, missing: list[int]
    ) -> None:
        """Take messages, and raise if others will not come."""
        world.find_deaths()
        self._meeting.check()
        self._meeting.check_file()
        for instance, pidfd in local.arena.watching().items():
            if not pidfd.is_of_a_live_process:
                raise lost(instance, pidfd.pid)
        for instance in self.instances:
            if instance in world.dead:
                raise lost(instance, 0)
        deadline.check(lambda: self._meeting.name_of(missing))

    def _text(self) -> str:
        """Return the group's name, looked up until there is one."""
        if isinstance(self._name, str):
            return self._name
        deadline = self._meeting.deadline()
        while (text := self._name()) is None:
            self._meeting.check_file()
            deadline.check(lambda: self._meeting.name_of([0]))
            sleep(_PAUSE)
        self._name = text
        return text


def _pauses() -> Iterator[float]:
    """Yield how long to sleep between looks, longer and longer."""
    pause = 0.0
    while True:
        yield pause
        pause = min(pause + 0.0002, _PAUSE)


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
