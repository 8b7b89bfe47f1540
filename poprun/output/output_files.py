"""The files of --output-filename and --log-dir: one for each stream of an instance."""

import errno
import os
from dataclasses import dataclass

from poprun.errors import LaunchError, OptionError
from poprun.output.lines.tags import Mark
from poprun.output.stream_ends import STREAMS

LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFolder:
    """Where the output of a job is written, in a folder for each attempt.

    DIR/1/rank.N/stdout is where mpirun of Open MPI 4 writes it, for --output-filename;
    the next attempt has DIR/2. --log-dir has a folder for each run of poprun, too:
    DIR/RUN/attempt-0/rank.N/stdout, and DIR/latest is a link to the last RUN.
    """

    # The option that names it, for errors, and the directory as the user wrote it.
    option: str
    directory: str
    # Nothing is written to the console.
    only_files: bool = False
    # The name of the run's folder; "" in mpirun's layout.
    run: str = ""

    def of_attempt(self, number: int) -> str:
        """Return the folder of an attempt, which has one for each instance."""
        if not self.run:
            return os.path.join(self.directory, str(number + 1))
        return os.path.join(self.directory, self.run, f"attempt-{number}")


class OutputFiles:
    """The files of one attempt.

    Args:
        directory: The folder of the attempt.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # By rank and stream: the descriptor, and what marks the lines.
        self._open: dict[tuple[int, str], tuple[int, Mark | None]] = {}
        # The streams with an unfinished line at the end of their file.
        self._unfinished: set[tuple[int, str]] = set()
        # The path of the first file that could not be written, and the errno.
        self.failure: tuple[str, int] | None = None

    def open(self, rank: int, stream: str, mark: Mark | None) -> None:
        try:
            self._open[rank, stream] = _open_file(self._directory, rank, stream), mark
        except OSError as error:
            self._note_failure(rank, stream, error)

    def write(self, rank: int, stream: str, data: bytes, written: float = 0.0) -> None:
        """Write what a stream brings, unless its file could not be written before.

        Args:
            written: When it was written, in seconds since 1970.
        """
        key = (rank, stream)
        if key not in self._open:
            return
        descriptor, mark = self._open[key]
        if mark is not None:
            marked = mark.apply(data, continues=key in self._unfinished, time=written)
            if data.endswith(b"\n"):
                self._unfinished.discard(key)
            else:
                self._unfinished.add(key)
            data = marked
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except OSError as error:
            self.close(rank, stream)
            self._note_failure(rank, stream, error)

    def close(self, rank: int, stream: str) -> None:
        """Close the file of a stream, if it is open."""
        descriptor, _ = self._open.pop((rank, stream), (-1, None))
        if descriptor >= 0:
            os.close(descriptor)

    def _note_failure(self, rank: int, stream: str, error: OSError) -> None:
        if self.failure is None:
            path = path_of(self._directory, rank, stream)
            self.failure = path, error.errno or errno.EIO


def make_files(folder: OutputFolder, attempt: int, num_instances: int) -> None:
    """Make the files of an attempt, before anything of it is started.

    Raises:
        OptionError: One of them cannot be written.
        LaunchError: The same, in a later attempt: the option was valid.
    """
    directory = folder.of_attempt(attempt)
    try:
        for rank in range(num_instances):
            for stream in STREAMS:
                os.close(_open_file(directory, rank, stream))
        if folder.run:
            _link_latest(folder)
    except OSError as error:
        path, reason = error.filename2 or error.filename, error.strerror
        where = "" if path == folder.directory else f"{path}: "
        raise (LaunchError if attempt else OptionError)(
            f"{folder.option} {folder.directory!r} cannot be written: {where}{reason}. "
            "Name a directory where you can create files."
        ) from None


def _link_latest(folder: OutputFolder) -> None:
    """Let DIR/latest be a link to the folder of this run, whatever it was before."""
    path = os.path.join(folder.directory, LATEST)
    if os.path.lexists(path) and not os.path.islink(path):
        raise FileExistsError(errno.EEXIST, "it exists and is not a link", path)
    # In one step, so that others always see a whole link. It is not followed.
    new = os.path.join(folder.directory, f".{LATEST}-{folder.run}")
    os.symlink(folder.run, new)
    os.replace(new, path)


def _open_file(directory: str, rank: int, stream: str) -> int:
    """Make the file of one stream."""
    path = path_of(directory, rank, stream)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def path_of(directory: str, rank: int, stream: str) -> str:
    """Return the file of a stream in the folder of an attempt."""
    return os.path.join(directory, f"rank.{rank}", stream)
