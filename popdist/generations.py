"""The generations of an elastic job's members, as poprun tells this process.

STATE in GENERATIONS: a connection to poprun, which stays until the process ends.
"""

import os
from collections.abc import Callable, Collection, Mapping, MutableMapping
from contextlib import ExitStack
from threading import RLock
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from popdist import environment as env
from popdist.environment import whole_number
from popdist.errors import CollectiveTimeoutError, ElasticError, LeftJobError

if TYPE_CHECKING:
    import socket

    from popdist.control import ControlConnection

# Equal to the values in poprun/wire/protocol.py, which popdist does not import.
ELASTIC, REFORM = 46, 47
ELASTIC_KNOWN, MEMBERS_CHANGE, REFORMED, REFORM_REFUSED, LEFT = 63, 64, 65, 66, 67
# How long poprun may take to answer that it knows this instance.
_KNOWN_SECONDS = 60.0
# How long a wait for poprun lasts until it looks at what other threads have read.
_WAIT_SECONDS = 0.5
# Where instances may listen: above the ports of well-known servers.
_FIRST_PORT = 10_000
# The first and the last of the ports that Linux assigns to sockets by itself.
_ASSIGNED_PORTS = "/proc/sys/net/ipv4/ip_local_port_range"
# How many ports to try before one that the kernel assigns is taken.
_MOST_DRAWS = 100

# A loss; the other kinds of changes are "added" and "leaves".
LOST = "lost"
_NESTED = (
    "popdist.elastic.reform() was called while the same thread re-forms already, such "
    "as by the handler of a signal. Let the handler set a variable, and call reform() "
    "later."
)
_FORKED = (
    "This process was forked from an instance of an elastic job, and only that one can "
    "re-form. Call popdist.elastic in it, or fork before that."
)


class Change(NamedTuple):
    """A change of the members that poprun has announced: its kind, and why."""

    kind: str
    why: str


class Reformed(NamedTuple):
    """A new generation: its number, why there is one, and the variables to change.

    None stands for a variable to unset.
    """

    generation: int
    why: str
    environ: dict[str, str | None]


class Generations:
    """The present generation, and the changes of members that are to come."""

    def __init__(self) -> None:
        # The generation that this process belongs to, and the one that it has joined.
        self.current = self.joined = 0
        # Whether it has had the state of the job, in common with the other members.
        self.has_state = False
        self._begin(None)

    def after_fork(self) -> None:
        """Begin without a connection in a new child: it is the parent's."""
        refusal = self._refusal
        if self._connection is not None:
            self._connection.close()
            # The environment tells a rank of a generation by now, and no index.
            refusal = _FORKED
        self._begin(refusal)

    def _begin(self, refusal: str | None) -> None:
        # Why the job cannot re-form; "" if it can. None before poprun was asked.
        self._refusal = refusal
        # Whether no member of the job can re-form, or this process is none; permanent.
        self.none_can = refusal is not None
        self._connection: ControlConnection | None = None
        # Changes that poprun has announced since the last re-forming.
        self._changes: list[Change] = []
        # Whether poprun has been told that this process leaves its generation, and the
        # answer: the next one, or why there is none.
        self._leaves = False
        self._answer: Reformed | ElasticError | None = None
        self._ports = ExitStack()
        # Held while messages are read. A signal's handler may read some, too.
        self._lock = RLock()
        # Held by the only thread that re-forms. A signal's handler may run in it.
        self.reforming = RLock()
        self._is_reforming = False

    @property
    def can_reform(self) -> bool:
        """Whether poprun has been told that this process can re-form, and agrees."""
        return self._connection is not None

    @property
    def lacks_state(self) -> bool:
        """Whether this process has joined others, and not received their state yet."""
        return self.joined > 0 and not self.has_state

    def refusal(self, environ: Mapping[str, str]) -> str:
        """Return the sentence why the job cannot re-form, "" if it can.

        At its first call it tells poprun that this instance can.
        """
        with self._lock:
            if self._refusal is None:
                self._refusal = self._register(environ)
            return self._refusal

    def _register(self, environ: Mapping[str, str]) -> str:
        # Not above: most programs are not elastic.
        import json

        from popdist.control import VERSION, ControlConnection

        if not environ.get(env.CONTROL) or not env.is_set(environ):
            self.none_can = True
            return (
                "poprun has not started this process, so its job cannot re-form. Start "
                "it with poprun, --mpirun local and --min-instances."
            )
        # A process that a member has started after a change has its variables.
        index = instance_of_rank(environ, whole_number(environ, env.OMPI_RANK))
        connection: ControlConnection | None = None
        try:
            connection = ControlConnection(environ, _KNOWN_SECONDS)
            connection.send(ELASTIC, VERSION, connection.key, index)
            kind, fields = connection.receive()
            if kind != ELASTIC_KNOWN:
                raise OSError(0, "its answer is not valid")
            answer = json.loads(fields[0])
            generation, refusal = int(answer["generation"]), str(answer["refusal"])
        except (OSError, LookupError, ValueError) as error:
            if connection is not None:
                connection.close()
            return f"The job cannot re-form, because {_reason(error)}."
        if refusal:
            connection.close()
            return refusal
        self._connection, self.current = connection, generation
        return ""

    def pending(self) -> Change | None:
        """Return a change of members that has been announced. Never blocks.

        A loss comes before the others.
        """
        with self._lock:
            self._read()
            return min(self._changes, key=lambda one: one.kind != LOST, default=None)

    def _read(self) -> None:
        """Note the messages that have come."""
        try:
            while self._connection and (message := self._connection.take()):
                self._note(*message)
        except OSError as error:
            self._end(error)

    def _note(self, kind: int, fields: list[bytes]) -> None:
        # Not above, as in _register().
        import json

        try:
            if kind == REFORM_REFUSED:
                self._answer = ElasticError(fields[0].decode(errors="replace"))
            elif kind == LEFT:
                self._answer = LeftJobError(fields[0].decode(errors="replace"))
            elif kind == REFORMED:
                self._answer = _decode_reformed(json.loads(fields[0]))
                # Later ones belong to the new generation.
                self._changes.clear()
            elif kind == MEMBERS_CHANGE:
                value = json.loads(fields[0])
                self._changes.append(Change(str(value["kind"]), str(value["why"])))
            else:
                raise ValueError
        except (AttributeError, LookupError, TypeError, ValueError):
            raise OSError(0, "its message is not valid") from None

    def _end(self, error: OSError) -> None:
        """Re-form no more: poprun cannot be reached."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._ports.close()
        self._refusal = f"The job cannot re-form any more, because {_reason(error)}."

    def alone(self, reform: Callable[[], None]) -> None:
        """Call a function that re-forms, while no other thread does.

        Raises:
            RuntimeError: This thread does already.
        """
        with self.reforming:
            if self._is_reforming:
                raise RuntimeError(_NESTED)
            try:
                self._is_reforming = True
                reform()
            finally:
                self._is_reforming = False

    def reform(
        self,
        environ: MutableMapping[str, str],
        timeout: float,
        begin: Callable[[], object],
        silent: Collection[int] = (),
    ) -> None:
        """Tell poprun that this process has left its groups, and wait for the others.

        A second call, after one that was interrupted, begins the same generation.

        Args:
            environ: Gets the variables of the new generation.
            begin: Called with these.
            silent: The ranks of instances on hosts that do not answer.

        Raises:
            LeftJobError: This instance has left the job with its host.
            ElasticError: poprun refuses, or has ended.
            CollectiveTimeoutError: Others have not come in time.
        """
        self.check(environ)
        self._leave([instance_of_rank(environ, rank) for rank in silent])
        answer = self._await_answer(timeout)
        self._ports.close()
        if isinstance(answer, Reformed):
            # The answer unsets this variable: the process joins once.
            if env.ELASTIC_JOINS in environ:
                self.joined = answer.generation
            apply(answer, environ)
            begin()
            # Last: a thread that finds another generation uses its groups at once.
            self.current = answer.generation
        # Only now: a signal's handler may have raised an exception before.
        with self._lock:
            self._answer, self._leaves = None, False
        if isinstance(answer, ElasticError):
            raise answer

    def check(self, environ: Mapping[str, str]) -> None:
        """Raise ElasticError if the job cannot re-form."""
        refusal = self.refusal(environ)
        if refusal:
            raise ElasticError(refusal)

    def _leave(self, silent: Collection[int]) -> None:
        with self._lock:
            if self._connection is None or self._leaves:
                return
            ports = [self._reserve_port() for _ in range(2)]
            try:
                numbers = ",".join(map(str, silent)).encode()
                self._connection.send(REFORM, self.current, *ports, numbers)
            except OSError as error:
                self._end(error)
            self._leaves = True

    def await_loss(self, seconds: float) -> bool:
        """Wait so long until poprun tells of a loss, and return whether it has."""

        def is_told() -> bool:
            return any(change.kind == LOST for change in self._changes)

        return self._await(is_told, seconds)

    def _await_answer(self, timeout: float) -> Reformed | ElasticError:
        """Return the answer to REFORM."""
        if not self._await(lambda: self._answer is not None, timeout):
            self.check({})
            raise CollectiveTimeoutError(
                f"Other instances have not re-formed within {timeout:g} s. Look above "
                "for their last output. If they were only slow, raise POPDIST_TIMEOUT."
            )
        assert self._answer is not None
        return self._answer

    def _await(self, has_come: Callable[[], bool], seconds: float) -> bool:
        """Wait for a message, which another thread may read.

        Return False if it does not come in time, or cannot come any more.
        """
        # Not above, as in _register().
        import select

        until = monotonic() + seconds
        while True:
            with self._lock:
                self._read()
                if has_come():
                    return True
                if self._connection is None:
                    return False
                poll = select.poll()
                poll.register(self._connection, select.POLLIN)
            left = until - monotonic()
            if left <= 0:
                return False
            poll.poll(min(left, _WAIT_SECONDS) * 1000)

    def _reserve_port(self) -> int:
        """Return a port that no other process gets before the generation begins."""
        sock = _bound_socket()
        self._ports.callback(sock.close)
        return int(sock.getsockname()[1])

    def join(self, environ: MutableMapping[str, str], timeout: float) -> None:
        """Wait for the others, as an instance that poprun has added to a running job.

        Raises:
            ElasticError: poprun refuses, or has ended.
            CollectiveTimeoutError: The others have not come in time.
        """

        def join_once() -> None:
            # Another thread may have done so meanwhile.
            if environ.get(env.ELASTIC_JOINS):
                self.reform(environ, timeout, lambda: None)

        self.alone(join_once)


def apply(reformed: Reformed, environ: MutableMapping[str, str]) -> None:
    """Change the variables that a new generation changes."""
    for name, value in reformed.environ.items():
        if value is None:
            environ.pop(name, None)
        else:
            environ[name] = value


def ensure_joined(environ: MutableMapping[str, str], timeout: float) -> bool:
    """Wait for the others, if poprun has added this instance to a running job.

    Return whether it has.
    """
    joins = bool(environ.get(env.ELASTIC_JOINS))
    if joins:
        GENERATIONS.join(environ, timeout)
    return joins


def instance_of_rank(environ: Mapping[str, str], rank: int) -> int:
    """Return the number in poprun's attempt of the member with this rank."""
    members = environ.get(env.ELASTIC_MEMBERS, "").split(",")
    # The processes of a group that the program has numbered may be more.
    return int(members[rank] or rank) if rank < len(members) else rank


# Any: the values of JSON.
def _decode_reformed(value: Any) -> Reformed:
    environ = {
        str(name): None if text is None else str(text)
        for name, text in value["environ"].items()
    }
    return Reformed(int(value["generation"]), str(value["why"]), environ)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "poprun did not answer in time"
    if isinstance(error, OSError):
        return f"poprun cannot be asked: {error.strerror or error}"
    return "poprun's answer is not valid"


def _bound_socket() -> "socket.socket":
    """Return a socket with a TCP port on which no process listens.

    It lies below the ports that the kernel assigns to sockets by itself: another
    process could get one of those before the instance listens on it.
    """
    # Not above, as in _register().
    import socket

    sock = socket.socket()
    end = _first_assigned_port()
    for _ in range(_MOST_DRAWS if end > _FIRST_PORT else 0):
        port = _FIRST_PORT + int.from_bytes(os.urandom(4)) % (end - _FIRST_PORT)
        try:
            sock.bind(("", port))
        except OSError:
            continue
        return sock
    sock.bind(("", 0))
    return sock


def _first_assigned_port() -> int:
    """Return the first port that the kernel assigns by itself; 0 if it is unknown."""
    try:
        with open(_ASSIGNED_PORTS) as ports:
            first, _ = ports.read().split()
            return int(first)
    except (OSError, ValueError):
        return 0


GENERATIONS = Generations()
os.register_at_fork(after_in_child=GENERATIONS.after_fork)
