"""Tells poprun what an MPI rank exits with, which would then wait in MPI_Finalize.

It also makes popdist's stand-ins for poptorch, horovod and popart importable
(--emulate-sdk), says where --torch-backend has no effect, and lets a signal show the
stacks of all threads.

poprun puts this folder first on PYTHONPATH, so every Python of an instance imports this
at its start. It runs inside the user's program: it loads on Python 3.6 and later (and
does no more than restore PYTHONPATH on Python 2), imports what an interpreter has
imported already, never raises and never prints.
"""

import os
import sys

# The names are the type checker's. Any stands for what typeshed does not describe:
# descriptors of built-in classes, and attributes that are replaced.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  # in type comments only

HERE = os.path.dirname(__file__)
# What poprun puts in front of the caller's value, and instead of no or an empty one:
# all three mean this folder.
BEFORE_VALUE, FOR_EMPTY, FOR_UNSET = HERE, HERE + "/", HERE + "//"

# Spelled in popdist/environment.py too, which not every Python can import.
CONTROL, RANK, SDK = "POPDIST_CONTROL", "RANK", "POPDIST_SDK"
TORCH_BACKEND = "POPDIST_TORCH_BACKEND"
# As in popdist/sdk/finder.py.
STAND_INS = ("poptorch", "horovod", "horovod.torch", "popart")
# As in poprun/helpers/protocol.py.
VERSION, FINALIZING, ALONE_IN_MPI = 1, 40, 41
# By one of these every MPI tells its processes which rank they are.
RANKS_IN_MPI = ("PMI_RANK", "PMIX_RANK")
STACKS_SIGNAL = 55
# So long a program is held up at most by a poprun that does not answer.
LONGEST_S = 0.5
SO_SNDTIMEO, SO_PEERCRED = 21, 17
SIGPIPE = 13
UNBUFFERED = 2  # stdio.h: _IONBF
# Buffers that the end of the interpreter flushes may belong to lower descriptors that
# the program has closed. The second one is for low limits of open files.
HIGH_DESCRIPTORS = (100, 3)
# How the file names of MPI libraries begin.
MPI_LIBRARIES = ("/libmpi", "/libmpt")
# They overrule mpi4py.rc.
MPI4PY_OPTIONS = ("MPI4PY_RC_INITIALIZE", "MPI4PY_RC_FINALIZE")


def original(value):
    # type: (str) -> str | None
    """Return what PYTHONPATH would be without this folder; None for unset."""
    if value in (FOR_UNSET, BEFORE_VALUE):
        return None
    kept = []
    for entry in value.split(":"):
        if entry in (FOR_EMPTY, FOR_UNSET):
            kept.append("")  # a script has joined something to the caller's nothing
        elif entry != BEFORE_VALUE:
            kept.append(entry)
    return ":".join(kept)


def restore_path():
    # type: () -> None
    """Give the program and its children the caller's PYTHONPATH."""
    value = os.environ.get("PYTHONPATH")
    if value is None:
        return
    restored = original(value)
    if restored is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = restored
    for at in range(len(sys.path) - 1, -1, -1):
        if sys.path[at].rstrip("/") == HERE:
            del sys.path[at]
            if restored and {FOR_EMPTY, FOR_UNSET} & set(value.split(":")):
                sys.path.insert(at, os.getcwd())  # an empty entry among others
    sys.path_importer_cache.pop(HERE, None)


# --- How an MPI rank ends.
#
# mpi4py calls MPI_Finalize at the end of the interpreter, and a rank that has failed
# may wait there for ranks that wait for it. Only libc's exit() knows for certain what
# Python ends with. So exit() is made to write its status to poprun and then to call
# MPI_Finalize, in place of mpi4py, which would call it an instant earlier.


def take_finalize_over():
    # type: () -> bool
    """Keep mpi4py from calling MPI_Finalize, if exit() can do that; return whether."""
    import ctypes

    libc = ctypes.CDLL(None)
    rc = sys.modules["mpi4py"].rc
    finalizes = rc.initialize if rc.finalize is None else rc.finalize
    with open("/proc/self/maps") as maps:
        # What uses MPI already may have initialized it, and finalizes it then.
        is_loaded = any(name in line for line in maps for name in MPI_LIBRARIES)
    # The main() of another program goes on after the end of the interpreter.
    is_python = os.path.realpath(sys.executable) == os.readlink("/proc/self/exe")
    if finalizes is not True or is_loaded or not is_python:
        return False
    if any(name in os.environ for name in MPI4PY_OPTIONS) or not hasattr(
        libc, "on_exit"
    ):
        return False  # musl has no on_exit
    rc.finalize = False
    return True


def end_rank(mpi, tell, is_taken_over):
    # type: (Any, Any, bool) -> None
    """Let exit() write its status to poprun as one byte, and then finalize MPI."""
    if not is_taken_over:
        sock = tell(FINALIZING, [b""])
        if sock is not None:
            keep_open(sock)
        return
    import ctypes
    from _signal import SIG_IGN, signal  # type: ignore[import-not-found]

    libc = ctypes.CDLL(None)
    finalize = getattr(ctypes.CDLL(mpi.__file__), "MPI_Finalize", None)
    if finalize is None:
        mpi.Finalize()
        return
    # exit() begins with the last one.
    libc.on_exit(finalize, None)
    # Destructors of the program run before exit(), and MPI must not be finalized twice.
    mpi.Finalize = lambda: None
    signal(SIGPIPE, SIG_IGN)  # poprun may close its end
    sock = tell(FINALIZING, [b"\0"], 1)
    if sock is not None:
        libc.fdopen.restype = ctypes.c_void_p
        stream = ctypes.c_void_p(libc.fdopen(keep_open(sock), b"w"))
        libc.setvbuf(stream, None, UNBUFFERED, 0)
        libc.on_exit(libc.fputc, stream)


def keep_open(sock):
    # type: (Any) -> int
    """Keep a connection as long as the process lasts; return its descriptor."""
    import fcntl

    number = sock.detach()  # type: int
    for lowest in HIGH_DESCRIPTORS:
        try:
            high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)
        except OSError:
            continue
        os.close(number)
        return high
    return number


# --- What the program can import.


class Finder:
    """Finds the stand-ins with popdist, which is imported only then.

    Args:
        sdk: Whether there are stand-ins: "no", or something else.
        on_mpi: Is called when mpi4py.MPI is about to be imported.
    """

    finds_stand_ins = True

    def __init__(self, sdk, on_mpi):
        # type: (str | None, Any) -> None
        self._stand_ins = () if sdk == "no" else STAND_INS
        self._on_mpi = on_mpi

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        if name == "mpi4py.MPI":
            self._on_mpi()
        if name == "torch":
            check_torch_backend()
        if name not in self._stand_ins:
            return None
        try:
            from popdist.sdk.finder import find_spec
        except ImportError:
            if os.environ.get(SDK) != "yes" or found_by_others(name, path, target):
                return None
        else:
            return find_spec(name, path, target)
        raise missing(name, "--emulate-sdk=yes asks for a stand-in for {}")


def check_torch_backend():
    # type: () -> None
    """Refuse the import of torch where --torch-backend has no effect."""
    if os.environ.get(TORCH_BACKEND) != "popdist":
        return
    request = "--torch-backend=popdist asks for popdist as a backend of {}"
    if not found_by_others("poprun", None, None):
        raise missing("torch", request)
    if not has_entry_point():
        raise missing("torch", request, "an up-to-date installation of poprun")


def has_entry_point():
    # type: () -> bool
    """Return whether torch finds the backend.

    It does not if poprun is importable by PYTHONPATH alone, or was installed from a
    checkout as it was before it had the backend.
    """
    try:
        from importlib.metadata import entry_points
    except ImportError:
        return False
    found = entry_points()  # type: Any
    try:
        group = found.select(group="torch.backends")
    except AttributeError:  # before Python 3.10
        group = found.get("torch.backends", ())
    return any(entry.name == "popdist" for entry in group)


def missing(name, request, needed="popdist"):
    # type: (str, str, str) -> ModuleNotFoundError
    """Return the error for a Python that lacks what an option asks for."""
    text = (
        request + ", but it needs {}, which {} does not have. Install poprun for this "
        "Python, or run the program with a Python that has it."
    )
    return ModuleNotFoundError(text.format(name, needed, sys.executable), name=name)


def found_by_others(name, path, target):
    # type: (str, Any, Any) -> bool
    """Return whether a package is installed."""
    others = [f for f in sys.meta_path if not getattr(f, "finds_stand_ins", False)]
    return any(f.find_spec(name, path, target) is not None for f in others)


# --- How poprun is told.


def message(kind, fields):
    # type: (int, list[bytes]) -> bytes
    """Pack a message as poprun/helpers/protocol.py does."""
    body = bytes([kind])
    for field in fields:
        body += len(field).to_bytes(4, "big") + field
    return len(body).to_bytes(4, "big") + body


def tell(control, rank, kind, fields=(), left_out=0):
    # type: (str, str, int, Any, int) -> Any
    """Tell poprun something; return the connection, or None if there is none.

    Args:
        left_out: How many bytes at the end of the message are written later.
    """
    # Not socket: it makes a namedtuple, and that makes CPython forget that it is to end
    # by SIGINT.
    import _socket as socket
    import struct

    name, _, key = os.fsencode(control).partition(b"/")
    sender = [b"%d" % VERSION, key, os.fsencode(rank)]
    data = message(kind, sender + list(fields))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    limit = struct.pack("ll", 0, int(LONGEST_S * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDTIMEO, limit)
    try:
        sock.connect(b"\0" + name[1:])
        user = sock.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8]
        if int.from_bytes(user, sys.byteorder) != os.geteuid():
            return None
        data = data[: len(data) - left_out]
        sock.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return None
    return sock


def show_stacks_on_signal():
    # type: () -> None
    """Let poprun's signal write the stacks of all threads to stderr."""
    import _signal
    import faulthandler

    # What the end of the interpreter restores: a late signal is ignored then.
    _signal.signal(STACKS_SIGNAL, _signal.SIG_IGN)
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


def observe(environ):
    # type: (dict[str, str]) -> None
    """Watch for MPI, and let poprun know what an interpreter with MPI exits with."""
    import atexit

    taken_over = []  # type: list[bool]
    importers = []  # type: list[int]

    def tell_poprun(*message):
        # type: (Any) -> Any
        return tell(environ[CONTROL], environ.get(RANK, ""), *message)

    def on_mpi():
        # type: () -> None
        if not taken_over:
            # A process that is forked from it later does not finalize MPI.
            importers.append(os.getpid())
            if not any(name in environ for name in RANKS_IN_MPI):
                tell_poprun(ALONE_IN_MPI)
            try:
                taken_over.append(take_finalize_over())
            except Exception:  # no ctypes, no /proc
                taken_over.append(False)

    def at_exit():
        # type: () -> None
        mpi = sys.modules.get("mpi4py.MPI")  # type: Any
        if mpi is None or os.getpid() not in importers:
            return
        try:
            if mpi.Is_initialized() and not mpi.Is_finalized():
                end_rank(mpi, tell_poprun, any(taken_over))
        except Exception:  # it is no mpi4py
            pass

    # Registered first, so it runs after all that the program registers.
    atexit.register(at_exit)
    sys.meta_path.insert(0, Finder(environ.get(SDK), on_mpi))
    show_stacks_on_signal()


def is_supported():
    # type: () -> bool
    """Return whether this interpreter is one whose end is understood."""
    if sys.version_info < (3, 6):  # noqa: UP036  # it is not the one that runs poprun
        return False
    return sys.implementation.name == "cpython" and CONTROL in os.environ


if __name__ == "sitecustomize":
    # Python 2 would clear a module to which no reference is left.
    _this = sys.modules.pop("sitecustomize")
    try:
        restore_path()
        if is_supported():
            observe(dict(os.environ))
    except Exception:
        pass
    # The one that Python would have found. It handles what this raises, too.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
