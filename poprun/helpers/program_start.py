"""Start the program of an instance: a spec -> its process, and its streams.

The shim imports this, so it imports next to nothing.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import errno
import os

from poprun.helpers import own_process, processes
from poprun.wire import protocol

# A fork writes this to the shim if memory cannot be bound, and goes on.
UNBOUND = b"memory is not bound\n"


class StartError(Exception):
    """A program could not be started.

    Args:
        number: The errno.
        about: The path that it is about, empty if `call` says it.
        call: The call that failed, empty for the open, chdir or exec of that path.
    """

    def __init__(self, number: int, about: bytes, call: bytes) -> None:
        super().__init__(number, about, call)
        self.number, self.about, self.call = number, about, call


def start_program(
    spec: protocol.Spec, received: list[int], poprun: int
) -> tuple[int, tuple[int, ...], bool]:
    """Fork, and return when the fork has become the program.

    Returns its pid, the ends to read its stdout and its stderr from, one if they are
    merged, and whether its memory is bound. The caller closes these ends.

    Args:
        received: The descriptors that have come with the spec: stdin, if it is sent.
        poprun: The socket to poprun. The fork is killed if that ends before its exec.

    Raises:
        StartError: It could not; nothing is left open, and no process.
    """
    opened = _open_descriptors(spec, received)
    stdin, out_read, out_write, err_read, err_write, alive_read, _, *pipe = opened
    shim = os.getpid()
    stdio = stdin, out_write, err_write
    try:
        pid, fault = processes.fork_program(
            lambda fault: _become_program(spec, shim, stdio, fault, alive_read),
            (pipe[0], pipe[1]),
            poprun,
        )
    except OSError as error:
        _close(opened[:-2])
        raise StartError(error.errno or 0, b"", b"fork()") from error
    _close([*stdio, alive_read])
    memory_is_bound = not fault.startswith(UNBOUND)
    if fault := fault.removeprefix(UNBOUND):
        _close([out_read, err_read])
        os.waitpid(pid, 0)
        number, call, about = fault.split(b" ", 2)
        raise StartError(int(number), about, call)
    streams: tuple[int, ...] = out_read, err_read
    if spec.merge_stderr:
        os.close(err_read)
        streams = (out_read,)
    return pid, streams, memory_is_bound


def _open_descriptors(spec: protocol.Spec, received: list[int]) -> list[int]:
    """Open stdin, both ends of stdout and stderr, and two pipes to the fork."""
    opened: list[int] = []
    about, call = spec.stdin, b""
    if spec.stdin == protocol.SENT:
        about, call = b"", b"receiving stdin"
    try:
        opened.append(_stdin(spec, received))
        about, call = b"", b"making pipes"
        opened += _terminal_or_pipe(spec, spec.terminals[0])
        if spec.merge_stderr:
            opened += map(os.dup, opened[1:3])
        else:
            opened += _terminal_or_pipe(spec, spec.terminals[1])
        # When the shim ends, its end of this closes, and that kills the program's
        # process group.
        opened += os.pipe()
        # For a failure in the fork.
        opened += os.pipe()
    except OSError as error:
        _close(opened)
        raise StartError(error.errno or 0, about, call) from error
    return opened


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _stdin(spec: protocol.Spec, received: list[int]) -> int:
    if spec.stdin != protocol.SENT:
        return os.open(spec.stdin, os.O_RDONLY)
    if not received:
        # The kernel drops what its receiver has no number left for.
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return received.pop()


def _terminal_or_pipe(spec: protocol.Spec, is_terminal: int) -> tuple[int, int]:
    """Return a stream's two ends, of a raw terminal or a pipe: bytes are exact."""
    if not is_terminal:
        return os.pipe()
    try:
        import termios

        master, slave = os.openpty()
        attributes = termios.tcgetattr(slave)
        attributes[0] = attributes[1] = attributes[3] = 0  # input, output, local
        termios.tcsetattr(slave, termios.TCSANOW, attributes)
        rows, columns = spec.size
        termios.tcsetwinsize(slave, (rows, columns))
    except (ImportError, OSError):  # no /dev/pts, or none left
        return os.pipe()
    return master, slave


def _become_program(
    spec: protocol.Spec, shim: int, stdio: tuple[int, int, int], fault: int, alive: int
) -> None:
    """Turn this fork into the program; on failure say why, and end.

    Args:
        alive: A pipe; only the shim has its write end.
    """
    about, call = b"", b"setsid()"
    try:
        os.setsid()
        if not own_process.die_with_parent(_signal.SIGKILL, shim):
            os._exit(1)
        call = b"fcntl()"
        own_process.die_with_pipe(alive)
        call = b"dup2()"
        for target, descriptor in enumerate(stdio):
            os.dup2(descriptor, target)
        if spec.cpus:
            call = b"sched_setaffinity()"
            os.sched_setaffinity(0, spec.cpus)
        if spec.memory_nodes and not own_process.bind_memory(spec.memory_nodes):
            os.write(fault, UNBOUND)
        if spec.open_files:
            call = b"setrlimit()"
            _limit_open_files(spec.open_files)
        about, call = spec.cwd, b""
        os.chdir(spec.cwd)
        os.umask(spec.umask)
        about = spec.path
        environment = _environment(spec, stdout_is_terminal=os.isatty(1))
        own_process.default_signals(ignored=spec.ignored)
        os.execve(spec.path, spec.argv, environment)
    except OSError as error:
        os.write(fault, b"%d %s %s" % (error.errno or 0, call, about[:2048]))
    except BaseException as error:
        os.write(fault, b"0  " + repr(error).encode(errors="replace")[:2048])


def _limit_open_files(soft: int) -> None:
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _environment(
    spec: protocol.Spec, *, stdout_is_terminal: bool
) -> dict[bytes, bytes]:
    environment = processes.read_assignments(spec.environment)
    if not stdout_is_terminal:
        # Otherwise Python's output would come in large pieces, and late.
        environment.setdefault(b"PYTHONUNBUFFERED", b"1")
    # MPI's values count for more in its own variables: they name its server.
    from_mpi = {k: v for k, v in os.environb.items() if spec.is_set_by_mpi(k)}
    return environment | from_mpi
