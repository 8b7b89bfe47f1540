"""poprun's side of its guard: starts it, replaces it when it dies, and asks it things.

mpirun is the guard's child as long as the first guard lives. When that dies the
kernel gives mpirun to poprun, a subreaper too, and a new guard is told by number
what it has to end if poprun goes.
"""

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from poprun import kernel, wire
from poprun.channel import Channel

BESIDE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "beside.py")
# Isolated, and without site-packages: see beside.
PYTHON = (sys.executable, "-I", "-S", BESIDE)


class Guarding:
    """The guard of one job, whichever process it is at the moment."""

    def __init__(
        self,
        *,
        mark: str,
        environment: Mapping[bytes, bytes],
        output: int,
        grace: float,
        remove: Sequence[str],
    ) -> None:
        self._mark = mark
        self._environment = environment
        self._output = output
        self._grace_ms = int(grace * 1000)
        self._remove = [os.fsencode(path) for path in remove]
        self._known: dict[int, int] = {}
        self._before = {p.pid for p in kernel.descendants([os.getpid()])}
        self.replaced = 0
        self.pid = 0
        self.channel = self._spawn()
        self.channel.send(wire.pack(wire.REMOVE, *self._remove))

    def start(self, argv: Sequence[str]) -> None:
        """Ask the guard to start mpirun."""
        words = [os.fsencode(word) for word in argv]
        assignments = [b"%s=%s" % pair for pair in self._environment.items()]
        message = wire.pack(
            wire.START, self._grace_ms, len(words), *words, *assignments
        )
        self.channel.send(message, (self._output,))

    def know(self, pid: int, start: int) -> None:
        """Remember a process of the job, for a guard that is not its ancestor."""
        self._known[pid] = start
        if self.replaced:
            self.channel.send(wire.pack(wire.KNOWN, pid, start))

    def replace(self) -> None:
        """Start another guard in the place of one that has died."""
        self.channel.close()
        self.replaced += 1
        self.channel = self._spawn()
        pairs = [number for pair in self._known.items() for number in pair]
        self.channel.send(wire.pack(wire.ADOPT, self._grace_ms, *pairs))
        self.channel.send(wire.pack(wire.REMOVE, *self._remove))

    def signal_mpirun(self, pid: int, number: int) -> None:
        if self.replaced:
            found = kernel.process(pid)
            if found and found.start == self._known.get(pid):
                kernel.send(number, found)
        else:
            self.channel.send(wire.pack(wire.SIGNAL_MPIRUN, number))

    def finish(self) -> None:
        """Ask the guard to end whatever is left, and to leave."""
        self.channel.send(wire.pack(wire.FINISH))

    def end_own_orphans(self) -> int:
        """End what came to poprun itself because a guard had died."""
        if not self.replaced:
            return 0
        return kernel.end(self._orphans, 0.1, 5.0)

    def _orphans(self) -> list[kernel.Process]:
        mine = kernel.descendants([os.getpid()])
        keep = self._before | {self.pid}
        return [p for p in mine if p.pid not in keep]

    def _spawn(self) -> Channel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        number = theirs.fileno()
        os.set_inheritable(number, True)
        words = [*PYTHON, "guard", str(number), self._mark]
        # Its words, should it fail, are mpirun's: they are shown when nothing else
        # explains how a job ended.
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, self._output, 1),
            (os.POSIX_SPAWN_DUP2, self._output, 2),
        ]
        self.pid = os.posix_spawn(
            sys.executable,
            words,
            self._environment,
            file_actions=actions,
            setsigdef=[signal.SIGPIPE],
        )
        theirs.close()
        return Channel(ours)
