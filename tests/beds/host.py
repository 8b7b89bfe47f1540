"""One host of a bed: commands that run in it, its sshd, and ways to lose it."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pexpect
from beds.link import Link
from beds.namespaces import Namespaces
from conftest import BIN, wait_for

SETUP = Path(__file__).with_name("setup_host.sh").read_text()
HOMES = {"root": "/root", "ipuser": "/home/ipuser"}
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where programs leave files; each host has its own.
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/run")


class Host:
    """A machine of the bed, with processes, files and a network of its own."""

    def __init__(
        self, name: str, address: str, namespaces: Namespaces, link: Link
    ) -> None:
        self.name = name
        self.address = address
        self.link = link
        self.namespaces = namespaces
        # Processes and files that are no job's.
        self._own_processes: set[int] = set()
        self._own_files: set[str] = set()

    def begin(self, variables: Mapping[str, str], script: str = "") -> None:
        """Make the directories and the network, run a script, and start sshd."""
        self.set_up(SETUP + script, variables)
        self.start_sshd()
        self.note_own()

    def set_up(
        self, script: str, variables: Mapping[str, str], stdin: str = ""
    ) -> None:
        """Run a shell script that makes a part of the host."""
        environ = {"PATH": SYSTEM_PATH, "NAME": self.name, **variables}
        self.namespaces.run(["sh", "-e", "-c", script], stdin, environ)

    def note_own(self) -> None:
        """Take what there is now as the host's own, and not left by a job."""
        self._own_processes = set(self._pids())
        self._own_files = set(self._files())

    def start(
        self,
        *argv: str,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        **options: object,
    ) -> "subprocess.Popen[bytes]":
        """Start a command in the host, with Popen's options, and no stdin by default.

        Its environment is that of a login, with the checkout's programs in PATH.
        """
        words, environ = self._login(argv, user, env, cwd)
        return self.namespaces.start(
            words, env=environ, **{"stdin": subprocess.DEVNULL, **options}
        )

    def spawn(
        self,
        *argv: str,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        timeout: float = 200,
    ) -> "pexpect.spawn[str]":
        """Start a command in the host on a terminal of its own."""
        words, environ = self._login(argv, user, env, cwd)
        return self.namespaces.spawn(words, env=environ, timeout=timeout)

    def _login(
        self, argv: Sequence[str], user: str, env: Mapping[str, str] | None, cwd: str
    ) -> tuple[list[str], dict[str, str]]:
        """Return the argv and the environment of a command that a user runs."""
        environ = {
            "PATH": f"{BIN}:{SYSTEM_PATH}",
            "HOME": HOMES[user],
            "USER": user,
            "LOGNAME": user,
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            **(env or {}),
        }
        words = ["env", f"--chdir={cwd or HOMES[user]}", *argv]
        if user != "root":
            as_user = [f"--reuid={user}", f"--regid={user}", "--init-groups"]
            words = ["setpriv", *as_user, *words]
        return words, environ

    def run(
        self,
        *argv: str,
        stdin: str = "",
        timeout: float = 200,
        user: str = "root",
        env: Mapping[str, str] | None = None,
        cwd: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command in the host to its end."""
        process = self.start(
            *argv,
            user=user,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = process.communicate(stdin.encode(), timeout)
        except subprocess.TimeoutExpired as error:
            processes = self.processes()
            process.kill()
            process.wait()
            raise AssertionError(
                f"{argv} still ran on {self.name} after {timeout} s; its output was "
                f"{error.output!r}; processes: {processes}"
            ) from error
        return subprocess.CompletedProcess(
            argv,
            process.returncode,
            out.decode(errors="backslashreplace"),
            err.decode(errors="backslashreplace"),
        )

    def output(self, *argv: str, **options: object) -> str:
        """Run a command that must succeed; returns what it writes to stdout."""
        ran = self.run(*argv, **options)  # type: ignore[arg-type]
        assert ran.returncode == 0, ran
        return ran.stdout

    @property
    def init_pid(self) -> int:
        """The pid of the host's init in the caller's PID namespace."""
        return self.namespaces.init_pid

    def path(self, inside: str) -> Path:
        """Return a path of this process for a path inside the host."""
        return self.namespaces.root / inside.lstrip("/")

    def start_sshd(self) -> None:
        self.namespaces.run(["/usr/sbin/sshd", "-E", "/var/log/sshd"])
        # It writes its pid when it listens.
        file = self._sshd_pid_file
        wait_for(lambda: file.exists() and bool(file.read_text()), self.name)

    def stop_sshd(self) -> None:
        """Stop the sshd that listens, and leave open connections alone."""
        pid = self._sshd_pid_file.read_text().strip()
        self.namespaces.run(["kill", pid])
        wait_for(lambda: not self._sshd_pid_file.exists(), "the end of sshd")

    @property
    def _sshd_pid_file(self) -> Path:
        return self.path("/run/sshd.pid")

    def pause(self) -> None:
        """Stop all processes, as SIGSTOP does; the kernel still answers."""
        self.namespaces.run(["kill", "-STOP", "--", "-1"])

    def resume(self) -> None:
        self.namespaces.run(["kill", "-CONT", "--", "-1"])

    def kill(self) -> None:
        """Kill all processes at once; their peers see closed connections."""
        self.namespaces.kill()

    def power_off(self) -> None:
        """Kill the host as a power cut does: its peers see nothing more of it."""
        self.link.cut()
        self.kill()

    def processes(self) -> list[str]:
        """Return what runs on the host, but for its own daemons."""
        found = []
        for pid in sorted(set(self._pids()) - self._own_processes):
            directory = self.path(f"/proc/{pid}")
            try:
                state = (directory / "stat").read_text().rpartition(") ")[2][0]
                words = (directory / "cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:  # it has ended since it was listed
                continue
            if state != "Z":
                text = words.decode(errors="backslashreplace")
                found.append(f"{pid}: {text}".strip())
        return found

    def files(self) -> list[str]:
        """Return what lies in PLACES, but for the host's own."""
        return sorted(set(self._files()) - self._own_files)

    def clean(self) -> None:
        """Kill what jobs have left running, and remove their files."""
        if not self.namespaces.is_alive:
            return
        while processes := self.processes():
            pids = [process.partition(":")[0] for process in processes]
            # Some may have ended meanwhile.
            self.run("kill", "-KILL", *pids)
        self.output("rm", "-rf", *self.files())

    def _pids(self) -> list[int]:
        if not self.namespaces.is_alive:
            return []
        return [int(name) for name in os.listdir(self.path("/proc")) if name.isdigit()]

    def _files(self) -> list[str]:
        if not self.namespaces.is_alive:
            return []
        return [
            f"{place}/{name}"
            for place in PLACES
            for name in os.listdir(self.path(place))
        ]
