"""Why a host cannot be reached by ssh: a sentence, ssh's words and what to do."""

import os
import re
import shlex
import sys
from dataclasses import dataclass

from poprun.plan.hosts import HostSpec
from poprun.reach.ssh import Ssh, target
from poprun.words import printable

# The exit code of ssh where ssh itself fails, and those of a shell.
SSH_FAILED, NOT_EXECUTABLE, NOT_FOUND = 255, 126, 127
# What ssh writes where an sshd has too many connections that are not yet logged in.
_DROPPED = r"exchange_identification|connection (closed|reset) by"
_DENIED = "permission denied"
_OPEN_KEY = r"permissions \d+ for '(.*)' are too open"
_CHANGED_KEY = "host key for .* has changed"
_UNVERIFIED_KEY = "host key verification failed"
# Lines of ssh that do not say what is wrong.
_ADVICE = r"@|\s*ssh-keygen |\s*remove with:|Offending |Add correct host key"
_MOST_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What ssh writes, as a pattern, what that means and the way out."""

    pattern: str
    meaning: str
    # With {host}; {target}, the host as ssh takes it; {login}, an ssh command to type;
    # {remove}, a command of ssh-keygen; {key}, the file of a private key.
    advice: str
    # Whether the same may succeed when it is tried again.
    is_temporary: bool = False


_PING = "Check whether it is up with: ping -c 1 {host}"
_EXPLANATIONS = (
    Explanation(
        pattern=_CHANGED_KEY,
        meaning="its host key differs from the one that is known here",
        advice="If it was reinstalled, run '{remove}', then '{login}' to accept "
        "its new key.",
    ),
    Explanation(
        pattern=_UNVERIFIED_KEY,
        meaning="its host key is not known here",
        advice="Run '{login}' once and accept the key.",
    ),
    Explanation(
        pattern="too many authentication failures",
        meaning="it was offered too many ssh keys",
        advice="Choose one for it in ~/.ssh/config, with IdentityFile and "
        "IdentitiesOnly yes.",
    ),
    Explanation(
        pattern=_OPEN_KEY,
        meaning="ssh refuses a private key that other users can read",
        advice="Run: chmod 600 {key}",
    ),
    Explanation(
        pattern=_DENIED,
        meaning="it does not accept your ssh key",
        advice="Run 'ssh-copy-id {target}', or start the job with "
        "--distribute-ssh-key=yes; a key with a passphrase must be loaded with "
        "ssh-add.",
    ),
    Explanation(
        pattern="could not resolve hostname",
        meaning="its name cannot be resolved",
        advice="Correct the name, or add it to ~/.ssh/config or /etc/hosts; see: "
        "getent hosts {host}",
    ),
    Explanation(
        pattern="connection refused",
        meaning="no sshd listens there",
        advice="Start it there with 'systemctl start ssh', or set its Port in "
        "~/.ssh/config.",
    ),
    Explanation(
        pattern="no route to host|network is unreachable",
        meaning="it cannot be reached",
        advice=_PING,
    ),
    Explanation(pattern="timed out", meaning="it does not answer", advice=_PING),
    Explanation(
        pattern=_DROPPED,
        meaning="its sshd closes the connection",
        advice="If it gets too many connections at once, raise MaxStartups in its "
        "/etc/ssh/sshd_config. Try: {login}",
        is_temporary=True,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshFailure:
    """How an ssh that should start an agent ended: all that is known of it."""

    # None: it has not ended.
    exit_code: int | None
    # What it has written to stderr.
    text: str

    @property
    def was_dropped(self) -> bool:
        """Whether the same may succeed when it is tried again."""
        explanation = self._explanation()
        has_failed = self.exit_code == SSH_FAILED
        return has_failed and explanation is not None and explanation.is_temporary

    @property
    def is_for_login(self) -> bool:
        """Whether an ssh that may ask would get further."""
        explanation = self._explanation()
        return explanation is not None and explanation.pattern in (
            _DENIED,
            _UNVERIFIED_KEY,
        )

    def explain(self, host: HostSpec, ssh: Ssh, entry: str) -> str:
        """Return a sentence about the host, ssh's words and the way out.

        Args:
            entry: The file of the agent that was to be started, "" for another command.
        """
        if self.exit_code in (SSH_FAILED, None):
            meaning, advice = self._explain_ssh(host, ssh)
            speaker = "ssh"
        else:
            meaning, advice = self._explain_agent(host, ssh, entry)
            speaker = "It"
        quotation = "; ".join(self._telling_lines())
        words = f" {speaker} says: '{printable(quotation)}'." if quotation else ""
        return f"The host {host.name} cannot be used: {meaning}.{words} {advice}"

    def _explain_ssh(self, host: HostSpec, ssh: Ssh) -> tuple[str, str]:
        explanation = self._explanation()
        if explanation is None:
            return "ssh ended the connection", f"See: {ssh.shown(host)}"
        return explanation.meaning, explanation.advice.format(
            login=ssh.shown(host),
            host=host.name,
            target=target(host),
            remove=self._removal(host),
            key=self._open_key(),
        )

    def _explain_agent(self, host: HostSpec, ssh: Ssh, entry: str) -> tuple[str, str]:
        python = sys.executable
        # A csh ends with 1; and a login shell that cannot be run ends as these do.
        is_missing = self._has(rf"{re.escape(python)}.*(not found|permission denied)")
        has_failed = self.exit_code in (NOT_FOUND, NOT_EXECUTABLE)
        if is_missing or (has_failed and self._has(re.escape(python))):
            file = os.path.realpath(python)
            link = "" if file == python else f", a link to {file}"
            return (
                f"it cannot run {python}, poprun's Python here{link}",
                "Install the same Python at the same path there; "
                "--synchronise-python-venv=yes copies a virtual environment.",
            )
        if entry and self._has(re.escape(entry)) and self._has("no such file"):
            package = entry.rpartition("/host/")[0]
            return (
                f"it has no poprun in {package}",
                "Install poprun at the same path there; "
                "--synchronise-python-venv=yes copies a virtual environment.",
            )
        return (
            f"its login shell, or poprun's agent, ended with exit code "
            f"{self.exit_code}",
            f"See: {ssh.shown(host)}",
        )

    def _removal(self, host: HostSpec) -> str:
        """Return the command that removes a host key that has changed."""
        shown = re.search(r"^\s*(ssh-keygen .*-R .*)$", self.text, re.MULTILINE)
        return shown[1].strip() if shown else f"ssh-keygen -R {host.name}"

    def _open_key(self) -> str:
        """Return the file of the private key that other users may read, if any."""
        key = re.search(_OPEN_KEY, self.text, re.IGNORECASE)
        return shlex.quote(printable(key[1])) if key else ""

    def _explanation(self) -> Explanation | None:
        return next((e for e in _EXPLANATIONS if self._has(e.pattern)), None)

    def _has(self, pattern: str) -> bool:
        return re.search(pattern, self.text, re.IGNORECASE) is not None

    def _telling_lines(self) -> list[str]:
        """Return the lines that say what is wrong, without their full stops."""
        explanation = self._explanation()
        lines = [line.strip().rstrip(".") for line in self.text.splitlines()]
        lines = [line for line in lines if line and not re.match(_ADVICE, line)]
        # A jump host may have its say before the host has.
        telling = [
            line
            for line in lines
            if explanation and re.search(explanation.pattern, line, re.IGNORECASE)
        ]
        if explanation and explanation.pattern == _CHANGED_KEY:
            telling = [line for line in lines if "host key" in line.lower()]
        return (telling or lines)[-_MOST_LINES:]
