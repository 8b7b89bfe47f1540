"""The files of --result and --events, which are opened before anything starts.

One Recorder serves one run of poprun, with all its attempts. A file that cannot be
written is a warning, and changes neither the job nor its exit code.
"""

import errno
import json
import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from poprun import __version__
from poprun.errors import OptionError
from poprun.output.writer import Sink
from poprun.plan.values import Plan
from poprun.result import formats
from poprun.result.verdict import Verdict
from poprun.wire.events import Event, MembersChanged
from poprun.words import json_text

# How long the reader of a pipe may take to read the rest at the end.
LAST_READ_S = 5.0
# The names of descriptors of poprun. A file that is opened anew has a position of its
# own, and would overwrite the output of the instances.
STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
OWN_DESCRIPTOR = r"(?:/dev|/proc/self)/fd/(\d+)"


class JsonFile:
    """A file, pipe or terminal that gets JSON objects, one on a line.

    Raises:
        OptionError: It cannot be written.
    """

    def __init__(self, option: str, path: str) -> None:
        self._name = f"{option} {path}"
        try:
            self._descriptor = _open(path)
            self._sink = Sink(self._descriptor)
        except OSError as error:
            reason = error.strerror
            if error.errno == errno.ENXIO:
                reason = "no process is reading it yet"
            raise OptionError(
                f"{option} {path!r} cannot be written: {reason}. Name a file that "
                "you can write, in a directory that exists."
            ) from None
        mode = os.fstat(self._descriptor).st_mode
        self._is_regular = _own_descriptor(path) is None and stat.S_ISREG(mode)
        # How many bytes the whole lines have that are written, and how many lines are
        # not, because the reader of a pipe is slow.
        self._whole_lines = 0
        self._num_lost = 0
        self._has_draft = False

    @property
    def identity(self) -> tuple[int, int] | None:
        """The device and inode of a file; None if two can write to it in turn."""
        status = os.fstat(self._descriptor)
        return (status.st_dev, status.st_ino) if self._is_regular else None

    def write_draft(self, value: dict[str, Any]) -> None:
        """Write an object that the next one replaces, if this is a regular file."""
        if not self._is_regular:
            return
        line = _line(value)
        # A disk that is full takes nothing, or the beginning.
        with suppress(OSError):
            self._has_draft = os.pwrite(self._descriptor, line, 0) == len(line)
        if not self._has_draft:
            os.truncate(self._descriptor, 0)

    def write(self, value: dict[str, Any]) -> None:
        """Write an object on a line, without waiting."""
        if self._sink.full:
            self._num_lost += 1
            return
        if self._has_draft:
            self._has_draft = False
            os.truncate(self._descriptor, 0)
        self._sink.write(_line(value))
        if self._is_regular and not self._sink.failure:
            self._whole_lines = self._sink.written

    def close(self) -> str:
        """Write the rest, and close the file; return a sentence if that failed."""
        self._sink.drain(time.monotonic() + LAST_READ_S)
        self._sink.give_up()
        failure = self._sink.failure
        self._sink.close()
        if failure and self._is_regular:
            # A disk that is full may have taken the beginning of a line.
            os.truncate(self._descriptor, self._whole_lines)
        try:
            os.close(self._descriptor)
        except OSError as error:  # NFS writes here
            failure = failure or error.errno or errno.EIO
        if failure == errno.ETIMEDOUT or (self._num_lost and not failure):
            return f"{self._name} is incomplete: its reader did not read it."
        if failure:
            why = os.strerror(failure)
            return f"{self._name} is incomplete: it cannot be written: {why}."
        return ""


class Recorder:
    """Writes what --result and --events ask for.

    Args:
        result: The path of --result, None without.
        events: The path of --events.
        on_stdout: Whether the result goes to stdout, for --json.

    Raises:
        OptionError: A file cannot be written.
    """

    def __init__(
        self,
        program: Sequence[str],
        *,
        result: str | None = None,
        events: str | None = None,
        on_stdout: bool = False,
    ) -> None:
        self._program = [json_text(word) for word in program]
        self._results = [JsonFile("--result", result)] if result else []
        if on_stdout:
            self._results.append(JsonFile("--json", "-"))
        self._events = [JsonFile("--events", events)] if events else []
        own = {file.identity for file in self._events} - {None}
        if not own.isdisjoint(file.identity for file in self._results):
            raise OptionError(
                f"--result and --events both name {events!r}. Give each a file of its "
                "own."
            )
        self._attempt = 0
        self._run_time = self._attempt_time = _Stopwatch()
        self._attempts: list[dict[str, Any]] = []
        # How the members of the attempt have changed.
        self._changes: list[dict[str, Any]] = []
        # The fields on the end of the last attempt.
        self._last_end: dict[str, Any] = {}
        self._job: str | None = None
        self._is_finished = False
        # It stays if poprun is killed.
        cause = "poprun has not ended yet, or was killed."
        draft = self._result(formats.end_fields("incomplete", None, cause))
        for file in self._results:
            file.write_draft(draft)

    def begin_attempt(self, plan: Plan) -> None:
        """Take in that an attempt is about to be started."""
        self._attempt = plan.attempt.number
        self._attempt_time = _Stopwatch()
        self._changes = []
        hosts = [json_text(each.host.name) for each in plan.assignments]
        if self._job is None:
            self._job = plan.request.identity
            self._emit(
                "job_started",
                **self._head(formats.EVENTS),
                hosts=hosts,
                programs=[[*map(json_text, a.program.argv)] for a in plan.assignments],
            )
        self._emit("attempt_started", hosts=hosts)

    def listen(self, event: Event) -> None:
        """Write an event of the job."""
        if isinstance(event, MembersChanged):
            line = formats.event_object(event) or {}
            at = self._attempt_time.fields()["elapsed_s"]
            self._changes.append({**line, "at_s": at})
        if self._events and (fields := formats.event_object(event)):
            self._emit(**fields)

    def end_attempt(self, outcome: str, verdict: Verdict, cause: str) -> None:
        """Write how an attempt ended.

        Args:
            outcome: One of formats.OUTCOMES, or "succeeded".
        """
        first = verdict.first
        self._last_end = formats.end_fields(
            outcome, verdict.exit_code, cause, None if first is None else first.rank
        )
        self._attempts.append(
            {
                "attempt": self._attempt,
                **self._last_end,
                **self._attempt_time.fields(),
                "changes": [
                    {name: value for name, value in change.items() if name != "event"}
                    for change in self._changes
                ],
                "instances": [formats.instance_object(i) for i in verdict.instances],
            }
        )
        self._emit("attempt_ended", **self._last_end, **formats.stderr_fields(first))

    def wait_for_restart(self, seconds: float) -> None:
        """Take in that another attempt follows."""
        self._emit("restart", wait_s=seconds)

    def finish(self, exit_code: int) -> list[str]:
        """Write the result; return a sentence for each file that is incomplete."""
        if not self._last_end:
            return self.refuse(exit_code, "")
        return self._finish({**self._last_end, "exit_code": exit_code})

    def refuse(
        self,
        exit_code: int,
        cause: str,
        hints: Sequence[str] = (),
        outcome: str = "",
    ) -> list[str]:
        """Do the same where the last attempt does not say how the job ended.

        Args:
            outcome: Says it; "" where nothing of it, or poprun itself, has failed.
        """
        if not outcome:
            outcome = "launcher_failed" if self._job else "not_started"
        end = formats.end_fields(outcome, exit_code, cause)
        return self._finish(end, [json_text(hint) for hint in hints])

    def _finish(self, end: dict[str, Any], hints: Sequence[str] = ()) -> list[str]:
        # A signal may come while the files are written.
        if self._is_finished:
            return []
        self._is_finished = True
        self._emit("job_ended", **end)
        result = self._result(end, hints)
        for file in self._results:
            file.write(result)
        closed = [file.close() for file in (*self._results, *self._events)]
        return list(filter(None, closed))

    def _result(self, end: dict[str, Any], hints: Sequence[str] = ()) -> dict[str, Any]:
        return {
            **self._head(formats.RESULT),
            **end,
            "hints": hints,
            **self._run_time.fields(),
            "attempts": self._attempts,
        }

    def _head(self, format_name: str) -> dict[str, Any]:
        return {
            "format": format_name,
            "version": formats.VERSION,
            "poprun": __version__,
            "job": self._job,
            "program": self._program,
        }

    def _emit(self, event: str, **fields: Any) -> None:
        elapsed_s = self._run_time.fields()["elapsed_s"]
        head = {"event": event, "time": now(), "elapsed_s": elapsed_s}
        for file in self._events:
            file.write({**head, "attempt": self._attempt, **fields})


class _Stopwatch:
    """The beginning of a run or an attempt, and the time since then."""

    def __init__(self) -> None:
        self._began, self._began_at = now(), time.monotonic()

    def fields(self) -> dict[str, Any]:
        elapsed_s = round(time.monotonic() - self._began_at, 6)
        return {"began": self._began, "elapsed_s": elapsed_s}


def now() -> str:
    """Return the time in UTC, as ISO 8601 writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _line(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, separators=(", ", ": ")) + "\n").encode()


def _own_descriptor(path: str) -> int | None:
    numbered = re.fullmatch(OWN_DESCRIPTOR, path)
    return int(numbered[1]) if numbered else STANDARD.get(path)


def _open(path: str) -> int:
    if (own := _own_descriptor(path)) is not None:
        return os.dup(own)
    # A FIFO without a reader would wait for one.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK | os.O_NOCTTY
    return os.open(path, flags | os.O_CLOEXEC, 0o666)
