"""The exit codes of poprun that are no instance's."""

import signal

UNWRITTEN = 74
TIMED_OUT = 124
MACHINERY_FAILED = 125
NOT_EXECUTABLE = 126
NOT_FOUND = 127
OUTPUT_CLOSED = 128 + signal.SIGPIPE
