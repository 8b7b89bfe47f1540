"""poprun's side of its guard: starts it, replaces it when it dies, gives it orders.

mpirun is the guard's child as long as the first guard lives. When that dies the
kernel gives mpirun to poprun, a subreaper too, and a new guard gets the pids of what
it has to end if poprun ends.
"""

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from poprun.helpers import processes
from poprun.helpers.end_actions import EndAction, EndActions, RemovePath
from poprun.helpers.job_files import LOCK, append, make_lock
from poprun.job.resource_limits import caller_limits
from poprun.job.values import Job
from poprun.supervise.guard_start import StartedGuard, start_guard
from poprun.wire import protocol
from poprun.wire.channel import Channel

# The guard needs this long only where a process hangs in the kernel.
FINISH_S = 35.0


class GuardClient:
    """The guard of one job, whichever process it is at the moment."""

    def __init__(
        self,
        started: StartedGuard,
        job: Job,
        end_actions: Iterable[EndAction],
        connections: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        self._job = job
        self._mark = job.mark.encode()
        self._output = started.output
        self._grace_ms = int(job.grace * 1000)
        self._end_actions = EndActions()
        for action in end_actions:
            self._end_actions.register(action)
        self._lock = -1
        # mpirun and the shims, and the connections to other hosts: pid -> start time.
        self._known: dict[int, int] = dict(connections)
        self._hold = protocol.pack(protocol.HOLD, b"")
        # The kernel kills mpirun, which may hang, when neither poprun nor its guard nor
        # a shim has the write end any more.
        self._pipe = os.pipe()
        self.replaced = 0
        self._connect(started)
        self._older = started.older.union(connections)
        self._send_stderr()
        self.channel.send(self._leftovers())
        for pair in connections.items():
            self.channel.send(protocol.pack(protocol.KNOWN, *pair))

    def make_lock(self) -> None:
        """Make the lock file of the job in its directory.

        Each supervisor learns by it, when it ends, whether it is the last. It has the
        end actions, and is told of those that are withdrawn.
        """
        path = os.fsencode(self._job.directory)
        # Without one more file the guard still has the end actions.
        with suppress(OSError):
            self._lock = make_lock(path, self._end_actions)
            self._hold = protocol.pack(protocol.HOLD, os.path.join(path, LOCK))
            self.channel.send(self._hold)

    def withdraw(self, action: EndAction) -> None:
        """Forget an end action that has been performed."""
        message = self._end_actions.withdraw(action)
        self.channel.send(message)
        if self._lock >= 0:
            append(self._lock, message)

    def start(self) -> None:
        """Ask the guard to start mpirun."""
        words = [os.fsencode(word) for word in self._job.mpirun]
        environment = self._job.mpirun_environment
        assignments = [b"%s=%s" % pair for pair in environment.items()]
        message = protocol.pack(
            protocol.START,
            self._grace_ms,
            self._mark,
            int(self._job.is_in_slurm),
            len(words),
            *words,
            *assignments,
        )
        self.channel.send(message, (self._output, *self._pipe))

    def has_ended(self) -> bool:
        """Return whether a guard has ended that has not been asked to start mpirun."""
        return self.channel.receive() is None

    def add_shim(self, shim: Channel, pid: int, start: int) -> None:
        """Take in a shim, which is one of the job's supervisors from now on."""
        self.remember(pid, start)
        shim.send(self._hold, self._pipe[1:])

    def remember(self, pid: int, start: int) -> None:
        """Remember mpirun or a shim, for a guard that is not its ancestor."""
        self._known[pid] = start
        if self.replaced:
            self.channel.send(protocol.pack(protocol.KNOWN, pid, start))

    def remember_leftover(self, path: bytes) -> None:
        """Remember a file that the guard has found to be the job's, for the next."""
        self._end_actions.register(RemovePath(path))

    def replace(self) -> None:
        """Start another guard in the place of one that has died."""
        self.channel.close()
        # Its children become poprun's a moment after its end of the socket is closed.
        processes.wait_for(self.pid)
        self.replaced += 1
        # One of them may be an mpirun that the guard has not told of; before exec it
        # does not even bear the mark of the job.
        for orphan in self._orphans():
            self._known.setdefault(orphan.pid, orphan.start)
        environment = self._job.mpirun_environment
        environ = {os.fsdecode(k): os.fsdecode(v) for k, v in environment.items()}
        # There may be no time to tell it more: poprun may be about to be killed too.
        orders = (
            protocol.pack(protocol.ADOPT, self._grace_ms, self._mark)
            + self._leftovers()
        )
        orders += self._hold
        for pair in self._known.items():
            orders += protocol.pack(protocol.KNOWN, *pair)
        # mpirun and the instances get what the caller had.
        with caller_limits(self._job.descriptor_limits):
            self._connect(start_guard(environ, self._output, orders))
        self._send_stderr()

    def orphaned_mpirun(self) -> processes.Process | None:
        """Return the mpirun of a guard that died before it had reported the start."""
        own = [p for p in self._orphans() if p.parent == os.getpid()]
        return min(own, key=lambda p: p.start, default=None)

    def signal_mpirun(self, pid: int, number: int) -> None:
        if self.replaced:
            mpirun = processes.process(pid)
            if mpirun and mpirun.start == self._known.get(pid):
                processes.send(number, mpirun)
        else:
            self.channel.send(protocol.pack(protocol.SIGNAL_MPIRUN, number))

    def finish(self) -> None:
        """Ask the guard to end whatever is left, and to leave."""
        self.channel.send(protocol.pack(protocol.FINISH))

    def do_without(self, grace: float = 0.0) -> list[str]:
        """Do what a guard does last: end the job's processes below poprun, and undo.

        Returns a sentence for each end action that failed.
        """
        processes.end(self._orphans, grace, 5.0)
        return self._end_actions.perform()

    @property
    def finish_limit_s(self) -> float:
        """How long the guard may take to finish: it hangs when it takes longer."""
        return FINISH_S + self._end_actions.limit_s

    def close(self) -> None:
        """Release the lock file and the socket to a guard that has ended."""
        self.channel.close()
        for descriptor in self._pipe:
            os.close(descriptor)
        if self._lock >= 0:
            os.close(self._lock)

    def keep_running(self) -> bool:
        """Continue a guard that has been stopped, and return whether it was."""
        guard = processes.process(self.pid)
        if guard is None or not guard.stopped:
            return False
        processes.send(signal.SIGCONT, guard)
        return True

    def kill(self) -> None:
        """Kill a guard that does not answer, so that another can take its place."""
        os.kill(self.pid, signal.SIGKILL)

    def _connect(self, started: StartedGuard) -> None:
        self.pid = started.pid
        self.channel = Channel.of(started.descriptor)
        self.channel.send(started.unsent)

    def _leftovers(self) -> bytes:
        """Return the messages about what the job makes, for a guard."""
        watch = protocol.pack(protocol.WATCH, *map(os.fsencode, self._job.leftovers))
        return self._end_actions.pack() + watch

    def _send_stderr(self) -> None:
        self.channel.send(protocol.pack(protocol.REPORT_TO), (2,))

    def _orphans(self) -> list[processes.Process]:
        """Return the processes below poprun that a guard has left when it died."""
        others = self._older | {self.pid}
        return [p for p in processes.descendants([os.getpid()]) if p.pid not in others]
