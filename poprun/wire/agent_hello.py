"""How an agent begins: the line before its first message, and that message."""

from collections.abc import Mapping
from dataclasses import dataclass

from poprun.wire.field_types import Address, Long

# The agent writes this before its first message: a login shell may have printed
# something before. The number is the version of the messages.
PREAMBLE_START, VERSION = b"\n\0poprun-agent-", b"4"
PREAMBLE = PREAMBLE_START + VERSION + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """The facts about an agent and its host."""

    # The versions of poprun and of Python there.
    version: str
    python: str
    hostname: str
    user: Long
    # The same for all names of one host.
    machine: str
    # Seconds since 1970, when it was sent.
    clock: float
    # The environment of the agent: instances of that host begin with it.
    environ: Mapping[str, str]
    # The addresses and ports of both ends of ssh's connection as the host has them; ""
    # where the agent was not started by ssh.
    ssh_connection: str
    # Its address for other hosts, "" if it is not known.
    address: Address
    # Why temporary files cannot be made there, "" if they can.
    temporary_failure: str
