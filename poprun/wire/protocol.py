"""The messages between poprun, its agents on other hosts, its shims and its guard.

A message is a kind and a list of byte strings with their lengths, so every value that
exec accepts gets through as it is. This module knows no sockets.
"""

VERSION = 1

# The longest message that poprun sends: a command line and an environment.
MAX_LENGTH = 1 << 28
# The longest that poprun receives: what comes from others must not fill its memory.
MAX_REPORT = 1 << 16


# The fields of the messages that poprun or an agent receives, by kind, one letter each:
# i for a number below 2**31, n for one of 64 bits, o for that or nothing, d for
# milliseconds since 1970, l for a list of i with commas, m for that or nothing, t for
# any bytes, s for a text, j for JSON; * stands for any number of t at the end. codec.py
# reads messages by it.
FORMS: dict[int, str] = {}


def _kind(number: int, form: str) -> int:
    """Return the number of a message after noting its form."""
    FORMS[number] = form
    return number


# From a shim to poprun.
HELLO = _kind(1, "ititin")  # version, key, rank, host, pid, start time
# pid of the program, its start time, its CPUs, whether its memory is bound as asked
# for; with it stdout and stderr to read, or stdout alone where stderr is merged into it
STARTED = _kind(2, "inli")
# errno, the path in question, the shim's own call that failed, if any
REFUSED = _kind(3, "iss")
# wait status, CLOCK_MONOTONIC ns, user us, system us, peak RSS KiB, by whom, 1 for a
# Python that ended by a signal without showing its stack, or 0
EXITED = _kind(4, "innnnti")
# pids of the processes that can show their Python stacks, 0 for none
STACKS = _kind(6, "l")
# how many processes the program left behind, all of them ended now
CLEAN = _kind(5, "i")
# pid, user, command line of a process that may not be signalled; from the guard too
REMAINS = _kind(7, "nnt")
ORPHANED = _kind(8, "")  # the process of mpirun that has started the shim has died

# From poprun to a shim.
SPEC = 10  # see Spec
# Also to an agent, which passes them on to all shims of its host.
SIGNAL = _kind(11, "i")  # number, to the program's process group
KILL = _kind(12, "")  # everything that the program started, until nothing is left
RELEASE = _kind(13, "")  # leave
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
END_ACTION = 22  # kind, fields: see end_actions
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
MPIRUN_STARTED = _kind(30, "in")  # pid, its start time
# errno, the call of the guard's own that failed, if any
MPIRUN_REFUSED = _kind(31, "is")
MPIRUN_EXITED = _kind(32, "i")  # wait status
FINISHED = _kind(33, "i")  # how many processes were left
FOUND = _kind(34, "t")  # a path: one more to remove at the last
NOT_UNDONE = _kind(35, "s")  # a sentence about an end action that has failed

# From a process of an instance to poprun, when it is about to call MPI_Finalize in
# exit(): interpreter/sitecustomize.py has it written. The connection stays until the
# process ends.
# version, key, rank, exit status as one byte, or nothing if it is unknown
FINALIZING = _kind(40, "itit")
# From the same: it imports mpi4py, and no MPI has told it which rank it is.
ALONE_IN_MPI = _kind(41, "iti")  # version, key, rank
# From the debugger of --pdb in an instance: interpreter/debugger.py has it written. The
# connection stays as long as a prompt is shown.
DEBUGGER = _kind(44, "itii")  # version, key, rank, 1 for a prompt or 0: it is ready
# From torch in an instance: it has made process groups. interpreter/torch_calls.py has
# it written.
TORCH_GROUPS = _kind(45, "iti")  # version, key, rank
# From popdist in an instance: popdist/device.py writes it. The connection stays until
# the process ends, and the process is attached for so long.
# version, key, index of the instance, how many IPUs its device must have
ATTACH = _kind(42, "itii")
# From popdist in an instance that can go on without others: popdist/elastic writes it.
# The connection stays until the process ends.
ELASTIC = _kind(46, "iti")  # version, key, index of the instance
# From the same, later: the generation that it leaves, and two TCP ports that no process
# of its host listens on: for links between hosts, and for the store of torch; and the
# instances on hosts that have not answered it.
REFORM = _kind(47, "iiim")

# From a remote shell of mpirun's to poprun: helpers/remote_shell.py.
REMOTE_SHELL = _kind(43, "ittt")  # version, key, host, command

# From poprun to a remote shell.
SHELL_OUTPUT = 70  # 1 for stdout or 2 for stderr, bytes
SHELL_ENDED = 71  # exit code
# The host is this one: the shell runs the command itself, which does not get SIGTERM if
# the field is 1 and not 0.
SHELL_HERE = 72

# From popctl to poprun, as the first message of a connection to a separate socket. Its
# key is empty: the kernel tells the user of a client.
# version, key, ms between two answers or 0 for one, 1 with instances
SHOW_JOB = _kind(90, "itii")
STOP_JOB = _kind(91, "iti")  # version, key, 1 to kill at once
WATCH_OUTPUT = _kind(92, "iti")  # version, key, index of an instance
DUMP_STACKS = _kind(93, "itl")  # version, key, indices of instances

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
ELASTIC_KNOWN = 63  # JSON: the generation, and why the job cannot re-form or ""
MEMBERS_CHANGE = 64  # JSON: "lost", "added" or "leaves", and why
REFORMED = 65  # JSON: the generation, why, and environ: variables, null to unset one
REFORM_REFUSED = 66  # a sentence: why
LEFT = 67  # a sentence: why the instance has left the job

# From poprun to the debugger of an instance: it has taken a message in.
DEBUGGER_KNOWN = 62

# From poprun to an agent, before the job: each is answered by one REPLY.
# JSON: the directory of poprun, which becomes the agent's
DESCRIBE_HOST = _kind(110, "j")
FIND_PROGRAM = _kind(111, "j")  # JSON: argv, search path, current directory
READ_MEMORY = _kind(112, "j")  # null
# JSON: the path of an mpirun, the title of its MPI, and poprun's site-packages
CHECK_MPI = _kind(113, "j")

# From poprun to an agent, for the job.
# JSON of a HostJob, then the SPEC messages of its instances
START_JOB = _kind(120, "j*")
STOP_STARTING = _kind(121, "")
SHOW_STACKS_OF = _kind(122, "ii")  # rank, pid: SHOW_STACKS for its shim
INTERRUPT_INSTANCE = _kind(123, "i")  # rank: INTERRUPT for its shim
NOTE_END = _kind(124, "i")  # rank
MEASURE = _kind(125, "")  # answered by events UsageMeasured
FINISH_HOST = _kind(126, "")
# rank, which of STREAMS, how many bytes more of it the agent may send
GRANT_OUTPUT = _kind(127, "iii")
INPUT = _kind(128, "it")  # rank, bytes of its stdin; none at the end
RESIZE = _kind(129, "iiii")  # rank, which of STREAMS, rows, columns of that terminal
# The number of a command of mpirun's, which runs there without ssh; its text.
RUN_COMMAND = _kind(130, "it")
END_COMMAND = _kind(131, "i")  # number: mpirun has ended it
# rank, pid, why that process is not attached to the device of the instance, "" if it is
DEVICE_ANSWER = _kind(132, "iis")
READ_CLOCK = _kind(133, "n")  # poprun's clock in ns, which comes back in CLOCK
# rank, ELASTIC_KNOWN or one that follows it, its field: for the process of that
# instance that can re-form
TELL_MEMBER = _kind(134, "iit")
START_AGAIN = _kind(135, "i")  # rank of an instance that has ended, and its streams too
KILL_INSTANCE = _kind(136, "i")  # rank: KILL for its shim
NOTE_LEFT = _kind(137, "ii")  # a generation, the rank in it of a member that has ended

# Sent by poprun and by an agent when there has been nothing else for a while.
ALIVE = _kind(140, "")

# From an agent to poprun.
AGENT_HELLO = _kind(150, "j")  # JSON of an AgentHello
REPLY = _kind(151, "j")  # JSON
REFUSAL = _kind(152, "*")  # name of an error's class, its sentence, and notes
JOB_STARTED = _kind(153, "")
EVENT = _kind(154, "j")  # JSON: the name of an event's class, and its fields
# 1 if all instances have ended and have left no process, or 0
HOST_CLEAN = _kind(155, "i")
STREAM_OPENED = _kind(156, "ii")  # rank, which of STREAMS
# rank, which of STREAMS, bytes, none at the end; when they were written, in
# milliseconds since 1970 by the clock of that host
OUTPUT = _kind(157, "iitd")
# rank, how many bytes an instance has taken; "" if it is closed
INPUT_TAKEN = _kind(158, "io")
# number of the command, 1 for stdout or 2 for stderr, bytes
COMMAND_OUTPUT = _kind(159, "iit")
COMMAND_ENDED = _kind(160, "ii")  # number, exit code
# A process of this host is to be attached to the device of an instance: rank, and the
# fields of its ProcessIdentity.
ATTACH_PROCESS = _kind(161, "iintt")
DETACH_PROCESS = _kind(162, "ii")  # rank, pid
# The memory counters of the host after the job, "" for one that is not known.
HOST_FINISHED = _kind(163, "ooo")
# the field of READ_CLOCK, and CLOCK_MONOTONIC of that host in ns
CLOCK = _kind(164, "nn")
# The name of a file with the recorded calls of a process there, and a piece of it.
CALL_RECORDS = _kind(165, "st")
RESULT = _kind(167, "it")  # rank, a piece of the result of a function of poprun.launch
# AGENT or GUARD: the killed process, reported by the other one.
SUPERVISOR_LOST = _kind(166, "t")
AGENT, GUARD = b"agent", b"guard"

# In SPEC, for a stdin that comes with it as a descriptor.
SENT = b"sent"

# How the name of the socket begins that popctl connects to; the job's id follows.
CLIENTS_NAME = "popctl-"

# The signal on which a Python interpreter of an instance shows its stacks: a real-time
# signal that neither C libraries (the first ones) nor tools (the last ones) use.
STACKS_SIGNAL = 55

# The sender of the signal that ended a program, in EXITED.
BY_ITSELF, BY_POPRUN, BY_MPI, BY_SLURM = b"itself", b"poprun", b"mpi", b"slurm"
# The kernel, with SIGKILL.
BY_CPU_LIMIT = b"cpu limit"


def pack(kind: int, *fields: bytes | int) -> bytes:
    """Return one message; whole numbers are written in decimal."""
    body = [bytes([kind])]
    for field in fields:
        data = b"%d" % field if isinstance(field, int) else field
        body += [len(data).to_bytes(4, "big"), data]
    message = b"".join(body)
    return len(message).to_bytes(4, "big") + message


class Decoder:
    """Cut a stream of bytes into messages.

    Args:
        limit: The longest message that the peer may send.
    """

    def __init__(self, limit: int = MAX_LENGTH) -> None:
        self._buffer = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> list[tuple[int, list[bytes]]]:
        """Add received bytes, and return the messages that are complete now.

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
    """The program of a shim: as values, and as the message SPEC, in this order."""

    path: bytes
    cwd: bytes
    cpus: list[int]
    memory_nodes: list[int]
    # SENT for a descriptor that comes with the message, else a path.
    stdin: bytes
    grace_ms: int
    # Signals that the program ignores, until it says otherwise.
    ignored: list[int]
    # Prefixes of the variables that MPI gave the shim: the program gets them, too.
    mpi_prefixes: list[bytes]
    # Prefixes of those variables that the program does not get.
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
        """Return it as a message."""
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
