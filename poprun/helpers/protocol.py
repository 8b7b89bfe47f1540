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
EXITED = 4  # wait status, CLOCK_MONOTONIC ns, user us, system us, peak RSS KiB, by whom
STACKS = 6  # pids of the processes that can show their Python stacks, 0 for none
CLEAN = 5  # how many processes the program left behind, all of them ended now
# pid, user, command line of a process that may not be signalled; from the guard too
REMAINS = 7

# From poprun to a shim.
SPEC = 10  # see pack_spec
SIGNAL = 11  # number, to the program's process group
KILL = 12  # everything that the program started, until nothing is left
RELEASE = 13  # leave
# pid of a Python interpreter that is to show its stacks; 0 asks which can
SHOW_STACKS = 14

# From poprun to its guard.
# grace in ms, mark, count of argv, argv..., environment...; with it a file for output
START = 20
ADOPT = 21  # grace in ms, mark: mpirun runs already
END_ACTION = 22  # kind, fields: see end_actions; what is to be undone at the end
KNOWN = 23  # pid, start time of mpirun or a shim, which end after all below them
SIGNAL_MPIRUN = 24  # number
FINISH = 25  # end whatever is left, and leave
WATCH = 26  # how the paths begin of what MPI may leave in shared directories
WITHDRAW = 27  # kind, fields: an end action that has been performed
# with it a file for failures of end actions, when poprun is gone
REPORT_TO = 28

# From poprun to its guard and to a shim.
HOLD = 50  # a lock file, see job_files: to be held as long as the receiver lives

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
# From popdist in an instance: popdist/device.py writes it. The connection stays until
# the process ends, and the process is attached for so long.
ATTACH = 42  # version, key, index of the instance, how many IPUs its device must have

# From poprun to popdist.
ATTACHED = 60  # id of the device
NOT_ATTACHED = 61  # a sentence: why not

# In SPEC, for a stdin that comes with it as a descriptor.
SENT = b"sent"

# The signal on which a Python interpreter of an instance shows its stacks: a real-time
# signal that neither C libraries (the first ones) nor tools (the last ones) use.
STACKS_SIGNAL = 55

# Who ended a program, in EXITED.
BY_ITSELF, BY_POPRUN, BY_MPI = b"itself", b"poprun", b"mpi"

# The fields of what poprun receives: i for a number that fits in a C int, n for one of
# 64 bits, l for a list of i with commas, t for any bytes.
REPORTS = {
    HELLO: "ititin",
    STARTED: "inli",
    REFUSED: "itt",
    EXITED: "innnnt",
    STACKS: "l",
    CLEAN: "i",
    REMAINS: "int",
    MPIRUN_STARTED: "in",
    MPIRUN_REFUSED: "it",
    MPIRUN_EXITED: "i",
    FINISHED: "i",
    FOUND: "t",
    NOT_UNDONE: "t",
    FINALIZING: "itit",
    ALONE_IN_MPI: "iti",
    ATTACH: "itii",
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


def pack_spec(
    *,
    path: bytes,
    argv: list[bytes],
    environment: list[bytes],
    cwd: bytes,
    mpi_prefixes: list[bytes],
    mpirun_prefixes: list[bytes],
    users: list[bytes],
    cpus: list[int],
    memory_nodes: list[int],
    stdin: bytes,
    grace_ms: int,
    ignored: list[int],
    terminals: tuple[bool, bool] = (False, False),
    size: tuple[int, int] = (0, 0),
    merge_stderr: bool = False,
    open_files: int = 0,
    umask: int = 0o022,
) -> bytes:
    """Return the message that tells a shim what to run.

    Args:
        environment: NAME=VALUE words. What MPI gave the shim is added to them.
        mpi_prefixes: How the names of what MPI gave begin.
        mpirun_prefixes: How those of them begin that are not the program's.
        users: Whole names of variables in which the user's value counts for more.
        stdin: SENT for a descriptor that comes with the message, else a path.
        ignored: Signals that the program ignores, until it says otherwise.
        terminals: Whether stdout and stderr are to be one.
        size: Rows and columns of those that are.
        merge_stderr: stderr is stdout.
        open_files: The soft limit of open files, 0 for the shim's.
        umask: The program's.
    """
    return pack(
        SPEC,
        path,
        cwd,
        b",".join(b"%d" % cpu for cpu in cpus),
        b",".join(b"%d" % node for node in memory_nodes),
        stdin,
        grace_ms,
        b",".join(b"%d" % number for number in ignored),
        b",".join(mpi_prefixes),
        b",".join(mpirun_prefixes),
        b",".join(users),
        b",".join(b"%d" % number for number in (*terminals, *size, merge_stderr)),
        open_files,
        umask,
        len(argv),
        *argv,
        *environment,
    )


class Spec:
    """What a shim runs: the reader's side of pack_spec."""

    def __init__(self, fields: list[bytes]) -> None:
        self.path, self.cwd, cpus, nodes, self.stdin = fields[:5]
        self.cpus = [int(cpu) for cpu in cpus.split(b",") if cpu]
        self.memory_nodes = [int(node) for node in nodes.split(b",") if node]
        self.grace = int(fields[5]) / 1000
        self.ignored = [int(number) for number in fields[6].split(b",") if number]
        self._mpi_prefixes = tuple(filter(None, fields[7].split(b",")))
        self._mpirun_prefixes = tuple(filter(None, fields[8].split(b",")))
        self._users = frozenset(fields[9].split(b","))
        stdout, stderr, rows, columns, merge = map(int, fields[10].split(b","))
        self.terminals = bool(stdout), bool(stderr)
        self.size = rows, columns
        self.merge_stderr = bool(merge)
        self.open_files = int(fields[11])
        self.umask = int(fields[12])
        count = int(fields[13])
        self.argv = fields[14 : 14 + count]
        self.environment = fields[14 + count :]

    def is_set_by_mpi(self, name: bytes) -> bool:
        """Return whether a variable is MPI's word to the program."""
        if name in self._users or name.startswith(self._mpirun_prefixes):
            return False
        return name.startswith(self._mpi_prefixes)
