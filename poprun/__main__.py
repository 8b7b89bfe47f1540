"""The entry point: handles signals before anything that takes time is imported."""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import gc
import os
import sys

# The name is the type checker's; importing typing or types would take milliseconds,
# in which a signal would end poprun without a word or with a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

# Not by the module signal, which takes longer to import than all else here.
_ENDING_SIGNALS = {
    _signal.SIGINT: "SIGINT",
    _signal.SIGTERM: "SIGTERM",
    _signal.SIGHUP: "SIGHUP",
    _signal.SIGQUIT: "SIGQUIT",
}
# Python looks for garbage after every 700 new objects. What is imported is none, and
# looking takes a twentieth of a launch.
_OBJECTS_BEFORE_GARBAGE = 100_000

_exit_code_file = ""


def main(exit_code_file: str = "") -> "NoReturn":
    """Run poprun, and end this process with its exit code.

    Args:
        exit_code_file: Gets the exit code, too, for a Python program that has called
            poprun; "" without one.
    """
    global _exit_code_file
    if exit_code_file:
        from poprun.helpers.own_process import CALLER_INTERRUPT

        _exit_code_file = exit_code_file
        _ENDING_SIGNALS[CALLER_INTERRUPT] = "SIGINT"
    _handle_signals()
    _open_closed_streams()
    gc.set_threshold(_OBJECTS_BEFORE_GARBAGE)

    from poprun import cli

    code = cli.main()
    _ignore_signals()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    _exit(code)


def _handle_signals() -> None:
    # Only in place of Python's own handler and of the default: a caller who ignores a
    # signal, as the shell does with Ctrl-C for background jobs, means it.
    # A caller who ignores this one would keep poprun from its children's exit status.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    for number in _ENDING_SIGNALS:
        if _signal.getsignal(number) in (_signal.default_int_handler, _signal.SIG_DFL):
            _signal.signal(number, _stopped)
    # A caller may have blocked them for reasons of its own, and forgotten that.
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _ENDING_SIGNALS)


def _ignore_signals() -> None:
    # The exit code is known, and no signal may replace it.
    for number in _ENDING_SIGNALS:
        _signal.signal(number, _signal.SIG_IGN)


def _exit(code: int) -> "NoReturn":
    """End this process at once: what Python does at its end is a tenth of a launch."""
    try:
        if _exit_code_file:
            with open(_exit_code_file, "w") as file:
                file.write(str(code))
    finally:  # also when the reader of the file is gone
        os._exit(code)


def _open_closed_streams() -> None:
    # Or another file would get the number of a standard stream, and be taken for it.
    # os.open() returns the lowest number that is free. Writing to stdout fails, as
    # it does where it is closed.
    for number, flags in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)


def _stopped(number: int, frame: "FrameType | None") -> None:
    # No instance has been started, so there is nothing to undo, and an exception might
    # come up inside an import.
    # The same signal again ends poprun even if stderr cannot take the sentence; an
    # interrupt in a terminal comes in two ways, and counts once.
    names = _ENDING_SIGNALS.items()
    twins = [each for each, name in names if name == _ENDING_SIGNALS[number]]
    for each in twins:
        _signal.signal(each, _signal.SIG_DFL if each == number else _signal.SIG_IGN)
    code = 128 + twins[0]
    # Nothing is imported here. Where a module is not, it has done nothing.
    module = sys.modules.get("poprun.job.clients.preparing_job")
    by = getattr(module, "stopped_by", "") or _ENDING_SIGNALS[number]
    sentence = f"Stopped by {by} before any instance was started."
    try:
        module = sys.modules.get("poprun.job.guard_start")
        getattr(module, "continue_guards", int)()
        module = sys.modules.get("poprun.stdio.phase_line")
        getattr(module, "erase", int)()
        os.write(2, f"poprun: error: {sentence}\n".encode())
        module = sys.modules.get("poprun.result.recorder")
        getattr(module, "note_stop", lambda *_: None)(code, sentence)
    finally:
        _exit(code)


if __name__ == "__main__":
    main()
