"""Signals to poprun before its first instance runs: each ends it with a sentence.

While poprun reads its options they are blocked: the files of --result, --events and
--trace are open when a signal comes, and record it.
"""

import _signal  # type: ignore[import-not-found]  # typeshed has signal only
import os
import time

# The name is the type checker's; importing typing or types would take milliseconds,
# in which a signal would end poprun without a word or with a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

# STATE: the signals that end a process by default, except for faults such as SIGSEGV.
# If a Python program has called poprun, CALLER_INTERRUPT is one of them. The module
# signal would take longer to import than all else here.
_NAMES = {
    int(getattr(_signal, name)): name
    for name in (
        *("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2"),
        *("SIGALRM", "SIGVTALRM", "SIGPROF", "SIGXCPU", "SIGIO", "SIGPWR", "SIGSTKFLT"),
    )
}
# The signals stay blocked while poprun uses the CPU: on a loaded machine it takes
# seconds to import the code that reads the options. They do not stay blocked while
# poprun waits, because a configuration file may be a pipe.
_CHECK_S = 1.0
_IDLE_CPU_S = 0.005
_MOST_CHECKS = 30
# A check that is later than that says nothing: poprun was stopped, or got no CPU.
_LATE_S = 1.1

# STATE: the time of the last check, the CPU time of this process then, and the checks
# to come.
_checked_at = 0.0
_cpu_s = 0.0
_checks_left = _MOST_CHECKS

# STATE: the functions to call when a signal ends poprun. The first ones make the
# terminal and the guards ready for the end. The others get the exit code and the
# message, for the files of --result, --events and --trace.
_before_message: "list[Callable[[], object]]" = []
_after_message: "list[Callable[[int, str], object]]" = []

# STATE: the client of popctl that has stopped the job, instead of a signal.
stopped_by = ""

# STATE: how this process ends with an exit code.
_exit: "Callable[[int], object]" = os._exit


def block_until_options_are_read(
    end_process: "Callable[[int], object]", caller_interrupt: int = 0
) -> None:
    """Handle the signals; they wait for `unblock`, or until poprun waits itself.

    Args:
        end_process: Is called with the exit code when one has come.
        caller_interrupt: A signal that stands for SIGINT, 0 for none.
    """
    global _exit
    _exit = end_process
    if caller_interrupt:
        _NAMES[caller_interrupt] = "SIGINT"
    # A caller who ignores this one would keep poprun from its children's exit status.
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    # Only in place of Python's own handler and of the default: a caller who ignores a
    # signal, as the shell does with Ctrl-C for background jobs, means it.
    for number in _NAMES:
        if _signal.getsignal(number) in (_signal.default_int_handler, _signal.SIG_DFL):
            _signal.signal(number, stop)
    waiting = [number for number in _NAMES if number != _signal.SIGALRM]
    _signal.pthread_sigmask(_signal.SIG_BLOCK, waiting)
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGALRM,))
    # The caller's timer of SIGALRM lasts beyond exec, and must end poprun in time.
    has_alarm = _signal.getitimer(_signal.ITIMER_REAL)[0] > 0
    if _signal.getsignal(_signal.SIGALRM) is stop and not has_alarm:
        _signal.signal(_signal.SIGALRM, _unblock_if_idle)
        _signal.setitimer(_signal.ITIMER_REAL, _CHECK_S, _CHECK_S)
    else:
        unblock()


def call_before_message(function: "Callable[[], object]") -> None:
    """Call a function when a signal ends poprun, before its message is written."""
    if function not in _before_message:
        _before_message.append(function)


def call_after_message(function: "Callable[[int, str], object]") -> None:
    """Call a function with the exit code and the message when a signal ends poprun."""
    _after_message.append(function)


def _unblock_if_idle(number: int, frame: "FrameType | None") -> None:
    """Let the signals come if poprun has waited since the last check."""
    global _checked_at, _cpu_s, _checks_left
    now, used_s = time.monotonic(), time.process_time()
    _checks_left -= 1
    is_idle = used_s - _cpu_s < _IDLE_CPU_S and now - _checked_at < _LATE_S
    if is_idle or not _checks_left:
        unblock()
    _checked_at, _cpu_s = now, used_s


def unblock() -> None:
    """Let the signals come that are blocked."""
    if _signal.getsignal(_signal.SIGALRM) is _unblock_if_idle:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        _signal.signal(_signal.SIGALRM, stop)
    # A caller may have blocked them and forgotten that.
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _NAMES)


def restore_default() -> None:
    """Leave the signals to the kernel: an instance may run."""
    for number in _NAMES:
        if _signal.getsignal(number) is stop:
            _signal.signal(number, _signal.SIG_DFL)


def ignore() -> None:
    """Ignore the signals: the exit code is known, and none may replace it."""
    for number in _NAMES:
        _signal.signal(number, _signal.SIG_IGN)


def stop(number: int, frame: "FrameType | None") -> None:
    """End this process because a signal has come: their handler."""
    # No instance has been started, so there is nothing to undo, and an exception might
    # come up inside an import.
    # The same signal again ends poprun even if stderr cannot take the sentence; an
    # interrupt in a terminal comes in two ways, and counts once.
    twins = [each for each, name in _NAMES.items() if name == _NAMES[number]]
    for each in twins:
        _signal.signal(each, _signal.SIG_DFL if each == number else _signal.SIG_IGN)
    code = 128 + twins[0]
    by = stopped_by or _NAMES[number]
    sentence = f"Stopped by {by} before any instance was started."
    # Nothing is imported here.
    try:
        for prepare in _before_message:
            prepare()
        os.write(2, f"poprun: error: {sentence}\n".encode())
        for note in _after_message:
            note(code, sentence)
    finally:
        _exit(code)
