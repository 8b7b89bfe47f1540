"""Runs beside each instance: mpirun starts it, and it starts the program.

It owns one program and everything that the program starts. It stays until poprun
releases it and then exits with 0, whatever the program did: when a rank that has
called MPI_Init dies and its parent leaves too, every MPI ends the other ranks.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import sys
import time
from _collections_abc import Callable  # os has imported it already

from poprun.helpers import own_process, processes
from poprun.helpers.job_files import LOCK, hold, undo_by_last, undo_if_last
from poprun.helpers.program_start import StartError, start_program
from poprun.wire import protocol
from poprun.wire.channel import Channel, connect

# The name is the type checker's; importing typing would cost 5 ms here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from resource import struct_rusage

# After a program has ended: how long its other processes may take to end by themselves,
# and then from SIGTERM to SIGKILL, or --grace if that is shorter.
LINGER_S = 0.2
LEFTOVER_GRACE_S = 1.0
# From signalling the program's process group to signalling the rest of its tree. Most
# programs have ended by then, and /proc need not be searched.
REST_OF_TREE_S = 0.02
# mpirun gives its own children 0.25 s after SIGTERM, on Open MPI 5.
MPI_GRACE_S = 0.1
# The grace period when poprun or mpirun has died.
ORPHAN_GRACE_S = 1.0
# After that a shim waits at most so long for the guard and the other shims to end or to
# remove the job's files.
ORPHAN_LIMIT_S = 30.0

# Slurm may have looked for the processes of a job before it signals them. It may miss a
# program that has been started so short a time before.
SLURM_FINDS_S = 0.2

# The signals that Python's faulthandler handles, and the codes of an end by a signal.
FAULTS = (_signal.SIGSEGV, _signal.SIGFPE, _signal.SIGABRT)
CRASHED = (os.CLD_KILLED, os.CLD_DUMPED)
FAULTHANDLER = b"PYTHONFAULTHANDLER"

NEVER = float("inf")
ENDING = (_signal.SIGTERM, _signal.SIGINT)
OTHER_SIGNALS = [n for n in own_process.HELPER_SIGNALS if n != _signal.SIGTERM]


def main(arguments: list[str]) -> None:
    # The name of the attempt is there for readers of the list of processes.
    _, variable, rank = arguments
    parent = os.getppid()
    own_process.become_subreaper()
    sigterm = own_process.receive_sigterm()
    wake = own_process.wake_up_on(*OTHER_SIGNALS)
    if not own_process.die_with_parent(_signal.SIGTERM, parent):
        return
    try:
        sock, key = connect(os.environb[os.fsencode(variable)])
    except KeyError:
        sys.exit(f"The shim of instance {rank} has no {variable} in its environment.")
    except OSError as error:
        if _leave_last():
            return
        sys.exit(f"The shim of instance {rank} cannot reach poprun: {error.strerror}.")
    poprun, pid, host = Channel(sock), os.getpid(), os.uname().nodename
    start = processes.start_time(pid)
    fields = key, int(rank), os.fsencode(host), pid, start
    poprun.tell(protocol.HELLO, protocol.VERSION, *fields)
    Shim(poprun, wake, sigterm).run()


def _leave_last() -> bool:
    """Wait until the other shims have ended their programs; perform the end actions.

    For a shim that poprun and its guard have told nothing before they died: when it
    leaves first, mpirun kills the others, which are ending their programs.

    Returns whether no supervisor of the job lives.
    """
    # mpirun's TMPDIR is the job's directory.
    lock = os.path.join(os.environb.get(b"TMPDIR", b"/nowhere"), LOCK)
    if not os.path.lexists(lock):
        return False
    _undo_apart(lambda: undo_by_last(lock, ORPHAN_LIMIT_S))
    return not os.path.lexists(lock)


def _undo_apart(undo: Callable[[], list[str]]) -> None:
    """Perform end actions in a process that mpirun does not know, and wait for it.

    mpirun kills this one in the middle of them when another shim ends, or has ended,
    in a way that it takes for a failure.
    """
    try:
        pid = os.fork()
    except OSError:
        _report(undo())
        return
    if pid == 0:
        try:
            os.setsid()
            _report(undo())
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)
    processes.wait_for(pid)


def _report(failures: list[str]) -> None:
    for failure in failures:
        try:
            os.write(2, os.fsencode(f"poprun: {failure}\n"))
        except OSError:
            return  # mpirun, which would pass it on, is gone


class Shim:
    """Supervises one program, from its start until no process of it is left."""

    def __init__(self, poprun: Channel, wake: int, sigterm: int) -> None:
        self._poprun = poprun
        self._wake = wake
        self._sigterm = sigterm
        self._parent = os.getppid()
        self._connected = True
        self._released = False
        self._released_by_poprun = False
        # The job's lock file, and this process's hold on it.
        self._lock_path, self._lock = b"", -1
        # The write end of the pipe with which mpirun is killed.
        self._pipe: list[int] = []
        self._begin()

    def _begin(self) -> None:
        """Set the state of a program that has not been started."""
        self._program = 0  # its pid, 0 before the start
        self._started_at = NEVER
        self._ended = False  # the program itself
        self._clean = False  # and all that it started
        self._spec: protocol.Spec  # from the start of the program on
        self._stopped_by = protocol.BY_ITSELF
        self._left_behind = 0
        # Whether it is a Python that a fault has ended, without its faulthandler.
        self._lacks_faulthandler = False
        # The signal with which poprun or mpirun stops the program, 0 before.
        self._stopping = 0
        # Whether the program has surely got the SIGTERM that Slurm sends to all.
        self._is_ended_by_slurm = False
        # The processes that have got an ending signal, by pid and start time.
        self._signalled: set[tuple[int, int]] = set()
        self._signal_tree_at = NEVER
        self._kill_at = NEVER
        self._killing = False
        # Since when this user may signal none of the remaining processes.
        self._refused_since = NEVER

    def run(self) -> None:
        """Run the program; return when nothing of it is left, and poprun allows it."""
        poll = processes.poll_on(self._poprun.fileno(), self._wake, self._sigterm)
        while not self._is_done():
            due = min(self._signal_tree_at, self._kill_at)
            ready = poll.poll(processes.poll_timeout(due - time.monotonic()))
            # It explains the events that have come with it.
            self._on_sigterm()
            for descriptor, _ in ready:
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                elif descriptor == self._poprun.fileno() and not self._on_poprun():
                    poll.unregister(descriptor)
            now = time.monotonic()
            if now >= self._signal_tree_at:
                self._signal_tree(now)
            if now >= self._kill_at:
                self._kill()
            self._reap()
        if self._lock >= 0:
            # Only if poprun and its guard are gone, and this is the last shim.
            os.close(self._lock)
            if self._connected or self._released_by_poprun:
                _report(undo_if_last(self._lock_path, is_final=False) or [])
            else:
                # The guard may be killed before it has performed the end actions.
                _undo_apart(lambda: undo_by_last(self._lock_path, ORPHAN_LIMIT_S))
        elif not self._connected:
            _leave_last()

    def _is_done(self) -> bool:
        if self._program and not self._clean:
            return False
        return self._released or not self._connected

    # --- Messages.

    def _on_poprun(self) -> bool:
        messages = self._poprun.receive()
        if messages is None:
            self._connected = False
            self._stop(ORPHAN_GRACE_S, protocol.BY_POPRUN)
            return False
        for kind, fields in messages:
            if kind == protocol.SPEC:
                # When poprun is gone, this shim may hold no lock of the job.
                if not self._poprun.is_at_end:
                    self._start(protocol.Spec.read(fields))
            elif kind == protocol.HOLD:
                self._lock_path, self._lock = fields[0], hold(fields[0])
                self._pipe = self._poprun.descriptors[:1]
                del self._poprun.descriptors[:1]
            elif kind == protocol.SIGNAL:
                self._on_signal(int(fields[0]))
            elif kind == protocol.INTERRUPT:
                self._interrupt()
            elif kind == protocol.KILL:
                self._stop(0, protocol.BY_POPRUN)
            elif kind == protocol.RELEASE:
                self._released = self._released_by_poprun = True
            elif kind == protocol.SHOW_STACKS:
                self._show_stacks(int(fields[0]))
        return True

    def _on_sigterm(self) -> None:
        # It comes from an mpirun that ends the job, from the kernel because mpirun has
        # died, or from Slurm. Other signals are poprun's to pass on, by message.
        try:
            is_of_slurm = own_process.read_sigterm(self._sigterm, os.environ)
        except BlockingIOError:
            return
        if not is_of_slurm:
            # Otherwise mpirun ends the job, and its processes may have ended by now.
            if os.getppid() != self._parent and not self._released:
                self._poprun.tell(protocol.ORPHANED)
            self._stop(MPI_GRACE_S, protocol.BY_MPI)
            self._released = True
        elif self._program and not self._clean:
            # The program gets it, too. poprun decides what follows.
            if not self._ended:
                self._stopped_by = protocol.BY_SLURM
            if time.monotonic() >= self._started_at + SLURM_FINDS_S:
                self._is_ended_by_slurm = True
                below = processes.descendants([os.getpid()])
                self._signalled.update((p.pid, p.start) for p in below)

    # --- The program.

    def _start(self, spec: protocol.Spec) -> None:
        # Another one may have ended before.
        self._begin()
        self._spec = spec
        try:
            poprun = self._poprun
            pid, streams, memory_is_bound = start_program(
                spec, poprun.descriptors, poprun.fileno()
            )
        except StartError as error:
            self._poprun.tell(protocol.REFUSED, error.number, error.about, error.call)
            return
        self._program = pid
        self._started_at = time.monotonic()
        # It cannot vanish before it is reaped, so the kernel has an answer.
        cpus = b",".join(b"%d" % cpu for cpu in sorted(os.sched_getaffinity(pid)))
        start, is_bound = processes.start_time(pid), int(memory_is_bound)
        self._poprun.tell(
            protocol.STARTED, pid, start, cpus, is_bound, descriptors=streams
        )
        for descriptor in streams:
            os.close(descriptor)

    def _on_signal(self, number: int) -> None:
        if not self._program or self._clean:
            return
        if number in ENDING:
            if not self._ended:
                self._stopped_by = protocol.BY_POPRUN
            if not self._stopping:
                # Leftovers of a program that has ended get the job's grace from now
                # on. poprun measures it, and sends KILL at its end.
                self._kill_at = NEVER
            self._signal_to_end(number)
        else:
            self._signal_group(number)

    def _interrupt(self) -> None:
        """Signal a program that has a debugger, and is not being stopped."""
        if self._program and not self._clean:
            self._signal_group(_signal.SIGINT)

    def _show_stacks(self, pid: int) -> None:
        """Signal a Python interpreter, so that it writes its stacks to stderr."""
        number = protocol.STACKS_SIGNAL
        below = processes.descendants([os.getpid()]) if self._program else []
        # Any other process would be killed by it.
        interpreters = [p for p in below if processes.catches(p.pid, number)]
        if pid:
            for p in interpreters:
                if p.pid == pid:
                    processes.send(number, p)
            return
        interpreters.sort(key=lambda p: (p.pid != self._program, p.start))
        pids = b",".join(b"%d" % p.pid for p in interpreters) or b"0"
        self._poprun.tell(protocol.STACKS, pids)

    def _signal_to_end(self, number: int) -> None:
        """Signal the program's process group, and soon the rest of its tree."""
        if number == _signal.SIGINT and self._ignores_sigint():
            number = _signal.SIGTERM
        self._stopping = number
        if number != _signal.SIGTERM or not self._is_ended_by_slurm:
            self._signal_group(number)
        self._signal_tree_at = time.monotonic() + REST_OF_TREE_S

    def _ignores_sigint(self) -> bool:
        """Return whether no process of the program would act on SIGINT.

        A shell starts programs in the background with SIGINT ignored. Some programs,
        such as time, ignore it and leave it to their child.
        """
        if self._ended or not processes.ignores(self._program, _signal.SIGINT):
            return False
        below = processes.descendants([os.getpid()])
        return all(processes.ignores(p.pid, _signal.SIGINT) for p in below)

    def _signal_group(self, number: int) -> None:
        if self._ended:
            return
        try:
            os.killpg(self._program, number)
            if number == _signal.SIGTERM:
                os.killpg(self._program, _signal.SIGCONT)
        except OSError:
            return  # it has just ended; the next look reaps it

    def _stop(self, grace: float, by: bytes) -> None:
        if not self._program or self._clean:
            return
        grace = min(grace, self._spec.grace_ms / 1000)
        if not self._ended:
            self._stopped_by = by
        if grace > 0:
            self._signal_to_end(_signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _signal_tree(self, now: float) -> None:
        """Send an ending signal to the processes of the tree that have not got one."""
        self._signal_tree_at = NEVER
        if not processes.has_children():
            return
        left = processes.descendants([os.getpid()])
        for p in left:
            self._signal_process(p)
        if not self._stopping:
            self._left_behind = len(left)
            grace = min(LEFTOVER_GRACE_S, self._spec.grace_ms / 1000)
            self._kill_at = min(self._kill_at, now + grace)

    def _signal_process(self, p: processes.Process) -> None:
        number = self._stopping
        has_got_signal = (p.pid, p.start) in self._signalled
        self._signalled.add((p.pid, p.start))
        if self._ended:
            # Ctrl-C does not reach what a shell has started in the background. Until
            # its end the program may want to end its children in its own way.
            is_ignored = number == _signal.SIGINT and processes.ignores(p.pid, number)
            has_got_signal = has_got_signal and not is_ignored
            number = _signal.SIGTERM
        elif p.group == self._program:
            return
        if not has_got_signal:
            processes.send(number, p)
            processes.send(_signal.SIGCONT, p)  # a stopped process cannot act on it

    def _kill(self) -> None:
        now = time.monotonic()
        if not self._killing:
            # In one step, or a shell would report that its children were killed.
            self._signal_group(_signal.SIGKILL)
        left = processes.descendants([os.getpid()])
        refused = processes.kill(left)
        if not left or len(refused) < len(left):
            self._refused_since = NEVER
        else:
            self._refused_since = min(self._refused_since, now)
            if now >= self._refused_since + processes.NOT_OURS_S:
                self._give_up_on(refused)
                return
        self._killing = True
        # Once more soon, for what was being forked while we looked.
        self._kill_at = now + processes.LOOK_AGAIN_S

    def _give_up_on(self, remaining: list[processes.Process]) -> None:
        """Report the processes that this user may not signal, and wait no longer."""
        for p in remaining:
            self._poprun.tell(protocol.REMAINS, p.pid, *processes.describe(p))
        self._left_behind = max(0, self._left_behind - len(remaining))
        self._report_clean()

    def _report_clean(self) -> None:
        self._clean = True
        self._signal_tree_at = self._kill_at = NEVER
        self._poprun.tell(protocol.CLEAN, self._left_behind)

    def _reap(self) -> None:
        while self._program and not self._clean:
            try:
                if self._killing:
                    processes.kill_group_of_ended()
                self._look_at_end()
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._report_clean()
                return
            if pid == 0:
                return
            if pid == self._program:
                # It may have come since the last look, and explain the end.
                self._on_sigterm()
                self._ended = True
                self._report(status, usage)
                wait = REST_OF_TREE_S if self._stopping else LINGER_S
                due = time.monotonic() + wait
                self._signal_tree_at = min(self._signal_tree_at, due)

    def _look_at_end(self) -> None:
        """Find out how the program has ended, while /proc still shows it.

        Raises:
            ChildProcessError: The program is not a child any more.
        """
        ended = None if self._ended else processes.ended_child(self._program)
        if ended is None:
            return
        if self._stopped_by == protocol.BY_ITSELF and processes.is_at_cpu_limit(ended):
            self._stopped_by = protocol.BY_CPU_LIMIT
        has_crashed = ended.si_code in CRASHED and ended.si_status in FAULTS
        if has_crashed:
            self._lacks_faulthandler = self._is_python_without_faulthandler()

    def _is_python_without_faulthandler(self) -> bool:
        environment = processes.read_assignments(self._spec.environment)
        # poprun lets every Python of an instance handle this signal.
        is_python = processes.catches(self._program, protocol.STACKS_SIGNAL)
        return is_python and not environment.get(FAULTHANDLER)

    def _report(self, status: int, usage: "struct_rusage") -> None:
        self._poprun.tell(
            protocol.EXITED,
            status,
            time.monotonic_ns(),
            int(usage.ru_utime * 1e6),
            int(usage.ru_stime * 1e6),
            usage.ru_maxrss,
            self._stopped_by,
            int(self._lacks_faulthandler),
        )
