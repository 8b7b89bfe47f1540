"""The messages between poprun and its agents on other hosts.

They are packed as those of poprun's helpers (wire/protocol.py). Values of several
parts are JSON: nothing that comes from another host is executed. The package json is
not used: it imports re, and takes a third of what an agent takes to start.
"""

import _json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poprun import words
from poprun.wire import protocol

# The agent writes this before its first message: a login shell may have printed
# something before. The number is the version of these messages.
PREAMBLE_START, VERSION = b"\n\0poprun-agent-", b"3"
PREAMBLE = PREAMBLE_START + VERSION + b"\n"
# The longest message that poprun receives: an environment as JSON is the longest that
# an agent has to send, and what comes from another host must not fill the memory.
MOST_RECEIVED = 1 << 24
# What may be under way of each stream: an agent sends more when poprun has read that.
OUTPUT_WINDOW = 1 << 18
# Besides that, what is left in a stream when its writers have ended: as much as the
# kernel keeps in a pipe at most.
LAST_OUTPUT = 1 << 21
# What may be under way of each standard input, the other way.
INPUT_WINDOW = 1 << 16

# --- From poprun to an agent.

# Before the job: each is answered by one REPLY.
DESCRIBE = 1  # JSON: the current directory of poprun, which becomes the agent's
FIND_PROGRAM = 2  # JSON: argv, search path, current directory
READ_MEMORY = 3  # nothing
# JSON: the path of an mpirun, the title of its MPI, and poprun's site-packages
CHECK_MPI = 4
# The job: JSON of what is in HostJob, then the SPEC messages of its instances
START_JOB = 10
STOP_STARTING = 11
SIGNAL = 12  # number
KILL = 13
RELEASE = 14
SHOW_STACKS = 15  # rank, pid
NOTE_END = 16  # rank
FINISH = 17
INTERRUPT = 19  # rank: SIGINT for its debugger
MEASURE = 18  # nothing: answered by events UsageMeasured
# Streams: rank, which of STREAMS, how many bytes more the agent may send
CREDIT = 20
STDIN = 21  # rank, bytes; none at the end
RESIZE = 22  # rows, columns
# Commands that mpirun runs on the host instead of by ssh.
RUN = 30  # number of the command, its text
END_RUN = 31  # number: mpirun has ended it
# What the inventory says of a process that is to be attached to the device of an
# instance: rank, pid, why it is not, "" if it is
DEVICE = 40
# Sent when there has been nothing else for a while, by both.
ALIVE = 50
# What the host's clock shows: poprun's clock, which comes back in the answer.
READ_CLOCK = 51

# --- From an agent to poprun.

HELLO = 100  # JSON of what is in AgentHello
REPLY = 101  # JSON
REFUSAL = 102  # name of an error's class, its sentence, and notes
JOB_STARTED = 103
EVENT = 104  # JSON: the name of an event's class, and its fields
CLEAN = 105  # 1 if all instances have ended and have left no process, or 0
STREAM_OPENED = 109  # rank, which of STREAMS
# rank, which of STREAMS, bytes, none at the end; when they were written, in
# milliseconds since 1970 by the clock of that host
OUTPUT = 110
STDIN_TAKEN = 111  # rank, how many bytes an instance has taken; "" if it is closed
RUN_OUTPUT = 120  # number of the command, 1 for stdout or 2 for stderr, bytes
RUN_ENDED = 121  # number, exit code
# A process of this host is to be attached to the device of an instance: rank, and the
# fields of its ProcessIdentity
ATTACH = 130
DETACH = 131  # rank, pid
# The memory counters of the host after the job, "" for one that is not known.
FINISHED = 140
# What poprun's clock showed, and what CLOCK_MONOTONIC shows there, both in ns.
CLOCK = 141
# A piece of a file in which a process there has recorded its calls: its name, bytes.
CALL_RECORDS = 142
# A piece of what a function of poprun.launch has returned: rank, bytes.
RESULT = 143
# What was killed: AGENT, as the guard tells, or GUARD, as the agent does.
SUPERVISOR_LOST = 150
AGENT, GUARD = b"agent", b"guard"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentHello:
    """What an agent says of itself and its host."""

    # Of poprun and of Python there.
    version: str
    python: str
    hostname: str
    user: int
    # The same for all names of one host.
    machine: str
    # Seconds since 1970, when it was sent.
    clock: float
    # The environment of the agent, which instances of that host begin with.
    environ: Mapping[str, str]
    # The addresses and ports of both ends as the host has them, of ssh's connection;
    # "" where it is none of ssh.
    ssh_connection: str
    # The address by which other hosts reach it, "" if it is not known.
    address: str
    # Why temporary files cannot be made there, "" if they can.
    temporary_failure: str


def pack(kind: int, value: Any) -> bytes:
    """Return a message with a JSON value as its only field."""
    return protocol.pack(kind, pack_fields(value))


def pack_fields(value: Any) -> bytes:
    """Return a JSON value as a field of a message."""
    # Indent, separators, no sorting, no other keys than texts, NaN as json has it.
    form = (None, ": ", ", ", False, False, True)
    text = _json.encode_basestring_ascii
    return "".join(_json.make_encoder({}, _as_list, text, *form)(value, 0)).encode()


def _as_list(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else list(value)


class _JsonForm:
    """What the reader makes of JSON, as the package json does."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int = float, int
    parse_constant = {
        "NaN": float("nan"),
        "Infinity": float("inf"),
        "-Infinity": float("-inf"),
    }.__getitem__


def unpack(field: bytes) -> Any:
    """Return the value of a field that is JSON.

    Raises:
        ValueError: It is not.
    """
    text = field.decode()
    # The reader takes anything with these attributes.
    form: Any = _JsonForm
    try:
        value, end = _json.make_scanner(form)(text, 0)
    except StopIteration:
        raise ValueError("no JSON") from None
    except RecursionError:
        raise ValueError("a value that is nested too deeply") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    return value


def why_supervisor_lost(fields: Sequence[bytes]) -> str:
    """Return which of poprun's processes a message SUPERVISOR_LOST tells of."""
    name = "guard" if fields == [GUARD] else "agent"
    return f"poprun's {name} there was killed"


def printable(text: bytes) -> str:
    """Return a text of another host without what would control a terminal."""
    return words.printable(text.decode(errors="backslashreplace"))
