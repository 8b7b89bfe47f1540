"""What must be undone when a job ends, however it ends: values, and how they are done.

poprun registers an end action with its guard before it makes what is to be undone, and
both keep it in the job's lock file. So whichever of the supervisors ends last performs
it. An end action takes a bounded time. It may be performed more than once, and when
there is nothing to undo: it succeeds then.

The guard and the shims import this, so it imports next to nothing.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import select
import time
from _collections_abc import Iterable, Iterator  # os has imported it already

from poprun.helpers import protocol

# How long the removal of one path may take: a slow disk with very many files.
REMOVE_LIMIT_S = 60.0
# How often a directory is emptied in which a leftover process makes files.
EMPTY_ATTEMPTS = 3
# How often a command is run that something kills.
RUN_ATTEMPTS = 3
# How much of a command's output is kept for the sentence about its failure.
OUTPUT_BYTES = 4096
LONGEST_REASON = 500
# How long to wait for a process to disappear after SIGKILL.
KILL_S = 1.0


class RemovePath:
    """Remove a file, or a directory with all that is in it. Links are not followed."""

    __slots__ = ("path",)
    KIND = b"remove"
    limit_s = REMOVE_LIMIT_S

    def __init__(self, path: bytes) -> None:
        self.path = path

    def fields(self) -> list[bytes]:
        return [self.path]

    @classmethod
    def from_fields(cls, fields: list[bytes]) -> "RemovePath":
        (path,) = fields
        return cls(path)

    def perform(self) -> str:
        """Remove the path; return why it could not be removed, "" on success."""
        try:
            error = _remove(self.path, time.monotonic() + self.limit_s)
        except RecursionError:
            return f"Could not remove {self}: it has too many levels."
        if error is None:
            return ""
        return f"Could not remove {self}: {error.strerror}. Remove it yourself."

    def __str__(self) -> str:
        return os.fsdecode(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemovePath) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(self.path)

    def __repr__(self) -> str:
        return f"RemovePath({self.path!r})"


class RunCommand:
    """Run a command that undoes something, with nothing on stdin.

    A command, because it may need modules, memory and time that the guard must not
    spend, and because it can be killed when it hangs. If another process kills it, it
    is run again.

    Args:
        purpose: What it does, to follow "Could not".
        argv: The command line; the first item is the path of the program.
        environment: NAME=VALUE assignments: all that the command gets.
        timeout_s: After so many seconds, of all its runs, its process group is killed.
    """

    __slots__ = ("argv", "environment", "purpose", "timeout_ms")
    KIND = b"run"

    def __init__(
        self,
        *,
        purpose: str,
        argv: Iterable[bytes],
        environment: Iterable[bytes],
        timeout_s: float,
    ) -> None:
        self.purpose = purpose
        self.argv = tuple(argv)
        self.environment = tuple(environment)
        self.timeout_ms = int(timeout_s * 1000)

    @property
    def limit_s(self) -> float:
        return self.timeout_ms / 1000 + KILL_S

    def fields(self) -> list[bytes]:
        numbers = (b"%d" % self.timeout_ms, b"%d" % len(self.argv))
        return [os.fsencode(self.purpose), *numbers, *self.argv, *self.environment]

    @classmethod
    def from_fields(cls, fields: list[bytes]) -> "RunCommand":
        count = int(fields[2])
        return cls(
            purpose=os.fsdecode(fields[0]),
            argv=fields[3 : 3 + count],
            environment=fields[3 + count :],
            timeout_s=int(fields[1]) / 1000,
        )

    def perform(self) -> str:
        """Run the command; return how it failed, "" on success."""
        limit = time.monotonic() + self.timeout_ms / 1000
        try:
            for _ in range(RUN_ATTEMPTS):
                status, output = self._run(limit)
                if status is None or not os.WIFSIGNALED(status):
                    break
            reason = _reason(status, output, self.timeout_ms)
        except OSError as error:
            reason = f"cannot be run: {error.strerror}"
        if not reason:
            return ""
        program = os.fsdecode(self.argv[0])
        return f"Could not {self.purpose}: {program} {reason}."

    def _run(self, limit: float) -> tuple[int | None, bytes]:
        read, write = os.pipe()
        try:
            pid = os.posix_spawn(
                self.argv[0],
                self.argv,
                dict(_assignments(self.environment)),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, b"/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, write, 1),
                    (os.POSIX_SPAWN_DUP2, write, 2),
                ],
                setpgroup=0,
                setsigmask=(),
                setsigdef=DEFAULT_SIGNALS,
            )
            os.close(write)
            write = -1
            return _wait(pid, read, limit)
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunCommand) and self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(tuple(self.fields()))

    def __repr__(self) -> str:
        return f"RunCommand(purpose={self.purpose!r}, argv={self.argv!r})"


EndAction = RemovePath | RunCommand
_KINDS: dict[bytes, type[EndAction]] = {
    RemovePath.KIND: RemovePath,
    RunCommand.KIND: RunCommand,
}

# What a supervisor handles or ignores, and a command must not ignore.
DEFAULT_SIGNALS = (
    _signal.SIGHUP,
    _signal.SIGINT,
    _signal.SIGPIPE,
    _signal.SIGQUIT,
    _signal.SIGTERM,
    _signal.SIGTSTP,
)


class EndActions:
    """The end actions of one job, in the order in which they were registered.

    poprun and its guard have one each, with the same contents. As bytes, it is a
    sequence of the messages that lead to it.
    """

    def __init__(self) -> None:
        self._actions: list[EndAction] = []

    def __iter__(self) -> Iterator[EndAction]:
        return iter(self._actions)

    @property
    def limit_s(self) -> float:
        """How long all of them may take."""
        return sum((action.limit_s for action in self._actions), 0.0)

    def directories(self) -> set[bytes]:
        """Return the directories in which there are paths to remove."""
        removals = (a for a in self._actions if isinstance(a, RemovePath))
        return {os.path.dirname(removal.path) for removal in removals}

    def register(self, action: EndAction) -> bytes:
        """Add an action if it is not there; return the message that says so."""
        if action not in self._actions:
            self._actions.append(action)
        return protocol.pack(protocol.END_ACTION, action.KIND, *action.fields())

    def withdraw(self, action: EndAction) -> bytes:
        """Take an action out that has been performed; return the message about it."""
        if action in self._actions:
            self._actions.remove(action)
        return protocol.pack(protocol.WITHDRAW, action.KIND, *action.fields())

    def pack(self) -> bytes:
        """Return the messages that register all."""
        return b"".join(self.register(action) for action in self._actions)

    def apply(self, kind: int, fields: list[bytes]) -> None:
        """Do what a message of `register` or `withdraw` says.

        Raises:
            ValueError: The message makes no sense.
        """
        if kind not in (protocol.END_ACTION, protocol.WITHDRAW):
            raise ValueError(f"a message of kind {kind}")
        try:
            action = _KINDS[fields[0]].from_fields(fields[1:])
        except (KeyError, IndexError) as error:
            raise ValueError(f"no end action: {fields[:1]}") from error
        if kind == protocol.END_ACTION:
            self.register(action)
        else:
            self.withdraw(action)

    def read(self, data: bytes) -> None:
        """Do what a sequence of messages says, up to the first that makes no sense."""
        decoder = protocol.Decoder()
        try:
            while data:
                end = 4 + int.from_bytes(data[:4], "big")
                for kind, fields in decoder.feed(data[:end]):
                    self.apply(kind, fields)
                data = data[end:]
        except ValueError:
            return

    def perform(self, *, commands: bool = True) -> list[str]:
        """Perform all, the last registered first; return a sentence for each failure.

        They stay registered: what has been removed may be made again meanwhile.

        Args:
            commands: False to remove paths only.
        """
        due = [a for a in self._actions if commands or isinstance(a, RemovePath)]
        failures = [action.perform() for action in reversed(due)]
        return [failure for failure in failures if failure]


def _remove(path: bytes, limit: float) -> OSError | None:
    """Remove a path; return the first error, and go on to the rest."""
    try:
        if os.path.islink(path) or not os.path.isdir(path):
            os.unlink(path)
            return None
        first = None
        for _ in range(EMPTY_ATTEMPTS):
            with os.scandir(path) as entries:
                inside = [entry.path for entry in entries]
            for entry in inside:
                if time.monotonic() > limit:
                    return TimeoutError(None, f"it took {REMOVE_LIMIT_S:.0f} s")
                error = _remove(entry, limit)
                first = first or error
            try:
                os.rmdir(path)
            except OSError as error:
                # A process may have made a file in it meanwhile.
                last = error
            else:
                return None
        return first or last
    except OSError as error:
        # A read-only file system refuses before it looks whether there is a file.
        return error if os.path.lexists(path) else None


def _assignments(environment: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for assignment in environment:
        name, _, value = assignment.partition(b"=")
        yield name, value


def _wait(pid: int, output: int, limit: float) -> tuple[int | None, bytes]:
    """Wait for a command; return its wait status, None on timeout, and its output."""
    handle = os.pidfd_open(pid)
    os.set_blocking(output, False)
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(output, select.POLLIN)
    last = b""
    is_late = has_ended = False
    try:
        while not has_ended:
            left = limit - time.monotonic()
            if left <= 0:
                if is_late:
                    return None, last  # in an uninterruptible wait
                is_late, limit = True, time.monotonic() + KILL_S
                _kill_group(pid)
                continue
            for descriptor, _ in poll.poll(left * 1000 + 1):
                if descriptor == handle:
                    has_ended = True
                elif not (data := _read(output)):
                    poll.unregister(output)
                else:
                    last = (last + data)[-OUTPUT_BYTES:]
        while data := _read(output):
            last = (last + data)[-OUTPUT_BYTES:]
    finally:
        os.close(handle)
    _kill_group(pid)
    _, status = os.waitpid(pid, 0)
    return None if is_late else status, last


def _kill_group(pid: int) -> None:
    """SIGKILL the process group of a command that has not been reaped."""
    try:
        os.killpg(pid, _signal.SIGKILL)
    except OSError:
        return  # nothing, or nothing that may be signalled


def _read(descriptor: int) -> bytes:
    """Return what can be read now, b"" for nothing or the end."""
    try:
        return os.read(descriptor, OUTPUT_BYTES)
    except BlockingIOError:
        return b""


def _reason(status: int | None, output: bytes, timeout_ms: int) -> str:
    """Return how a command failed, "" on success."""
    if status is None:
        return f"did not end within {timeout_ms / 1000:g} s and was killed"
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    how = f"was killed by {_name(-code)}" if code < 0 else f"exited with {code}"
    lines = output.decode(errors="backslashreplace").strip().splitlines()
    said = f": {lines[-1].strip()[:LONGEST_REASON].rstrip('.')}" if lines else ""
    return how + said


def _name(number: int) -> str:
    """Return a signal's name, as the module signal has it, which takes long to load."""
    names = (n for n in dir(_signal) if n.startswith("SIG") and n[3] != "_")
    found = (name for name in names if getattr(_signal, name) == number)
    return next(found, f"signal {number}")
