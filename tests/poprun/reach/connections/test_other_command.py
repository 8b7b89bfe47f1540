"""Which commands --ssh names, and how they are started."""

from pathlib import Path

import pytest

from poprun.errors import OptionError
from poprun.host_specs import HostSpec
from poprun.reach.connections.connector import CommandEnd
from poprun.reach.connections.other_command import OtherCommand, find_command
from poprun.reach.connections.ssh import Ssh

HOST = HostSpec(name="pod-1")
PROGRAM = ["/a b/python", "-I", "entry.py"]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    for name in ("ssh", "tsh", "exec"):
        (tmp_path / name).touch(mode=0o755)
    return {"PATH": str(tmp_path), "SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}


@pytest.mark.parametrize("text", ["ssh", "ssh -F 'my config'", "tsh ssh", "{}/ssh"])
def test_a_command_with_the_name_of_ssh_gets_the_options_of_ssh(
    text: str, environ: dict[str, str]
) -> None:
    command = find_command(text.format(environ["PATH"]), environ)

    assert isinstance(command, Ssh)
    assert command.argv(HOST, PROGRAM)[-3:] == [
        *("--", "pod-1", "exec '/a b/python' -I entry.py")
    ]


def test_another_command_gets_the_host_and_the_words_of_the_program(
    environ: dict[str, str],
) -> None:
    command = find_command("exec -n jobs", environ)

    assert isinstance(command, OtherCommand)
    assert command.argv(HOST, PROGRAM) == [
        *(f"{environ['PATH']}/exec", "-n", "jobs", "pod-1"),
        *("'/a b/python'", "-I", "entry.py"),
    ]
    assert command.environment(environ) == {"PATH": environ["PATH"]}
    assert command.shown(HOST) == "exec -n jobs pod-1 true"


@pytest.mark.parametrize("text", ["", "''", "'", "./missing", "missing -x"])
def test_a_command_that_does_not_exist_is_refused(
    text: str, environ: dict[str, str]
) -> None:
    with pytest.raises(OptionError):
        find_command(text, environ)


def test_the_words_of_a_command_say_why_a_host_cannot_be_used(
    environ: dict[str, str],
) -> None:
    command = find_command("exec", environ)

    def explain(exit_code: int | None, text: str) -> str:
        failure = CommandEnd(exit_code=exit_code, errors=text)
        return command.explain(HOST, failure, "/opt/poprun/host/agent_entry.py")

    assert explain(1, 'Error: pods "pod-1" not found\n') == (
        "The host pod-1 cannot be used: exec ended with exit code 1. exec says: "
        "'Error: pods \"pod-1\" not found'. See: exec pod-1 true"
    )
    assert explain(None, "waiting") == (
        "The host pod-1 cannot be used: exec starts no agent on it. exec says: "
        "'waiting'. See: exec pod-1 true"
    )
    assert explain(
        2,
        "python: can't open file '/opt/poprun/host/agent_entry.py': [Errno 2] "
        "No such file or directory",
    ).startswith(
        "The host pod-1 cannot be used: it has no poprun in /opt/poprun. exec says: "
    )
