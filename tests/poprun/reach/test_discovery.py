"""The command of --host-discovery-script: what it prints, and what it must not do."""

import os
import shlex

import pytest

from poprun.errors import HostError, HostUnreachableError, LaunchError, OptionError
from poprun.host_specs import parse_hosts
from poprun.reach import discovery
from poprun.reach.discovery import discover_hosts


def discover(script: str) -> object:
    return discover_hosts(shlex.join(["sh", "-c", script]), os.environ)


def test_each_line_is_a_host_with_its_slots() -> None:
    hosts = discover("echo a:2; echo; echo 'node[0-1] slots=3'; echo alice@c")

    assert hosts == parse_hosts("a:2,node0:3,node1:3,alice@c")


def test_words_and_variables_of_the_command_are_those_of_a_shell() -> None:
    hosts = discover_hosts("sh -c 'echo $0-$NODE' 'a' ", {**os.environ, "NODE": "b"})

    assert hosts == parse_hosts("a-b")


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ("echo no >&2; exit 3", HostUnreachableError, "code 3. It says: 'no'"),
        ("true", HostUnreachableError, "prints no host. It must print"),
        ("echo a,b", HostError, "--host-discovery-script:1:1: .* a comma"),
        ("echo a; echo a", HostError, "is listed twice"),
    ],
)
def test_what_is_wrong_with_its_output_is_said(
    script: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        discover(script)


def test_it_is_killed_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "LIMIT_S", 0.01)

    with pytest.raises(HostUnreachableError, match="does not end within"):
        discover("sleep 1000")


@pytest.mark.parametrize("text", ["", "'"])
def test_a_command_has_a_program(text: str) -> None:
    with pytest.raises(OptionError, match="is not a command"):
        discover_hosts(text, {})


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(LaunchError, match="/no/such cannot be run"):
        discover_hosts("/no/such", {})
