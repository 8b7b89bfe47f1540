"""How the output of a job is marked, and where it is shown."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from poprun.output.lines.tags import POPRUN, Mark, Prefix, Writer, Xml
from poprun.output.selection import Selection
from poprun.output.stream_ends import STREAMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """The form of a job's output, and where it goes."""

    # Tags in the form of mpirun, in files too.
    tag: bool = False
    # The time before each line, before its tag if it has one.
    timestamp: bool = False
    # All of it on stdout, as elements, instead of tags and times.
    xml: bool = False
    # The template of the tags on the console, "" for none, and the streams to which it
    # applies instead of mpirun's form.
    template: str = ""
    template_streams: Collection[str] = ()
    # The fields of a template for each instance, by rank.
    writers: Sequence[Writer] = ()
    # The streams with coloured tags on the console.
    colored_streams: Collection[str] = ()
    # The instances' stderr comes by their stdout.
    merged: bool = False
    selection: Selection = field(default_factory=Selection)
    # Where the files of the attempt are.
    directory: str | None = None
    # Show nothing on the console.
    only_files: bool = False
    # The instance that reads poprun's terminal.
    terminal_reader: int | None = None
    # poprun adds no lines.
    is_quiet: bool = False
    # Tracebacks on the console leave out the frames in this directory.
    library: str = ""

    def mark_in_file(self, rank: int, stream: str) -> Mark | None:
        """Return what marks the lines of a stream in its file, in mpirun's form."""
        plain = replace(self, template_streams=(), colored_streams=())
        return plain.mark_on_console(rank, stream)

    def mark_on_console(
        self, rank: int, stream: str, *, on_terminal: bool = False
    ) -> Mark | None:
        """Return what marks the lines of a stream on the console."""
        if self.xml:
            return Xml(rank, stream)
        if not (template := self._template_of(stream)):
            return None
        writer = self.writers[rank] if self.writers else Writer(instance=rank)
        tag = replace(writer, stream=stream).tag(
            template,
            colored=stream in self.colored_streams,
            timestamp=self.timestamp and stream not in self.template_streams,
        )
        return Prefix(tag, on_terminal=on_terminal)

    def is_tagged(self, stream: str) -> bool:
        """Return whether the lines of a stream have tags or times on the console."""
        return bool(self._template_of(stream))

    def width_of_mark(self, instances: int) -> int:
        """Return how many columns the widest mark takes on a terminal."""
        if self.xml:
            return 0
        plain = replace(self, colored_streams=())
        marks = (
            plain.mark_on_console(rank, stream)
            for rank in range(instances)
            for stream in STREAMS
        )
        tags = (mark.apply(b"\n", continues=False) for mark in marks if mark)
        return max((len(tag.decode(errors="replace")) - 1 for tag in tags), default=0)

    def is_shown(self, rank: int) -> bool:
        return not self.only_files and rank in self.selection

    def is_kept(self, rank: int) -> bool:
        """Return whether the output of an instance is shown only if that fails."""
        return not self.only_files and self.selection.failed and not self.is_shown(rank)

    def _template_of(self, stream: str) -> str:
        """Return the template of a stream on the console, "" for no tags."""
        if stream in self.template_streams:
            return self.template
        return POPRUN if self.tag else "<{stream}>:" if self.timestamp else ""
