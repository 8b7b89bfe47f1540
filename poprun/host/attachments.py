"""Which processes of the instances are attached to devices, by their connections.

popdist connects to poprun's control socket, asks for the device of its instance, and
keeps the connection until the process ends, however it ends. The device belongs to the
instance: its processes share it, and the first one is attached in the inventory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from poprun.vipu.launch.held_devices import Answer
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import protocol
from poprun.wire.channel import Channel


class Attacher(Protocol):
    """What attaches processes: poprun's inventory, or on another host poprun."""

    def attach(
        self, index: int, pid: int, reply: "Callable[[Answer], None]"
    ) -> None: ...

    def detach(self, index: int, pid: int) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Holder:
    """A process of an instance, by the connection that lives as long."""

    instance: int
    pid: int
    num_ipus: int


class Attachments:
    """The connections of processes that ask for devices.

    Args:
        devices: None for a job without.
        own: Those of the host's instances.
    """

    def __init__(self, devices: Attacher | None, own: "InstanceDevices | None") -> None:
        self._devices = devices
        self._own = own
        # In the order in which they came.
        self._holders: dict[Channel, _Holder] = {}
        # The process of each instance that the inventory was asked to attach, and
        # whether it has answered that it is.
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
        self._holders[link] = _Holder(instance=index, pid=pid, num_ipus=num_ipus)
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
        index, pid = holder.instance, holder.pid
        others = [other for other in self._holders.values() if other.instance == index]
        if self._attached.get(index, (0, False))[0] != pid or any(
            other.pid == pid for other in others
        ):
            return
        self._devices.detach(index, pid)
        del self._attached[index]
        if others:
            self._attach(index, others[0].pid)

    def pass_on(self, answer: "Answer") -> None:
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
        link.send(protocol.pack(protocol.ATTACHED, self._own.device_id(index)))

    def _refuse(self, link: Channel, sentence: str) -> None:
        link.send(protocol.pack(protocol.NOT_ATTACHED, sentence.encode()))
        link.close()
