"""Makes other hosts accept the user's ssh key, for --distribute-ssh-key.

Only here ssh may ask: for a password, and whether to accept the key of a host.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping, Sequence

from poprun.errors import HostUnreachableError, OptionError
from poprun.log import Log
from poprun.plan.hosts import HostSpec
from poprun.reach.remote_commands import run_all
from poprun.reach.ssh import CONNECT_S, OPTIONS, Ssh, without_questions
from poprun.reach.ssh_failures import SSH_FAILED, SshFailure

LIMIT_S = CONNECT_S + 1.5
ASKING = tuple("BatchMode=no" if o == "BatchMode=yes" else o for o in OPTIONS)
# Adds its input to the keys that are accepted, in a line of its own.
ACCEPT_KEY = (
    "cd && umask 077 && mkdir -p .ssh && "
    '{ test -z "$(tail -c 1 .ssh/authorized_keys 2>/dev/null)" || '
    "echo >>.ssh/authorized_keys; } && cat >>.ssh/authorized_keys && "
    "{ restorecon -F .ssh .ssh/authorized_keys >/dev/null 2>&1; true; }"
)


def distribute_key(
    hosts: Sequence[HostSpec], ssh: Ssh, environ: Mapping[str, str], log: Log
) -> None:
    """Install the user's public key on the hosts that do not accept it.

    Raises:
        HostUnreachableError: A host cannot be reached, or refuses.
        OptionError: There is no key, or no terminal to ask for passwords on.
    """
    refusing = _find_refusing(hosts, ssh, environ)
    if not refusing:
        return
    keys = {host: _find_public_key(host, ssh, environ) for host in refusing}
    if not _can_ask(environ):
        names = ", ".join(host.name for host in refusing)
        raise OptionError(
            "--distribute-ssh-key must ask for passwords to install your ssh "
            f"key on {names}, but there is no terminal to ask on. Start poprun "
            "on a terminal once, or add your key there in another way."
        )
    for host, key in keys.items():
        # Where HOME is shared, one host accepts what was installed on another.
        if host is not refusing[0] and not _find_refusing([host], ssh, environ):
            continue
        log.say(f"Installing your ssh key on {host.name}; ssh may ask for a password.")
        if _install(host, key, ssh, environ):
            raise HostUnreachableError(
                f"Your ssh key could not be installed on the host {host.name}; the "
                f"reason is in ssh's message above. Try: {ssh.shown(host)}"
            )


def _find_refusing(
    hosts: Sequence[HostSpec], ssh: Ssh, environ: Mapping[str, str]
) -> list[HostSpec]:
    """Return the hosts on which ssh must ask to log in.

    Raises:
        HostUnreachableError: Others cannot be reached, which no key mends.
    """
    commands = [ssh.argv(host, "true") for host in hosts]
    refusing: list[HostSpec] = []
    failures: list[str] = []
    ran_on = zip(
        hosts, run_all(commands, without_questions(environ), LIMIT_S), strict=True
    )
    for host, ran in ran_on:
        failure = SshFailure(exit_code=ran.exit_code, text=ran.errors)
        if ran.exit_code not in (None, SSH_FAILED):
            # Logged in; a login shell that fails is the agent's to find.
            continue
        if failure.is_for_login:
            refusing.append(host)
        elif not failure.was_dropped:
            failures.append(failure.explain(host, ssh, ""))
    if failures:
        raise HostUnreachableError("\n".join(failures))
    return refusing


def _find_public_key(host: HostSpec, ssh: Ssh, environ: Mapping[str, str]) -> str:
    """Return the public key with which ssh would log in to a host.

    Raises:
        OptionError: There is none.
    """
    [configuration] = run_all([ssh.argv(host, "true", ("-G",))], environ, LIMIT_S)
    home = environ.get("HOME", "")
    for line in configuration.output.splitlines():
        word, _, path = line.partition(" ")
        if word != "identityfile":
            continue
        if path.startswith("~/"):
            path = os.path.join(home, path[2:])
        try:
            with open(f"{path}.pub", encoding="utf-8") as file:
                return file.readline().strip()
        except (OSError, UnicodeDecodeError):
            continue
    [loaded] = run_all([["/usr/bin/env", "ssh-add", "-L"]], environ, LIMIT_S)
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


def _install(host: HostSpec, key: str, ssh: Ssh, environ: Mapping[str, str]) -> int:
    """Add a key to those that a host accepts; return ssh's exit code."""
    argv = ssh.argv(host, f"exec sh -c {shlex.quote(ACCEPT_KEY)}", ASKING)
    # In poprun's session: ssh asks on its terminal, not on stdin.
    ran = subprocess.run(
        argv,
        env=environ,
        input=f"{key}\n".encode(),
        stdout=subprocess.DEVNULL,
        check=False,
    )
    return ran.returncode
