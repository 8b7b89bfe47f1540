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


class OutputFile:
    """The file of one stream.

    Args:
        mark: Marks its lines.
    """

    def __init__(self, path: str, mark: Mark | None = None) -> None:
        self.path, self._mark = path, mark
        # Why nothing can be written any more: an errno, or 0.
        self.failure = 0
        self._is_mid_line = False
        try:
            self._descriptor = _open_file(path)
        except OSError as error:
            self.failure = error.errno or errno.EIO

    def write(self, data: bytes, written: float = 0.0) -> None:
        """Write what the stream brings, unless the file could not be written before.

        Args:
            written: When it was written, in seconds since 1970.
        """
        is_mid_line, self._is_mid_line = self._is_mid_line, not data.endswith(b"\n")
        if self._mark is not None:
            data = self._mark.apply(data, continues=is_mid_line, time=written)
        view = memoryview(data)
        try:
            while view and not self.failure:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            self.close()
            self.failure = error.errno or errno.EIO

    def close(self) -> None:
        if not self.failure:
            os.close(self._descriptor)


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
                os.close(_open_file(path_of(directory, rank, stream)))
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


def _open_file(path: str) -> int:
    """Make the file of one stream."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def path_of(directory: str, rank: int, stream: str) -> str:
    """Return the file of a stream in the folder of an attempt."""
    return os.path.join(directory, f"rank.{rank}", stream)
