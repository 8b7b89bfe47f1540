"""The files of --output-filename, one for each stream of each instance."""

import errno
import os

from poprun.errors import LaunchError
from poprun.stdio.stream_ends import STREAMS
from poprun.stdio.tags import Mark


class OutputFiles:
    """The files of one job, in DIR/1/rank.N/stdout and stderr, as mpirun names them."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        # By rank and stream: the descriptor, and what marks the lines.
        self._open: dict[tuple[int, str], tuple[int, Mark | None]] = {}
        # The streams whose last line in their file has not ended.
        self._unfinished: set[tuple[int, str]] = set()
        # The path of the first file that could not be written, and the errno.
        self.failure: tuple[str, int] | None = None

    def open(self, rank: int, stream: str, mark: Mark | None) -> None:
        try:
            self._open[rank, stream] = _open_file(self._directory, rank, stream), mark
        except OSError as error:
            self._note_failure(rank, stream, error)

    def write(self, rank: int, stream: str, data: bytes) -> None:
        """Write what a stream brings, unless its file could not be written before."""
        key = (rank, stream)
        if key not in self._open:
            return
        descriptor, mark = self._open[key]
        if mark is not None:
            marked = mark.apply(data, continues=key in self._unfinished)
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


def make_files(directory: str, num_instances: int) -> None:
    """Make the files of --output-filename, before anything is started.

    Raises:
        LaunchError: One of them cannot be written.
    """
    for rank in range(num_instances):
        for stream in STREAMS:
            try:
                os.close(_open_file(directory, rank, stream))
            except OSError as error:
                refusal = LaunchError(
                    f"--output-filename {directory}: {error.filename} cannot be "
                    f"written: {error.strerror}. Name a directory that can."
                )
                raise refusal from None


def _open_file(directory: str, rank: int, stream: str) -> int:
    """Make the file of one stream."""
    path = path_of(directory, rank, stream)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)


def path_of(directory: str, rank: int, stream: str) -> str:
    """Return where mpirun of Open MPI 4 writes a stream."""
    return os.path.join(directory, "1", f"rank.{rank}", stream)
