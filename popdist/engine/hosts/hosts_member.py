"""One member of a group over several hosts: shared memory here, messages beyond."""

import weakref
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from popdist.engine.failures import (
    Ending,
    ErrorFields,
    Missing,
    describe_call,
    explain,
    failed,
    fields_of,
    name_instances,
    unusable,
    unusable_because,
)
from popdist.engine.hosts.layout import Layout
from popdist.engine.hosts.links import LinkError
from popdist.engine.hosts.world import World
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.meeting import Meeting
from popdist.engine.shm.shm_member import ShmMember, check_seconds
from popdist.engine.spec.operations import Described, Operation, Status
from popdist.errors import (
    CollectiveAbortedError,
    PeerLostError,
    PopdistError,
)

# How long messages of a member that has died or left may still be under way.
_UNDER_WAY_SECONDS = 0.4
# How often a member of a large group asks whether the one that it waits for has left.
_ASK_SECONDS = 0.5


class HostsMember:
    """One member of a group over several hosts, for the rows of all its views."""

    def __init__(
        self,
        world: World,
        local: ShmMember,
        layout: Layout,
        meeting: Meeting,
        *,
        uid: str,
        tags: Sequence[int],
    ) -> None:
        """Take part in a group after its members have met.

        Args:
            local: This process as a member of its host's arena.
            uid: The unique name of the group in messages.
            tags: From which tag on each member receives messages of the group.
        """
        self.world, self.local, self.layout = world, local, layout
        self.comm, self.arena = local.comm, local.arena
        self.host_of: Sequence[int] | None = layout.host_of
        self.rank, self.instances = layout.rank, layout.instances
        # The names of the members in errors.
        self.names = tuple(
            f"{instance} on {world.names[instance]}" for instance in layout.instances
        )
        self.identity = uid
        self._timeout, self._stall = meeting.timeout, meeting.stall
        # After how many calls other members have left the group, and when that was
        # known here.
        self._left: dict[int, tuple[int, float]] = {}
        self._asked_at = 0.0
        self._reported = self._told = self._closed = False
        # The call in which a stall has been reported.
        self._stalled_in = 0
        # The number of a call, and the members of another host that have not begun it.
        self._missing_elsewhere: tuple[int, Sequence[int]] = (0, ())
        local.group_instances = self.instances
        known = weakref.proxy(self)
        # The local member must not keep this one alive.
        local.note_missing = lambda members: known.tell_missing(members)
        self.comm.explain_by(lambda: known.failure())
        self.set_timeout(meeting.timeout)
        hosts = world.links.table, self.rank, layout.host_of
        self.comm.connect_hosts(*hosts, self.instances, tags, known)
        world.pidfds |= local.arena.watching()
        world.watchers.add(self.look)
        world.death_callbacks.add(self._note_death)
        for instance in world.dead:
            self._note_death(instance)
        world.leavers.add(self.leave)
        world.callers.add(self.comm.in_call)

    # --- Calls

    @property
    def call(self) -> Described:
        """The description of the last call."""
        return self.comm.larger_call()[0]

    @property
    def calls(self) -> int:
        """How many collective calls this member has made so far."""
        return self.comm.larger_call()[1]

    # --- Functions that the core calls in the middle of a call

    def look_while_waiting(self, peer: int, waited: float) -> None:
        """End the group where a wait cannot come to its end, or lasts too long.

        Args:
            peer: The sender of the awaited message.
        """
        self.world.find_deaths()
        self.look()
        if self.comm.ending() is not None:
            return
        since = monotonic() - waited
        lost = self.lost_member(since)
        if lost is None and self._has_left_unheard(peer, since):
            lost = peer
        if lost is not None:
            self._end_for(Status.PEER_LOST, lost)
        elif waited > self._timeout:
            self._end_for(Status.TIMED_OUT, peer)
        elif waited > self._report_after() and self._stalled_in != self.calls:
            self._stalled_in = self.calls
            self._report_stall(peer, waited)

    def _has_left_unheard(self, peer: int, since: float) -> bool:
        """Return whether a member has left without sending the awaited message.

        Calls between two members are not counted: a message that was sent must have
        arrived.
        """
        now = monotonic()
        if peer in self._left:
            is_of_two = self.call[0] in (Operation.SEND, Operation.RECEIVE)
            told = self._left[peer][1]
            return is_of_two and now - max(told, since) > _UNDER_WAY_SECONDS
        instance = self.instances[peer]
        if not self.layout.is_told and now - self._asked_at > _ASK_SECONDS:
            self._asked_at = now
            self.world.tell([instance], {"kind": "asks", "about": self.identity})
        return False

    def _report_after(self) -> float:
        """Return after how many seconds a stall is reported.

        Members of other hosts detect missing members of their host at the same time,
        and tell. Without their message, only their leader is known to be late here.
        """
        if self._missing_elsewhere[0] == self.calls:
            return self._stall
        return self._stall + min(0.25 * self._stall, 1.0)

    def tell_missing(self, members: Sequence[int]) -> None:
        """Tell other hosts which members of this one have not begun the call at hand.

        Args:
            members: Their numbers on this host.
        """
        here = self.layout.local_ranks
        present = [rank for q, rank in enumerate(here) if q not in members]
        # One of those that wait for them is enough.
        if not members or present[0] != self.rank or self._closed:
            return
        ranks = [here[q] for q in members]
        self._tell_hosts("missing", call=self.calls, ranks=ranks)

    # Any: the fields of a message depend on its kind.
    def _tell_hosts(self, kind: str, here: Sequence[int] = (), **fields: Any) -> None:
        """Send a message about this group to other hosts, and to some members here."""
        if self.world.is_abandoned:
            return
        message = {"kind": kind, "group": self.identity, **fields}
        peers = (*self.layout.reachable, *here)
        self.world.tell([self.instances[peer] for peer in peers], message)
        with suppress(LinkError):
            self.world.mail.flush(0.05)

    def _missing(self) -> list[Missing]:
        """Return who is missing on other hosts, as far as these have told."""
        call, ranks = self._missing_elsewhere
        return [Missing(rank, None, ()) for rank in ranks] if call == self.calls else []

    def prepare(self, peer: int) -> None:
        """Block until something may be sent to a member, or the group has ended."""
        instance = self.instances[peer]

        def is_over() -> bool:
            self.look()
            return instance in self.world.dead or self.comm.ending() is not None

        try:
            self.world.prepare(instance, is_over)
        except LinkError as error:
            self.end_after_link_error(error.code)

    def end_for_mismatch(self, peer: int, theirs: Described) -> None:
        """End the group because another member makes another call."""
        self._end_for(Status.MISMATCH, peer, theirs)

    def end_for_death(self, peer: int) -> None:
        """End the group because a call needs a member that has died."""
        self._end_for(Status.PEER_LOST, peer)

    def end_after_link_error(self, error: int) -> None:
        """End the group for an error of the links, once it is known who has died."""
        until = monotonic() + 1.0
        while self.comm.ending() is None and monotonic() < until:
            self.world.find_deaths()
            self.look()
            lost = self.lost_member(0.0)
            if lost is not None:
                self._end_for(Status.PEER_LOST, lost)
            sleep(0.01)
        self.end(
            CollectiveAbortedError(
                f"Instance {self.names[self.rank]} could not reach another host in "
                f"{describe_call(self.call, self.names)}: "
                f"{self.world.links.explain(error)}."
            )
        )

    # --- The end of the group

    def failure(self) -> PopdistError:
        """Return the error to raise for a call that did not succeed."""
        found = None if self._closed else self.comm.ending()
        if found is None:
            return unusable(None, self.instances)
        if found[:2] == (Status.STOPPED, self.local.rank):
            self._reported = True
        ending = self._translated(found)
        missing = [
            one._replace(
                member=self.layout.local_ranks[one.member],
            )
            for one in self.local.missing()
        ]
        why = explain(ending, self.instances, self._timeout, self.names, missing)
        self._note_lost(why)
        # The member that has found the reason tells the other hosts.
        if found[1] == self.local.rank:
            self._tell(why)
        if not self._reported:
            self._reported = True
            return why
        return unusable_because(why, ending, self.instances)

    def end(self, error: PopdistError) -> None:
        """End the group: all members get this error."""
        if self._closed or self.comm.ending() is not None:
            return
        self._note_lost(error)
        self.comm.end(*fields_of(error))
        self._tell(error)

    def _end_for(
        self, status: Status, about: int, theirs: Described | None = None
    ) -> None:
        """End the group for an error that this member has detected in another one."""
        ending = (
            *(status, self.rank, about, self.calls),
            *(self.call, theirs or self.call, ErrorFields(status, "")),
        )
        silence = self.world.links.failed.get(self.instances[about], 0)
        self.end(
            explain(
                *(ending, self.instances, self._timeout, self.names, self._missing()),
                silence=silence,
            )
        )

    def allocate(self, nbytes: int) -> None:
        """Return None: members on different hosts share no memory."""

    def give_up(self, what: str, error: BaseException) -> None:
        """End the group for all, because of an error between the steps of a call."""
        if self._closed or self.comm.ending() is not None:
            return
        # The program has the error itself.
        self._reported = True
        self.end(failed(self.names[self.rank], what, error))

    def close(self) -> None:
        """Leave the group, and release this member's part of it.

        Raises:
            RuntimeError: This thread is in the middle of a call of the group.
        """
        if self.comm.in_call():
            self.end(
                CollectiveAbortedError(
                    f"Instance {self.names[self.rank]} closed the group in the middle "
                    "of a call, which ended it for all."
                )
            )
            raise RuntimeError(
                "close() was called in the middle of a call to the same group, by what "
                "interrupted it, a signal's handler perhaps, so the group has come to "
                "its end for all members. Let the handler raise an exception, and "
                "close the group once the call is over."
            )
        # Once the call of another thread is over.
        self.local.close()
        self._closed = True
        self.leave()

    def disown(self) -> None:
        """Make no calls any more, in a forked child."""
        self._closed = True
        self.comm.close()

    def leave(self) -> None:
        """Tell the others that this member makes no calls any more."""
        if self.leave not in self.world.leavers:
            return
        self.world.leavers.discard(self.leave)
        self.world.callers.discard(self.comm.in_call)
        self.world.watchers.discard(self.look)
        self.world.death_callbacks.discard(self._note_death)
        left = {"rank": self.rank, "calls": self.calls, "ends": self.world.ends}
        named = {"kind": "left", "group": self.identity}
        self.world.leavings[self.identity] = named | left
        here = [peer for peer in self.layout.local_ranks if peer != self.rank]
        self._tell_hosts("left", here, **left)

    def look(self) -> None:
        """Process the messages about this group; any thread may call it."""
        mail = self.world.mail
        for message in mail.of("left", self.identity):
            told = message["calls"], monotonic()
            self._left.setdefault(message["rank"], told)
            self.world.note_leaving(message["from"], ends=message["ends"])
        for message in mail.of("missing", self.identity):
            self._missing_elsewhere = message["call"], message["ranks"]
        for message in mail.of("ended", self.identity):
            self._told = True
            self.comm.end(*ErrorFields(*message["error"]))

    def _note_death(self, instance: int) -> None:
        """Let the core send nothing any more to an instance that has died."""
        if instance in self.instances:
            self.comm.note_death(self.instances.index(instance))

    def set_timeout(self, seconds: float) -> None:
        """Let calls from now on wait so long for other members."""
        check_seconds("timeout", seconds)
        self._timeout = seconds
        # Members that wait for the leader give it time to name the missing member.
        late = 0.0 if self.layout.is_leader else min(0.25 * seconds, 1.0)
        self.comm.set_timeout(seconds + late)

    def _report_stall(self, peer: int, waited: float) -> None:
        """Print on stderr which member a call has been waiting for."""
        late = [one.member for one in self._missing()] or [peer]
        report(
            f"popdist: instance {self.names[self.rank]} has waited {waited:.0f} s for "
            f"{name_instances([self.names[q] for q in late])} in "
            f"{describe_call(self.call, self.names)}."
        )

    def lost_member(self, since: float) -> int | None:
        """Return a member that takes no part in the call at hand any more.

        Args:
            since: Since when nothing has come from the other hosts.
        """
        for peer, (calls, _) in self._left.items():
            if calls < self.calls:
                return peer
        now = monotonic()
        for peer, instance in enumerate(self.instances):
            died = self.world.dead.get(instance)
            if died is not None and now - max(died, since) > _UNDER_WAY_SECONDS:
                return peer
        return None

    def _note_lost(self, error: PopdistError) -> None:
        """Send nothing to members that the group has lost until they are known to live.

        Members that have left the group are known to live.
        """
        if isinstance(error, PeerLostError):
            alive = {self.instances[peer] for peer in self._left}
            self.world.lost |= set(error.instances) - alive
            self.world.watch_this_host()

    def _tell(self, error: PopdistError) -> None:
        """Let the other hosts end the group, if they do not know."""
        if self._told:
            return
        self._told = True
        self._tell_hosts("ended", error=fields_of(error))

    def _translated(self, ending: Ending) -> Ending:
        """Return an ending among this host's members as one of all members."""
        here = self.layout.local_ranks
        reason, by, about, number, own, other, error = ending
        if reason in (Status.END_REQUESTED, Status.STOPPED):
            about = by
        places = reason, here[by], here[about], self.calls or number
        return *places, own, other, error
