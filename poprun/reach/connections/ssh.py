"""Reaches hosts by ssh, or by what --ssh names with ssh in it.

ssh asks questions in one case only: while it installs the user's key on other hosts,
for --distribute-ssh-key.
"""

import os
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from poprun.errors import HostUnreachableError, OptionError
from poprun.host_specs import HostSpec
from poprun.log import Log
from poprun.reach.connections import ssh_failures
from poprun.reach.connections.connector import CommandEnd, UserCommand, unusable
from poprun.reach.connections.remote_commands import run_all
from poprun.reach.connections.silence import acknowledges_nothing, ends_of
from poprun.reach.own_host.addresses import own_addresses

# How long ssh tries to connect. It ends, and says why, before poprun gives up.
CONNECT_S = 4
SSH_OPTIONS = (
    "-T",
    "-x",
    "-a",
    "-o",
    "BatchMode=yes",
    "-o",
    f"ConnectTimeout={CONNECT_S}",
    # The ports that a user forwards are not for the connections of a job.
    "-o",
    "ClearAllForwardings=yes",
    # An existing master is used. A new one would end with the job, and the connections
    # of others with it.
    "-o",
    "ControlMaster=no",
    # A host that is stopped for a while is not lost: see reach/connections/silence.py.
    "-o",
    "ServerAliveInterval=0",
)
ASKING = tuple("BatchMode=no" if o == "BatchMode=yes" else o for o in SSH_OPTIONS)
# How long one ssh may take to run a short command.
COMMAND_LIMIT_S = CONNECT_S + 1.5
# Adds its input to the accepted keys, in a new line.
ACCEPT_KEY = (
    "cd && umask 077 && mkdir -p .ssh && "
    '{ test -z "$(tail -c 1 .ssh/authorized_keys 2>/dev/null)" || '
    "echo >>.ssh/authorized_keys; } && cat >>.ssh/authorized_keys && "
    "{ restorecon -F .ssh .ssh/authorized_keys >/dev/null 2>&1; true; }"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssh(UserCommand):
    """The Connector that is OpenSSH's ssh."""

    name = "ssh"

    @property
    def remote_shell(self) -> list[str]:
        return [*self.words, *SSH_OPTIONS]

    def argv(self, host: HostSpec, program: Sequence[str]) -> list[str]:
        command = f"exec {shlex.join(program)}"
        return [*self.remote_shell, "--", host.target, command]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        # Without windows that ask questions: an ssh that connects to a jump host does
        # not get BatchMode.
        return {**environ, "SSH_ASKPASS_REQUIRE": "never"}

    def explain(self, host: HostSpec, end: CommandEnd, entry: str = "") -> str:
        login = self.shown(host)
        lines = ssh_failures.telling_lines(end)
        if end.exit_code in (ssh_failures.SSH_FAILED, None):
            meaning, advice = ssh_failures.explain(end, host, login)
            return unusable(host, meaning, self.name, lines, advice)
        meaning, advice = end.missing_software(entry) or (
            f"its login shell, or poprun's agent, ended with exit code {end.exit_code}",
            f"See: {login}",
        )
        return unusable(host, meaning, "It", lines, advice)

    def is_temporary(self, end: CommandEnd) -> bool:
        return ssh_failures.was_dropped(end)

    def loss_check(self, pid: int, ssh_connection: str) -> Callable[[], bool] | None:
        return acknowledges_nothing(*ends_of(ssh_connection))

    def is_direct(self, ssh_connection: str) -> bool:
        # Behind a jump host, the client's address belongs to the jump host.
        client, _ = ends_of(ssh_connection)
        return client.partition(" ")[0] in own_addresses()

    def distribute_key(
        self, hosts: Sequence[HostSpec], environ: Mapping[str, str], log: Log
    ) -> None:
        """Install the user's public key on the hosts that do not accept it.

        Raises:
            HostUnreachableError: A host cannot be reached, or refuses.
            OptionError: There is no key, or no terminal to ask for passwords on.
        """
        refusing = self._find_refusing(hosts, environ)
        if not refusing:
            return
        keys = {host: self._find_public_key(host, environ) for host in refusing}
        if not _can_ask(environ):
            names = ", ".join(host.name for host in refusing)
            raise OptionError(
                "--distribute-ssh-key must ask for passwords to install your ssh "
                f"key on {names}, but there is no terminal to ask on. Start poprun "
                "on a terminal once, or add your key there in another way."
            )
        for host, key in keys.items():
            # If hosts share HOME, a key on one of them is a key on all.
            if host is not refusing[0] and not self._find_refusing([host], environ):
                continue
            log.say(
                f"Installing your ssh key on {host.name}; ssh may ask for a password."
            )
            self._install_key(host, key, environ)

    def _install_key(
        self, host: HostSpec, key: str, environ: Mapping[str, str]
    ) -> None:
        # In poprun's session: ssh asks on its terminal, not on stdin.
        command = f"exec sh -c {shlex.quote(ACCEPT_KEY)}"
        ran = subprocess.run(
            [*self.words, *ASKING, "--", host.target, command],
            env=environ,
            input=f"{key}\n".encode(),
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if ran.returncode:
            raise HostUnreachableError(
                f"Your ssh key could not be installed on the host {host.name}; "
                "the reason is in ssh's message above. Try: "
                f"{self.shown(host)}"
            )

    def _find_refusing(
        self, hosts: Sequence[HostSpec], environ: Mapping[str, str]
    ) -> list[HostSpec]:
        """Return the hosts on which ssh must ask to log in.

        Raises:
            HostUnreachableError: Others cannot be reached, which no key mends.
        """
        commands = [self.argv(host, ["true"]) for host in hosts]
        results = run_all(commands, self.environment(environ), COMMAND_LIMIT_S)
        refusing: list[HostSpec] = []
        failures: list[str] = []
        for host, end in zip(hosts, results, strict=True):
            if end.exit_code not in (None, ssh_failures.SSH_FAILED):
                # Logged in; a login shell that fails is reported with the agent.
                continue
            if ssh_failures.needs_login(end):
                refusing.append(host)
            elif not self.is_temporary(end):
                failures.append(self.explain(host, end))
        if failures:
            raise HostUnreachableError("\n".join(failures))
        return refusing

    def _find_public_key(self, host: HostSpec, environ: Mapping[str, str]) -> str:
        """Return the public key with which ssh would log in to a host.

        Raises:
            OptionError: There is none.
        """
        show = [*self.words, "-G", "--", host.target]
        list_loaded = ["/usr/bin/env", "ssh-add", "-L"]
        configuration, loaded = run_all([show, list_loaded], environ, COMMAND_LIMIT_S)
        home = environ.get("HOME", "")
        for line in configuration.output.splitlines():
            word, _, path = line.partition(" ")
            if path.startswith("~/"):
                path = os.path.join(home, path[2:])
            if word == "identityfile":
                try:
                    with open(f"{path}.pub", encoding="utf-8") as file:
                        return file.readline().strip()
                except (OSError, UnicodeDecodeError):
                    continue
        if loaded.exit_code == 0 and loaded.output:
            return loaded.output.splitlines()[0]
        raise OptionError(
            "--distribute-ssh-key found no public ssh key of yours, neither in "
            "a file that ssh would use nor in an ssh-agent. Create one with: "
            "ssh-keygen -t ed25519"
        )


def _can_ask(environ: Mapping[str, str]) -> bool:
    if environ.get("SSH_ASKPASS") and environ.get("SSH_ASKPASS_REQUIRE") == "force":
        return True
    try:
        os.close(os.open("/dev/tty", os.O_RDWR))
    except OSError:
        return False
    return True
