"""Starts and stops the process that loads, as a sharing strategy says."""

import atexit
import mmap
import multiprocessing
import os
import tempfile
import weakref
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import IO, Any

from ..enums import SharingStrategy
from . import fetcher
from .core_sharing import leave_cores
from .fetcher import Batch, End, Failure, LoadingSettings
from .helper_processes import end_helpers_at_exit, is_importing_main
from .shared_memory import dumps

METHODS = {
    SharingStrategy.SharedMemory: "spawn",
    SharingStrategy.FileSystem: "spawn",
    SharingStrategy.Fork: "fork",
    SharingStrategy.ForkServer: "forkserver",
}
# What a forkserver imports once for all its forks, if it can.
PRELOADED = "popdist.sdk.forkserver_preload"
# The exit code of a process that imports a program which starts processes meanwhile.
UNGUARDED = 113
# What is added to the errors of starting the process.
NOT_PICKLABLE = (
    "The data set is sent to a separate process, so it must be picklable: its class "
    "must be in a module, and it may have no lambdas. With "
    "async_options={'sharing_strategy': poptorch.SharingStrategy.Fork} it need not be "
    "picklable."
)
# How long the process may take to end by itself, and then after SIGTERM.
GRACE_S = 2.0


class _Payload:
    """A pickled object in a file without a name, which the new process gets open."""

    # Any: whatever can be pickled.
    def __init__(self, content: Any, strategy: SharingStrategy) -> None:
        # Not by Process.start(), which would send the file descriptors of tensors that
        # exist only while they are pickled, as in torch.Generator.
        pickled = dumps(content)
        self._file = _unnamed_file(strategy)
        self._file.write(pickled)
        self._file.flush()

    def __reduce__(self) -> Any:
        return _load, (DupFd(self._file.fileno()),)

    def close(self) -> None:
        self._file.close()


def _unnamed_file(strategy: SharingStrategy) -> IO[bytes]:
    if strategy == SharingStrategy.FileSystem:
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("poptorch-data-set"), "wb")


def _load(duplicate: Any) -> Any:
    """Return the object, in the new process."""
    descriptor = duplicate.detach()
    with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as memory:
        os.close(descriptor)
        return ForkingPickler.loads(memory)


class LoadingProcess:
    """The loading process, as the process that asks for batches has it."""

    def __init__(
        self,
        source: Iterable[Any],
        settings: LoadingSettings,
        strategy: SharingStrategy,
    ) -> None:
        """Start the process.

        Args:
            source: Yields the batches of one pass.
            settings: How it loads.
            strategy: How it starts, and gets the source.
        """
        if is_importing_main():
            os._exit(UNGUARDED)
        self._owner = os.getpid()
        context: Any = multiprocessing.get_context(METHODS[strategy])
        self._connection, child_end = context.Pipe()
        payload = None
        # Any: what fetcher.run() takes.
        args: tuple[Any, ...] = child_end, source, settings, self._connection
        try:
            if strategy == SharingStrategy.ForkServer:
                context.set_forkserver_preload([PRELOADED])
            if strategy != SharingStrategy.Fork:
                end_helpers_at_exit()
                payload = _Payload(source, strategy)
                args = child_end, payload, settings
            # Not a daemon: those may not start the workers of torch's DataLoader.
            self._process: BaseProcess = context.Process(
                target=fetcher.run, args=args, name="poptorch-loader"
            )
            self._process.start()
        except Exception as error:
            self._connection.close()
            error.add_note(NOT_PICKLABLE)
            raise
        finally:
            child_end.close()
            if payload is not None:
                payload.close()
        _RUNNING.add(self)
        leave_cores(1)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid or 0

    def send(self, message: fetcher.Begin | fetcher.Free | fetcher.Stop) -> None:
        """Send a message, unless the process has ended, which receive() reports."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send(message)

    def receive(self) -> Batch | End | Failure:
        """Return the next message, when it comes.

        Raises:
            AssertionError: The process has ended.
        """
        ready = wait([self._connection, self._process.sentinel])
        # Memory can be taken over only while the process lives: an OSError, if not.
        with suppress(EOFError, OSError):
            if self._connection in ready or self._connection.poll():
                message: Batch | End | Failure = self._connection.recv()
                return message
        self._process.join(GRACE_S)
        if self._process.exitcode == UNGUARDED:
            raise AssertionError(
                "The loading process imports the program, and the program makes a "
                "loader when it is imported. Put the program's work below `if "
                "__name__ == '__main__':`, or load with "
                "async_options={'sharing_strategy': poptorch.SharingStrategy.Fork}."
            )
        raise AssertionError(
            "An error occurred in the data fetcher: its process ended with exit code "
            f"{self._process.exitcode}, and reports above why if it could."
        )

    def stop(self) -> None:
        """End the process, and its workers."""
        _RUNNING.discard(self)
        # In a fork it is the parent's.
        if self._owner != os.getpid() or self._connection.closed:
            return
        # It ends by itself at the next batch, and ends its workers. Closing the
        # connection would not tell it: other children may have it open.
        self.send(fetcher.Stop())
        self._connection.close()
        for end in (self._process.terminate, self._process.kill):
            self._process.join(GRACE_S)
            if not self._process.is_alive():
                break
            end()
        self._process.join()
        leave_cores(-1)


# What still runs when the program ends, before multiprocessing waits for it: that is
# why it is registered here, after the import of multiprocessing.
_RUNNING: "weakref.WeakSet[LoadingProcess]" = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    for process in list(_RUNNING):
        process.stop()
