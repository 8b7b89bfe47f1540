"""Attach processes of the instances to devices for as long as they are connected.

popdist connects to poprun's control socket, asks for the device of its instance, and
keeps the connection until the process ends, however it ends. The device belongs to the
instance: its processes share it, and the first one is attached in the inventory.
"""

from collections.abc import Callable
from dataclasses import astuple
from typing import NamedTuple, Protocol

from poprun.vipu import liveness
from poprun.vipu.launch.held_devices import Answer, Reply
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import protocol
from poprun.wire.channel import Channel


class Attacher(Protocol):
    """Attaches processes: the job's HeldDevices, or on another host poprun."""

    def attach(self, index: int, pid: int, reply: Reply) -> None:
        """Ask for a process to be attached to an instance's device, until detached."""

    def detach(self, index: int, pid: int) -> None:
        """Let a process that has ended go; the instance keeps the device."""


class ForwardedDevices:
    """Asks poprun to attach processes of this host, and to detach them.

    Args:
        send: Sends a message to poprun: its kind and fields.
    """

    def __init__(self, send: Callable[..., None], devices: InstanceDevices) -> None:
        self._send = send
        self._devices = devices
        # The requests that poprun has not answered, by instance and pid.
        self._replies: dict[tuple[int, int], Reply] = {}

    def attach(self, index: int, pid: int, reply: Reply) -> None:
        try:
            process = liveness.identify(pid)
        except ProcessLookupError as error:
            refusal = self._devices.refusal(index, str(error))
            reply(Answer(instance=index, pid=pid, refusal=refusal))
            return
        self._replies[index, pid] = reply
        fields = (f.encode() if isinstance(f, str) else f for f in astuple(process))
        self._send(protocol.ATTACH_PROCESS, index, *fields)

    def detach(self, index: int, pid: int) -> None:
        self._replies.pop((index, pid), None)
        self._send(protocol.DETACH_PROCESS, index, pid)

    def receive(self, index: int, pid: int, refusal: str) -> None:
        """Take in what poprun has answered about a process."""
        if reply := self._replies.pop((index, pid), None):
            reply(Answer(instance=index, pid=pid, refusal=refusal))


class _Holder(NamedTuple):
    """A process of an instance that has asked for its device."""

    instance: int
    pid: int


class Attachments:
    """The connections of processes that ask for devices.

    Args:
        devices: None for a job without.
        own: The devices of the host's instances.
    """

    def __init__(self, devices: Attacher | None, own: InstanceDevices | None) -> None:
        self._devices = devices
        self._own = own
        # The processes in the order of their requests, by connection: a connection
        # lives as long as its process.
        self._holders: dict[Channel, _Holder] = {}
        # For each instance: the process in the request to the inventory, and whether
        # the inventory has attached it.
        self._attached: dict[int, tuple[int, bool]] = {}

    def ask(self, link: Channel, index: int, pid: int, num_ipus: int) -> None:
        """Answer a process that wants the device of its instance, now or later."""
        own = self._own
        if own is None:
            self._refuse(link, f"Instance {index} belongs to a job without IPUs.")
            return
        if num_ipus > own.num_ipus:
            reason = (
                f"it was asked for with {num_ipus} IPUs. Ask for {own.num_ipus}, "
                "or start the job with more --ipus-per-replica or --num-replicas."
            )
            self._refuse(link, own.refusal(index, reason))
            return
        self._holders[link] = _Holder(index, pid)
        first, is_attached = self._attached.get(index, (0, False))
        if not first:
            self._attach(index, pid)
        elif is_attached:
            self._grant(link, index)

    def receive(self, link: Channel, _: object) -> None:
        """Detach a process that has ended; another of its instance takes its place.

        It has nothing more to send, so one that does is treated alike.
        """
        link.close()
        holder = self._holders.pop(link, None)
        if holder is None or self._devices is None:
            return
        index, pid = holder
        others = [h.pid for h in self._holders.values() if h.instance == index]
        if self._attached.get(index, (0, False))[0] != pid or pid in others:
            return
        self._devices.detach(index, pid)
        del self._attached[index]
        if others:
            self._attach(index, others[0])

    def pass_on(self, answer: Answer) -> None:
        """Pass on what the inventory has answered."""
        index = answer.instance
        if self._attached.get(index, (0, False))[0] != answer.pid:
            return  # it has ended in the meantime
        waiting = [k for k, h in self._holders.items() if h.instance == index]
        if not answer.refusal:
            self._attached[index] = answer.pid, True
            for link in waiting:
                self._grant(link, index)
            return
        del self._attached[index]
        for link in waiting:
            del self._holders[link]
            self._refuse(link, answer.refusal)

    def _attach(self, index: int, pid: int) -> None:
        assert self._devices is not None
        self._attached[index] = pid, False
        self._devices.attach(index, pid, self.pass_on)

    def _grant(self, link: Channel, index: int) -> None:
        assert self._own is not None
        link.tell(protocol.ATTACHED, self._own.device_id(index))

    def _refuse(self, link: Channel, sentence: str) -> None:
        link.tell(protocol.NOT_ATTACHED, sentence.encode())
        link.close()
