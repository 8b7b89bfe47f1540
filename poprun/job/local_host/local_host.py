"""The host that poprun runs on: the instances there, and what connects to poprun.

What is reported on the control socket becomes events; what the supervisor decides is
sent to the shims.
"""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress

from poprun.helpers import protocol
from poprun.helpers.channel import Channel, process_of
from poprun.job.control_socket import ControlSocket, Handler, Messages
from poprun.job.events import AloneInMpi, DevicesLost, Event
from poprun.job.local_host.attachments import Attachments
from poprun.job.local_host.finalizing import Finalizing
from poprun.job.local_host.shims import Shims
from poprun.job.values import Job
from poprun.stdio.readers import Streams
from poprun.stdio.stdin import StdinFeeder
from poprun.stdio.waiter import READ, Interest


class LocalHost:
    """The HostLink to the machine that poprun runs on.

    Args:
        ranks: Those of the instances on this host.
        know: Is called with the pid and the start time of each shim.
    """

    # What is left here is ended by the guard.
    finished = True

    def __init__(
        self,
        job: Job,
        name: str,
        ranks: Collection[int],
        know: Callable[[int, int], None],
    ) -> None:
        self._job = job
        self.name = name
        self.ranks = ranks
        self._know = know
        self._finalizing = Finalizing(len(job.specs))
        self._attachments = Attachments(job.devices)
        self._has_lost_devices = False

    def start(
        self, emit: Callable[[Event], None], streams: Streams, stdin: StdinFeeder
    ) -> None:
        """Listen for shims, and for processes of their instances."""
        self._emit = emit
        self._shims = Shims(
            self._job,
            self.name,
            self.ranks,
            streams,
            stdin,
            emit=emit,
            know=self._know,
        )
        handlers = {
            protocol.HELLO: Handler(self._shims.accept, self._shims.receive),
            protocol.FINALIZING: Handler(self._on_finalizing, self._on_interpreter),
            protocol.ALONE_IN_MPI: Handler(self._on_alone, lambda *_: None),
            protocol.ATTACH: Handler(self._on_attach, self._attachments.receive),
        }
        self.control = ControlSocket(self._job.control, len(self.ranks), handlers, emit)

    # --- What the loop waits for.

    def interests(self, now: float) -> Iterator[Interest]:
        yield from self.control.interests(now)
        devices = self._job.devices
        if devices is not None and devices.fileno() >= 0:
            yield Interest(devices.fileno(), READ, lambda _: self._attachments.answer())

    def deadline(self, now: float) -> float:
        due = min(self._finalizing.deadline(), self.control.deadline(now))
        devices = self._job.devices
        return due if devices is None else min(due, devices.deadline())

    def tick(self, now: float) -> None:
        self.control.tick(now)
        for event in self._finalizing.due(now):
            self._emit(event)
        devices = self._job.devices
        if devices is not None:
            devices.tick(now)
            if devices.loss and not self._has_lost_devices:
                self._has_lost_devices = True
                self._emit(DevicesLost(devices.loss))

    def take_in_losses(self) -> None:
        self.control.read_closed()

    # --- What the supervisor decides.

    @property
    def is_clean(self) -> bool:
        return self._shims.are_clean

    def stop_starting(self) -> None:
        self._shims.starts_instances = False

    def signal_instances(self, number: int) -> None:
        self._shims.send(protocol.pack(protocol.SIGNAL, number))

    def kill_instances(self) -> None:
        self._shims.send(protocol.pack(protocol.KILL))

    def release_shims(self) -> None:
        self._shims.are_leaving = True
        self._shims.send(protocol.pack(protocol.RELEASE))

    def show_stacks(self, rank: int, pid: int) -> None:
        self._shims.send_to(rank, protocol.pack(protocol.SHOW_STACKS, pid))

    def note_end(self, rank: int) -> None:
        self._finalizing.end(rank)
        # On a full disk, or without the directory, they learn of it by their timeout.
        with suppress(OSError), open(self._job.ended_file, "ab") as file:
            file.write(b"%d\n" % rank)

    def finish(self) -> None:
        self.release_shims()

    def close(self) -> None:
        self.control.close()

    # --- What connects to the control socket, besides shims.

    def _on_alone(self, link: Channel, fields: list[bytes]) -> bool:
        """Warn of an instance that imports mpi4py where there is no MPI."""
        link.close()
        # A program below an instance may be without the variables of an MPI for good.
        if not self._job.has_mpi and len(self._job.specs) > 1:
            self._emit(AloneInMpi(int(fields[2])))
        return True

    def _on_attach(self, link: Channel, fields: list[bytes]) -> bool:
        """Attach a process of an instance to the device of that."""
        index, num_ipus = int(fields[2]), int(fields[3])
        if index not in self.ranks:
            return False
        self._attachments.ask(link, index, process_of(link.sock), num_ipus)
        return True

    def _on_finalizing(self, link: Channel, fields: list[bytes]) -> bool:
        """Note what a process of an instance exits with."""
        # What ends once the job is being stopped has not ended by itself.
        if self._shims.starts_instances:
            own = self._shims.rank_of_program(process_of(link.sock))
            self._finalizing.note(
                link,
                rank=int(fields[2]) if own is None else own,
                status=fields[3][0] << 8 if fields[3] else None,
                own=own is not None,
                now=time.monotonic(),
            )
        return True

    def _on_interpreter(self, link: Channel, messages: Messages | None) -> None:
        if messages is None:
            self._finalizing.forget(link)
