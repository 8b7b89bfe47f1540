"""What a job does, for the timeline of --trace: STATE of one run of poprun.

It collects the phases of the launcher, the lives of instances and the files in which
their processes record, and writes the timeline at the end. A valid one is there from
the start on: poprun may be killed.
"""

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from popdist.call_records import (
    CALLS_SUFFIX,
    HEADER,
    MOST_RECORDS,
    NOTES_SUFFIX,
    PROFILE_SUFFIX,
)
from poprun import __version__
from poprun.errors import OptionError
from poprun.helpers.processes import exit_code
from poprun.host.host_link import HostLink
from poprun.host.remote_host import RemoteHost
from poprun.trace import timeline
from poprun.trace.clocks import Clock, clock_of
from poprun.trace.output_file import replaced_file
from poprun.trace.record_files import lost_calls, read_process, stem_of
from poprun.trace.record_pieces import record_pieces
from poprun.trace.timeline import InstanceLife, LaunchPhase, Traced
from poprun.wire.events import Event, Exited, MpirunExited, MpirunStarted, Started
from poprun.words import counted


class JobTrace:
    """The trace of one run.

    Args:
        path: The file that it writes.

    Raises:
        OptionError: The file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._given = path
        self._begin_ns = time.monotonic_ns()
        self._phases: list[tuple[str, int]] = []
        self._end_ns = 0
        self._lives: dict[tuple[int, int], InstanceLife] = {}
        self._attempt = 0
        self._host_names: Mapping[int, str] = {}
        self._mpirun: list[tuple[int, int]] = []
        # By attempt, host and name; the clock of a host by its name.
        self._files: dict[tuple[int, str, str], bytearray] = {}
        self._clocks: dict[str, Clock] = {}
        if path == "-":
            raise self._refusal("a timeline cannot be written to stdout")
        if os.path.exists(self._path) and not os.path.isfile(self._path):
            raise self._refusal("it is not a regular file")
        try:
            self._write()
        except OSError as error:
            raise self._refusal(error.strerror or str(error)) from None

    def _refusal(self, why: str) -> OptionError:
        return OptionError(
            f"--trace {self._given!r} cannot be written: {why}. Name a file in a "
            "directory where you can create files."
        )

    # --- What happens.

    def enter(self, phase: str) -> None:
        """Note that the launcher begins a phase, and ends the one before."""
        self._phases.append((phase, time.monotonic_ns()))

    def begin_attempt(self, number: int, host_names: Mapping[int, str]) -> None:
        """Note that another attempt begins, with the host of each instance."""
        self._attempt, self._host_names = number, host_names

    def listen(self, event: Event) -> None:
        """Take in an event of the job."""
        now = time.monotonic_ns()
        match event:
            case Started(rank=rank, pid=pid):
                host, attempt = self._host_names[rank], self._attempt
                life = InstanceLife(
                    rank=rank,
                    pid=pid,
                    host=host,
                    attempt=attempt,
                    began_ns=now,
                    ended_ns=0,
                    end="",
                )
                self._lives[attempt, rank] = life
            case Exited(rank=rank, status=status, at_ns=at_ns) if (
                self._attempt,
                rank,
            ) in self._lives:
                life = self._lives[self._attempt, rank]
                end = f"exit code {exit_code(status)}"
                ended = replace(life, ended_ns=at_ns, end=end)
                self._lives[self._attempt, rank] = ended
            case MpirunStarted():
                self._mpirun.append((now, 0))
            case MpirunExited() if self._mpirun:
                self._mpirun[-1] = (self._mpirun[-1][0], now)

    def add_piece(self, host: str, name: str, piece: bytes) -> None:
        """Take in some more of a file of records."""
        key = self._attempt, host, name
        self._files.setdefault(key, bytearray()).extend(piece)

    def collect(self, hosts: Sequence[HostLink], directory: str) -> None:
        """Take in what the processes of all hosts have recorded in their directories.

        Those of this host are removed next.
        """
        for host in hosts:
            pieces: Iterable[tuple[str, bytes]] = record_pieces(directory)
            if isinstance(host, RemoteHost):
                pieces = host.call_records
                self._clocks[host.name] = clock_of(host.clock_readings)
            for name, piece in pieces:
                self.add_piece(host.name, name, piece)

    # --- The file.

    def write(self) -> str:
        """Write the timeline; return why that failed, "" if it did not."""
        self._end_ns = time.monotonic_ns()
        try:
            self._write()
        except OSError as error:
            return (
                f"The trace could not be written to {self._given}: "
                f"{error.strerror or error}."
            )
        return ""

    def gap(self) -> str:
        """Return a sentence about calls that no process had room for; "" of none."""
        lost = sum(
            lost_calls(bytes(data[: HEADER.size]))
            for (_, _, name), data in self._files.items()
            if name.endswith(CALLS_SUFFIX)
        )
        if not lost:
            return ""
        return (
            f"{counted(lost, 'call')} are missing from the trace: each process "
            f"records its first {MOST_RECORDS - 1}, or fewer if the disk is full. "
            "'popctl trace' names the processes."
        )

    def _write(self) -> None:
        """Replace the file by one that is complete.

        Raises:
            OSError: It cannot be written.
        """
        about = json.dumps(self._about())
        with replaced_file(self._path) as file:
            file.write(
                f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": ['.encode()
            )
            separator = "\n"
            for event in self._events():
                file.write(f"{separator}{json.dumps(event)}".encode())
                separator = ",\n"
            file.write(b"\n]}\n")

    def _about(self) -> Mapping[str, str]:
        clocks = {
            f"clock of {host}": f"{clock.first_offset_ns / 1000:.1f} us before poprun's"
            for host, clock in self._clocks.items()
        }
        complete = "yes" if self._end_ns else "no: poprun has not come to its end"
        return {"poprun": __version__, "complete": complete, **clocks}

    def _events(self) -> Iterator[timeline.Event]:
        ends = [began for _, began in self._phases[1:]] + [self._end_ns]
        phases = [
            LaunchPhase(name=name, began_ns=began, ended_ns=ended or began)
            for (name, began), ended in zip(self._phases, ends, strict=False)
        ]
        end = self._end_ns or time.monotonic_ns()
        lives = [
            life if life.ended_ns else replace(life, ended_ns=end)
            for life in self._lives.values()
        ]
        mpirun = [
            LaunchPhase(name="mpirun", began_ns=began, ended_ns=ended or end)
            for began, ended in self._mpirun
        ]
        return timeline.timeline(
            self._begin_ns, phases, mpirun, lives, self._processes()
        )

    def _processes(self) -> list[Traced]:
        """Return what the processes of the job have recorded."""
        stems = {
            (attempt, host, stem): None
            for attempt, host, name in self._files
            if (stem := stem_of(name)) is not None
        }
        processes: list[Traced] = []
        rows: dict[int, int] = {}
        for attempt, host, stem in stems:
            calls, notes = (
                bytes(self._files.get((attempt, host, stem + suffix), b""))
                for suffix in (CALLS_SUFFIX, NOTES_SUFFIX)
            )
            profiles = [
                bytes(data)
                for (number, place, name), data in self._files.items()
                if (number, place, stem_of(name)) == (attempt, host, stem)
                and name.endswith(PROFILE_SUFFIX)
            ]
            process = read_process(calls, notes, profiles)
            if process is None:
                continue
            further = rows.get(process.rank, 0)
            rows[process.rank] = further + 1
            life = self._lives.get((attempt, process.rank))
            if life is not None and life.pid == process.pid:
                row = timeline.row_of(process.rank)
            else:
                row = timeline.row_of(process.rank, further + 1)
            clock = self._clocks.get(host, Clock())
            processes.append(
                Traced(
                    records=process, host=host, clock=clock, row=row, attempt=attempt
                )
            )
        return processes


# STATE: that of this process; what ends poprun early finds it here.
_current: JobTrace | None = None


def open_trace(path: str) -> JobTrace:
    """Return the trace of this process, from now on.

    Raises:
        OptionError: The file cannot be written.
    """
    global _current
    _current = JobTrace(path)
    return _current


def note_stop() -> None:
    """Write the trace of a job that a signal ends before its first instance."""
    if _current is not None:
        _current.write()
