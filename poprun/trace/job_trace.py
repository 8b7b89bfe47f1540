"""The timeline of --trace for one run of poprun: STATE of this process.

It collects the phases of the launcher, the lives of instances and the records of their
processes, and writes the timeline at the end. It writes a valid file at the start, too:
poprun may be killed.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from popdist.call_records import (
    CALLS_SUFFIX,
    HEADER,
    MOST_RECORDS,
    NOTES_SUFFIX,
    PROFILE_SUFFIX,
)
from poprun import __version__, early_signals
from poprun.errors import OptionError
from poprun.helpers.processes import exit_code
from poprun.host.host_link import HostLink
from poprun.host.record_pieces import stem_of
from poprun.trace import timeline
from poprun.trace.clocks import Clock, clock_of
from poprun.trace.record_files import ProcessRecords, lost_calls, read_process
from poprun.trace.replaced_file import replaced_file
from poprun.trace.timeline import InstanceLife, LaunchPhase
from poprun.wire.events import (
    Event,
    Exited,
    HostJoins,
    MembersChanged,
    MpirunExited,
    MpirunStarted,
    Started,
    StartedAgain,
)
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
        self._end_ns = 0
        self._phases: list[LaunchPhase] = []
        self._mpirun: list[LaunchPhase] = []
        self._generations: list[LaunchPhase] = []
        # The lives before those of instances that were started again, by attempt.
        self._earlier_lives: list[tuple[int, int, InstanceLife]] = []
        # By attempt and rank.
        self._lives: dict[tuple[int, int], InstanceLife] = {}
        self._attempt = 0
        self._host_names: dict[int, str] = {}
        # The files of each process, by their names; a process is known by its attempt,
        # its host and the stem of these names.
        self._files: dict[tuple[int, str, str], dict[str, bytearray]] = {}
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

    # --- Events.

    def enter(self, phase: str) -> None:
        """Note that the launcher begins a phase, and ends the one before."""
        now = time.monotonic_ns()
        if self._phases:
            self._phases[-1] = replace(self._phases[-1], ended_ns=now)
        self._phases.append(LaunchPhase(name=phase, began_ns=now))

    def begin_attempt(self, number: int, host_names: Mapping[int, str]) -> None:
        """Note that another attempt begins, with the host of each instance."""
        self._attempt, self._host_names = number, dict(host_names)

    def listen(self, event: Event) -> None:
        """Take in an event of the job."""
        now, attempt = time.monotonic_ns(), self._attempt
        match event:
            case Started(rank=rank, pid=pid):
                host = self._host_names[rank]
                life = InstanceLife(pid=pid, host=host, began_ns=now)
                self._lives[attempt, rank] = life
            case Exited(rank=rank) if started := self._lives.get((attempt, rank)):
                end = f"exit code {exit_code(event.status)}"
                life = replace(started, ended_ns=event.at_ns, end=end)
                self._lives[attempt, rank] = life
            case StartedAgain(rank=rank):
                self._end_life(rank, now)
            case HostJoins(host=host, ranks=ranks):
                self._host_names |= dict.fromkeys(ranks, host)
                for rank in ranks:
                    self._end_life(rank, now)
            case MembersChanged(generation=number, why=why):
                self._end_generation(now)
                name = f"generation {number}: {why}"
                self._generations.append(LaunchPhase(name=name, began_ns=now))
            case MpirunStarted():
                self._mpirun.append(LaunchPhase(name="mpirun", began_ns=now))
            case MpirunExited() if self._mpirun:
                self._mpirun[-1] = replace(self._mpirun[-1], ended_ns=now)
                self._end_generation(now)

    def _end_life(self, rank: int, now: int) -> None:
        """Keep the life of an instance that is started again."""
        if life := self._lives.pop((self._attempt, rank), None):
            life = replace(life, ended_ns=life.ended_ns or now, end=life.end or "lost")
            self._earlier_lives.append((self._attempt, rank, life))

    def _end_generation(self, now: int) -> None:
        if self._generations and not self._generations[-1].ended_ns:
            self._generations[-1] = replace(self._generations[-1], ended_ns=now)

    def add_piece(self, host: str, name: str, piece: bytes) -> None:
        """Append to a file of records."""
        if (stem := stem_of(name)) is not None:
            files = self._files.setdefault((self._attempt, host, stem), {})
            files.setdefault(name, bytearray()).extend(piece)

    def collect(self, hosts: Collection[HostLink]) -> None:
        """Read the records of the processes of all hosts.

        The directory with the records of this host is removed next.
        """
        for host in hosts:
            if host.clock_readings:
                self._clocks[host.name] = clock_of(host.clock_readings)
            for name, piece in host.call_records:
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

    def missing_calls(self) -> str:
        """Return a sentence about calls for which there was no room, "" for none."""
        lost = sum(
            lost_calls(bytes(data[: HEADER.size]))
            for files in self._files.values()
            for name, data in files.items()
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
        clocks = {
            f"clock of {host}": f"{clock.first.offset_ns / 1000:.1f} us before poprun's"
            for host, clock in self._clocks.items()
        }
        complete = "yes" if self._end_ns else "no: poprun has not come to its end"
        about = json.dumps({"poprun": __version__, "complete": complete, **clocks})
        head = f'{{"displayTimeUnit": "ms", "otherData": {about}, "traceEvents": ['
        events = timeline.timeline(
            self._begin_ns,
            self._end_ns or time.monotonic_ns(),
            self._phases,
            [*self._mpirun, *self._generations],
            [*self._earlier_lives, *((*key, own) for key, own in self._lives.items())],
            list(self._processes()),
        )
        with replaced_file(self._path) as file:
            file.write(head.encode())
            separator = "\n"
            for event in events:
                file.write(f"{separator}{json.dumps(event)}".encode())
                separator = ",\n"
            file.write(b"\n]}\n")

    def _processes(self) -> Iterator[ProcessRecords]:
        """Yield what the processes of the job have recorded."""
        num_processes: Counter[int] = Counter()
        for (attempt, host, stem), files in self._files.items():
            calls, notes = (
                bytes(files.get(stem + suffix, b""))
                for suffix in (CALLS_SUFFIX, NOTES_SUFFIX)
            )
            names = (name for name in files if name.endswith(PROFILE_SUFFIX))
            profiles = [bytes(files[name]) for name in names]
            records = read_process(calls, notes, profiles)
            if records is None:
                continue
            num_processes[records.rank] += 1
            life = self._lives.get((attempt, records.rank))
            is_program = life is not None and life.pid == records.pid
            further = 0 if is_program else num_processes[records.rank]
            row = timeline.row_of(records.rank, further)
            clock = self._clocks.get(host, Clock())
            yield replace(records, host=host, clock=clock, attempt=attempt, row=row)


def open_trace(path: str) -> JobTrace:
    """Return a trace that is also written if a signal ends poprun early.

    Raises:
        OptionError: The file cannot be written.
    """
    trace = JobTrace(path)
    early_signals.call_after_message(lambda exit_code, sentence: trace.write())
    return trace
