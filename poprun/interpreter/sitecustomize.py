"""Tells poprun the exit status of an MPI rank before the rank waits in MPI_Finalize.

It also makes the stand-ins that popdist.sdk.finder names importable
(--emulate-sdk), says where --torch-backend has no effect, has popdist give TensorFlow a
logical CPU for each local replica, leaves gloo's process groups at the program's end,
lets a signal show the stacks of all threads, and loads the debugger of --pdb.

poprun puts this folder first on PYTHONPATH, so every Python of an instance imports this
at its start. It runs inside the user's program: it loads on Python 3.6 and later (and
does no more than restore PYTHONPATH on Python 2), imports what an interpreter has
imported already, never raises and never prints.
"""

import os
import sys

# The name is the type checker's. It stands for modules and for functions of any kind.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any  # noqa: F401  # in type comments only

HERE = os.path.dirname(__file__)
# poprun puts the first in front of the caller's value, and the others in place of an
# empty value or of none: all three mean this folder.
BEFORE_VALUE, FOR_EMPTY, FOR_UNSET = HERE, HERE + "/", HERE + "//"

# Spelled in popdist/environment.py too, which not every Python can import.
CONTROL, RANK, SDK = "POPDIST_CONTROL", "RANK", "POPDIST_SDK"
PDB = "POPDIST_PDB"
TORCH_BACKEND = "POPDIST_TORCH_BACKEND"
NUM_LOCAL_REPLICAS = "POPDIST_NUM_LOCAL_REPLICAS"
# The same names as in popdist/sdk/finder.py.
STAND_INS = (
    "poptorch",
    "horovod",
    "horovod.torch",
    "horovod.tensorflow",
    "horovod.keras",
    "horovod.popart",
    "popart",
    "popxl",
    "libpvti",
    "tensorflow.python.ipu",
    "tensorflow.compiler.plugin",
)
# The same numbers as in poprun/wire/protocol.py.
VERSION, FINALIZING, ALONE_IN_MPI = 1, 40, 41
# By one of these every MPI tells its processes which rank they are.
RANKS_IN_MPI = ("PMI_RANK", "PMIX_RANK")
STACKS_SIGNAL = 55
# So long a program is held up at most by a poprun that does not answer.
LONGEST_S = 0.5
SO_SNDTIMEO, SO_PEERCRED = 21, 17
SIGPIPE = 13
HIGH_DESCRIPTOR = 100
# How the file names of MPI libraries begin.
MPI_LIBRARIES = ("/libmpi", "/libmpt")
# They overrule mpi4py.rc.
MPI4PY_OPTIONS = ("MPI4PY_RC_INITIALIZE", "MPI4PY_RC_FINALIZE")


def original(value):
    # type: (str) -> str | None
    """Return what PYTHONPATH would be without this folder; None for unset."""
    if value in (FOR_UNSET, BEFORE_VALUE):
        return None
    entries = []
    for entry in value.split(":"):
        if entry in (FOR_EMPTY, FOR_UNSET):
            entries.append("")  # a script has joined something to the caller's nothing
        elif entry != BEFORE_VALUE:
            entries.append(entry)
    return ":".join(entries)


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
# mpi4py calls MPI_Finalize at the end of the interpreter. A rank that has failed may
# wait there for ranks that wait for it. Only exit() of libc knows for certain what
# Python ends with. So exit() is made to write its status to poprun and then to call
# MPI_Finalize, in place of mpi4py, which would call it an instant earlier.


def take_finalize_over(ranks):
    # type: (dict[int, bool]) -> None
    """Keep mpi4py from calling MPI_Finalize, if exit() can do that."""
    ranks[os.getpid()] = False
    from ctypes import CDLL

    rc = sys.modules["mpi4py"].rc
    finalizes = rc.initialize if rc.finalize is None else rc.finalize
    with open("/proc/self/maps") as maps:
        # A library that uses MPI may have initialized it, and finalizes it then.
        is_loaded = any(name in line for line in maps for name in MPI_LIBRARIES)
    # The main() of another program goes on after the end of the interpreter.
    is_python = os.path.realpath(sys.executable) == os.readlink("/proc/self/exe")
    is_overruled = any(name in os.environ for name in MPI4PY_OPTIONS)
    if finalizes is True and is_python and not (is_loaded or is_overruled):
        rc.finalize = not hasattr(CDLL(None), "on_exit")  # musl has none
        ranks[os.getpid()] = not rc.finalize


def end_rank(ranks, tell_poprun):
    # type: (dict[int, bool], Any) -> None
    """Let exit() write its status to poprun as one byte, and then finalize MPI."""
    mpi = sys.modules.get("mpi4py.MPI")  # type: Any
    is_rank = mpi is not None and os.getpid() in ranks  # and not forked from one
    if not is_rank or mpi.Is_finalized() or not mpi.Is_initialized():
        return
    from _signal import SIG_IGN, signal  # type: ignore[import-not-found]
    from ctypes import CDLL, c_void_p

    libc, status = CDLL(None), b""
    if ranks[os.getpid()]:
        # exit() begins with what was registered last. Destructors of the program run
        # before, and MPI must not be finalized twice.
        finalize = getattr(CDLL(mpi.__file__), "MPI_Finalize", None)
        if finalize is None:
            mpi.Finalize()
            return
        libc.on_exit(finalize, None)
        mpi.Finalize, status = lambda: None, b"\0"
    descriptor = tell_poprun(FINALIZING, [status], len(status))
    if status:
        signal(SIGPIPE, SIG_IGN)  # poprun may close its end
        libc.fdopen.restype = c_void_p
        stream = c_void_p(libc.fdopen(descriptor, b"w"))
        libc.setbuf(stream, None)  # or the byte would come after MPI_Finalize
        libc.on_exit(libc.fputc, stream)


# --- How a program of torch.distributed ends.


def leave_torch_groups(instance):
    # type: (int) -> None
    """Leave the process groups of gloo that the program has not left.

    A thread of gloo's that lets go of a tensor once the interpreter is at its end would
    abort the process. popdist's groups end by themselves.

    Args:
        instance: The pid of the process that has groups, and not of a fork.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")  # type: Any
    if c10d is None or os.getpid() != instance or not c10d.is_initialized():
        return
    groups = list(c10d._world.pg_map)
    of_gloo = [group for group in groups if is_of_gloo(group)]
    if of_gloo:
        keep_connections()
    if len(of_gloo) == len(groups):
        c10d.destroy_process_group()
        return
    for group in of_gloo:
        # Without the default group all others would be left, too.
        if group is not c10d.GroupMember.WORLD:
            c10d.destroy_process_group(group)


def keep_connections():
    # type: () -> None
    """Keep the network connections of this process open until it has ended.

    An instance that has failed would close them by leaving its groups. Its peers could
    fail for this reason, and end before it does.
    """
    import _socket as socket

    folder = "/proc/self/fd/"
    for name in os.listdir(folder):
        try:
            if os.readlink(folder + name).startswith("socket:"):
                kept = socket.socket(fileno=os.dup(int(name)))
                # The program may close others after this, and wait for a child that
                # waits for their end.
                if kept.family == socket.AF_UNIX:
                    kept.close()
                else:
                    kept.detach()
        except OSError:
            continue  # the descriptor of listdir, or there are too many


def is_of_gloo(group):
    # type: (Any) -> bool
    """Return whether a process group is gloo's for all kinds of tensors."""
    # A group that is written in Python may have no backends, and is not asked.
    return type(group) is sys.modules["torch.distributed"].ProcessGroup and all(
        group._get_backend(device)._get_backend_name() == "gloo"
        for device in group._device_types
    )


# --- Imports of the program.


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
        has_devices = os.environ.get(NUM_LOCAL_REPLICAS, "1") != "1"
        if name == "tensorflow" and has_devices and name not in sys.modules:
            spec = find_elsewhere(name, path, target)
            if spec is not None:
                quietly(call_after_import, spec.loader, provide_logical_cpus)
            return spec
        if name not in self._stand_ins:
            return None
        try:
            from popdist.sdk.finder import find_spec
        except ImportError:
            if os.environ.get(SDK) != "yes" or find_elsewhere(name, path, target):
                return None
        else:
            return find_spec(name, path, target)
        raise missing(name, "--emulate-sdk=yes asks for a stand-in for {}")


def call_after_import(loader, function):
    # type: (Any, Any) -> None
    """Let a loader call a function after it has imported its next module."""
    usual = loader.exec_module

    def exec_module(module):
        # type: (Any) -> None
        vars(loader).pop("exec_module", None)
        usual(module)
        quietly(function)

    loader.exec_module = exec_module


def provide_logical_cpus():
    # type: () -> None
    """Give TensorFlow a logical CPU for each local replica, before it has run."""
    from popdist.tensorflow.devices import provide_local_devices

    provide_local_devices()


def check_torch_backend():
    # type: () -> None
    """Refuse the import of torch where --torch-backend has no effect."""
    if os.environ.get(TORCH_BACKEND) != "popdist":
        return
    request = "--torch-backend=popdist asks for popdist as a backend of {}"
    if not find_elsewhere("poprun"):
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
    available = entry_points()  # type: Any
    try:
        group = available.select(group="torch.backends")
    except AttributeError:  # before Python 3.10
        group = available.get("torch.backends", ())
    return any(entry.name == "popdist" for entry in group)


def missing(name, request, needed="popdist"):
    # type: (str, str, str) -> ModuleNotFoundError
    """Return the error for a Python that lacks a package for an option."""
    text = (
        request + ", but it needs {}, which {} does not have. Install poprun for this "
        "Python, or run the program with a Python that has it."
    )
    return ModuleNotFoundError(text.format(name, needed, sys.executable), name=name)


def find_elsewhere(name, path=None, target=None):
    # type: (str, Any, Any) -> Any
    """Return the spec of an installed package or module; None if there is none."""
    for finder in sys.meta_path:
        # An old finder has only find_module, as that of six before 1.16.
        if hasattr(finder, "find_spec") and not hasattr(finder, "finds_stand_ins"):
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                return spec
    return None


# --- How poprun is told.


def tell(control, rank, kind, fields=(), left_out=0):
    # type: (str, str, int, Any, int) -> int
    """Send poprun a message; return the descriptor of the connection, which stays open.

    Args:
        left_out: How many bytes at the end of the message are written later.

    Raises:
        OSError: There is no poprun.
    """
    # Not socket: it makes a namedtuple, and then CPython forgets to end by SIGINT.
    import _socket as socket
    import fcntl
    import struct

    name, _, key = os.fsencode(control).partition(b"/")
    # The format of poprun/wire/protocol.py.
    sender = [b"%d" % VERSION, key, os.fsencode(rank)]
    message = bytes([kind])
    for field in sender + list(fields):
        message += len(field).to_bytes(4, "big") + field
    message = len(message).to_bytes(4, "big") + message
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        limit = struct.pack("ll", 0, int(LONGEST_S * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDTIMEO, limit)
        sock.connect(b"\0" + name[1:])
        user = sock.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8]
        if int.from_bytes(user, sys.byteorder) != os.geteuid():
            raise PermissionError(name)
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        sock.send(message[: len(message) - left_out], flags)
        # The program may have closed lower descriptors, and the interpreter flushes
        # the buffers of these at its end.
        lowest = min(HIGH_DESCRIPTOR, os.sysconf("SC_OPEN_MAX") // 2)
        return int(fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, lowest))
    finally:
        sock.close()


def show_stacks_on_signal():
    # type: () -> None
    """Let poprun's signal write the stacks of all threads to stderr."""
    import _signal
    import faulthandler

    # The end of the interpreter restores this: a late signal is ignored then.
    _signal.signal(STACKS_SIGNAL, _signal.SIG_IGN)
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


def debug(tell_poprun):
    # type: (Any) -> None
    """Give this process the debugger of --pdb; its children get none."""
    from importlib.util import module_from_spec, spec_from_file_location

    # By its path: this Python may have no poprun.
    path = HERE + "/debugger.py"
    spec = spec_from_file_location("poprun_debugger", path)  # type: Any
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        module.install(tell_poprun)
    except Exception as error:
        # It imports modules that the program may have in their place.
        sys.stderr.write(f"poprun: --pdb finds no debugger here: {error!r}\n")


def quietly(function, *arguments):
    # type: (Any, Any) -> None
    """Call a function, and ignore its failure: it must not affect the program."""
    try:
        function(*arguments)
    except Exception:
        return  # no poprun, no ctypes, no /proc, or it is no mpi4py


def observe(control, rank, sdk):
    # type: (str, str, str | None) -> None
    """Watch for imports of the program, and for signals of poprun."""
    import atexit

    # By pid, because a process that is forked from a rank later is none: whether
    # exit() finalizes MPI.
    ranks = {}  # type: dict[int, bool]

    def tell_poprun(*message):
        # type: (Any) -> int
        return tell(control, rank, *message)

    def on_mpi():
        # type: () -> None
        if not ranks:
            if not any(name in os.environ for name in RANKS_IN_MPI):
                quietly(lambda: os.close(tell_poprun(ALONE_IN_MPI)))
            quietly(take_finalize_over, ranks)

    # Registered first, so it runs after all that the program registers.
    atexit.register(quietly, end_rank, ranks, tell_poprun)
    atexit.register(quietly, leave_torch_groups, os.getpid())
    sys.meta_path.insert(0, Finder(sdk, on_mpi))
    show_stacks_on_signal()
    if os.environ.pop(PDB, None):
        debug(tell_poprun)


def is_supported():
    # type: () -> bool
    """Return whether the end of this interpreter is understood."""
    if sys.version_info < (3, 6):  # noqa: UP036  # it is not the one that runs poprun
        return False
    return sys.implementation.name == "cpython" and CONTROL in os.environ


if __name__ == "sitecustomize":
    # Python 2 would clear a module to which no reference is left.
    _this = sys.modules.pop("sitecustomize")
    quietly(restore_path)
    if is_supported():
        quietly(observe, os.environ[CONTROL], os.getenv(RANK, ""), os.getenv(SDK))
    # The one that Python would have found. It handles what this raises, too.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
