"""Tells poprun that an instance's interpreter has ended and is about to finalise MPI.

It also makes popdist's stand-ins for poptorch, horovod and popart importable
(--emulate-sdk).

poprun puts this folder first on PYTHONPATH, so every Python of an instance imports this
at its start. It runs inside the user's program: it loads on Python 3.6 and later (and
does no more than restore PYTHONPATH on Python 2), imports what an interpreter has
imported already, never raises and never prints.

Only what is certain is told. CPython reads `SystemExit.code` with no Python frame on
the stack only when it exits with it; and an exception that nothing has caught, or the
end of the main module, shows in the frame of the main module.
"""

import os
import sys

# The names are the type checker's. Any stands for what typeshed does not describe:
# descriptors of built-in classes, and attributes that are replaced.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType, TracebackType  # noqa: F401  # in type comments only
    from typing import Any  # noqa: F401

HERE = os.path.dirname(__file__)
# What poprun puts in front of the caller's value, and instead of no or an empty one:
# all three mean this folder.
BEFORE_VALUE, FOR_EMPTY, FOR_UNSET = HERE, HERE + "/", HERE + "//"

# Spelled in popdist/environment.py too, which not every Python can import.
CONTROL, RANK, SDK = "POPDIST_CONTROL", "RANK", "POPDIST_SDK"
# As in popdist/sdk/finder.py.
STAND_INS, WITH_TORCH = ("poptorch", "horovod", "popart"), ("horovod.torch",)
# As in poprun/helpers/protocol.py.
VERSION, FINALIZING, ALONE_IN_MPI = 1, 40, 41
# By one of these every MPI tells its processes which rank they are.
RANKS_IN_MPI = ("PMI_RANK", "PMIX_RANK")
STACKS_SIGNAL = 55
# So long a program is held up at most by a poprun that does not answer.
LONGEST_S = 0.5
SO_SNDTIMEO, SO_PEERCRED = 21, 17

_codes = []  # type: list[object]  # what the interpreter has read to exit with
_main_frames = []  # type: list[FrameType]


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


# --- How the interpreter ends.


def exit_class():
    # type: () -> type
    """Make a SystemExit that notices when the interpreter exits with it."""
    from _thread import get_ident

    slot = SystemExit.code  # type: Any
    main = get_ident()

    def read(self):
        # type: (SystemExit) -> object
        code = slot.__get__(self)
        # No frame below: CPython's own handling of SystemExit asks.
        if sys._getframe().f_back is None and get_ident() == main:
            _codes.append(code)
        return code

    def write(self, code):
        # type: (SystemExit, object) -> None
        slot.__set__(self, code)

    class Like(type):
        """Programs compare the class of an exception with SystemExit."""

        def __eq__(cls, other):
            # type: (object) -> bool
            return other is cls or other is SystemExit

        def __hash__(cls):
            # type: () -> int
            return hash(SystemExit)

    namespace = {
        "__module__": "builtins",
        "__doc__": SystemExit.__doc__,
        "__reduce__": lambda self: (SystemExit, self.args),
        "code": property(read, write),
    }
    return Like("SystemExit", (SystemExit,), namespace)


def watch_exit():
    # type: () -> None
    """Replace sys.exit, exit and quit by ones whose exit status can be known."""
    from _thread import get_ident

    cls = exit_class()
    builtin_exit = sys.exit
    main = get_ident()

    def exit(status=None):
        # type: (Any) -> Any
        # In other threads the class counts: threading ignores SystemExit itself only.
        if get_ident() != main or isinstance(status, BaseException):
            builtin_exit(status)
        if status is None:
            raise cls()
        raise cls(*status) if isinstance(status, tuple) else cls(status)

    exit.__doc__ = builtin_exit.__doc__
    exit.__module__ = "sys"
    exit.__qualname__ = "exit"
    sys.exit = exit
    quitters = sys.modules.get("_sitebuiltins")  # type: Any
    if quitters is not None:
        quitters.SystemExit = cls


def watch_main(at_import):
    # type: (Any) -> None
    """Keep the frame of the main module when mpi4py is imported.

    Args:
        at_import: Is called then, once, unless it is None.
    """
    calls = [] if at_import is None else [at_import]

    def find(path):
        # type: (object) -> Any
        if str(path).endswith("mpi4py") and calls:
            attempt(calls.pop())
        if str(path).endswith("mpi4py") and not _main_frames:
            frame = sys._getframe()
            while frame.f_back is not None:
                frame = frame.f_back
            if is_main(frame):
                _main_frames.append(frame)
        raise ImportError

    sys.path_hooks.insert(0, find)


def attempt(call):
    # type: (Any) -> None
    """Call, and ignore a failure: the program must not see it."""
    try:
        call()
    except Exception:
        return


def is_main(frame):
    # type: (FrameType) -> bool
    """Return whether a frame is the outermost of the main program."""
    if frame.f_back is not None:
        return False
    name = frame.f_code.co_name
    if name == "_run_module_as_main":  # python -m
        return frame.f_globals.get("__name__") == "runpy"
    return name == "<module>" and frame.f_globals is vars(sys.modules["__main__"])


def last_operation(frame):
    # type: (FrameType) -> tuple[str, int]
    """Return the name and argument of what a frame did last."""
    import opcode

    code, at = frame.f_code.co_code, frame.f_lasti
    return opcode.opname[code[at]], code[at + 1]


def was_raised(traceback):
    # type: (TracebackType) -> bool
    """Return whether a frame ended by the exception of this traceback."""
    if traceback.tb_frame.f_lasti == traceback.tb_lasti:
        return True
    name, argument = last_operation(traceback.tb_frame)
    again = ("RERAISE", "END_FINALLY")
    return name in again or (name == "RAISE_VARARGS" and argument == 0)


def hook_runs():
    # type: () -> bool
    """Return whether sys.excepthook may not have returned.

    An own one that raises SystemExit by hand decides the exit code, and the interpreter
    ends inside its call. The caller of the hook in CPython refers to the traceback as
    long as the call lasts, so no other reference than those that follow means that it
    has returned.
    """
    count = sys.getrefcount
    name = "last_traceback"
    one = {name: object()}
    if name not in vars(sys):
        return False
    others = count(vars(sys)[name]) - count(one[name])
    value = getattr(sys, "last_value", None)
    is_values = getattr(value, "__traceback__", None) is vars(sys)[name]
    return others != (1 if is_values else 0)


def wait_status():
    # type: () -> int | None
    """Return what the interpreter exits with, as waitpid gives it; None if unknown."""
    if _codes:
        return exit_code(_codes[-1]) << 8
    if sys.flags.inspect or sys.flags.interactive or "PYTHONINSPECT" in os.environ:
        return None
    if hook_runs():
        return None
    traceback = getattr(sys, "last_traceback", None)
    if traceback and is_main(traceback.tb_frame) and was_raised(traceback):
        interrupted = sys.last_type is KeyboardInterrupt
        return 2 if interrupted and sys.version_info >= (3, 8) else 1 << 8
    for frame in _main_frames:
        if last_operation(frame)[0] in ("RETURN_VALUE", "RETURN_CONST"):
            return 0
    return None


def exit_code(code):
    # type: (object) -> int
    """Return the exit code that CPython makes of a SystemExit's code."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    return 1


# --- What the program can import.


class StandInFinder:
    """Finds the stand-ins with popdist, which is imported only then."""

    finds_stand_ins = True

    def find_spec(self, name, path=None, target=None):
        # type: (str, Any, Any) -> Any
        if name not in STAND_INS and name not in WITH_TORCH:
            return None
        try:
            from popdist.sdk.finder import find_spec
        except ImportError:
            if os.environ.get(SDK) != "yes" or found_by_others(name, path, target):
                return None
        else:
            return find_spec(name, path, target)
        text = (
            "--emulate-sdk=yes asks for a stand-in for {}, but it needs popdist, which "
            "{} does not have. Install poprun for this Python, or run the program with "
            "a Python that has it."
        )
        raise ModuleNotFoundError(text.format(name, sys.executable), name=name)


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


def tell(control, rank, kind, *numbers):
    # type: (str, str, int, int) -> Any
    """Tell poprun, and return the socket if it has been told."""
    # Not socket: it makes a namedtuple, and that makes CPython forget that it is to end
    # by SIGINT.
    import _socket as socket
    import struct

    name, _, key = os.fsencode(control).partition(b"/")
    fields = [b"%d" % VERSION, key, os.fsencode(rank)]
    fields += [b"%d" % number for number in numbers]
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    limit = struct.pack("ll", 0, int(LONGEST_S * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, SO_SNDTIMEO, limit)
    sock.connect(b"\0" + name[1:])
    user = sock.getsockopt(socket.SOL_SOCKET, SO_PEERCRED, 12)[4:8]
    if int.from_bytes(user, sys.byteorder) != os.geteuid():
        return None
    sock.send(message(kind, fields), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    return sock


def show_stacks_on_signal():
    # type: () -> None
    """Let poprun's signal write the stacks of all threads to stderr."""
    import _signal  # type: ignore[import-not-found]  # typeshed has signal only
    import faulthandler

    # What the end of the interpreter restores: a late signal is ignored then.
    _signal.signal(STACKS_SIGNAL, _signal.SIG_IGN)
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True)


def observe(environ):
    # type: (dict[str, str]) -> None
    """Watch how this interpreter ends, and tell poprun if it then finalises MPI."""
    import atexit

    control, rank, pid = environ[CONTROL], environ.get(RANK, ""), os.getpid()

    def at_exit():
        # type: () -> None
        try:
            mpi = sys.modules.get("mpi4py.MPI")
            if mpi is None or os.getpid() != pid:
                return
            if mpi.Is_initialized() and not mpi.Is_finalized():
                status = wait_status()
                if status != 0:
                    # The connection stays until the process ends, and says so then.
                    sock = tell(control, rank, FINALIZING, status or 0)
                    if sock is not None:
                        sock.detach()
        except Exception:  # then nothing is known
            pass
        finally:
            del _main_frames[:]

    # Registered first, so it runs after all that the program registers.
    atexit.register(at_exit)
    watch_exit()
    watch_main(None if has_mpi(environ) else lambda: tell(control, rank, ALONE_IN_MPI))
    show_stacks_on_signal()


def has_mpi(environ):
    # type: (dict[str, str]) -> bool
    """Return whether an MPI has told this process which rank it is."""
    return any(name in environ for name in RANKS_IN_MPI)


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
            if os.environ.get(SDK) != "no":
                sys.meta_path.insert(0, StandInFinder())
    except Exception:
        pass
    # The one that Python would have found. It handles what this raises, too.
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
