"""What is said about a host that ssh does not reach, or that has no agent to start."""

import sys

import pytest

from poprun.host_specs import HostSpec
from poprun.reach.connections.connector import CommandEnd
from poprun.reach.connections.ssh import Ssh
from poprun.reach.connections.ssh_failures import SSH_FAILED

HOST = HostSpec(name="h1", user="alice")
SSH = Ssh(words=("/usr/bin/ssh", "-F", "my_config"), text="ssh -F my_config")
ENTRY = "/opt/poprun/host/agent_entry.py"
CHANGED_KEY = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Add correct host key in /root/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /root/.ssh/known_hosts:3
  remove with:
  ssh-keygen -f "/root/.ssh/known_hosts" -R "h1"
Host key for h1 has changed and you have requested strict checking.
Host key verification failed.
"""
OPEN_KEY = """\
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
Permissions 0644 for '/home/a b/.ssh/id_rsa' are too open.
It is required that your private key files are NOT accessible by others.
This private key will be ignored.
Load key "/home/a b/.ssh/id_rsa": bad permissions
alice@h1: Permission denied (publickey).
"""


def explain(exit_code: int | None, text: str) -> str:
    return SSH.explain(HOST, CommandEnd(exit_code=exit_code, errors=text), ENTRY)


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        pytest.param(
            "No ED25519 host key is known for h1.\nHost key verification failed.",
            "its host key is not known here. ssh says: 'Host key verification failed'. "
            "Run 'ssh -F my_config alice@h1 true' once and accept the key.",
            id="unknown-key",
        ),
        pytest.param(
            CHANGED_KEY,
            "its host key differs from the one that is known here. ssh says: "
            "'Host key for h1 has changed and you have requested strict "
            "checking; Host key verification failed'. If it was reinstalled, "
            'run \'ssh-keygen -f "/root/.ssh/known_hosts" -R "h1"\', then '
            "'ssh -F my_config alice@h1 true' to accept its new key.",
            id="changed-key",
        ),
        pytest.param(
            "Authorized users only!\nalice@h1: Permission denied (publickey).",
            "it does not accept your ssh key. ssh says: 'alice@h1: Permission denied "
            "(publickey)'. Run 'ssh-copy-id alice@h1', or start the job with "
            "--distribute-ssh-key=yes; a key with a passphrase must be loaded with "
            "ssh-add.",
            id="denied",
        ),
        pytest.param(
            OPEN_KEY,
            "ssh refuses a private key that other users can read. ssh says: "
            "'Permissions 0644 for '/home/a b/.ssh/id_rsa' are too open'. Run: "
            "chmod 600 '/home/a b/.ssh/id_rsa'",
            id="open-key",
        ),
        pytest.param(
            "ssh: connect to host jump port 22: No route to host\n"
            "kex_exchange_identification: Connection closed by remote host\n"
            "Connection closed by UNKNOWN port 65535",
            "it cannot be reached. ssh says: 'ssh: connect to host jump port "
            "22: No route to host'. Check whether it is up with: ping -c 1 h1",
            id="the-jump-host",
        ),
        pytest.param(
            "/etc/ssh/ssh_config: line 3: Bad configuration option: foo",
            "ssh ended the connection. ssh says: '/etc/ssh/ssh_config: line 3: Bad "
            "configuration option: foo'. See: ssh -F my_config alice@h1 true",
            id="something-else",
        ),
        pytest.param(
            "\x1b[2Jboo",
            r"ssh ended the connection. ssh says: '\x1b[2Jboo'. See: ssh -F "
            "my_config alice@h1 true",
            id="what-would-control-the-terminal",
        ),
    ],
)
def test_what_ssh_says_is_explained(text: str, sentences: str) -> None:
    explanation = explain(SSH_FAILED, text)

    assert explanation == f"The host h1 cannot be used: {sentences}"


def test_words_of_a_login_shell_are_not_taken_for_those_of_ssh() -> None:
    assert explain(3, "module: Permission denied") == (
        "The host h1 cannot be used: its login shell, or poprun's agent, ended with "
        "exit code 3. It says: 'module: Permission denied'. See: ssh -F my_config "
        "alice@h1 true"
    )


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        pytest.param(127, f"bash: line 1: {sys.executable}: not found", id="bash"),
        pytest.param(126, f"{sys.executable}: Exec format error", id="another-machine"),
        pytest.param(1, f"{sys.executable}: Command not found.", id="csh"),
        pytest.param(1, f"{sys.executable}: Permission denied.", id="csh-rights"),
    ],
)
def test_a_host_without_the_python_is_told_by_any_shell(
    exit_code: int, text: str
) -> None:
    assert explain(exit_code, text).startswith(
        f"The host h1 cannot be used: it cannot run {sys.executable}, poprun's Python "
        "here"
    )


def test_a_login_shell_that_cannot_run_is_not_taken_for_the_python() -> None:
    text = "fish: error while loading shared libraries: libpcre2-32.so.0"

    assert explain(127, text) == (
        "The host h1 cannot be used: its login shell, or poprun's agent, ended with "
        f"exit code 127. It says: '{text}'. See: ssh -F my_config alice@h1 true"
    )


def test_a_host_without_poprun_is_told_where_it_belongs() -> None:
    text = f"python3: can't open file '{ENTRY}': [Errno 2] No such file or directory"

    assert explain(2, text) == (
        f"The host h1 cannot be used: it has no poprun in /opt/poprun. It says: "
        f"'{text}'. Install poprun at the same path there; "
        "--synchronise-python-venv=yes copies a virtual environment."
    )


def test_only_what_an_sshd_drops_is_tried_again() -> None:
    dropped = "kex_exchange_identification: Connection closed by remote host"
    by_jump_host = f"Host key verification failed.\n{dropped}"

    assert SSH.is_temporary(CommandEnd(exit_code=SSH_FAILED, errors=dropped))
    assert not SSH.is_temporary(CommandEnd(exit_code=SSH_FAILED, errors=by_jump_host))
    assert not SSH.is_temporary(CommandEnd(exit_code=1, errors=dropped))
