"""Records the calls and spans of this process in the folder of POPDIST_TRACE.

STATE in a session: two open files, which stay when the process ends.
"""

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from time import monotonic_ns, time_ns
from typing import TYPE_CHECKING, Any

from popdist import call_records as records
from popdist.environment import TRACE
from popdist.errors import SettingError

if TYPE_CHECKING:
    from popdist.engine import _core
    from popdist.engine.transport import Transport


class ProcessRecorder:
    """The records of one process.

    Args:
        folder: Where its files are made.
        rank: The number of this instance in poprun's attempt.

    Raises:
        SettingError: No file can be made there.
    """

    def __init__(self, folder: str, rank: int) -> None:
        self._stem = os.path.join(folder, f"{rank}-{os.getpid()}")
        self._notes = _create(self._stem + records.NOTES_SUFFIX, folder)
        self._calls: _core.Recorder | None = None
        self._lock = threading.Lock()
        self._num_groups = self._num_spans = self._num_profiles = 0
        self._note(
            kind=records.PROCESS,
            rank=rank,
            pid=os.getpid(),
            host=os.uname().nodename,
            monotonic=monotonic_ns(),
            realtime=time_ns(),
        )

    def add_group(
        self, transport: "Transport", purpose: str, members: Sequence[int]
    ) -> None:
        """Record all further calls of a group. Its members have met.

        Args:
            members: Their numbers in poprun's attempt.
        """
        # Not above: a process without groups needs no engine.
        from popdist.engine import _core

        with self._lock:
            number, self._num_groups = self._num_groups, self._num_groups + 1
            if self._calls is None:
                path = self._stem + records.CALLS_SUFFIX
                try:
                    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                    self._calls = _core.Recorder(fd, records.MOST_RECORDS)
                except OSError as error:
                    self._give_up(error)
                    return
        self._note(
            kind=records.GROUP,
            group=number,
            id=transport.identity,
            purpose=purpose,
            members=members,
        )
        transport.record_to(self._calls, number)

    def begin_span(self, name: str) -> int:
        """Note that a span of the program begins in this thread; return its number."""
        with self._lock:
            number, self._num_spans = self._num_spans, self._num_spans + 1
        # Kept short: programs have spans in each step.
        self._write(
            f'{{"kind": "{records.BEGIN}", "span": {number}, "at": {monotonic_ns()}, '
            f'"thread": {threading.get_native_id()}, "name": {json.dumps(name)}}}\n'
        )
        return number

    def end_span(self, number: int) -> None:
        """Note that a span ends."""
        self._write(
            f'{{"kind": "{records.END}", "span": {number}, "at": {monotonic_ns()}}}\n'
        )

    def add_profile(self, export: Callable[[str], object]) -> None:
        """Add a profiler's recording.

        Args:
            export: Writes it to a file of this name.
        """
        with self._lock:
            number, self._num_profiles = self._num_profiles, self._num_profiles + 1
        path = f"{self._stem}.{number}"
        # Files that are not complete have other names.
        export(f"{path}.json")
        os.rename(f"{path}.json", path + records.PROFILE_SUFFIX)

    def close(self, names: "Sequence[tuple[int, str]]") -> None:
        """Record no more.

        Args:
            names: The names of calls, by their numbers.
        """
        if names:
            self._note(kind=records.NAMES, names=dict(names))
        if self._calls is not None:
            self._calls.close()

    # Any, because a note has whatever its kind says.
    def _note(self, **note: Any) -> None:
        self._write(json.dumps(note) + "\n")

    def _write(self, line: str) -> None:
        if self._notes < 0:
            return
        try:
            os.write(self._notes, line.encode())
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Record no more notes: a full disk must not end the program."""
        fd, self._notes = self._notes, -1
        if fd >= 0:
            os.close(fd)
            print(
                f"popdist: this process has stopped recording its trace: {error}.",
                file=sys.stderr,
                flush=True,
            )


def _create(path: str, folder: str) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    except OSError as error:
        rule = f"a folder in which files can be made ({error.strerror})"
        raise SettingError(TRACE, folder, rule) from None
