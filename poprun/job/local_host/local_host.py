"""The host that poprun runs on: its guard, its mpirun and what connects to poprun.

It owns the socket to the guard and the read ends of the instances' streams. What is
reported becomes events; what the supervisor decides is sent to the shims.
"""

import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from selectors import EVENT_READ, EVENT_WRITE

from poprun.errors import LaunchError
from poprun.helpers import processes, protocol
from poprun.helpers.channel import Channel, process_of
from poprun.job.control_socket import ControlSocket
from poprun.job.events import (
    AcceptFailed,
    AloneInMpi,
    DevicesLost,
    Event,
    GuardLost,
    MpirunExited,
    MpirunRefused,
    MpirunStarted,
    NotUndone,
    Rejected,
    Remains,
)
from poprun.job.guard_client import GuardClient
from poprun.job.guard_start import StartedGuard
from poprun.job.host_link import Interest
from poprun.job.local_host.attachments import Attachments
from poprun.job.local_host.finalizing import Finalizing
from poprun.job.local_host.shims import Messages, Shims
from poprun.job.values import Job
from poprun.stdio.readers import Streams
from poprun.stdio.router import OutputRouter
from poprun.stdio.stdin import StdinFeeder

FOREVER = float("inf")
# A guard that stays stopped (state T) for so long is replaced; how often it is checked.
STOPPED_S = 1.0
CHECK_GUARD_S = 0.1
# A guard that is killed is replaced, but not without end.
MAX_GUARDS = 20


class LocalHost:
    """The HostLink to the machine that poprun runs on.

    Args:
        guard: Runs already, and waits for its first message.
        router: Gets the output of the instances.
    """

    def __init__(self, job: Job, guard: StartedGuard, router: OutputRouter) -> None:
        self._job = job
        self._started_guard = guard
        self._output = guard.output
        self.streams = Streams(router)
        self.finished = False
        self._finish_began = FOREVER
        self._starts_instances = True
        self._mpirun_pid = 0
        self._mpirun_ended = False
        self._finalizing = Finalizing(len(job.specs))
        self._interpreters: set[Channel] = set()  # that have reported their end
        self._attachments = Attachments(job.devices)
        self._remaining: set[int] = set()  # processes that may not be signalled
        self._failures: set[str] = set()  # of end actions
        self._has_lost_devices = False

    def start(self, emit: Callable[[Event], None], stdin: StdinFeeder) -> None:
        """Start mpirun."""
        job = self._job
        self._emit = emit
        processes.become_subreaper()
        self._control = ControlSocket(job.control, len(job.specs))
        self._guard = GuardClient(
            self._started_guard,
            mark=job.mark,
            environment=job.mpirun_environment,
            grace=job.grace,
            end_actions=[r.end_action for r in job.resources],
            watch=job.leftovers,
            descriptor_limits=job.descriptor_limits,
        )
        self._shims = Shims(
            job,
            self.streams,
            stdin,
            self._finalizing,
            emit=emit,
            on_remains=self._on_remains,
        )
        # Now that the guard knows of them: poprun may be killed at any time.
        for item in job.resources:
            item.make()
            if not self._shims.hold and job.directory:
                self._shims.hold = self._guard.make_lock(job.directory)
        self._guard.start(job.mpirun)

    # --- What the loop waits for.

    def interests(self, now: float) -> Iterator[Interest]:
        # In the order in which connections were closed, which poll does not know.
        yield Interest(self._shims.hangups.fileno(), EVENT_READ, self._shims.on_hangups)
        if self._control.is_listening(now):
            yield Interest(self._control.fileno(), EVENT_READ, self._on_connection)
        # The guard last: mpirun's exit usually follows from that of an instance or a
        # shim. Where it is the other way round, mpirun was killed, and its status
        # says so.
        if self._job.devices is not None and self._job.devices.fileno() >= 0:
            yield Interest(self._job.devices.fileno(), EVENT_READ, self._on_devices)
        links = (
            *self._control.unknown,
            *self._interpreters,
            *self._attachments.links,
            *self._shims.links,
        )
        for link in (*links, self._guard.channel):
            events = EVENT_READ | (EVENT_WRITE if link.has_unsent else 0)
            yield Interest(link.fileno(), events, self._on_link(link))

    def deadline(self, now: float) -> float:
        due = min(self._finalizing.deadline(), self._control.deadline(now))
        if self._job.devices is not None:
            due = min(due, self._job.devices.deadline())
        is_watched = self._is_finishing or self._is_starting
        return min(due, now + CHECK_GUARD_S) if is_watched else due

    def tick(self, now: float) -> None:
        for _ in range(self._control.expire(now)):
            self._emit(Rejected("it sent no message"))
        for event in self._finalizing.due(now):
            self._emit(event)
        if self._job.devices is not None:
            self._job.devices.tick(now)
        if self._is_finishing:
            self._check_guard(now)
        elif self._is_starting:
            # It may have been stopped before poprun got SIGCHLD for it.
            self._guard.keep_running()

    # --- What the supervisor decides.

    def stop_starting(self) -> None:
        self._starts_instances = False

    def signal_instances(self, number: int) -> None:
        self._shims.send(protocol.pack(protocol.SIGNAL, number))

    def kill_instances(self) -> None:
        self._shims.send(protocol.pack(protocol.KILL))

    def release_shims(self) -> None:
        self._shims.are_leaving = True
        self._shims.send(protocol.pack(protocol.RELEASE))

    def signal_mpirun(self, number: int) -> None:
        self._shims.are_leaving = True
        if self._mpirun_pid:
            self._guard.signal_mpirun(self._mpirun_pid, number)

    def show_stacks(self, rank: int, pid: int) -> None:
        self._shims.send_to(rank, protocol.pack(protocol.SHOW_STACKS, pid))

    def note_end(self, rank: int) -> None:
        # On a full disk, or without the directory, they learn of it by their timeout.
        with suppress(OSError), open(self._job.ended_file, "ab") as file:
            file.write(b"%d\n" % rank)

    def resize(self, rows: int, columns: int) -> None:
        self.streams.resize((rows, columns))
        self.signal_instances(signal.SIGWINCH)

    def reap(self) -> None:
        # mpirun is poprun's own child only when a guard has died.
        for pid, status in processes.reap():
            if pid == self._mpirun_pid:
                self._on_mpirun_exit(status)
        # SIGCHLD comes when a child is stopped, too.
        self._guard.keep_running()

    def finish(self) -> None:
        self.release_shims()
        if self._is_clean:
            self._undo_at_once()
            self._report_loss()
        self._finish_began = time.monotonic()
        self._guard.finish()

    def close(self) -> bytes:
        self.streams.close()
        self._attachments.close()
        self._control.close()
        self._shims.close()
        output = os.pread(self._output, 1 << 20, 0)
        os.close(self._output)
        self._guard.close()
        # Another attempt would take what this one has raised for the caller's.
        resource.setrlimit(resource.RLIMIT_NOFILE, self._job.descriptor_limits)
        return output

    @property
    def _is_clean(self) -> bool:
        """Whether no process of an instance can be left."""
        return self._shims.are_clean and not self._remaining

    def _undo_at_once(self) -> None:
        """Undo here what the guard would start a command for."""
        for item in self._job.resources:
            if item.undo is not None and item.undo():
                self._guard.withdraw(item.end_action)

    def _on_devices(self, _: int) -> None:
        self._attachments.answer()
        self._report_loss()

    def _report_loss(self) -> None:
        devices = self._job.devices
        if devices is not None and devices.loss and not self._has_lost_devices:
            self._has_lost_devices = True
            self._emit(DevicesLost(devices.loss))

    @property
    def _is_starting(self) -> bool:
        return not self._mpirun_pid and not self._mpirun_ended

    @property
    def _is_finishing(self) -> bool:
        return self._finish_began < FOREVER and not self.finished

    def _check_guard(self, now: float) -> None:
        """Replace a guard that does not finish, or do its work in its place."""
        if now >= self._finish_began + self._guard.finish_limit_s:
            self._guard.kill()
            self._emit_failures(self._guard.do_without())
            self._set_finished()
        # A debugger may hold it, or something may stop it again and again.
        elif self._guard.keep_running() and now >= self._finish_began + STOPPED_S:
            self._guard.kill()

    def _set_finished(self) -> None:
        self.finished = True
        self._emit_failures(self._guard.end_own_orphans())

    def _emit_failures(self, failures: list[str]) -> None:
        for failure in failures:
            if failure not in self._failures:
                self._failures.add(failure)
                self._emit(NotUndone(failure))

    # --- The guard, and mpirun behind it.

    def _on_link(self, link: Channel) -> Callable[[int], None]:
        def call(events: int) -> None:
            # More may have gone since the epoll was looked at, in an order of time.
            self._shims.on_hangups(0)
            if link.fileno() < 0:  # closed since poll returned
                return
            if events & EVENT_WRITE:
                link.flush()
            if events & EVENT_READ:
                self._on_messages(link, link.receive())

        return call

    def _on_messages(self, link: Channel, messages: Messages | None) -> None:
        if link is self._guard.channel:
            if messages is None:
                self._on_guard_lost()
            for kind, fields in messages or ():
                if not protocol.is_report(kind, fields):
                    os.kill(self._guard.pid, signal.SIGKILL)
                    self._on_guard_lost()
                    return
                self._on_guard(kind, fields)
        elif link in self._control.unknown:
            self._on_hello(link, messages)
        elif link in self._interpreters:
            if messages is None:
                self._interpreters.discard(link)
                self._finalizing.forget(link)
                link.close()
        elif link in self._attachments.links:
            # It has nothing more to say.
            if messages != []:
                self._attachments.forget(link)
                link.close()
        else:
            self._shims.on_messages(link, messages)

    def _on_guard(self, kind: int, fields: list[bytes]) -> None:
        if kind == protocol.FOUND:
            self._guard.remember_leftover(fields[0])
            return
        if kind == protocol.REMAINS:
            self._on_remains(fields)
            return
        if kind == protocol.NOT_UNDONE:
            self._emit_failures([os.fsdecode(fields[0])])
            return
        if kind == protocol.MPIRUN_STARTED:
            self._on_mpirun_start(int(fields[0]), int(fields[1]))
        elif kind == protocol.MPIRUN_REFUSED:
            self._emit(MpirunRefused(int(fields[0]), os.fsdecode(fields[1])))
            self._on_mpirun_exit(127 << 8)
        elif kind == protocol.MPIRUN_EXITED:
            self._on_mpirun_exit(int(fields[0]))
        elif kind == protocol.FINISHED:
            self._set_finished()

    def _on_remains(self, fields: list[bytes]) -> None:
        pid, user = (int(field) for field in fields[:2])
        if pid not in self._remaining:
            self._remaining.add(pid)
            command = fields[2].decode(errors="backslashreplace")
            self._emit(Remains(pid, user, command))

    def _on_mpirun_exit(self, status: int) -> None:
        self._mpirun_ended = True
        self._emit(MpirunExited(status))

    def _on_guard_lost(self) -> None:
        if self.finished:
            return
        if self._guard.replaced == MAX_GUARDS:
            self._emit_failures(self._guard.do_without())
            raise LaunchError(
                f"poprun's guard died {MAX_GUARDS + 1} times in one job. "
                "The job was ended, because nothing else ends it should poprun die."
            )
        try:
            self._guard.replace()
        except LaunchError:
            self._emit_failures(self._guard.do_without())
            raise
        if self._job.devices is not None:
            self._job.devices.live_with(self._guard.pid)
        self._emit(GuardLost())
        if not self._mpirun_pid and not self._mpirun_ended:
            self._find_mpirun()
        self.reap()
        if self._is_finishing:
            self._guard.finish()

    def _find_mpirun(self) -> None:
        """Go on where a guard died before it could say which process mpirun is."""
        mpirun = self._guard.orphaned_mpirun()
        if mpirun is not None:
            self._on_mpirun_start(mpirun.pid, mpirun.start)
        elif self._starts_instances:
            self._guard.start(self._job.mpirun)
        else:
            self._on_mpirun_exit(signal.SIGKILL)

    def _on_mpirun_start(self, pid: int, start: int) -> None:
        self._mpirun_pid = pid
        self._guard.know(pid, start)
        self._emit(MpirunStarted(pid))

    # --- What connects to the control socket.

    def _on_connection(self, _: int) -> None:
        try:
            for why in self._control.accept(time.monotonic()):
                self._emit(Rejected(why))
        except OSError as error:
            self._emit(AcceptFailed(error.errno or 0))

    def _on_hello(self, link: Channel, messages: Messages | None) -> None:
        if messages == []:
            return
        del self._control.unknown[link]
        if messages and messages[0][0] == protocol.FINALIZING:
            self._on_finalizing(link, messages[0][1])
            return
        if messages and messages[0][0] == protocol.ALONE_IN_MPI:
            self._on_alone(link, messages[0][1])
            return
        if messages and messages[0][0] == protocol.ATTACH:
            self._on_attach(link, messages[0][1])
            return
        rank = self._rank_of(messages)
        if rank is None:
            link.close()
            self._emit(Rejected("it did not prove that it belongs to the job"))
            return
        assert messages
        self._guard.know(int(messages[0][1][4]), int(messages[0][1][5]))
        self._shims.add(rank, link, starts=self._starts_instances)

    def _rank_of(self, messages: Messages | None) -> int | None:
        if not messages or messages[0][0] != protocol.HELLO:
            return None
        if not protocol.is_report(*messages[0]):
            return None
        version, key, rank = messages[0][1][:3]
        ours = int(version) == protocol.VERSION and key == self._control.key
        return int(rank) if ours and self._shims.expect(int(rank)) else None

    def _on_alone(self, link: Channel, fields: list[bytes]) -> None:
        """Warn of an instance that imports mpi4py where there is no MPI."""
        known = protocol.is_report(protocol.ALONE_IN_MPI, fields)
        ours = known and fields[:2] == [b"%d" % protocol.VERSION, self._control.key]
        link.close()
        # A program below an instance may be without the variables of an MPI for good.
        if ours and not self._job.has_mpi and len(self._job.specs) > 1:
            self._emit(AloneInMpi(int(fields[2])))

    def _on_attach(self, link: Channel, fields: list[bytes]) -> None:
        """Attach a process of an instance to the device of that."""
        known = protocol.is_report(protocol.ATTACH, fields)
        ours = known and fields[:2] == [b"%d" % protocol.VERSION, self._control.key]
        if not ours or int(fields[2]) >= len(self._job.specs):
            link.close()
            self._emit(Rejected("it did not prove that it belongs to the job"))
            return
        index, num_ipus = int(fields[2]), int(fields[3])
        self._attachments.ask(link, index, process_of(link.sock), num_ipus)

    def _on_finalizing(self, link: Channel, fields: list[bytes]) -> None:
        """Note what a process of an instance exits with."""
        known = protocol.is_report(protocol.FINALIZING, fields)
        if not known or fields[:2] != [b"%d" % protocol.VERSION, self._control.key]:
            link.close()
            return
        self._interpreters.add(link)
        # What ends once the job is being stopped has not ended by itself.
        if self._starts_instances:
            own = self._shims.rank_of_program(process_of(link.sock))
            self._finalizing.note(
                link,
                rank=int(fields[2]) if own is None else own,
                status=fields[3][0] << 8 if fields[3] else None,
                own=own is not None,
                now=time.monotonic(),
            )
