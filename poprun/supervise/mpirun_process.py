"""mpirun and poprun's guard, which starts it: there is one of each in an attempt.

The guards of agents on other hosts start no mpirun (host/agent.py).
"""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from types import MappingProxyType
from typing import Any

from poprun.errors import LaunchError
from poprun.helpers import own_process, processes
from poprun.helpers.end_actions import EndAction, EndActions, RemovePath
from poprun.helpers.job_files import LOCK, append, make_lock
from poprun.job.values import Job
from poprun.output.waiter import READ, WRITE, Interest
from poprun.reach.own_host.resource_limits import caller_limits
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.wire import codec, protocol
from poprun.wire.channel import Channel
from poprun.wire.events import (
    Event,
    GuardLost,
    MpirunExited,
    MpirunRefused,
    MpirunStarted,
    NotUndone,
)

# The guard needs this long only where a process hangs in the kernel.
FINISH_S = 35.0
# A guard that stays stopped (state T) for so long is replaced; how often it is checked.
STOPPED_S = 1.0
CHECK_GUARD_S = 0.1
# From SIGTERM to SIGKILL for leftover processes of a killed guard.
ORPHAN_GRACE_S = 0.1
# A guard that is killed is replaced, but not without end.
MAX_GUARDS = 20


class MpirunProcess:
    """The mpirun of one attempt, behind its guard.

    mpirun is the guard's child as long as the first guard lives. When that dies, the
    kernel gives mpirun to poprun, a subreaper, too; a new guard gets the pids of the
    processes to end if poprun ends.

    Args:
        guard: Runs already, and waits for its first message.
        host: The name of the machine that poprun runs on.
        connections: The processes that connect it to other hosts: pid -> start time.
    """

    def __init__(
        self,
        job: Job,
        guard: StartedGuard,
        host: str,
        connections: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._job = job
        self._host = host
        self._grace_ms, self._mark = int(job.grace * 1000), job.mark.encode()
        # The present guard, and how many have died before it.
        self._guard = guard
        self._num_replaced = 0
        self._output = guard.output
        self._older = {*guard.older, *connections}
        # mpirun and the shims, and the connections to other hosts: pid -> start time.
        self._known: dict[int, int] = dict(connections)
        # This attempt makes and undoes them, unless a successor undoes the job's.
        self._resources = [*job.attempt_resources, *job.job_resources]
        self._end_actions = EndActions()
        for item in self._resources:
            self._end_actions.register(item.end_action)
        self._lock = -1
        self._hold = protocol.pack(protocol.HOLD, b"")
        # The kernel kills mpirun, which may hang, when neither poprun nor its guard nor
        # a shim has the write end any more.
        self._pipe: tuple[int, ...] = ()
        # Whether nothing of the job is left, after `finish`.
        self.finished = False
        self._finish_began = inf
        self._may_start = True
        self._pid = 0
        self._has_ended = False
        self._failures: set[str] = set()  # of end actions
        # What happens before `report_to` is called.
        self._early_events: list[Event] = []
        self._emit: Callable[[Event], None] = self._early_events.append

    def start(self) -> None:
        """Start mpirun.

        Raises:
            LaunchError: A resource of the job cannot be made.
        """
        own_process.become_subreaper()
        self._pipe = os.pipe()
        self._guard.channel.tell(protocol.REPORT_TO, descriptors=(2,))
        self._guard.tell(self._knowledge())
        # Now that the guard knows of them: poprun may be killed at any time. The first
        # guard may have been killed long ago, and nothing may be made without one.
        if self._guard.channel.receive() is None:
            self._replace_guard()
        for number, item in enumerate(self._resources):
            item.make()
            if not number and self._job.directory:
                self._make_lock()
        self._order_mpirun()

    def report_to(self, emit: Callable[[Event], None]) -> None:
        """Set the function to call with each event, and with all events so far."""
        self._emit = emit
        for event in self._early_events:
            emit(event)

    def interests(self, now: float) -> Iterator[Interest]:
        """Yield the descriptors to wait for.

        The descriptors of the hosts are served first: mpirun usually exits because an
        instance or a shim has. If mpirun exits before them, it was killed, and its
        status says so.
        """
        channel = self._guard.channel
        events = READ | (WRITE if channel.has_unsent else 0)
        yield Interest(channel.fileno(), events, self._on_guard)

    def deadline(self, now: float) -> float:
        """Return when `tick` is due even if nothing happens."""
        is_watched = self._is_finishing or self._is_starting
        return now + CHECK_GUARD_S if is_watched else inf

    def tick(self, now: float) -> None:
        if self._is_finishing:
            self._check_guard(now)
        elif self._is_starting:
            # It may have been stopped before poprun got SIGCHLD for it.
            self._continue_guard()

    def add_shim(self, shim: Channel, pid: int, start: int) -> None:
        """Take in a shim, which is one of the job's supervisors from now on."""
        self._remember(pid, start)
        shim.send(self._hold, self._pipe[1:])

    def start_shims(self) -> bool:
        """Let poprun's own launcher start those again that were lost on its host."""
        self.send_signal(signal.SIGUSR2)
        return bool(self._pid) and not self._has_ended

    def add_connection(self, pid: int, start: int) -> None:
        """Take in a process that connects poprun to a host that has come."""
        self._older.add(pid)
        self._known[pid] = start
        self._guard.channel.tell(protocol.KNOWN, pid, start)

    def stop_starting(self) -> None:
        """Start no mpirun any more: the job stops."""
        self._may_start = False

    def send_signal(self, number: int) -> None:
        """Send a signal to mpirun, if it runs."""
        if not self._pid:
            return
        if not self._num_replaced:
            self._guard.channel.tell(protocol.SIGNAL_MPIRUN, number)
            return
        mpirun = processes.process(self._pid)
        if mpirun and mpirun.start == self._known[self._pid]:
            processes.send(number, mpirun)

    def reap(self) -> list[tuple[int, int]]:
        """Take in that child processes of poprun may have changed their state.

        Return those that have ended, as pid and wait status.
        """
        ended = processes.reap()
        # mpirun is poprun's own child only when a guard has died.
        for pid, status in ended:
            if pid == self._pid:
                self._on_exit(status)
        # SIGCHLD comes when a child is stopped, too.
        self._continue_guard()
        return ended

    def hand_over(self, successor: StartedGuard) -> None:
        """Leave what the attempts of the job share to the guard of the next one."""
        for item in self._job.job_resources:
            # It knows of it before this one forgets: poprun may be killed at any time.
            successor.tell(EndActions().register(item.end_action))
            self._withdraw(item.end_action)
        if self._job.devices is not None:
            self._job.devices.live_with(successor.pid)
        self._resources = [*self._job.attempt_resources]

    def finish(self, *, is_clean: bool) -> None:
        """Begin to end the rest of the job, until `finished` is true.

        Args:
            is_clean: Whether no process of an instance can be left on any host.
        """
        if is_clean:
            # Undo here what the guard would start a command for.
            for item in self._resources:
                if item.undo is not None and item.undo():
                    self._withdraw(item.end_action)
        self._finish_began = time.monotonic()
        self._guard.channel.tell(protocol.FINISH)

    @property
    def output(self) -> bytes:
        """The output of mpirun so far."""
        return os.pread(self._output, 1 << 20, 0)

    def close(self) -> bytes:
        """Release what this holds; return what mpirun has written."""
        output = self.output
        self._guard.channel.close()
        for descriptor in (self._output, *self._pipe):
            os.close(descriptor)
        if self._lock >= 0:
            os.close(self._lock)
        return output

    @property
    def _is_starting(self) -> bool:
        return not self._pid and not self._has_ended

    @property
    def _is_finishing(self) -> bool:
        return self._finish_began < inf and not self.finished

    # --- Messages to the guard.

    def _knowledge(self) -> bytes:
        """Return the messages about the job's files and processes."""
        watch = protocol.pack(protocol.WATCH, *map(os.fsencode, self._job.leftovers))
        known = (protocol.pack(protocol.KNOWN, *pair) for pair in self._known.items())
        return self._end_actions.pack() + watch + b"".join(known)

    def _make_lock(self) -> None:
        """Make the lock file of the job in its directory.

        Each supervisor learns by it, when it ends, whether it is the last. It has the
        end actions, and is told of those that are withdrawn.
        """
        path = os.fsencode(self._job.directory)
        # Without one more file the guard still has the end actions.
        with suppress(OSError):
            self._lock = make_lock(path, self._end_actions)
            self._hold = protocol.pack(protocol.HOLD, os.path.join(path, LOCK))
            self._guard.tell(self._hold)

    def _withdraw(self, action: EndAction) -> None:
        """Forget an end action that has been performed."""
        message = self._end_actions.withdraw(action)
        self._guard.tell(message)
        append(self._lock, message)

    def _order_mpirun(self) -> None:
        """Ask the guard to start mpirun."""
        argv = [os.fsencode(word) for word in self._job.mpirun]
        environment = self._job.mpirun_environment
        self._guard.channel.tell(
            protocol.START,
            self._grace_ms,
            self._mark,
            int(self._job.is_in_slurm),
            len(argv),
            *argv,
            *(b"%s=%s" % pair for pair in environment.items()),
            descriptors=(self._output, *self._pipe),
        )

    def _remember(self, pid: int, start: int) -> None:
        """Remember mpirun or a shim, for a guard that is not its ancestor."""
        self._known[pid] = start
        if self._num_replaced:
            self._guard.channel.tell(protocol.KNOWN, pid, start)

    # --- Messages from the guard.

    def _on_guard(self) -> None:
        self._guard.channel.flush()
        messages = self._guard.channel.receive()
        if messages is None:
            self._on_guard_lost()
        for kind, fields in messages or ():
            try:
                values = codec.read(kind, fields)
            except ValueError:
                os.kill(self._guard.pid, signal.SIGKILL)
                self._on_guard_lost()
                return
            self._on_report(kind, values)

    def _on_report(self, kind: int, fields: list[Any]) -> None:
        match kind, *fields:
            case protocol.FOUND, path:
                # For the next guard.
                self._end_actions.register(RemovePath(path))
            case protocol.REMAINS, pid, user, command:
                self._emit(codec.remains(self._host, pid, user, command))
            case (protocol.NOT_UNDONE, *failures):
                self._emit_failures(failures)
            case protocol.MPIRUN_STARTED, pid, start:
                self._on_start(pid, start)
            case protocol.MPIRUN_REFUSED, number, call:
                self._emit(MpirunRefused(errno=number, call=call))
                self._on_exit(127 << 8)
            case protocol.MPIRUN_EXITED, status:
                self._on_exit(status)
            case (protocol.FINISHED, _):
                self._set_finished()

    def _on_start(self, pid: int, start: int) -> None:
        self._pid = pid
        self._remember(pid, start)
        self._emit(MpirunStarted(pid=pid))

    def _on_exit(self, status: int) -> None:
        self._has_ended = True
        self._emit(MpirunExited(status=status))

    def _set_finished(self) -> None:
        self.finished = True
        if self._num_replaced:
            # Processes of a guard that died are now poprun's. Some may have written
            # files after the last guard, which did not know them, had undone the rest.
            self._end_without_guard(ORPHAN_GRACE_S)

    def _emit_failures(self, failures: list[str]) -> None:
        for failure in failures:
            if failure not in self._failures:
                self._failures.add(failure)
                self._emit(NotUndone(sentence=failure, host=self._host))

    # --- A guard that is stopped, hangs or dies.

    def _continue_guard(self) -> bool:
        """Continue a guard that has been stopped, and return whether it was."""
        guard = processes.process(self._guard.pid)
        if guard is None or not guard.stopped:
            return False
        processes.send(signal.SIGCONT, guard)
        return True

    def _check_guard(self, now: float) -> None:
        """Replace a guard that does not finish, or do its work in its place."""
        if now >= self._finish_began + FINISH_S + self._end_actions.limit_s:
            os.kill(self._guard.pid, signal.SIGKILL)
            self._end_without_guard()
            self._set_finished()
        # A debugger may hold it, or something may stop it again and again.
        elif self._continue_guard() and now >= self._finish_began + STOPPED_S:
            os.kill(self._guard.pid, signal.SIGKILL)

    def _on_guard_lost(self) -> None:
        if self.finished:
            return
        if self._num_replaced == MAX_GUARDS:
            self._end_without_guard()
            raise LaunchError(
                f"poprun's guard died {MAX_GUARDS + 1} times in one job. The job "
                "was ended, because without a guard it would go on if poprun were "
                "killed."
            )
        self._replace_guard()
        if self._is_starting:
            self._find_mpirun()
        self.reap()
        if self._is_finishing:
            self._guard.channel.tell(protocol.FINISH)

    def _replace_guard(self) -> None:
        """Start another guard, or end the job if there can be none."""
        self._guard.channel.close()
        # Its children become poprun's a moment after its end of the socket is closed.
        processes.wait_for(self._guard.pid)
        self._num_replaced += 1
        # One of them may be an mpirun that the guard has not told of; before exec it
        # does not even bear the mark of the job.
        for orphan in self._orphans():
            self._known.setdefault(orphan.pid, orphan.start)
        # There may be no time to tell it more: poprun may be about to be killed too.
        adopt = protocol.pack(protocol.ADOPT, self._grace_ms, self._mark)
        orders = adopt + self._knowledge() + self._hold
        environment = self._job.mpirun_environment
        environ = {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()}
        try:
            # mpirun and the instances get what the caller had.
            with caller_limits(self._job.descriptor_limits):
                self._guard = start_guard(environ, self._output, orders)
        except LaunchError:
            self._end_without_guard()
            raise
        self._guard.channel.tell(protocol.REPORT_TO, descriptors=(2,))
        if self._job.devices is not None:
            self._job.devices.live_with(self._guard.pid)
        self._emit(GuardLost(host=self._host))

    def _find_mpirun(self) -> None:
        """Find mpirun after a guard has died without naming its process."""
        own = [p for p in self._orphans() if p.parent == os.getpid()]
        if mpirun := min(own, key=lambda p: p.start, default=None):
            self._on_start(mpirun.pid, mpirun.start)
        elif self._may_start:
            self._order_mpirun()
        else:
            self._on_exit(signal.SIGKILL)

    def _end_without_guard(self, grace: float = 0.0) -> None:
        """Do what a guard does last: end the job's processes below poprun, and undo."""
        processes.end(self._orphans, grace, 5.0)
        self._emit_failures(self._end_actions.perform())

    def _orphans(self) -> list[processes.Process]:
        """Return the processes below poprun that a guard has left when it died."""
        others = {*self._older, self._guard.pid}
        return [p for p in processes.descendants([os.getpid()]) if p.pid not in others]
