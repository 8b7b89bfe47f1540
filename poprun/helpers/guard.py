"""The guard: the parent of mpirun. It outlives poprun, and ends leftover processes.

It reads a socket, and only poprun has the other end. End of file means that poprun is
gone, in whatever way, and then this process ends everything below it. It is a
subreaper, so the children of shims and of an mpirun that are killed become its own.
A child of poprun holds that end, too, until its exec, and for ever if it is stopped
before. So this process also watches poprun itself, and kills such a child.

On another host of a job it is the parent of the agent there, watches the agent instead
of poprun, and starts no mpirun (host/agent.py).
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import errno
import os
import resource
import select
import time

from poprun.helpers import own_process, processes
from poprun.helpers.end_actions import EndActions, RemovePath
from poprun.helpers.job_files import (
    Leftovers,
    append,
    hold,
    open_files,
    release,
    undo_abandoned,
    usual_places,
)
from poprun.wire import protocol
from poprun.wire.channel import Channel

# The shims detect poprun's end themselves, and give their programs this long to end.
SHIM_GRACE_S = 1.0
# A process that lives after so long waits for a disk or a network, and dies then.
LIMIT_S = 30.0
# Enough for mpirun with a thousand instances. The hard limit may be 2^30, and some MPIs
# close every number below the limit in each process that they start.
MPIRUN_OPEN_FILES = 1 << 14
# poprun, when it lives, gives the tree that long before SIGKILL.
FINISH_GRACE_S = 0.5


def main(arguments: list[str]) -> None:
    """Guard a job.

    Args:
        arguments: The descriptor of a socket, the pid of the process at its other end,
            and the inode of that end.
    """
    descriptor, poprun, inode = map(int, arguments)
    # From the beginning: poprun may be gone when something stops this process.
    own_process.continue_regularly()
    own_process.open_umask()
    own_process.become_subreaper()
    # If something has stopped this process, it continues when it is needed, also where
    # there are no timers. The end of poprun itself is the end of file on the socket.
    own_process.die_with_parent(_signal.SIGCONT, os.getppid())
    # SIGIO tells of new files: see Leftovers.
    wake = own_process.wake_up_on(*own_process.HELPER_SIGNALS, _signal.SIGIO)
    os.set_inheritable(descriptor, False)
    Guard(Channel.of(descriptor), wake, poprun, inode).run()
    # At once: poprun has been told, and a poprun above that one would take this process
    # for a leftover.
    os._exit(0)


class Guard:
    """One job's mpirun, and all its descendants."""

    def __init__(self, poprun: Channel, wake: int, pid: int, inode: int) -> None:
        self._poprun = poprun
        self._poprun_pid = pid
        # How /proc shows poprun's end of the socket.
        self._poprun_end = b"socket:[%d]" % inode
        self._wake = wake
        self._mark = b""  # NAME=VALUE in the environment of everything of this job
        self._mpirun = 0
        self._grace = SHIM_GRACE_S
        self._is_first = True  # and so the ancestor of all processes of the job
        # If not: mpirun and the shims, by pid and start time, and what the last look
        # has seen below them. It stays known when a shim above it is killed.
        self._known: dict[int, int] = {}
        self._below: dict[int, int] = {}
        self._leftovers = Leftovers()
        self._end_actions = EndActions()
        self._report_to = -1
        # A message for poprun about the end of the agent, if this is an agent's guard,
        # and the descriptor to write it to.
        self._last_message, self._last_message_to = b"", -1
        self._lock_path, self._lock = b"", -1
        self._pipe = -1  # the write end of the pipe with which mpirun is killed
        self._poll = processes.poll_on(self._poprun.fileno(), self._wake)
        self._served = True

    def run(self) -> None:
        """Serve poprun until it asks to finish, or is gone."""
        ended = self._watch_poprun()
        while self._served:
            wait = self._leftovers.look_again_s()
            for descriptor, _ in self._poll.poll(wait and wait * 1000):
                if descriptor == self._wake:
                    os.read(self._wake, 4096)
                    self._reap()
                elif descriptor == self._poprun.fileno():
                    self._on_poprun()
                elif descriptor == ended:
                    self._poll.unregister(ended)
                    self._end_copies()
                else:
                    self._leftovers.read_events()
            if self._leftovers.is_unwatched:
                self._leftovers.check_all()
            self._claim()

    def _watch_poprun(self) -> int:
        """Return a descriptor that is readable once poprun has ended; -1 for none."""
        try:
            ended = os.pidfd_open(self._poprun_pid)
        except ProcessLookupError:
            self._end_copies()
            return -1
        except OSError:  # the kernel refuses it, and poprun lives
            return -1
        self._poll.register(ended, select.POLLIN)
        return ended

    def _end_copies(self) -> None:
        """Kill the processes that still hold poprun's end of the socket."""
        if not self._poprun.is_at_end:
            table = processes.processes().values()
            processes.kill([p for p in table if self._poprun_end in open_files(p.pid)])

    def _on_poprun(self) -> None:
        messages = self._poprun.receive()
        if messages is None:
            self._send_last_message()
            self._end_all(self._grace)
            self._served = False
        for kind, fields in messages or ():
            self._on_message(kind, fields)

    def _on_message(self, kind: int, fields: list[bytes]) -> None:
        if kind == protocol.START:
            self._set_job(fields)
            # Slurm sends it to all processes of a job that it ends; poprun decides
            # what follows.
            blocked = (_signal.SIGTERM,) if int(fields[2]) else ()
            count = int(fields[3])
            if len(self._poprun.descriptors) < 3:
                # The kernel drops what its receiver has no number left for.
                self._poprun.tell(protocol.MPIRUN_REFUSED, errno.EMFILE, b"recvmsg()")
                return
            output, read, self._pipe = (
                self._poprun.descriptors.pop(0) for _ in range(3)
            )
            argv, environment = fields[4 : 4 + count], fields[4 + count :]
            self._start(argv, environment, blocked, output, read)
        elif kind == protocol.MARK:
            self._mark = fields[0]
        elif kind == protocol.ADOPT:
            self._is_first = False
            self._set_job(fields)
        elif kind == protocol.KNOWN:
            self._known[int(fields[0])] = int(fields[1])
        elif kind in (protocol.END_ACTION, protocol.WITHDRAW):
            self._end_actions.apply(kind, fields)
        elif kind == protocol.REPORT_TO and self._poprun.descriptors:
            self._report_to = self._poprun.descriptors.pop(0)
        elif kind == protocol.LAST_MESSAGE:
            self._last_message = fields[0]
            if self._poprun.descriptors:
                self._last_message_to = self._poprun.descriptors.pop(0)
        elif kind == protocol.HOLD:
            self._lock_path, self._lock = fields[0], hold(fields[0])
        elif kind == protocol.WATCH:
            self._watch(fields)
        elif kind == protocol.SIGNAL_MPIRUN and self._mpirun:
            os.kill(self._mpirun, int(fields[0]))
        elif kind == protocol.FINISH:
            self._finish()
            self._served = False

    def _watch(self, prefixes: list[bytes]) -> None:
        if prefixes:
            self._leftovers.watch(prefixes)
            if self._leftovers.descriptor >= 0:
                self._poll.register(self._leftovers.descriptor, select.POLLIN)

    def _claim(self) -> None:
        """Claim the new files that processes of the job have open."""
        if self._leftovers.has_unclaimed:
            for path in self._leftovers.claim(p.pid for p in self._tree()):
                self._poprun.tell(protocol.FOUND, path)
                append(self._lock, self._end_actions.register(RemovePath(path)))

    def _set_job(self, fields: list[bytes]) -> None:
        self._grace = min(int(fields[0]) / 1000, SHIM_GRACE_S)
        self._mark = fields[1]

    def _start(
        self,
        argv: list[bytes],
        environment: list[bytes],
        blocked: tuple[int, ...],
        output: int,
        read: int,
    ) -> None:
        """Start mpirun, which is killed when the pipe `read` has no writer any more."""
        _raise_open_files()
        try:
            # mpirun is in the process group of this process, which is not killed: it
            # has the write end too.
            own_process.die_with_pipe(read)
            pid, fault = processes.fork_program(
                lambda fault: _become_mpirun(
                    argv, environment, blocked, (read, output, output), fault
                ),
                os.pipe(),
                self._poprun.fileno(),
            )
        except OSError as error:
            self._poprun.tell(protocol.MPIRUN_REFUSED, error.errno or 0, b"fork()")
        else:
            if fault:
                os.waitpid(pid, 0)
                # Otherwise it is the file that cannot be executed.
                is_shortage = int(fault) in (errno.EAGAIN, errno.ENOMEM)
                call = b"execve()" if is_shortage else b""
                self._poprun.tell(protocol.MPIRUN_REFUSED, fault, call)
            else:
                self._mpirun = pid
                start = processes.start_time(pid)
                self._poprun.tell(protocol.MPIRUN_STARTED, pid, start)
        finally:
            os.close(output)
            os.close(read)

    def _reap(self) -> None:
        for pid, status in processes.reap():
            if pid == self._mpirun:
                self._mpirun = 0
                # Instances may live for a moment, with files open that are not known.
                self._leftovers.check_all(again=True)
                self._poprun.tell(protocol.MPIRUN_EXITED, status)

    def _finish(self) -> None:
        num_found, remaining = processes.end(
            self._tree, FINISH_GRACE_S, LIMIT_S, all_children=True
        )
        for failure in self._undo():
            self._poprun.tell(protocol.NOT_UNDONE, os.fsencode(failure))
        for p in remaining:
            self._poprun.tell(protocol.REMAINS, p.pid, *processes.describe(p))
        self._poprun.tell(protocol.FINISHED, num_found - len(remaining))

    def _send_last_message(self) -> None:
        """Tell poprun that its agent is gone, as the connection lasts until the end."""
        if self._last_message and self._last_message_to >= 0:
            try:
                os.write(self._last_message_to, self._last_message)
            except OSError:
                return  # poprun is gone, too, or reads nothing

    def _end_all(self, grace: float) -> None:
        """End the job without poprun."""
        # mpirun first: it would take the end of its children for a failure, and report
        # it. The shims end by themselves, and let their programs end.
        began = time.monotonic()
        if self._lock >= 0:
            # A shim waits for the lock after the end of its program: it removes the
            # files if this process is killed before.
            release(self._lock)
        self._leftovers.check_all(again=True)
        while self._job_is_alive() and time.monotonic() < began + grace + 0.2:
            self._leftovers.read_events()
            self._claim()
            processes.reap()
            time.sleep(processes.LOOK_AGAIN_S)
        # The children of killed shims become init's, not this process's.
        if self._known:
            processes.end(self._below_known, 0, SHIM_GRACE_S)
        processes.end(self._tree, 0, LIMIT_S, all_children=True)
        if self._mark:
            processes.end(self._marked, 0, LIMIT_S)
        for failure in self._undo():
            self._report(failure)

    def _undo(self) -> list[str]:
        """Perform the end actions; return a sentence for each failure."""
        # A shim that ends after poprun and finds no other performs them, and removes
        # the lock file if none fails. But processes that it does not know may have
        # written files since.
        is_undone = self._lock >= 0 and not os.path.lexists(self._lock_path)
        failures = self._end_actions.perform(commands=not is_undone)
        # Jobs may have been killed with their guards, such as a poprun in this job.
        places = self._end_actions.directories() | usual_places(os.environb)
        return failures + undo_abandoned(places)

    def _report(self, failure: str) -> None:
        """Write a sentence to poprun's stderr, unless the write would block."""
        if self._report_to < 0:
            return
        poll = select.poll()
        poll.register(self._report_to, select.POLLOUT)
        if poll.poll(0):
            try:
                os.write(self._report_to, os.fsencode(f"poprun: {failure}\n"))
            except OSError:
                return  # its reader is gone too

    def _job_is_alive(self) -> bool:
        if self._is_first:
            return processes.has_children()
        return bool(self._tree() or (self._mark and self._marked()))

    def _marked(self) -> list[processes.Process]:
        """Return the processes with the mark, and all below them."""
        marked = processes.with_variable(self._mark)
        own = [p for p in marked if p.pid != os.getpid()]
        return own + processes.descendants([p.pid for p in own])

    def _tree(self) -> list[processes.Process]:
        tree = processes.descendants([os.getpid()]) if processes.has_children() else []
        if self._known:
            tree += self._below_known() + _living(self._known)
        return tree

    def _below_known(self) -> list[processes.Process]:
        known, seen = _living(self._known), _living(self._below)
        below = {p.pid: p for p in processes.descendants(p.pid for p in known + seen)}
        below.update((p.pid, p) for p in seen)
        self._below = {p.pid: p.start for p in below.values()}
        return [p for p in below.values() if p.pid not in self._known]


def _living(starts: dict[int, int]) -> list[processes.Process]:
    """Return the living ones of some processes, given by pid and start time."""
    looked_up = map(processes.process, starts)
    return [p for p in looked_up if p and p.start == starts[p.pid] and not p.zombie]


def _become_mpirun(
    argv: list[bytes],
    environment: list[bytes],
    blocked: tuple[int, ...],
    stdio: tuple[int, int, int],
    fault: int,
) -> None:
    """Turn this fork into mpirun; on failure write the errno."""
    try:
        # Its stdin is a pipe without data: at the end of its input, hydra's mpirun
        # writes to a process that may have ended, and SIGPIPE would kill it.
        for number, descriptor in enumerate(stdio):
            os.dup2(descriptor, number)
        own_process.default_signals()
        _signal.pthread_sigmask(_signal.SIG_SETMASK, blocked)
        os.execve(argv[0], argv, processes.read_assignments(environment))
    except OSError as error:
        os.write(fault, b"%d" % (error.errno or 0))


def _raise_open_files() -> None:
    """Raise the soft limit of open files, which mpirun needs for its instances.

    The shims give the programs the caller's limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    target = MPIRUN_OPEN_FILES if hard == endless else min(MPIRUN_OPEN_FILES, hard)
    if soft != endless and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
