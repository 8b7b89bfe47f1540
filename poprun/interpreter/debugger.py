"""The debugger of --pdb, in the first Python of its instance: pdb, which tells poprun.

poprun gives the terminal to the instance, and must know when a prompt is shown. The
debugger starts at breakpoint() and pdb.set_trace(), at an exception that nothing
catches, and at SIGINT. sitecustomize loads this by its path, on Python 3.6 and
later.
"""

import atexit
import bdb
import os
import pdb
import select
import signal
import sys

# The name is the type checker's.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  # in type comments only

# The same number as in poprun/wire/protocol.py.
DEBUGGER = 44
READY, PROMPT = b"0", b"1"
# So long the program waits at most for a poprun that does not answer.
LONGEST_S = 0.5


class Prompt:
    """Whether a prompt is shown in this process, as poprun is told.

    Args:
        tell_poprun: Sends a message, and returns the descriptor of its connection.
    """

    def __init__(self, tell_poprun):
        # type: (Any) -> None
        self._tell = tell_poprun
        self._process = os.getpid()
        self._connection = -1
        # One debugger can be started at the prompt of another.
        self._depth = 0

    @property
    def is_shown(self):
        # type: () -> bool
        return self._depth > 0

    @property
    def is_in_child(self):
        # type: () -> bool
        """Whether this process was forked from the one that --pdb is for."""
        return os.getpid() != self._process

    def begin(self):
        # type: () -> None
        self._depth += 1
        if self._depth == 1 and not self.is_in_child:
            self._connection = self.say(PROMPT)

    def end(self):
        # type: () -> None
        self._depth -= 1
        if not self._depth and self._connection >= 0:
            os.close(self._connection)
            self._connection = -1

    def say(self, state):
        # type: (bytes) -> int
        """Tell poprun something, and wait until it knows; return the connection.

        poprun shows the program in another way from then on, so no output may overtake
        the message.
        """
        try:
            connection = int(self._tell(DEBUGGER, [state]))
        except OSError:
            return -1  # poprun is gone; the shim ends this process
        select.select([connection], [], [], LONGEST_S)
        return connection


def install(tell_poprun):
    # type: (Any) -> None
    """Let this process have its debugger, and tell poprun."""
    prompt = Prompt(tell_poprun)
    watch_prompts(prompt)
    post_mortem = PostMortem(prompt)
    sys.excepthook = post_mortem.on_exception
    atexit.register(post_mortem.on_end)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(
            signal.SIGINT, lambda number, frame: on_interrupt(prompt, number, frame)
        )
    connection = prompt.say(READY)
    if connection >= 0:
        os.close(connection)


def watch_prompts(prompt):
    # type: (Prompt) -> None
    """Tell poprun of the prompts of every pdb, also of one that the program starts."""
    pdb_class = pdb.Pdb  # type: Any
    interaction = pdb_class.interaction

    def interact(self, *arguments):
        # type: (Any, Any) -> None
        # Its own handler of SIGINT waits for the end of a call in C.
        self.nosigint = True
        prompt.begin()
        try:
            interaction(self, *arguments)
        finally:
            prompt.end()

    pdb_class.interaction = interact


class PostMortem:
    """Shows a prompt at the uncaught exception that ends the program."""

    def __init__(self, prompt):
        # type: (Prompt) -> None
        self._prompt = prompt
        self._shown = None  # type: Any

    def on_exception(self, kind, value, traceback):
        # type: (Any, Any, Any) -> None
        if issubclass(kind, bdb.BdbQuit):
            sys.stderr.write("bdb.BdbQuit: the debugger has ended this instance.\n")
            return
        sys.__excepthook__(kind, value, traceback)
        self._show(kind, traceback)

    def on_end(self):
        # type: () -> None
        """Show the prompt for a program with its own hook for exceptions."""
        traceback = getattr(sys, "last_traceback", None)
        if traceback is not self._shown:
            self._show(getattr(sys, "last_type", Exception), traceback)

    def _show(self, kind, traceback):
        # type: (Any, Any) -> None
        # The user has ended the program, or an interrupt has, or it is a mistake in
        # its text.
        is_end = issubclass(kind, (bdb.BdbQuit, KeyboardInterrupt))
        self._shown = traceback
        if traceback is None or is_end or self._prompt.is_in_child:
            return
        sys.stderr.flush()
        print("Uncaught exception: pdb shows where; q ends the instance.", flush=True)
        pdb.post_mortem(traceback)


def on_interrupt(prompt, number, frame):
    # type: (Prompt, int, Any) -> None
    """Show a prompt in the middle of what the program does, even of a call in C."""
    if prompt.is_shown or prompt.is_in_child:
        signal.default_int_handler(number, frame)
    debugger = pdb.Pdb()
    debugger.reset()
    print("\nInterrupted: c goes on.", flush=True)
    debugger.interaction(frame, None)
    if debugger.quitting:
        raise bdb.BdbQuit
    # All other commands than c, which has set it to -1, stop at the next line.
    if debugger.stoplineno != -1 or debugger.breaks:
        debugger.set_trace(frame)
