"""The devices of a host's instances: poprun, which holds them, attaches processes."""

from poprun.vipu import liveness
from poprun.vipu.launch.held_devices import Answer, Reply
from poprun.vipu.launch.values import InstanceDevices
from poprun.wire import messages, protocol
from poprun.wire.channel import Channel


class ForwardedDevices:
    """Asks poprun to attach processes of this host, and to detach them."""

    def __init__(self, channel: Channel, devices: InstanceDevices) -> None:
        self._channel = channel
        self._devices = devices
        # Of the processes that poprun was asked for, by instance and pid.
        self._replies: dict[tuple[int, int], Reply] = {}

    def attach(self, index: int, pid: int, reply: Reply) -> None:
        """Ask for a process to be attached to an instance's device, until detached."""
        try:
            process = liveness.identify(pid)
        except ProcessLookupError as error:
            reply(Answer(index, pid, self._devices.refusal(index, str(error))))
            return
        self._replies[index, pid] = reply
        fields = (f.encode() if isinstance(f, str) else f for f in process)
        self._channel.send(protocol.pack(messages.ATTACH, index, *fields))

    def detach(self, index: int, pid: int) -> None:
        """Let a process that has ended go; the device stays that of the instance."""
        self._replies.pop((index, pid), None)
        self._channel.send(protocol.pack(messages.DETACH, index, pid))

    def receive(self, index: int, pid: int, refusal: str) -> None:
        """Take in what poprun has answered about a process."""
        reply = self._replies.pop((index, pid), None)
        if reply is not None:
            reply(Answer(index, pid, refusal))
