"""What a wait status means, in the numbers and names that shells use. Pure."""

import os
import signal


def exit_code(status: int) -> int:
    """Return what a shell would say: 128 and the signal's number for a signal."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
