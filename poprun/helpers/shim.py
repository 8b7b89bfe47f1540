"""Runs beside each instance: mpirun starts it, and it starts the program.

It owns one program and everything that the program starts. It stays until poprun
releases it and then exits with 0, whatever the program did: when a rank that has
called MPI_Init dies and its parent leaves too, every MPI ends the other ranks.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import _socket
import errno
import os
import select
import sys
import time

from poprun.helpers import processes, protocol
from poprun.helpers.channel import Channel, connect
from poprun.helpers.job_files import (
    hold,
    undo_abandoned,
    undo_by_last,
    undo_if_last,
)

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
# And then a shim waits at most so long until the guard and the other shims have ended,
# or have removed the job's files.
ORPHAN_LIMIT_S = 30.0

NEVER = float("inf")
# What a fork writes to the shim if memory cannot be bound; it goes on without.
UNBOUND = b"memory is not bound\n"
ENDING = (_signal.SIGTERM, _signal.SIGINT)


def main(variable: str, rank: int) -> None:
    parent = os.getppid()
    processes.become_subreaper()
    wake = processes.wake_up_on(
        _signal.SIGCHLD,
        _signal.SIGTERM,
        _signal.SIGINT,
        _signal.SIGHUP,
        _signal.SIGQUIT,
        _signal.SIGUSR1,
        _signal.SIGUSR2,
        _signal.SIGTSTP,
    )
    if not processes.die_with_parent(_signal.SIGTERM, parent):
        return
    try:
        sock, key = connect(os.environb[os.fsencode(variable)])
    except KeyError:
        sys.exit(f"The shim of instance {rank} has no {variable} in its environment.")
    except OSError as error:
        _undo_abandoned()
        sys.exit(f"The shim of instance {rank} cannot reach poprun: {error.strerror}.")
    pid = os.getpid()
    Shim(sock, wake).run(
        protocol.pack(
            protocol.HELLO,
            protocol.VERSION,
            key,
            rank,
            os.fsencode(os.uname().nodename),
            pid,
            processes.start_time(pid),
        )
    )


def _undo_abandoned() -> None:
    """Undo what the job has made if poprun and its guard died before they said what."""
    # mpirun's TMPDIR is the job's directory.
    temporary = os.path.dirname(os.environb.get(b"TMPDIR", b""))
    _report(undo_abandoned({b"/dev/shm", b"/tmp", temporary or b"/tmp"}))


def _report(failures: list[str]) -> None:
    for failure in failures:
        try:
            os.write(2, os.fsencode(f"poprun: {failure}\n"))
        except OSError:
            return  # mpirun, which would pass it on, is gone


class Shim:
    """One program under supervision, from its start until nothing of it is left."""

    def __init__(self, sock: _socket.socket, wake: int) -> None:
        self._poprun = Channel(sock)
        self._wake = wake
        self._connected = True
        self._released = False
        self._released_by_poprun = False
        self._program = 0  # its pid, 0 before the start
        self._ended = False  # the program itself
        self._clean = False  # and all that it started
        self._spec: protocol.Spec | None = None
        self._stopped_by = protocol.BY_ITSELF
        self._left_behind = 0
        # The signal by which poprun or mpirun stops the program, 0 before that.
        self._stopping = 0
        # Those who have got an ending signal, by pid and start time.
        self._asked: set[tuple[int, int]] = set()
        self._ask_at = NEVER
        self._kill_at = NEVER
        # The job's lock file, and this process's hold on it.
        self._lock, self._held = b"", -1
        self._killing = False
        # Since when all that is left may not be signalled.
        self._refused_since = NEVER

    def run(self, hello: bytes) -> None:
        """Do everything; returns when there is nothing left to do."""
        self._poprun.send(hello)
        poll = select.poll()
        poll.register(self._poprun.fileno(), select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._done():
            for descriptor, _ in poll.poll(self._wait_ms()):
                if descriptor == self._wake:
                    self._on_signals(os.read(self._wake, 4096))
                elif not self._on_poprun():
                    poll.unregister(descriptor)
            now = time.monotonic()
            if now >= self._ask_at:
                self._ask_tree(now)
            if now >= self._kill_at:
                self._kill()
            self._reap()
        if self._held >= 0:
            # Only if poprun and its guard are gone, and this is the last shim.
            os.close(self._held)
            if self._connected or self._released_by_poprun:
                _report(undo_if_last(self._lock, is_final=False) or [])
            else:
                # The guard may be killed before it has performed the end actions.
                _report(undo_by_last(self._lock, ORPHAN_LIMIT_S))
        elif not self._connected:
            _undo_abandoned()

    def _done(self) -> bool:
        if self._program and not self._clean:
            return False
        return self._released or not self._connected

    def _wait_ms(self) -> int:
        due = NEVER if self._clean else min(self._ask_at, self._kill_at)
        return processes.poll_timeout(due - time.monotonic())

    # --- Messages.

    def _on_poprun(self) -> bool:
        messages = self._poprun.receive()
        if messages is None:
            self._connected = False
            self._stop(ORPHAN_GRACE_S, protocol.BY_POPRUN)
            return False
        for kind, fields in messages:
            if kind == protocol.SPEC:
                self._start(protocol.Spec(fields))
            elif kind == protocol.HOLD:
                self._lock, self._held = fields[0], hold(fields[0])
            elif kind == protocol.SIGNAL:
                self._on_signal(int(fields[0]))
            elif kind == protocol.KILL:
                self._stop(0, protocol.BY_POPRUN)
            elif kind == protocol.RELEASE:
                self._released = self._released_by_poprun = True
            elif kind == protocol.SHOW_STACKS:
                self._show_stacks(int(fields[0]))
        return True

    def _on_signals(self, numbers: bytes) -> None:
        # SIGTERM comes from an mpirun that ends the job, or from the kernel because
        # mpirun has died. The other signals are poprun's to pass on, by message.
        if _signal.SIGTERM in numbers:
            self._stop(MPI_GRACE_S, protocol.BY_MPI)
            self._released = True

    # --- The program.

    def _start(self, spec: protocol.Spec) -> None:
        self._spec = spec
        opened: list[int] = []
        about, call = spec.stdin, b""
        if spec.stdin == protocol.SENT:
            about, call = b"", b"receiving stdin"
        try:
            opened.append(self._stdin(spec))
            about, call = b"", b"making pipes"
            opened += _terminal_or_pipe(spec, spec.terminals[0])
            if spec.merge_stderr:
                opened += map(os.dup, opened[1:3])
            else:
                opened += _terminal_or_pipe(spec, spec.terminals[1])
            opened += os.pipe()
            # When the shim ends, its end of this closes, and that kills the program's
            # process group.
            opened += os.pipe()
            call = b"fork()"
            shim = os.getpid()
            pid = os.fork()
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            self._refuse(error.errno or 0, about, call)
            return
        stdin, out_read, out_write, err_read, err_write, *opened = opened
        fault_read, fault_write, alive_read, _ = opened
        if pid == 0:
            stdio = (stdin, out_write, err_write)
            _become_program(spec, shim, stdio, fault_write, alive_read)
        for descriptor in (stdin, out_write, err_write, fault_write, alive_read):
            os.close(descriptor)
        fault = _read_to_end(fault_read)
        memory_is_bound = not fault.startswith(UNBOUND)
        if fault := fault.removeprefix(UNBOUND):
            os.waitpid(pid, 0)
            number, call, about = fault.split(b" ", 2)
            self._refuse(int(number), about, call)
        else:
            self._program = pid
            # It cannot vanish before it is reaped, so the kernel has an answer.
            cpus = b",".join(b"%d" % cpu for cpu in sorted(os.sched_getaffinity(pid)))
            start = processes.start_time(pid)
            message = protocol.pack(
                protocol.STARTED, pid, start, cpus, int(memory_is_bound)
            )
            reads = (out_read,) if spec.merge_stderr else (out_read, err_read)
            self._poprun.send(message, reads)
        os.close(out_read)
        os.close(err_read)

    def _refuse(self, number: int, about: bytes, call: bytes) -> None:
        self._poprun.send(protocol.pack(protocol.REFUSED, number, about, call))

    def _stdin(self, spec: protocol.Spec) -> int:
        if spec.stdin != protocol.SENT:
            return os.open(spec.stdin, os.O_RDONLY)
        if not self._poprun.descriptors:
            # The kernel drops what its receiver has no number left for.
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return self._poprun.descriptors.pop()

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
            self._ask_to_end(number)
        else:
            self._signal_group(number)

    def _show_stacks(self, pid: int) -> None:
        """Signal a Python interpreter, so that it writes its stacks to stderr."""
        number = protocol.STACKS_SIGNAL
        below = processes.descendants([os.getpid()]) if self._program else []
        # Any other process would be killed by it.
        found = [p for p in below if processes.catches(p.pid, number)]
        if pid:
            for p in found:
                if p.pid == pid:
                    processes.send(number, p)
            return
        found.sort(key=lambda p: (p.pid != self._program, p.start))
        pids = b",".join(b"%d" % p.pid for p in found) or b"0"
        self._poprun.send(protocol.pack(protocol.STACKS, pids))

    def _ask_to_end(self, number: int) -> None:
        """Signal the program's process group, and soon the rest of its tree."""
        self._stopping = number
        self._signal_group(number)
        self._ask_at = time.monotonic() + REST_OF_TREE_S

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
        if self._spec is not None:
            grace = min(grace, self._spec.grace)
        if not self._ended:
            self._stopped_by = by
        if grace > 0:
            self._ask_to_end(_signal.SIGTERM)
        self._kill_at = min(self._kill_at, time.monotonic() + grace)

    def _ask_tree(self, now: float) -> None:
        """Send an ending signal, once, to all in the tree who have not got one."""
        self._ask_at = NEVER
        if not processes.has_children():
            return
        left = processes.descendants([os.getpid()])
        for p in left:
            self._ask(p)
        if not self._stopping:
            self._left_behind = len(left)
            grace = min(LEFTOVER_GRACE_S, self._spec.grace if self._spec else 0)
            self._kill_at = min(self._kill_at, now + grace)

    def _ask(self, p: processes.Process) -> None:
        number = self._stopping
        asked = (p.pid, p.start) in self._asked
        self._asked.add((p.pid, p.start))
        if self._ended:
            # Ctrl-C does not reach what a shell has started in the background. As long
            # as the program lives it may want to end its children in its own way.
            deaf = number == _signal.SIGINT and processes.ignores(p.pid, number)
            asked = asked and not deaf
            number = _signal.SIGTERM
        elif p.group == self._program:
            return
        if not asked:
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
                self._leave(refused)
                return
        self._killing = True
        # Once more soon, for what was being forked while we looked.
        self._kill_at = now + processes.LOOK_AGAIN_S

    def _leave(self, remaining: list[processes.Process]) -> None:
        """Say what remains because this user may not signal it, and be done."""
        for p in remaining:
            self._poprun.send(
                protocol.pack(protocol.REMAINS, p.pid, *processes.describe(p))
            )
        self._left_behind = max(0, self._left_behind - len(remaining))
        self._be_clean()

    def _be_clean(self) -> None:
        self._clean = True
        self._ask_at = self._kill_at = NEVER
        self._poprun.send(protocol.pack(protocol.CLEAN, self._left_behind))

    def _reap(self) -> None:
        while self._program and not self._clean:
            try:
                if self._killing:
                    processes.kill_group_of_ended()
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._be_clean()
                return
            if pid == 0:
                return
            if pid == self._program:
                self._ended = True
                self._report(status, usage)
                wait = REST_OF_TREE_S if self._stopping else LINGER_S
                self._ask_at = min(self._ask_at, time.monotonic() + wait)

    def _report(self, status: int, usage: "struct_rusage") -> None:
        self._poprun.send(
            protocol.pack(
                protocol.EXITED,
                status,
                time.monotonic_ns(),
                int(usage.ru_utime * 1e6),
                int(usage.ru_stime * 1e6),
                usage.ru_maxrss,
                self._stopped_by,
            )
        )


def _terminal_or_pipe(spec: protocol.Spec, is_terminal: bool) -> tuple[int, int]:
    """Return a stream's two ends, of a raw terminal or a pipe: bytes are exact."""
    if not is_terminal:
        return os.pipe()
    try:
        import termios

        master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[0] = attributes[1] = attributes[3] = 0  # input, output, local
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        termios.tcsetwinsize(slave, spec.size)
    except (ImportError, OSError):  # no /dev/pts, or none left
        return os.pipe()
    return master, slave


def _become_program(
    spec: protocol.Spec, shim: int, stdio: tuple[int, int, int], fault: int, alive: int
) -> None:
    """Turn this fork into the program; on failure say why, and end.

    Args:
        alive: A pipe whose write end only the shim has.
    """
    about, call = b"", b"setsid()"
    try:
        os.setsid()
        if not processes.die_with_parent(_signal.SIGKILL, shim):
            os._exit(1)
        call = b"fcntl()"
        processes.die_with_pipe(alive)
        call = b"dup2()"
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        if spec.cpus:
            call = b"sched_setaffinity()"
            os.sched_setaffinity(0, spec.cpus)
        if spec.memory_nodes and not processes.bind_memory(spec.memory_nodes):
            os.write(fault, UNBOUND)
        about, call = spec.cwd, b""
        os.chdir(spec.cwd)
        about = spec.path
        environment = _environment(spec, stdout_is_terminal=os.isatty(1))
        processes.default_signals(ignored=spec.ignored)
        os.execve(spec.path, spec.argv, environment)
    except OSError as error:
        os.write(fault, b"%d %s %s" % (error.errno or 0, call, about[:2048]))
    except BaseException as error:
        os.write(fault, b"0  " + repr(error).encode(errors="replace")[:2048])
    os._exit(127)


def _read_to_end(descriptor: int) -> bytes:
    data = b""
    while piece := os.read(descriptor, 4096):
        data += piece
    os.close(descriptor)
    return data


def _environment(
    spec: protocol.Spec, *, stdout_is_terminal: bool
) -> dict[bytes, bytes]:
    from_mpi = {
        name: value for name, value in os.environb.items() if spec.is_set_by_mpi(name)
    }
    given: dict[bytes, bytes] = {}
    for word in spec.environment:
        name, _, value = word.partition(b"=")
        given[name] = value
    if not stdout_is_terminal:
        # Or what Python prints would come in large pieces, and late.
        given.setdefault(b"PYTHONUNBUFFERED", b"1")
    # MPI's values count for more in its own variables: they name its server.
    return given | from_mpi
