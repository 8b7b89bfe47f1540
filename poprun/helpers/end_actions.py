"""End actions: files to remove and commands to run when a job ends, in whatever way.

poprun registers an end action with its guard before it makes the file, and both keep
the action in the job's lock file. So the last supervisor that ends performs it. An end
action takes a bounded time. It may be performed more than once, and it succeeds if
there is nothing to undo.

The guard and the shims import this, so it imports next to nothing.
"""

import os
import time
from _collections_abc import Callable, Iterable, Iterator  # os has imported it already

from poprun.helpers import processes
from poprun.wire import protocol

# How long the removal of one path may take: a slow disk with very many files.
REMOVE_LIMIT_S = 60.0
# How often a directory is emptied in which a leftover process makes files.
EMPTY_ATTEMPTS = 3
# How often a command is run that something kills.
RUN_ATTEMPTS = 3
# How much of a command's output is read for the sentence about its failure.
OUTPUT_BYTES = 4096
LONGEST_REASON = 500
# How long to wait for a process to disappear after SIGKILL.
KILL_S = 1.0


class EndAction:
    """An end action, which its fields describe: equal fields are equal actions."""

    # The first field of a message about it; the others are `fields`.
    KIND: bytes
    limit_s: float

    def __init__(self, *fields: bytes) -> None:
        self.fields = fields

    def perform(self) -> str:
        """Undo it; return a sentence on why that failed, "" on success."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.fields == self.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.fields}"


class RemovePath(EndAction):
    """Remove a file, or a directory with all that is in it. Links are not followed."""

    KIND = b"remove"
    limit_s = REMOVE_LIMIT_S

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path

    def perform(self) -> str:
        name = os.fsdecode(self.path)
        try:
            error = _remove(self.path, time.monotonic() + self.limit_s)
        except RecursionError:
            return f"Could not remove {name}: it is nested too deeply."
        if error is None:
            return ""
        return f"Could not remove {name}: {error.strerror}. Remove it yourself."


class RunCommand(EndAction):
    """Run a command that undoes something, with nothing on stdin.

    A command, because it may need modules, memory and time that the guard must not
    spend, and because it can be killed when it hangs. If another process kills it, it
    is run again.

    Its fields are its purpose, to follow "Could not", how many milliseconds all of its
    runs may take before its process group is killed, the length of argv, argv, and
    NAME=VALUE assignments: the whole environment of the command.
    """

    KIND = b"run"

    def __init__(
        self, purpose: bytes, timeout_ms: bytes, count: bytes, *others: bytes
    ) -> None:
        super().__init__(purpose, timeout_ms, count, *others)
        self.purpose = os.fsdecode(purpose)
        self.timeout_s = int(timeout_ms) / 1000
        self.limit_s = self.timeout_s + KILL_S
        self.argv, self.environment = others[: int(count)], others[int(count) :]

    def perform(self) -> str:
        limit = time.monotonic() + self.timeout_s
        try:
            for _ in range(RUN_ATTEMPTS):
                status, output = self._run(limit)
                if status is None or not os.WIFSIGNALED(status):
                    break
            reason = _reason(status, output, self.timeout_s)
        except OSError as error:
            reason = f"cannot be run: {error.strerror}"
        if not reason:
            return ""
        program = os.fsdecode(self.argv[0])
        return f"Could not {self.purpose}: {program} {reason}."

    def _run(self, limit: float) -> tuple[int | None, bytes]:
        """Return the command's wait status, None on timeout, and its last output."""
        output = os.memfd_create("output")
        try:
            variables = processes.read_assignments(self.environment)
            pid = processes.spawn(self.argv, variables, output, setpgroup=0)
            status = _wait(pid, limit - time.monotonic())
            end = os.fstat(output).st_size
            return status, os.pread(output, OUTPUT_BYTES, max(0, end - OUTPUT_BYTES))
        finally:
            os.close(output)


def run_command(
    *,
    purpose: str,
    argv: Iterable[bytes],
    environment: Iterable[bytes],
    timeout_s: float,
) -> RunCommand:
    """Return the end action that runs a command."""
    words = tuple(argv)
    numbers = b"%d" % int(timeout_s * 1000), b"%d" % len(words)
    return RunCommand(os.fsencode(purpose), *numbers, *words, *environment)


_KINDS: dict[bytes, Callable[..., EndAction]] = {
    kind.KIND: kind for kind in (RemovePath, RunCommand)
}


class EndActions:
    """The end actions of one job, in the order in which they were registered.

    poprun and its guard have one each, with the same contents. Its bytes
    are the messages that register them.
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
        return protocol.pack(protocol.END_ACTION, action.KIND, *action.fields)

    def withdraw(self, action: EndAction) -> bytes:
        """Take an action out that has been performed; return the message about it."""
        if action in self._actions:
            self._actions.remove(action)
        return protocol.pack(protocol.WITHDRAW, action.KIND, *action.fields)

    def pack(self) -> bytes:
        """Return the messages that register all."""
        return b"".join(self.register(action) for action in self._actions)

    def apply(self, kind: int, fields: list[bytes]) -> None:
        """Apply a message of `register` or `withdraw`.

        Raises:
            ValueError: The message is invalid.
        """
        if kind not in (protocol.END_ACTION, protocol.WITHDRAW):
            raise ValueError(f"a message of kind {kind}")
        try:
            action = _KINDS[fields[0]](*fields[1:])
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"no end action: {fields[:1]}") from error
        if kind == protocol.END_ACTION:
            self.register(action)
        else:
            self.withdraw(action)

    def read(self, data: bytes) -> None:
        """Apply a sequence of messages, up to the first invalid one."""
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

        They stay registered: a process may make a removed file again.

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


def _wait(pid: int, timeout_s: float) -> int | None:
    """Wait for a command, and then kill its process group.

    Returns its wait status, or None if it was killed because its time was over.
    """
    handle = os.pidfd_open(pid)
    poll = processes.poll_on(handle)
    has_ended = bool(poll.poll(processes.poll_timeout(timeout_s)))
    processes.kill_group(pid)
    # A process that does not die now is in an uninterruptible wait.
    is_dead = has_ended or bool(poll.poll(processes.poll_timeout(KILL_S)))
    os.close(handle)
    status = os.waitpid(pid, 0)[1] if is_dead else None
    return status if has_ended else None


def _reason(status: int | None, output: bytes, timeout_s: float) -> str:
    """Return how a command failed, "" on success."""
    if status is None:
        return f"did not end within {timeout_s:g} s and was killed"
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return ""
    how = f"exited with {code}"
    if code < 0:
        how = f"was killed by {processes.signal_name(-code)}"
    lines = output.decode(errors="backslashreplace").strip().splitlines()
    if not lines:
        return how
    return f"{how}: {lines[-1].strip()[:LONGEST_REASON].rstrip('.')}"
