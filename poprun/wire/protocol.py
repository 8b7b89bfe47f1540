"""The messages between poprun, its shims and its guard, as bytes.

A message is a kind and a list of byte strings, each with its length before it, so
that every value that exec accepts gets through as it is. It knows no sockets.
"""

VERSION = 1

# The longest message that poprun sends: a command line and an environment.
MAX_LENGTH = 1 << 28
# The longest that poprun receives: what comes from others must not fill its memory.
MAX_REPORT = 1 << 16

# From a shim to poprun.
HELLO = 1  # version, key, rank, host, pid, start time
# pid of the program, its start time, its CPUs, whether its memory is bound as asked
# for; with it stdout and stderr to read, or stdout alone where stderr is merged into it
STARTED = 2
# errno, the path that it was about, the call of the shim's own that failed, if any
REFUSED = 3
# wait status, CLOCK_MONOTONIC ns, user us, system us, peak RSS KiB, by whom, 1 if it
# is a Python that a signal has ended without showing its stack, or 0
EXITED = 4
STACKS = 6  # pids of the processes that can show their Python stacks, 0 for none
CLEAN = 5  # how many processes the program left behind, all of them ended now
# pid, user, command line of a process that may not be signalled; from the guard too
REMAINS = 7
ORPHANED = 8  # the process of mpirun that has started the shim has died

# From poprun to a shim.
SPEC = 10  # see Spec
SIGNAL = 11  # number, to the program's process group
KILL = 12  # everything that the program started, until nothing is left
RELEASE = 13  # leave
INTERRUPT = 15  # SIGINT to the program's process group, which does not end the job
# pid of a Python interpreter that is to show its stacks; 0 asks which can
SHOW_STACKS = 14

# From poprun to its guard.
# grace in ms, mark, 1 if mpirun is not to get SIGTERM or 0, count of argv, argv...,
# environment...; with it a file for output, and both ends of a pipe: the kernel kills
# mpirun when that has no writer any more
START = 20
MARK = 29  # NAME=VALUE in the environment of what ends with poprun before START
ADOPT = 21  # grace in ms, mark: mpirun runs already
END_ACTION = 22  # kind, fields: see end_actions; what is to be undone at the end
KNOWN = 23  # pid, start time of mpirun or a shim, which end after all below them
SIGNAL_MPIRUN = 24  # number
FINISH = 25  # end whatever is left, and leave
WATCH = 26  # how the paths begin of what MPI may leave in shared directories
WITHDRAW = 27  # kind, fields: an end action that has been performed
# with it a file for failures of end actions, when poprun is gone
REPORT_TO = 28

# From an agent to its guard.
# A message for poprun, empty for none; with it the file that the guard writes it to
# when the agent is gone.
LAST_MESSAGE = 80

# From poprun to its guard and to a shim.
# A lock file, see job_files: to be held as long as the receiver lives. With it, for a
# shim, the write end of the pipe of START, to be held too.
HOLD = 50

# From the guard to poprun.
MPIRUN_STARTED = 30  # pid, its start time
MPIRUN_REFUSED = 31  # errno, the call of the guard's own that failed, if any
MPIRUN_EXITED = 32  # wait status
FINISHED = 33  # how many processes were left
FOUND = 34  # a path: one more to remove at the last
NOT_UNDONE = 35  # a sentence about an end action that has failed

# From a process of an instance to poprun, when it is about to call MPI_Finalize in
# exit(): interpreter/sitecustomize.py has it written. The connection stays until the
# process ends.
# version, key, rank, exit status as one byte, or nothing if it is unknown
FINALIZING = 40
# From the same: it imports mpi4py, and no MPI has told it which rank it is.
ALONE_IN_MPI = 41  # version, key, rank
# From the debugger of --pdb in an instance: interpreter/debugger.py has it written. The
# connection stays as long as a prompt is shown.
DEBUGGER = 44  # version, key, rank, 1 for a prompt or 0: it is ready
# From torch in an instance: it has made process groups. interpreter/torch_calls.py has
# it written.
TORCH_GROUPS = 45  # version, key, rank
# From popdist in an instance: popdist/device.py writes it. The connection stays until
# the process ends, and the process is attached for so long.
ATTACH = 42  # version, key, index of the instance, how many IPUs its device must have

# From a remote shell of mpirun's to poprun: helpers/remote_shell.py.
REMOTE_SHELL = 43  # version, key, host, command

# From poprun to a remote shell.
SHELL_OUTPUT = 70  # 1 for stdout or 2 for stderr, bytes
SHELL_ENDED = 71  # exit code
# The host is this one: the shell runs the command itself, which does not get SIGTERM if
# the field is 1 and not 0.
SHELL_HERE = 72

# From popctl to poprun, each the first message of a connection to a socket of its own,
# whose key is empty: the kernel says which user a client is.
SHOW_JOB = 90  # version, key, ms between two answers or 0 for one, 1 with instances
STOP_JOB = 91  # version, key, 1 to kill at once
WATCH_OUTPUT = 92  # version, key, index of an instance
DUMP_STACKS = 93  # version, key, indices of instances

# From poprun to popctl.
JOB_SHOWN = 100  # JSON
REQUEST_ACCEPTED = 101
REQUEST_REFUSED = 102  # a sentence: why
INSTANCE_OUTPUT = 103  # stdout or stderr, bytes
OUTPUT_DROPPED = 104  # how many bytes did not wait for the client
REQUEST_DONE = 105  # a sentence for the user, or nothing
JOB_ENDED = 106  # JSON

# From poprun to popdist.
ATTACHED = 60  # id of the device
NOT_ATTACHED = 61  # a sentence: why not

# From poprun to the debugger of an instance: it has taken a message in.
DEBUGGER_KNOWN = 62

# In SPEC, for a stdin that comes with it as a descriptor.
SENT = b"sent"

# How the name of the socket begins that popctl connects to; the job's id follows.
CLIENTS_NAME = "popctl-"

# The signal on which a Python interpreter of an instance shows its stacks: a real-time
# signal that neither C libraries (the first ones) nor tools (the last ones) use.
STACKS_SIGNAL = 55

# Who ended a program, in EXITED.
BY_ITSELF, BY_POPRUN, BY_MPI, BY_SLURM = b"itself", b"poprun", b"mpi", b"slurm"
# The kernel, with SIGKILL.
BY_CPU_LIMIT = b"cpu limit"

# The fields of what poprun receives: i for a number that fits in a C int, n for one of
# 64 bits, l for a list of i with commas, t for any bytes.
REPORTS = {
    HELLO: "ititin",
    STARTED: "inli",
    REFUSED: "itt",
    EXITED: "innnnti",
    STACKS: "l",
    CLEAN: "i",
    REMAINS: "int",
    ORPHANED: "",
    MPIRUN_STARTED: "in",
    MPIRUN_REFUSED: "it",
    MPIRUN_EXITED: "i",
    FINISHED: "i",
    FOUND: "t",
    NOT_UNDONE: "t",
    FINALIZING: "itit",
    ALONE_IN_MPI: "iti",
    TORCH_GROUPS: "iti",
    DEBUGGER: "itii",
    ATTACH: "itii",
    REMOTE_SHELL: "ittt",
    SHOW_JOB: "itii",
    STOP_JOB: "iti",
    WATCH_OUTPUT: "iti",
    DUMP_STACKS: "itl",
}
# int() takes time that grows with the square of the length.
MOST_DIGITS = 20


def pack(kind: int, *fields: bytes | int) -> bytes:
    """Return one message; whole numbers are written in decimal."""
    body = [bytes([kind])]
    for field in fields:
        data = b"%d" % field if isinstance(field, int) else field
        body += [len(data).to_bytes(4, "big"), data]
    message = b"".join(body)
    return len(message).to_bytes(4, "big") + message


def is_report(kind: int, fields: list[bytes]) -> bool:
    """Return whether a message to poprun has the fields that its kind must have."""
    form = REPORTS.get(kind)
    if form is None or len(form) != len(fields):
        return False
    return all(_is_field(*pair) for pair in zip(form, fields, strict=True))


def _is_field(form: str, field: bytes) -> bool:
    if form == "t":
        return True
    if form == "l":
        return all(_is_field("i", number) for number in field.split(b","))
    bits = 31 if form == "i" else 64
    return field.isdigit() and len(field) <= MOST_DIGITS and int(field) < 1 << bits


class Decoder:
    """Cut a stream of bytes into messages.

    Args:
        limit: The longest message that the peer may send.
    """

    def __init__(self, limit: int = MAX_LENGTH) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[tuple[int, list[bytes]]]:
        """Take in what has come; return the messages that are whole now.

        Raises:
            ValueError: The peer does not speak this language.
        """
        self._buffer += data
        messages = []
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if not 1 <= length <= self._limit:
                raise ValueError(f"a message of {length} bytes")
            if len(self._buffer) < 4 + length:
                break
            messages.append(_unpack(bytes(self._buffer[4 : 4 + length])))
            del self._buffer[: 4 + length]
        return messages


def _unpack(message: bytes) -> tuple[int, list[bytes]]:
    fields, at = [], 1
    while at < len(message):
        end = at + 4 + int.from_bytes(message[at : at + 4], "big")
        if end > len(message):
            raise ValueError("a field that is longer than its message")
        fields.append(message[at + 4 : end])
        at = end
    return message[0], fields


class Spec:
    """What a shim runs: as values, and as the message SPEC, in this order."""

    path: bytes
    cwd: bytes
    cpus: list[int]
    memory_nodes: list[int]
    # SENT for a descriptor that comes with the message, else a path.
    stdin: bytes
    grace_ms: int
    # Signals that the program ignores, until it says otherwise.
    ignored: list[int]
    # How the names begin of what MPI gave the shim, which the program gets too.
    mpi_prefixes: list[bytes]
    # How those of them begin that are not the program's.
    mpirun_prefixes: list[bytes]
    # Whole names of variables in which the user's value counts for more.
    users: list[bytes]
    # Whether stdout and stderr are to be terminals, and the rows and columns of those.
    terminals: list[int]
    size: list[int]
    # Whether stderr is stdout.
    merge_stderr: int
    # The soft limit of open files, 0 for the shim's.
    open_files: int
    umask: int
    argv: list[bytes]
    # NAME=VALUE words.
    environment: list[bytes]

    def __init__(self, **values: object) -> None:
        self.__dict__.update(values)

    def pack(self) -> bytes:
        """Return the message that tells a shim what to run."""
        fields = [_join(getattr(self, name)) for name in _SPEC_FORMS]
        return pack(SPEC, *fields, len(self.argv), *self.argv, *self.environment)

    @classmethod
    def read(cls, fields: list[bytes]) -> "Spec":
        """Return what a message of this kind says."""
        spec = cls()
        for (name, form), field in zip(_SPEC_FORMS.items(), fields, strict=False):
            setattr(spec, name, _split(form, field))
        count, *words = fields[len(_SPEC_FORMS) :]
        spec.argv, spec.environment = words[: int(count)], words[int(count) :]
        return spec

    def is_set_by_mpi(self, name: bytes) -> bool:
        """Return whether MPI has set a variable for the program."""
        if name in self.users or name.startswith(tuple(self.mpirun_prefixes)):
            return False
        return name.startswith(tuple(self.mpi_prefixes))


# argv and environment come last, without a length of their own.
_SPEC_FORMS = dict(list(Spec.__annotations__.items())[:-2])


def _join(value: object) -> bytes | int:
    """Return a value of a Spec as a field: lists have commas between their items."""
    if not isinstance(value, list | tuple):
        return value  # type: ignore[return-value]
    return b",".join(b"%d" % v if isinstance(v, int) else v for v in value)


def _split(form: object, field: bytes) -> object:
    """Return the value of a Spec that a field stands for."""
    if form is bytes:
        return field
    if form is int:
        return int(field)
    items = [item for item in field.split(b",") if item]
    return items if form == list[bytes] else list(map(int, items))
