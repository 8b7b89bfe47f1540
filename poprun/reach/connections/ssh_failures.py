"""Explains why ssh does not reach a host, from its error messages."""

import re
import shlex

from poprun.host_specs import HostSpec
from poprun.reach.connections.connector import MOST_LINES, CommandEnd
from poprun.words import printable

# ssh's exit code where ssh itself fails.
SSH_FAILED = 255
# ssh writes it if an sshd has too many connections before their login.
_DROPPED = r"exchange_identification|connection (closed|reset) by"
_DENIED = "permission denied"
_OPEN_KEY = r"permissions \d+ for '(.*)' are too open"
_CHANGED_KEY = "host key for .* has changed"
_UNVERIFIED_KEY = "host key verification failed"
# Lines of ssh without the reason of a failure.
_ADVICE = r"@|\s*ssh-keygen |\s*remove with:|Offending |Add correct host key"
_PING = "Check whether it is up with: ping -c 1 {host}"

# A pattern for the text of ssh: its meaning, and the way out. The way out may contain
# {host}; {target}, the host as ssh takes it; {login}, an ssh command to type;
# {remove}, a command of ssh-keygen; {key}, the file of a private key.
_EXPLANATIONS = {
    _CHANGED_KEY: (
        "its host key differs from the one that is known here",
        "If it was reinstalled, run '{remove}', then '{login}' to accept its new key.",
    ),
    _UNVERIFIED_KEY: (
        "its host key is not known here",
        "Run '{login}' once and accept the key.",
    ),
    "too many authentication failures": (
        "it was offered too many ssh keys",
        "Choose one for it in ~/.ssh/config, with IdentityFile and IdentitiesOnly yes.",
    ),
    _OPEN_KEY: (
        "ssh refuses a private key that other users can read",
        "Run: chmod 600 {key}",
    ),
    _DENIED: (
        "it does not accept your ssh key",
        "Run 'ssh-copy-id {target}', or start the job with --distribute-ssh-key=yes; "
        "a key with a passphrase must be loaded with ssh-add.",
    ),
    "could not resolve hostname": (
        "its name cannot be resolved",
        "Correct the name, or add it to ~/.ssh/config or /etc/hosts; see: "
        "getent hosts {host}",
    ),
    "connection refused": (
        "no sshd listens there",
        "Start it there with 'systemctl start ssh', or set its Port in ~/.ssh/config.",
    ),
    "no route to host|network is unreachable": ("it cannot be reached", _PING),
    "timed out": ("it does not answer", _PING),
    _DROPPED: (
        "its sshd closes the connection",
        "If it gets too many connections at once, raise MaxStartups in its "
        "/etc/ssh/sshd_config. Try: {login}",
    ),
}


def was_dropped(end: CommandEnd) -> bool:
    """Return whether an sshd had too many connections."""
    return end.exit_code == SSH_FAILED and _pattern_in(end) == _DROPPED


def needs_login(end: CommandEnd) -> bool:
    """Return whether an ssh that may ask questions would get further."""
    return _pattern_in(end) in (_DENIED, _UNVERIFIED_KEY)


def explain(end: CommandEnd, host: HostSpec, login: str) -> tuple[str, str]:
    """Return the meaning of a failure in ssh itself, and the way out.

    Args:
        login: An ssh command to type.
    """
    pattern = _pattern_in(end)
    if pattern is None:
        return "ssh ended the connection", f"See: {login}"
    meaning, advice = _EXPLANATIONS[pattern]
    # ssh shows the command that removes a changed host key.
    remove = re.search(r"^\s*(ssh-keygen .*-R .*)$", end.errors, re.MULTILINE)
    key = re.search(_OPEN_KEY, end.errors, re.IGNORECASE)
    return meaning, advice.format(
        login=login,
        host=host.name,
        target=host.target,
        remove=remove[1].strip() if remove else f"ssh-keygen -R {host.name}",
        key=shlex.quote(printable(key[1])) if key else "",
    )


def telling_lines(end: CommandEnd) -> list[str]:
    """Return the lines of stderr with the reason of the failure."""
    pattern = _pattern_in(end)
    if pattern == _CHANGED_KEY:
        pattern = "host key"
    lines = [line for line in end.lines if not re.match(_ADVICE, line)]
    # A jump host may write lines before the host does.
    telling = [s for s in lines if pattern and re.search(pattern, s, re.IGNORECASE)]
    return (telling or lines)[-MOST_LINES:]


def _pattern_in(end: CommandEnd) -> str | None:
    return next(filter(end.has, _EXPLANATIONS), None)
