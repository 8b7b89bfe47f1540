"""Messages between two members of a process group, matched by their tags.

For each direction between two members there is a group of the engine of its own, made
when it is first used, and a thread that makes its calls: so a receive that waits keeps
no other call waiting. A message is a header, its tag and bytes, and then its bytes.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf

import torch
from torch import Tensor

from popdist.engine.group import Group
from popdist.engine.handle import Handle, Helper
from popdist.engine.meet.deadlines import report
from popdist.engine.meet.pidfds import Pidfd
from popdist.errors import CollectiveAbortedError, PopdistError
from popdist.session import STATE
from popdist.torch.tensors.tensor_rows import (
    bytes_of,
    check,
    copy_result,
    readable,
    scratch,
)

# Receives wait as long as their Work does, not as the engine does.
_NEVER_SECONDS = 1e9
_DESTROYED = "The process group was destroyed."


class Message(Handle[int]):
    """The handle of a send or a receive."""

    def __init__(
        self, tensor: Tensor, tag: int, stall: float, describe: Callable[[float], str]
    ) -> None:
        """Make a message that has yet to go through.

        Args:
            stall: After how many seconds a wait for it is reported on stderr.
            describe: Returns that report.
        """
        super().__init__(lambda _: None)
        self.tensor = tensor
        self.tag = tag
        # Which member a receive got its tensor from.
        self.source = -1
        self._stall, self._describe = stall, describe
        self._message_error: BaseException | None = None

    def finish(self, source: int = -1, error: BaseException | None = None) -> None:
        """Complete the handle, with an error if there is one."""
        self.source, self._message_error = source, error
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
        self,
        name: str,
        rank: int,
        ranks: Sequence[int],
        known: Mapping[int, Pidfd],
        stall: float,
    ) -> None:
        """Make channels, none of which is open.

        Args:
            name: The secret that the members share.
            rank: This member.
            ranks: What the members are called in errors.
            known: A pidfd of each other member, by what it is called.
            stall: After how many seconds a wait for a message is reported.
        """
        self._name, self._rank, self._ranks, self._known = name, rank, ranks, known
        self._stall = stall
        # Guards all that the threads share, and tells them that there is work.
        self._changed = threading.Condition()
        self._outgoing: dict[int, deque[Message]] = {}
        self._expected: dict[int, list[Message]] = {}
        # Receives from any source, and messages that came before a receive for them.
        self._any: list[Message] = []
        self._arrived: dict[int, list[tuple[int, Tensor]]] = {}
        self._broken: dict[int, BaseException] = {}
        self._incoming: list[Group] = []
        self._closed = False

    def send(self, tensor: Tensor, to: int, tag: int) -> Message:
        """Send a tensor to a member; it must not be changed before that is over."""
        check(tensor)
        message = Message(
            tensor, tag, self._stall, partial(self._describe, "send", tensor, tag, to)
        )
        with self._changed:
            self._check_open()
            if to not in self._outgoing:
                self._outgoing[to] = deque()
                self._start(self._send_all, to, f"popdist to {to}")
            self._outgoing[to].append(message)
            self._changed.notify_all()
        return message

    def receive(self, tensor: Tensor, source: int | None, tag: int) -> Message:
        """Fill a tensor with what a member sends, or any for None, by this tag."""
        check(tensor)
        message = Message(
            tensor,
            tag,
            self._stall,
            partial(self._describe, "recv", tensor, tag, source),
        )
        others = [i for i in range(len(self._ranks)) if i != self._rank]
        with self._changed:
            self._check_open()
            for member in others if source is None else [source]:
                if member not in self._expected:
                    self._expected[member] = []
                    self._start(self._receive_all, member, f"popdist from {member}")
            found = self._take_arrived(message, others if source is None else [source])
            if found is None:
                waiting = self._any if source is None else self._expected[source]
                waiting.append(message)
                self._changed.notify_all()
        if found is not None:
            _deliver(message, *found)
        elif source is not None and source in self._broken:
            self._fail(source, self._broken[source])
        return message

    def close(self) -> None:
        """Receive nothing more. What has been sent can still be received elsewhere.

        Receives that wait for a message end with an error.
        """
        with self._changed:
            self._closed = True
            groups, self._incoming = self._incoming, []
            waiting, self._any = self._any, []
            for messages in self._expected.values():
                waiting += messages
                messages.clear()
            self._changed.notify_all()
        for group in groups:
            group.abort(_DESTROYED)
        for message in waiting:
            message.finish(error=CollectiveAbortedError(_DESTROYED))

    def _check_open(self) -> None:
        if self._closed:
            raise CollectiveAbortedError(_DESTROYED)

    def _describe(
        self, call: str, tensor: Tensor, tag: int, peer: int | None, waited: float
    ) -> str:
        """Return the report of a stall."""
        what = f"{call} of {tensor.nbytes} bytes" if tag >= 0 else "monitored_barrier"
        whom = "any other instance"
        if peer is not None:
            number = self._ranks[peer]
            known = self._known.get(number)
            whom = f"instance {number}"
            if known is not None:
                whom += f" (process {known.pid} on {os.uname().nodename})"
        return (
            f"popdist: instance {self._ranks[self._rank]} has waited {waited:.0f} s "
            f"for {whom} in {what}."
        )

    def _start(self, work: Callable[[int], None], peer: int, name: str) -> None:
        Helper(target=work, args=(peer,), name=name, daemon=True).start()

    def _open(self, source: int, to: int) -> Group:
        ranks = [self._ranks[source], self._ranks[to]]
        name = f"{self._name}.{source}.{to}"

        def name_while_open() -> str:
            self._check_open()
            return name

        group = STATE.meet(
            name if self._rank == source else name_while_open,
            0 if self._rank == source else 1,
            ranks,
            timeout=_NEVER_SECONDS,
            stall=_NEVER_SECONDS,
            known={r: self._known[r] for r in ranks if r in self._known},
        )
        if self._rank == to:
            with self._changed:
                if self._closed:
                    group.abort(_DESTROYED)
                self._incoming.append(group)
        return group

    def _send_all(self, to: int) -> None:
        """Send messages to one member, in order."""
        group: Group | None = None
        while (message := self._next_to(to)) is not None:
            try:
                group = group or self._open(self._rank, to)
                held = readable(message.tensor)
                header = torch.tensor([message.tag, held.nbytes])
                group.transport.send(bytes_of(header), 1)
                group.transport.send(bytes_of(held), 1)
            except BaseException as error:
                message.finish(error=error)
            else:
                message.finish(self._rank)

    def _next_to(self, to: int) -> Message | None:
        with self._changed:
            while not (self._outgoing[to] or self._closed):
                self._changed.wait()
            return self._outgoing[to].popleft() if self._outgoing[to] else None

    def _receive_all(self, source: int) -> None:
        """Receive from one member whatever comes, as long as a receive waits."""
        try:
            group: Group | None = None
            header = torch.zeros(2, dtype=torch.int64)
            while self._is_expected(source):
                group = group or self._open(source, self._rank)
                group.transport.receive(bytes_of(header), 0)
                tag, nbytes = header.tolist()
                self._receive_one(group, source, tag, nbytes)
        except BaseException as error:
            with self._changed:
                self._broken[source] = error
            self._fail(source, error)

    def _is_expected(self, source: int) -> bool:
        with self._changed:
            while not (self._expected[source] or self._any or self._closed):
                self._changed.wait()
            return not self._closed

    def _receive_one(self, group: Group, source: int, tag: int, nbytes: int) -> None:
        with self._changed:
            message = _taken(self._expected[source], tag) or _taken(self._any, tag)
        if message is None or message.tensor.nbytes != nbytes:
            part = torch.empty(nbytes, dtype=torch.uint8)
            group.transport.receive(bytes_of(part), 0)
            if message is not None:
                _deliver(message, source, part)
                return
            with self._changed:
                # A receive may have come meanwhile.
                message = _taken(self._expected[source], tag) or _taken(self._any, tag)
                if message is None:
                    self._arrived.setdefault(source, []).append((tag, part))
            if message is not None:
                _deliver(message, source, part)
            return
        held = scratch(message.tensor, [])
        try:
            group.transport.receive(bytes_of(held), 0)
        except BaseException as error:
            message.finish(error=error)
            raise
        copy_result(held, message.tensor)
        message.finish(source)

    def _take_arrived(
        self, message: Message, sources: Sequence[int]
    ) -> tuple[int, Tensor] | None:
        for source in sources:
            arrived = self._arrived.get(source, [])
            for index, (tag, part) in enumerate(arrived):
                if tag == message.tag:
                    del arrived[index]
                    return source, part
        return None

    def _fail(self, source: int, error: BaseException) -> None:
        """Fail the receives from a member, and those from any if no member is left."""
        with self._changed:
            failed, self._expected[source] = self._expected[source], []
            if len(self._broken) == len(self._ranks) - 1 or isinstance(
                error, PopdistError
            ):
                failed, self._any = failed + self._any, []
        for message in failed:
            message.finish(error=error)


def _taken(waiting: list[Message], tag: int) -> Message | None:
    """Take the first message with a tag out of a list."""
    for index, message in enumerate(waiting):
        if message.tag == tag:
            return waiting.pop(index)
    return None


def _deliver(message: Message, source: int, part: Tensor) -> None:
    """Finish a receive with bytes that came before it, or of another size."""
    tensor = message.tensor
    if part.nbytes != tensor.nbytes:
        error = CollectiveAbortedError(
            f"A tensor of {tensor.nbytes} bytes is to receive a message of "
            f"{part.nbytes} bytes from member {source}. Give one of the same size."
        )
        message.finish(error=error)
        return
    copy_result(part.view(tensor.dtype).view(tensor.shape), tensor)
    message.finish(source)
