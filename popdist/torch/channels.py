"""Messages between two members of a process group, matched by their tags.

Each direction between two members has a separate group of the engine, made when it is
first used, and a thread that makes its calls: so a waiting receive does not delay other
calls. A message is a header with its tag and length, and then its bytes.
"""

import os
import threading
from collections.abc import Callable
from functools import partial
from math import inf
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from popdist.engine.calls import array_rows
from popdist.engine.group import Group
from popdist.engine.handle import Handle, Helper
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.meeting import Meeting
from popdist.engine.rows import row_of
from popdist.errors import CollectiveAbortedError
from popdist.session import STATE
from popdist.torch.tensor_rows import TORCH, check, is_row

T = TypeVar("T")

# Receives wait as long as their Work does, not as the engine does.
_NEVER_SECONDS = 1e9
_DESTROYED = "The process group was destroyed."


class Message(Handle[int]):
    """The handle of a send or a receive. Its result is the sender's rank.

    The thread that finishes it holds no reference to a tensor any more: torch lets
    other threads run while it frees one. If Python has begun to end meanwhile, it stops
    the thread in a destructor of C++, and that aborts the process.
    """

    def __init__(
        self,
        tensor: Tensor,
        peer: int | None,
        tag: int,
        stall: float,
        describe: Callable[[float], str],
    ) -> None:
        """Make a message that has yet to go through.

        Args:
            peer: The other member; None for any, in a receive.
            stall: After how many seconds a wait for it is reported on stderr.
            describe: Returns that report.
        """
        super().__init__(lambda _: None)
        self.peer, self.tag = peer, tag
        # The sender of a receive's tensor.
        self.source = -1
        self._tensor: Tensor | None = tensor
        self._stall, self._describe = stall, describe
        self._message_error: BaseException | None = None

    def is_from(self, source: int) -> bool:
        """Return whether a receive takes messages of this member."""
        return self.peer in (source, None)

    def matches(self, source: int, tag: int) -> bool:
        """Return whether a receive takes a message."""
        return self.is_from(source) and self.tag == tag

    @property
    def tensor(self) -> Tensor:
        """The tensor to send or to receive into, until the end of the call."""
        assert self._tensor is not None
        return self._tensor

    def deliver(self, source: int, part: Tensor) -> None:
        """Fill the tensor of a receive; finish() is to follow."""
        self.source = source
        if part.nbytes == self.tensor.nbytes:
            if part is not self.tensor:
                TORCH.copy_bytes(part, 0, self.tensor)
        else:
            self._message_error = CollectiveAbortedError(
                f"A tensor of {self.tensor.nbytes} bytes is to receive a message of "
                f"{part.nbytes} bytes from member {source}. Give one of the same size."
            )

    def finish(self, error: BaseException | None = None) -> None:
        """Complete the handle, with an error if there is one."""
        self._message_error = error or self._message_error
        self._tensor = None
        self.run(self._outcome)

    def is_done_in(self, seconds: float) -> bool:
        """Wait as any handle does, and report on stderr if that takes long."""
        first = min(seconds, self._stall)
        if super().is_done_in(first) or first == seconds:
            return self.test()
        # Once for each message.
        self._stall = inf
        report(self._describe(first))
        return super().is_done_in(seconds - first)

    def _outcome(self) -> int:
        if self._message_error is not None:
            raise self._message_error
        return self.source


class Channels:
    """The channels of one member of a process group to and from all others."""

    def __init__(
        self, name: str, group: Group, meeting: Meeting, *, are_instances: bool
    ) -> None:
        """Make channels, without opening any.

        Args:
            name: The secret that the members share.
            group: The engine's group of the same members.
            meeting: The meeting of that group.
            are_instances: The members are called by their numbers in the job.
        """
        self._name, self._are_instances = name, are_instances
        self._meeting = meeting
        # This member, and the numbers of all members in errors.
        self.rank, self.ranks = group.rank, group.transport.instances
        self._known = group.pidfds
        # Guards the fields below, and notifies receiving threads of their changes.
        self._changed = threading.Condition()
        # The messages for the thread of each receiver to send; it ends at None.
        self._outgoing: dict[int, SimpleQueue[Message | None]] = {}
        # Members with a thread that receives from them.
        self._sources: set[int] = set()
        # Receives without a message; sources, tags and bytes without a receive.
        self._waiting: list[Message] = []
        self._arrived: list[tuple[int, int, Tensor]] = []
        # Why nothing more arrives from a member.
        self._broken: dict[int, BaseException] = {}
        self._incoming: list[Group] = []
        self._closed = False

    def send(self, tensor: Tensor, to: int, tag: int) -> Message:
        """Send a tensor to a member; it must not be changed before that is over."""
        message = self._message("send", tensor, tag, to)
        with self._changed:
            self._check_open()
            if to not in self._outgoing:
                self._outgoing[to] = SimpleQueue()
                self._start(self._send_all, to, f"popdist to {to}")
            self._outgoing[to].put(message)
        return message

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> Message:
        """Fill a tensor with what a member sends, or any for None, by this tag."""
        message = self._message("recv", tensor, tag, source)
        others = [i for i in range(len(self.ranks)) if i != self.rank]
        sources = set(others if source is None else [source])
        with self._changed:
            self._check_open()
            for member in sources - self._sources:
                self._sources.add(member)
                self._start(self._receive_all, member, f"popdist from {member}")
            arrived = _take(self._arrived, lambda one: message.matches(*one[:2]))
            errors = [self._broken[one] for one in sources if one in self._broken]
            if arrived is None and not errors:
                self._waiting.append(message)
                self._changed.notify_all()
        if arrived is not None:
            message.deliver(arrived[0], arrived[2])
            message.finish()
        elif errors:
            message.finish(errors[0])
        return message

    def close(self) -> None:
        """Receive nothing more. Other members can still receive sent messages.

        Receives that wait for a message end with an error.
        """
        with self._changed:
            self._closed = True
            groups, self._incoming = self._incoming, []
            waiting, self._waiting = self._waiting, []
            for queue in self._outgoing.values():
                queue.put(None)
            self._changed.notify_all()
        for group in groups:
            group.abort(_DESTROYED)
        for message in waiting:
            message.finish(CollectiveAbortedError(_DESTROYED))

    def _check_open(self) -> None:
        if self._closed:
            raise CollectiveAbortedError(_DESTROYED)

    def _message(
        self, call: str, tensor: Tensor, tag: int, peer: int | None
    ) -> Message:
        check(tensor)
        exchange = (
            f"{call} of {tensor.nbytes} bytes" if tag >= 0 else "monitored_barrier"
        )
        describe = partial(self._describe, exchange, peer)
        return Message(tensor, peer, tag, STATE.settings.stall, describe)

    def _describe(self, exchange: str, peer: int | None, waited: float) -> str:
        """Return the report of a stall."""
        awaited = "any other instance"
        if peer is not None:
            number = self.ranks[peer]
            known = self._known.get(number)
            awaited = f"instance {number}"
            if known is not None:
                awaited += f" (process {known.pid} on {os.uname().nodename})"
        return (
            f"popdist: instance {self.ranks[self.rank]} has waited {waited:.0f} s "
            f"for {awaited} in {exchange}."
        )

    def _start(self, work: Callable[[int], None], peer: int, name: str) -> None:
        Helper(target=work, args=(peer,), name=name, daemon=True).start()

    def _open(self, source: int, to: int) -> Group:
        ranks = [self.ranks[source], self.ranks[to]]
        name = f"{self._name}.{source}.{to}"

        def name_while_open() -> str:
            self._check_open()
            return name

        meeting = self._meeting._replace(
            name=name if self.rank == source else name_while_open,
            rank=0 if self.rank == source else 1,
            instances=ranks,
            timeout=_NEVER_SECONDS,
            stall=_NEVER_SECONDS,
            known=self._known,
        )
        group = STATE.new_group(meeting, are_instances=self._are_instances)
        if self.rank == to:
            with self._changed:
                if self._closed:
                    group.abort(_DESTROYED)
                self._incoming.append(group)
        return group

    def _send_all(self, to: int) -> None:
        """Send messages to one member, in order."""
        group: Group | None = None
        while (message := self._outgoing[to].get()) is not None:
            try:
                group = group or self._open(self.rank, to)
                message.source = self.rank
                _send(group, message)
            except BaseException as error:
                message.finish(error)
            else:
                message.finish()

    def _receive_all(self, source: int) -> None:
        """Receive messages from one member, as long as a receive waits for any."""
        try:
            group: Group | None = None
            header = np.zeros(2, np.int64)
            while self._is_expected(source):
                group = group or self._open(source, self.rank)
                group.transport.receive(array_rows.bytes_of(header), 0)
                message = self._receive_one(group, source, *header.tolist())
                if message is not None:
                    message.finish()
        except BaseException as error:
            with self._changed:
                self._broken[source] = error
                failed = [one for one in self._waiting if one.is_from(source)]
                self._waiting = [one for one in self._waiting if one not in failed]
            for message in failed:
                message.finish(error)

    def _is_expected(self, source: int) -> bool:
        """Wait until a receive waits for a message of a member; False at the end."""
        with self._changed:
            while not (self._closed or any(x.is_from(source) for x in self._waiting)):
                self._changed.wait()
            return not self._closed

    def _receive_one(
        self, group: Group, source: int, tag: int, nbytes: int
    ) -> Message | None:
        """Receive a message, and return the receive that waits for it, if one does."""

        def is_wanted(receive: Message) -> bool:
            return receive.matches(source, tag)

        with self._changed:
            message = _take(self._waiting, is_wanted)
        part = None if message is None else message.tensor
        if part is None or part.nbytes != nbytes or not is_row(part):
            part = torch.empty(nbytes, dtype=torch.uint8)
        try:
            group.transport.receive(row_of(TORCH, part), 0)
        except BaseException as error:
            if message is not None:
                message.finish(error)
            raise
        with self._changed:
            # receive() may have been called meanwhile.
            message = message or _take(self._waiting, is_wanted)
            if message is None:
                self._arrived.append((source, tag, part))
                return None
        message.deliver(source, part)
        return message


def _take(items: list[T], is_wanted: Callable[[T], bool]) -> T | None:
    """Take the first wanted item out of a list."""
    for index, item in enumerate(items):
        if is_wanted(item):
            return items.pop(index)
    return None


def _send(group: Group, message: Message) -> None:
    """Send a message through the group of its two members."""
    row = row_of(TORCH, message.tensor)
    header = np.array([message.tag, row.nbytes], np.int64)
    group.transport.send(array_rows.bytes_of(header), 1)
    group.transport.send(row, 1)
