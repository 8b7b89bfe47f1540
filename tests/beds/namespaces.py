"""A set of Linux namespaces with an init of its own, and commands that run in it.

The init reads a pipe from this process: when this process ends in any way, the init
reads end of file and exits, and the kernel kills all other processes of its PID
namespace. Nested sets end with the outer one.
"""

import ctypes
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pexpect

# It returns what it is sent, and the kernel reaps the children of a process that
# ignores SIGCHLD.
INIT = ["env", "--ignore-signal=CHLD", "cat"]
CLONE_NEWPID = 0x20000000

libc = ctypes.CDLL(None, use_errno=True)


class Namespaces:
    """PID, mount, UTS, IPC and network namespaces; inside `outer` if that is given."""

    def __init__(self, outer: "Namespaces | None" = None) -> None:
        new = ["--mount", "--uts", "--ipc", "--net", "--pid", "--mount-proc"]
        argv = ["unshare", *new, "--fork", "--kill-child", *INIT]
        start = outer.start if outer else subprocess.Popen
        # unshare writes a message of no interest where its child is killed.
        self._unshare = start(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        assert self._unshare.stdin
        assert self._unshare.stdout
        self._unshare.stdin.write(b"up\n")
        up = self._unshare.stdout.readline()
        assert up == b"up\n", f"{' '.join(argv)} failed with {self._unshare.wait()}"
        pid = self._unshare.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        self.init_pid = int(children)
        self._enter = ["nsenter", f"--target={self.init_pid}"]
        self._enter += ["--mount", "--uts", "--ipc", "--net", "--"]
        self._started: list[subprocess.Popen[bytes]] = []
        self._spawned: list[pexpect.spawn[str]] = []

    @property
    def is_alive(self) -> bool:
        return self._unshare.poll() is None

    @property
    def root(self) -> Path:
        """The root directory inside, as a path of this process."""
        return Path(f"/proc/{self.init_pid}/root")

    def pid_in_outer(self) -> int:
        """Return the init's pid in the PID namespace of the set around this one."""
        status = Path(f"/proc/{self.init_pid}/status").read_text()
        pids = next(line for line in status.splitlines() if line.startswith("NSpid:"))
        return int(pids.split()[-2])

    def start(
        self, argv: Sequence[str], **options: object
    ) -> "subprocess.Popen[bytes]":
        """Start a command inside, as a child of this process, with Popen's options.

        Its pid is that in the caller's namespace, so signals reach it.
        """
        with self._children_are_inside():
            process = subprocess.Popen([*self._enter, *argv], **options)  # type: ignore[call-overload]
        self._started.append(process)
        return process  # type: ignore[no-any-return]

    def spawn(self, argv: Sequence[str], **options: object) -> "pexpect.spawn[str]":
        """Start a command inside on a terminal, with the options of pexpect.spawn."""
        command, *words = [*self._enter, *argv]
        with self._children_are_inside():
            process = pexpect.spawn(command, words, encoding="utf-8", **options)
        self._spawned.append(process)
        return process

    def run(
        self,
        argv: Sequence[str],
        text: str = "",
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Run a command inside that must succeed; returns its output."""
        process = self.start(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
        )
        output, _ = process.communicate(text.encode())
        self._started.remove(process)
        assert process.returncode == 0, f"{argv} failed: {output.decode()}"
        return output.decode()

    def kill(self) -> None:
        """Kill all processes inside at once."""
        if self.is_alive:
            os.kill(self.init_pid, signal.SIGKILL)
        # The init ends after all processes inside have been reaped.
        for terminal in self._spawned:
            # pexpect's close() would give it a third of a second to end.
            terminal.wait()
            terminal.close()
        for process in (*self._started, self._unshare):
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    with suppress(BrokenPipeError):
                        stream.close()

    @contextmanager
    def _children_are_inside(self) -> Iterator[None]:
        own = os.open("/proc/thread-self/ns/pid", os.O_RDONLY)
        inside = os.open(f"/proc/{self.init_pid}/ns/pid", os.O_RDONLY)
        try:
            _set_pid_namespace_of_children(inside)
            try:
                yield
            finally:
                _set_pid_namespace_of_children(own)
        finally:
            os.close(own)
            os.close(inside)


def _set_pid_namespace_of_children(namespace: int) -> None:
    if libc.setns(namespace, CLONE_NEWPID) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "setns")
