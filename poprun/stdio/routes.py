"""How the output of a job is marked, and where it is shown."""

import time

from poprun.record import Record
from poprun.stdio.tags import Mark, Prefix, Xml


class Routes(Record):
    """What a job's output is to look like."""

    tag: bool = False
    # The host of each instance, for its tag; empty for a job on one host.
    hosts: tuple[str, ...] = ()
    # The time before each line, before its tag if it has one.
    timestamp: bool = False
    # All of it on stdout, as elements, instead of tags and times.
    xml: bool = False
    # What instances write to stderr comes by their stdout.
    merged: bool = False
    only_instance: int | None = None
    # Where the files of the attempt are.
    directory: str | None = None
    # And nothing on the console.
    only_files: bool = False
    # The instance that reads the terminal which the output is written to.
    terminal_reader: int | None = None
    # The directory whose frames are left out of tracebacks on the console.
    library: str = ""

    def mark_of(
        self, rank: int, stream: str, *, on_terminal: bool = False
    ) -> Mark | None:
        """Return what marks the lines of a stream on the console or in its file."""
        if self.xml:
            return Xml(rank, stream)
        if not (self.tag or self.timestamp):
            return None
        tag = self.tag_of(rank, stream)
        if not self.timestamp:
            return Prefix(lambda: tag, on_terminal=on_terminal)
        return Prefix(lambda: time.ctime().encode() + tag, on_terminal=on_terminal)

    def width_of_mark(self, instances: int) -> int:
        """Return how many columns the widest mark takes on a terminal."""
        if self.xml or not (self.tag or self.timestamp):
            return 0
        time_width = len(time.ctime()) if self.timestamp else 0
        tags = (self.tag_of(rank, "stdout") for rank in range(instances))
        return time_width + max(map(len, tags))

    def tag_of(self, rank: int, stream: str) -> bytes:
        # Two fields, as mpirun has them: tools look for those.
        host = f"@{self.hosts[rank]}" if self.hosts else ""
        instance = f"[1{host},{rank}]" if self.tag else ""
        return f"{instance}<{stream}>:".encode()

    def is_shown(self, rank: int) -> bool:
        return not self.only_files and self.only_instance in (None, rank)
