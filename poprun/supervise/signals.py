"""The signals that poprun gets while it supervises an attempt."""

import os
import signal
from collections.abc import Iterator

from poprun import early_signals
from poprun.helpers import own_process
from poprun.helpers.own_process import CALLER_INTERRUPT

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
OTHER_SIGNALS = (signal.SIGTSTP, signal.SIGCHLD, signal.SIGWINCH)
HANDLED_SIGNALS = (*ENDING_SIGNALS, CALLER_INTERRUPT, *PASSED_ON, *OTHER_SIGNALS)


class Signals:
    """A descriptor that can be read when signals have come.

    From the start on they have no other effect on poprun.
    """

    def __init__(self) -> None:
        # How often an interrupt has come in each of two ways.
        self._interrupts = {int(signal.SIGINT): 0, CALLER_INTERRUPT: 0}

    def start(self) -> None:
        ignored = own_process.ignored_signals()
        handled = [number for number in HANDLED_SIGNALS if number not in ignored]
        self._wake = own_process.wake_up_on(*handled)
        early_signals.restore_default()

    def fileno(self) -> int:
        return self._wake

    def read(self) -> Iterator[int]:
        """Yield the signals that have come, and one SIGINT for each interrupt."""
        for number in os.read(self._wake, 4096):
            if number not in self._interrupts:
                yield number
                continue
            before = max(self._interrupts.values())
            self._interrupts[number] += 1
            # If not, it has come in the other way.
            if self._interrupts[number] > before:
                yield signal.SIGINT

    def close(self) -> None:
        """Close the descriptor.

        The signals stay blocked for the rest of this process's life: Python restores
        the default actions at its end, and a signal that came then would replace the
        exit code.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        own_process.end_wake_up(self._wake)
