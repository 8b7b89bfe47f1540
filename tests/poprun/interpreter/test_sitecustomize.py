"""What runs in the Python interpreter of an instance, told by whole interpreters.

Set POPRUN_TEST_PYTHONS to a colon-separated list of other Pythons to try them too.
"""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from python_environments import make_environment

from popdist import environment as env
from popdist.sdk import finder
from poprun.interpreter import sitecustomize as hook
from poprun.job import job_description
from poprun.reach.hosts import Preflight
from poprun.wire import protocol
from poprun.wire.channel import peer_of

OTHERS = os.getenv("POPRUN_TEST_PYTHONS", "")
PYTHONS = [sys.executable, *filter(None, OTHERS.split(":"))]
UNKNOWN, NOTHING = b"", None

# An MPI that has been initialised, and the library that it calls.
MPI = """
import ctypes, sys
import mpi4py
__file__ = {library!r}
def Is_initialized(): return True
def Is_finalized(): return False
Finalize = ctypes.CDLL(__file__).MPI_Finalize
"""
MPI4PY = """
class rc:
    initialize, finalize = True, None
"""
LIBRARY = """
#include <unistd.h>
int MPI_Finalize(void) { return (int)write(1, "finalized\\n", 10); }
"""


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("")  # an abstract name that the kernel chooses
        sock.listen()
        sock.setblocking(False)
        yield sock


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library of an MPI."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "library.c").write_text(LIBRARY)
    path = folder / "libtest.so"
    words = ["cc", "-shared", "-fPIC", "-o", str(path), str(folder / "library.c")]
    subprocess.run(words, check=True)
    return path


@pytest.fixture
def packages(tmp_path: Path, library: Path) -> Path:
    """Make a folder with an mpi4py."""
    package = tmp_path / "packages" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(MPI4PY)
    (package / "MPI.py").write_text(MPI.format(library=str(library)))
    return package.parent


def run(
    python: str, *words: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words],
        env=job_description.with_interpreter(
            {"PATH": "/usr/bin:/bin", **variables}, Preflight().facts().interpreter
        ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def told(listener: socket.socket) -> bytes | None:
    """Return the status that an interpreter has told; None if it has told nothing."""
    try:
        sock, _ = listener.accept()
    except BlockingIOError:
        return None
    with sock:
        messages = protocol.Decoder().feed(sock.recv(4096))
        assert peer_of(sock)[0] > 0
    if not messages:
        return None
    [(kind, fields)] = messages
    assert (kind, fields[:3]) == (
        protocol.FINALIZING,
        [b"%d" % protocol.VERSION, b"key", b"7"],
    )
    return fields[3]


class End(NamedTuple):
    """How an interpreter has ended, and what poprun was told of it."""

    code: int
    told: bytes | None
    finalized: int  # how often


def end(
    python: str, listener: socket.socket, packages: Path, *words: str, **variables: str
) -> End:
    """Run a program with MPI."""
    name = listener.getsockname()[1:].decode()
    told_it = {env.CONTROL: f"@{name}/key", env.RANK: "7", "PYTHONPATH": str(packages)}
    told_it["PMI_RANK"] = "7"
    ran = run(python, *words, **{**told_it, **variables})
    return End(ran.returncode, told(listener), ran.stdout.count("finalized\n"))


def test_constants_are_those_of_poprun() -> None:
    assert (hook.CONTROL, hook.RANK) == (env.CONTROL, env.RANK)
    assert (hook.VERSION, hook.FINALIZING) == (protocol.VERSION, protocol.FINALIZING)
    assert hook.ALONE_IN_MPI == protocol.ALONE_IN_MPI
    assert hook.SDK == env.SDK
    assert hook.NUM_LOCAL_REPLICAS == env.NUM_LOCAL_REPLICAS
    assert tuple(finder.STAND_INS) == hook.STAND_INS
    assert hook.STACKS_SIGNAL == protocol.STACKS_SIGNAL
    assert Preflight().facts().interpreter == hook.HERE


# --- How a program of torch.distributed ends.

LAST = """
import os, sys
import torch.distributed as dist

class Last:
    def __del__(self, groups=dist.distributed_c10d._world.pg_map, write=os.write):
        write(1, b"%d groups\\n" % len(groups))

# The interpreter deletes it after it has called the functions of atexit.
last = Last()

def join(backend):
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
"""


@pytest.mark.parametrize(
    ("program", "code", "left"),
    [
        ("join('gloo')", 0, [0]),
        ("join(None); dist.new_group([0])", 0, [0]),
        ("join('gloo'); sys.exit(3)", 3, [0]),
        ("join('gloo'); dist.destroy_process_group()", 0, [0]),
        # What it uses at its own end is there.
        (
            "import atexit; join('gloo')\n"
            "atexit.register(lambda: sys.stderr.write(str(dist.get_world_size())))",
            0,
            [0],
        ),
        # popdist ends its own groups, and waits for no call then.
        ("import popdist.torch; join('popdist')", 0, [1]),
        (
            "import popdist.torch; join('popdist')\n"
            "dist.new_group([0], backend='gloo')",
            0,
            [1],
        ),
        # A fork has no threads of gloo's: it would wait for them for ever.
        (
            "import atexit; join('gloo')\n"
            "if os.fork():\n    os.wait()\n"
            "else:\n    atexit._run_exitfuncs(); last.__del__(); os._exit(0)",
            0,
            [1, 0],
        ),
        ("1 / 0", 1, [0]),
    ],
)
def test_groups_of_gloo_that_a_program_has_not_left_are_left(
    program: str, code: int, left: list[int]
) -> None:
    ran = run(sys.executable, "-c", LAST + program, **{env.CONTROL: "@none/key"})

    assert ran.returncode == code, ran.stderr
    assert ran.stdout == "".join(f"{number} groups\n" for number in left)


def test_torch_is_not_imported_to_leave_groups() -> None:
    program = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules))"
    )

    ran = run(sys.executable, "-c", program, **{env.CONTROL: "@none/key"})

    assert ran.stdout == "False\n"


# --- What is told of an end.

IMPORT = "import sys; from mpi4py import MPI\n"
HOOK = "def hook(*exception): pass\nsys.excepthook = hook\n"
# A first attempt fails, and the second one succeeds on the same line.
RETRY = """
def attempt(number):
    if number == 0:
        raise ValueError
    raise SystemExit(0)
for number in range(2):
    try:
        attempt(number)
    except ValueError as error:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
"""
HOOKS_THAT_EXIT = {
    "function": "def hook(*e): raise SystemExit({code})",
    "exit-function": "def hook(*e): sys.exit({code})",
    "from-context": "def hook(*e):\n  try: 1 / 0\n"
    "  except Exception: raise SystemExit({code})",
    "without-traceback": "def hook(t, v, tb):\n"
    "  v.__traceback__ = None\n  raise SystemExit({code})",
    "subclass": "class A(SystemExit): pass\ndef hook(*e): raise A({code})",
    "exit-functions": "import atexit\ndef hook(*e):\n"
    "  atexit._run_exitfuncs()\n  raise SystemExit({code})",
}
LAST_ATTRIBUTES = "sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()"
ENDINGS = {
    "end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "from-sys": ("from sys import exit; exit(3)", 3),
    "exit": ("exit(3)", 3),
    "quit": ("quit(3)", 3),
    "nothing": ("sys.exit()", 0),
    "text": ("sys.exit('text')", 1),
    "bool": ("sys.exit(True)", 1),
    "negative": ("sys.exit(-1)", 255),
    "beyond-a-byte": ("sys.exit(259)", 3),
    "all-of-a-byte": ("sys.exit(256)", 0),
    "beyond-a-long": ("sys.exit(1 << 80)", 255),
    "tuple": ("sys.exit((1, 2))", 1),
    "by-hand": ("raise SystemExit(5)", 5),
    "by-hand-success": ("raise SystemExit(0)", 0),
    "retry": (RETRY, 0),
    "code-set": (
        "try: sys.exit(3)\nexcept SystemExit as e: e.code = 4; raise",
        4,
    ),
    "caught": ("try: sys.exit(3)\nexcept SystemExit: pass", 0),
    "saved": ("try: sys.exit(3)\nexcept SystemExit as e: saved = e", 0),
    "exception": ("raise ValueError", 1),
    "deep": ("def f(): g()\ndef g(): 1 / 0\nf()", 1),
    "finally": ("try: 1 / 0\nfinally: print()", 1),
    "raised-again": ("try: 1 / 0\nexcept Exception: print(); raise", 1),
    "exit-in-except": ("try: 1 / 0\nexcept Exception: sys.exit(5)", 5),
    "own-excepthook": (HOOK + "1 / 0", 1),
    "excepthook-that-fails": (
        "def hook(*e): raise KeyError\nsys.excepthook = hook\n1 / 0",
        1,
    ),
    **{
        f"excepthook-{name}-{code}": (
            f"{text.format(code=code)}\nsys.excepthook = hook\n1 / 0",
            code,
        )
        for name, text in HOOKS_THAT_EXIT.items()
        for code in (0, 6)
    },
    "last-attributes-of-the-program": (
        f"try: 1 / 0\nexcept Exception: {LAST_ATTRIBUTES}",
        0,
    ),
    "interactive-interpreter": (
        "import code\ncode.InteractiveInterpreter().runsource('1 / 0')",
        0,
    ),
    "exit-of-a-thread": (
        "from threading import Thread\nt = Thread(target=sys.exit, args=(3,))\n"
        "t.start(); t.join()",
        0,
    ),
    "exception-of-a-thread": (
        "from threading import Thread\nt = Thread(target=lambda: 1 / 0)\n"
        "t.start(); t.join()",
        0,
    ),
    "exception-of-a-destructor": (
        "class A:\n  def __del__(self): 1 / 0\na = A(); del a",
        0,
    ),
    "exception-at-exit": ("import atexit; atexit.register(lambda: 1 / 0)", 0),
    "exit-functions-by-hand": ("import atexit; atexit._run_exitfuncs()", 0),
    "sigpipe": ("from signal import *; signal(SIGPIPE, SIG_DFL); sys.exit(3)", 3),
    "finalized-by-a-destructor": (
        "class A:\n  def __del__(self): MPI.Finalize()\na = A(); sys.exit(3)",
        3,
    ),
}


@pytest.mark.parametrize(("ending", "code"), ENDINGS.values(), ids=ENDINGS)
def test_an_mpi_rank_tells_its_exit_status_and_is_finalized_once(
    python: str, listener: socket.socket, packages: Path, ending: str, code: int
) -> None:
    ended = end(python, listener, packages, "-c", IMPORT + ending)

    assert ended == End(code, b"%c" % code, finalized=1)


def test_a_forked_process_that_imports_mpi_is_an_mpi_rank(
    python: str, listener: socket.socket, packages: Path
) -> None:
    wait = "os._exit(os.wait()[1] >> 8)"
    program = f"import os\nif os.fork(): {wait}\n{IMPORT}sys.exit(3)"

    ended = end(python, listener, packages, "-c", program)

    assert ended == End(3, b"\3", finalized=1)


def test_a_process_forked_from_an_mpi_rank_is_none(
    python: str, listener: socket.socket, packages: Path
) -> None:
    wait = "os._exit(os.wait()[1] >> 8)"
    program = f"{IMPORT}import os\nif os.fork(): {wait}\nsys.exit(3)"

    ended = end(python, listener, packages, "-c", program)

    assert ended == End(3, NOTHING, finalized=0)


CLOSE_STDOUT = """
import os
sys.stdout = open(1, "w", buffering=4096)
sys.stdout.write("lost")
os.close(1)
sys.exit(3)
"""


def test_output_to_a_closed_descriptor_is_not_told_as_status(
    python: str, listener: socket.socket, packages: Path
) -> None:
    ended = end(python, listener, packages, "-c", IMPORT + CLOSE_STDOUT)

    # Python itself cannot flush stdout.
    assert ended == End(120, b"%c" % 120, finalized=0)


@pytest.mark.parametrize(
    "options", [["-m", "program"], ["program.py"], ["folder"], ["-i", "program.py"]]
)
def test_every_way_to_run_a_program_is_understood(
    python: str, listener: socket.socket, packages: Path, options: list[str]
) -> None:
    text = IMPORT + "import os\nif 'FAIL' in os.environ: sys.exit(4)"
    (packages / "program.py").write_text(text)
    (packages / "folder").mkdir()
    (packages / "folder" / "__main__.py").write_text(text)
    here = ("program.py", "folder")
    words = [str(packages / w) if w in here else w for w in options]

    failed = end(python, listener, packages, *words, FAIL="1")
    succeeded = end(python, listener, packages, *words)

    # -i shows the exception, and goes on.
    code = 0 if options[0] == "-i" else 4
    assert failed == End(code, b"%c" % code, finalized=1)
    assert succeeded == End(0, b"\0", finalized=1)


@pytest.mark.parametrize("name", ["MPI4PY_RC_FINALIZE", "MPI4PY_RC_INITIALIZE"])
def test_the_status_is_unknown_where_mpi4py_is_configured(
    python: str, listener: socket.socket, packages: Path, name: str
) -> None:
    program = f"{IMPORT}assert MPI.mpi4py.rc.finalize is None; sys.exit(3)"

    ended = end(python, listener, packages, "-c", program, **{name: "1"})

    assert ended == End(3, UNKNOWN, finalized=0)


def test_the_status_is_unknown_where_mpi_was_loaded_before_mpi4py(
    python: str, listener: socket.socket, packages: Path, library: Path
) -> None:
    loaded = packages / "libmpi.so.1"
    loaded.write_bytes(library.read_bytes())
    program = f"import ctypes; ctypes.CDLL({str(loaded)!r})\n{IMPORT}sys.exit(3)"

    ended = end(python, listener, packages, "-c", program)

    assert ended == End(3, UNKNOWN, finalized=0)


def test_a_program_that_finalizes_mpi_itself_goes_on_doing_so(
    python: str, listener: socket.socket, packages: Path
) -> None:
    program = (
        "import sys, mpi4py; mpi4py.rc.finalize = False; from mpi4py import MPI\n"
        "MPI.Finalize(); MPI.Is_finalized = lambda: True; sys.exit(3)"
    )

    ended = end(python, listener, packages, "-c", program)

    assert ended == End(3, NOTHING, finalized=1)


@pytest.mark.parametrize(
    ("program", "code"),
    [
        pytest.param("import sys; sys.exit(3)", 3, id="without-MPI"),
        pytest.param(
            f"{IMPORT}MPI.Is_finalized = lambda: True\nsys.exit(3)", 3, id="finalised"
        ),
        pytest.param(
            f"{IMPORT}MPI.Is_initialized = lambda: False\nsys.exit(3)",
            3,
            id="not-initialised",
        ),
        pytest.param(
            f"{IMPORT}import os\npid = os.fork()\nif not pid: sys.exit(3)\n"
            "os.waitpid(pid, 0); os._exit(3)",
            3,
            id="forked-child",
        ),
        pytest.param(
            f"{IMPORT}import multiprocessing as m\nif __name__ == '__main__':\n"
            "  c = m.get_context('fork').Process(target=sys.exit, args=(3,))\n"
            "  c.start(); c.join(); import os; os._exit(c.exitcode)",
            3,
            id="multiprocessing",
        ),
        pytest.param(f"{IMPORT}import os; os._exit(4)", 4, id="at-once"),
    ],
)
def test_nothing_is_told_where_mpi_is_not_to_be_finalised(
    python: str, listener: socket.socket, packages: Path, program: str, code: int
) -> None:
    ended = end(python, listener, packages, "-c", program)

    assert ended == End(code, NOTHING, finalized=0)


def test_an_interrupt_ends_a_rank_as_it_ends_python(
    python: str, listener: socket.socket, packages: Path
) -> None:
    ended = end(python, listener, packages, "-c", f"{IMPORT}raise KeyboardInterrupt")

    # By SIGINT without exit() from 3.8 on, with 1 before.
    by_signal, by_exit = End(-2, NOTHING, finalized=0), End(1, b"\1", finalized=1)
    assert ended in (by_signal, by_exit)


def test_an_interpreter_without_a_poprun_ends_as_ever(
    python: str, packages: Path
) -> None:
    ran = run(
        python,
        *("-c", IMPORT + "sys.exit(3)"),
        **{env.CONTROL: "@poprun-no-listener/key", "PYTHONPATH": str(packages)},
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "finalized\n", "")


# --- What a program sees of it.

PATHS = "import os, sys; print(os.environ.get('PYTHONPATH')); print(sys.path[1:])"


@pytest.mark.parametrize(
    "value", [None, "", "/a", "/a::/b:", ":", "/caf\udce9", "/a:/a"]
)
def test_pythonpath_is_the_callers(
    python: str, tmp_path: Path, value: str | None
) -> None:
    given = {} if value is None else {"PYTHONPATH": value}
    program = (
        "import os, sys, subprocess as s; a = [sys.executable, '-c',"
        "'import os; print([os.environb.get(b\"PYTHONPATH\")])']\n"
        "print([os.environb.get(b'PYTHONPATH')], sys.path)\nsys.stdout.flush()\n"
        "s.call(a)"
    )
    bare = subprocess.run(
        [python, "-c", program],
        env={"PATH": "/usr/bin", **given},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    ran = run(python, "-c", program, cwd=tmp_path, **given)

    assert (ran.returncode, ran.stdout, ran.stderr) == (0, bare.stdout, "")


@pytest.mark.parametrize(
    ("value", "joined"),
    [
        *((None, joined) for joined in ("/x:$PYTHONPATH", "$PYTHONPATH:/x", "/x")),
        *(("", joined) for joined in ("/x:$PYTHONPATH", "$PYTHONPATH:/x", "/x")),
        *(("/a", joined) for joined in ("/x:$PYTHONPATH", "$PYTHONPATH:/x", "/x")),
        ("/a", "/x${PYTHONPATH:+:$PYTHONPATH}"),
    ],
)
def test_a_script_may_join_something_to_pythonpath(
    python: str, tmp_path: Path, value: str | None, joined: str
) -> None:
    given = {} if value is None else {"PYTHONPATH": value}
    script = f'export PYTHONPATH="{joined}"; exec "$0" -c "$1"'
    bare = subprocess.run(
        ["sh", "-c", script, python, PATHS],
        env={"PATH": "/usr/bin", **given},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    ran = run("sh", "-c", script, python, PATHS, cwd=tmp_path, **given)

    assert (ran.stdout, ran.stderr) == (bare.stdout, bare.stderr)


@pytest.mark.parametrize(
    "text",
    [
        "print('here')",
        "import os, sys; print(os.environ['PYTHONPATH'], __file__, sys.path[:1])",
        "raise ValueError('no')",
        "import no_such_module",
        "raise SystemExit(3)",
        "1 +",
    ],
)
def test_the_sitecustomize_of_the_user_runs_as_ever(
    python: str, tmp_path: Path, text: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(text)
    program = "import sys; print(sys.modules.get('sitecustomize'))"
    environ = {"PATH": "/usr/bin", "PYTHONPATH": str(tmp_path)}
    bare = subprocess.run(
        [python, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    ran = run(python, "-c", program, **environ)

    assert (ran.returncode, ran.stdout) == (bare.returncode, bare.stdout)
    # A traceback of an end by sitecustomize has frames of ours.
    assert ran.stderr.splitlines()[-1:] == bare.stderr.splitlines()[-1:]


def test_a_module_named_sitecustomize_is_none_of_ours(python: str) -> None:
    program = "import sys; print('sitecustomize' in sys.modules)"
    bare = subprocess.run(
        [python, "-c", program],
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run(python, "-c", program).stdout == bare.stdout


# --- Small programs are the same with and without poprun.

PROGRAMS = {
    "exit-class": (
        "import sys\ntry: sys.exit(3)\n"
        "except SystemExit as e: print(type(e) is SystemExit, e.code, e.args, repr(e))"
    ),
    "exit-keyword": "import sys; sys.exit(status=3)",
    "exit-two-arguments": "import sys; sys.exit(1, 2)",
    "exit-tuple": "import sys; sys.exit((1, 2))",
    "exit-text": "import sys; sys.exit('no data')",
    "exit-function": "import sys; print(sys.exit, type(sys.exit), sys.exit.__doc__)",
    "exit-traceback": (
        "import sys, traceback\ntry: sys.exit(3)\n"
        "except SystemExit: traceback.print_exc()"
    ),
    "exit-context": (
        "import sys, traceback\ntry:\n  try: 1 / 0\n  finally: sys.exit(3)\n"
        "except SystemExit as e: traceback.print_exception(e); print(e.__context__)"
    ),
    "exit-by-hand": "raise SystemExit(4)",
    "exit-subclass": "class A(SystemExit): pass\nraise A(5)",
    "exit-pickled": (
        "import pickle, sys\ntry: sys.exit(3)\n"
        "except SystemExit as e: print(pickle.dumps(e))"
    ),
    "quit": "print(quit, exit, type(quit)); quit(6)",
    "site-exit": "exit('bye')",
    "exception": "def f(): raise ValueError('no such layer')\nf()",
    "chained": "try: 1 / 0\nexcept Exception as e: raise KeyError('x') from e",
    "in-function": "def f(n): return f(n - 1) if n else 1 / n\nf(3)",
    "recursion": "import sys\ndef f(): f()\ntry: f()\nexcept RecursionError: print(1)",
    "syntax-error": "1 +",
    "no-such-module": "import no_such_module",
    "no-such-name": "from os import no_such_name",
    "interrupt": "raise KeyboardInterrupt",
    "thread": (
        "import threading, sys\nt = threading.Thread(target=sys.exit, args=(3,))\n"
        "t.start(); t.join(); print('end')"
    ),
    "thread-exception": (
        "import threading\nt = threading.Thread(target=lambda: 1 / 0, name='t')\n"
        "t.start(); t.join()"
    ),
    "excepthook": (
        "import sys\nprint(sys.excepthook is sys.__excepthook__)\n"
        "sys.excepthook = lambda *e: print('hook', e[0])\n1 / 0"
    ),
    "excepthook-exit": ("import sys\nsys.excepthook = lambda *e: sys.exit(7)\n1 / 0"),
    "excepthook-fails": (
        "import sys\ndef hook(*e): raise KeyError\nsys.excepthook = hook\n1 / 0"
    ),
    "last-value": (
        "import sys, atexit\n"
        "atexit.register(lambda: print(sys.last_value, sys.last_type))\n1 / 0"
    ),
    "exit-functions": (
        "import atexit\nfor n in range(3): atexit.register(print, n)\n"
        "class A:\n  def __del__(self): print('del')\na = A()"
    ),
    "exit-function-fails": "import atexit; atexit.register(lambda: 1 / 0)",
    "at-once": "import os; print('x', flush=True); os._exit(8)",
    "signals": ("import signal\nfor n in (2, 10, 13, 15): print(signal.getsignal(n))"),
    "multiprocessing": (
        "import multiprocessing, sys\n"
        "c = multiprocessing.get_context('fork').Process(target=sys.exit, args=(9,))\n"
        "c.start(); c.join(); print(c.exitcode)"
    ),
    "path-hooks": "import sys; print(sys.path_hooks, sys.path, sys.gettrace())",
    "unittest": (
        "import sys, unittest\nclass T(unittest.TestCase):\n  def test(self):\n"
        "    with self.assertRaises(SystemExit) as e: sys.exit(3)\n"
        "    self.assertIs(type(e.exception), SystemExit)\n"
        "r = unittest.TextTestRunner(stream=sys.stdout, verbosity=0)\n"
        "r = unittest.main(testRunner=r, exit=False).result; print(r)"
    ),
}


@pytest.mark.parametrize("way", ["-c", "script", "-m"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_without_mpi_sees_nothing_of_it(
    python: str, listener: socket.socket, tmp_path: Path, program: str, way: str
) -> None:
    (tmp_path / "program.py").write_text(program)
    words = {"-c": ["-c", program], "script": ["program.py"], "-m": ["-m", "program"]}
    name = listener.getsockname()[1:].decode()
    given = {"PATH": "/usr/bin:/bin", env.CONTROL: f"@{name}/key", env.RANK: "7"}

    bare = subprocess.run(
        [python, *words[way]],
        env=given,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    ran = run(python, *words[way], cwd=tmp_path, **given)

    def without_times(text: str) -> str:
        return re.sub(r"0x[0-9a-f]+|in \d+\.\d+s", "", text)

    assert ran.returncode == bare.returncode
    assert without_times(ran.stdout) == without_times(bare.stdout)
    assert without_times(ran.stderr) == without_times(bare.stderr)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("sys.exit(status=3)", id="keyword"),
        pytest.param(
            "import traceback\ntry: sys.exit(3)\n"
            "except SystemExit as e: print(type(e) is SystemExit)\n"
            "traceback.print_exc(); print(sys.excepthook is sys.__excepthook__)",
            id="class",
        ),
        pytest.param("def f(): raise ValueError\nf()", id="traceback"),
    ],
)
def test_a_program_with_mpi_sees_the_same_exit_functions(
    python: str, packages: Path, program: str
) -> None:
    given = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages)}
    bare = subprocess.run(
        [python, "-c", IMPORT + program],
        env=given,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    ran = run(python, "-c", IMPORT + program, **given, **{env.CONTROL: "@none/key"})

    assert (ran.returncode, ran.stderr) == (bare.returncode, bare.stderr)
    assert ran.stdout == bare.stdout + "finalized\n"


# --- What the program can import.

FIND = "import importlib.util as u; spec = u.find_spec('horovod'); print(spec.origin)"


def in_job(*words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return run(sys.executable, *words, **{env.CONTROL: "@none/key", **variables})


def test_an_instance_finds_the_stand_ins() -> None:
    assert in_job("-c", FIND).stdout == f"{finder.PACKAGES}/horovod/__init__.py\n"


def test_outside_of_a_job_there_are_none() -> None:
    ran = run(sys.executable, "-c", "import horovod")

    assert ran.stderr.endswith("No module named 'horovod'\n")


def test_with_no_there_are_none() -> None:
    ran = in_job("-c", "import horovod", POPDIST_SDK="no")

    assert ran.stderr.endswith("No module named 'horovod'\n")


def test_an_installed_package_wins(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").touch()

    ran = in_job("-c", FIND, PYTHONPATH=str(tmp_path), POPDIST_SDK="yes")

    assert ran.stdout == f"{tmp_path}/horovod/__init__.py\n"


@pytest.mark.parametrize("asked", ["auto", "yes"])
def test_a_python_without_popdist_has_none_and_says_why_if_asked(
    tmp_path: Path, asked: str
) -> None:
    python, _ = make_environment(tmp_path / "venv", popdist=False)
    in_it = {env.CONTROL: "@none/key", "POPDIST_SDK": asked}

    ran = run(python, "-c", "import json, horovod", cwd=tmp_path, **in_it)

    reason = (
        "--emulate-sdk=yes asks for a stand-in for horovod, but it needs popdist, "
        f"which {python} does not have. Install poprun for this Python, or run the "
        "program with a Python that has it."
    )
    text = reason if asked == "yes" else "No module named 'horovod'"
    assert ran.stderr.endswith(f"\nModuleNotFoundError: {text}\n")


def test_a_python_without_popdist_says_that_torch_lacks_the_backend_asked_for(
    tmp_path: Path,
) -> None:
    python, _ = make_environment(tmp_path / "venv", popdist=False)
    (tmp_path / "torch.py").touch()
    in_it = {env.CONTROL: "@none/key"}

    ran = run(
        *(python, "-c", "import json, torch"),
        cwd=tmp_path,
        **{**in_it, "POPDIST_TORCH_BACKEND": "popdist"},
    )

    assert ran.stderr.endswith(
        "\nModuleNotFoundError: --torch-backend=popdist asks for popdist as a backend "
        f"of torch, but it needs popdist, which {python} does not have. Install poprun "
        "for this Python, or run the program with a Python that has it.\n"
    )
    for backend in ("gloo", ""):
        asked = {**in_it, "POPDIST_TORCH_BACKEND": backend}
        ran = run(python, "-c", "import json, torch", cwd=tmp_path, **asked)
        assert ran.returncode == 0, ran.stderr


def test_a_poprun_that_is_importable_and_not_installed_is_no_backend_of_torch(
    tmp_path: Path,
) -> None:
    python, _ = make_environment(tmp_path / "venv", popdist=False)
    (tmp_path / "torch.py").touch()
    (tmp_path / "poprun.py").touch()
    asked = {env.CONTROL: "@none/key", "POPDIST_TORCH_BACKEND": "popdist"}

    ran = run(python, "-c", "import json, torch", cwd=tmp_path, **asked)

    assert ran.stderr.endswith(
        "\nModuleNotFoundError: --torch-backend=popdist asks for popdist as a backend "
        "of torch, but it needs an up-to-date installation of poprun, which "
        f"{python} does not have. Install poprun for this Python, or run the program "
        "with a Python that has it.\n"
    )
    info = tmp_path / "poprun-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: poprun\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[torch.backends]\npopdist = poprun:no\n")
    ran = run(python, "-c", "import json, torch", cwd=tmp_path, **asked)
    assert ran.returncode == 0, ran.stderr


def test_a_python_without_popdist_finds_what_it_has(tmp_path: Path) -> None:
    python, _ = make_environment(tmp_path / "venv", popdist=False)
    (tmp_path / "horovod.py").touch()
    in_it = {env.CONTROL: "@none/key", "POPDIST_SDK": "yes"}

    ran = run(python, "-c", FIND, cwd=tmp_path, **in_it)

    assert ran.stdout == f"{tmp_path}/horovod.py\n"


@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_a_python_that_ignores_pythonpath_has_none(flag: str) -> None:
    ran = in_job(flag, "-c", "import horovod")

    assert ran.stderr.endswith("No module named 'horovod'\n")


# --- TensorFlow gets a logical CPU for each local replica.

# What is imported in place of TensorFlow, and of the module that gives it devices.
TENSORFLOW = "print('tensorflow')\n"
DEVICES = """
import sys
def provide_local_devices():
    print("devices", "tensorflow" in sys.modules, __import__("tensorflow").__file__)
"""


@pytest.fixture
def tensorflow(tmp_path: Path) -> Path:
    """Return a folder with a tensorflow and a popdist that are no real ones."""
    for package in ("tensorflow", "popdist", "popdist/tensorflow"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "tensorflow" / "__init__.py").write_text(TENSORFLOW)
    (tmp_path / "popdist" / "tensorflow" / "devices.py").write_text(DEVICES)
    return tmp_path


def with_tensorflow(
    folder: Path, program: str, way: str = "-c", replicas: str = "2", **variables: str
) -> "subprocess.CompletedProcess[str]":
    """Run a program in an instance of a Python that has these packages alone."""
    python, _ = make_environment(folder / "venv", popdist=False)
    (folder / "program.py").write_text(program)
    words = {"-c": ["-c", program], "script": ["program.py"], "-m": ["-m", "program"]}
    instance = {env.CONTROL: "@none/key", env.NUM_LOCAL_REPLICAS: replicas}
    return run(python, *words[way], cwd=folder, **instance, **variables)


@pytest.mark.parametrize("way", ["-c", "script", "-m"])
def test_tensorflow_gets_devices_at_the_end_of_its_import(
    tensorflow: Path, way: str
) -> None:
    program = "import tensorflow.python_part as t, tensorflow; print('program')"
    (tensorflow / "tensorflow" / "python_part.py").write_text("print('part')\n")

    ran = with_tensorflow(tensorflow, program, way)

    path = f"{tensorflow}/tensorflow/__init__.py"
    expected = ["tensorflow", f"devices True {path}", "part", "program"]
    assert (ran.stdout.splitlines(), ran.stderr) == (expected, "")


@pytest.mark.parametrize(
    ("program", "replicas"),
    [
        ("import tensorflow", "1"),
        ("from importlib.util import find_spec; find_spec('tensorflow')", "2"),
        ("import json", "2"),
    ],
    ids=["one-replica", "search", "no-tensorflow"],
)
def test_popdist_is_not_imported_where_tensorflow_needs_no_devices(
    tensorflow: Path, program: str, replicas: str
) -> None:
    program += "; import sys; print('popdist' in sys.modules)"

    ran = with_tensorflow(tensorflow, program, replicas=replicas)

    assert ran.stdout.splitlines()[-1] == "False", ran.stderr


def test_a_search_before_the_import_takes_no_devices(tensorflow: Path) -> None:
    program = (
        "from importlib.util import find_spec\n"
        "print(find_spec('tensorflow').loader is find_spec('tensorflow').loader)\n"
        "import tensorflow; print(type(tensorflow.__loader__).__name__)\n"
        "print(vars(tensorflow.__loader__).keys())"
    )

    ran = with_tensorflow(tensorflow, program)

    devices = f"devices True {tensorflow}/tensorflow/__init__.py"
    assert ran.stdout.splitlines() == [
        *("False", "tensorflow", devices, "SourceFileLoader"),
        "dict_keys(['name', 'path'])",
    ], ran.stderr


# As import hooks of profilers find modules.
HOOK_OF_THE_PROGRAM = """
import sys
from importlib.util import find_spec
class Finder:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if name != "tensorflow" or self.busy:
            return None
        self.busy = True
        try:
            print("search")
            return find_spec(name)
        finally:
            self.busy = False
sys.meta_path.insert(0, Finder())
"""


@pytest.mark.parametrize("where", ["program", "sitecustomize"])
def test_import_hooks_of_the_program_work_as_ever(tensorflow: Path, where: str) -> None:
    program = "import tensorflow"
    if where == "program":
        program = HOOK_OF_THE_PROGRAM + program
    else:
        (tensorflow / "sitecustomize.py").write_text(HOOK_OF_THE_PROGRAM)

    ran = with_tensorflow(tensorflow, program, PYTHONPATH=str(tensorflow))

    devices = f"devices True {tensorflow}/tensorflow/__init__.py"
    assert ran.stdout.splitlines() == ["search", "tensorflow", devices], ran.stderr


def test_a_tensorflow_that_fails_to_import_fails_as_ever(tensorflow: Path) -> None:
    (tensorflow / "tensorflow" / "__init__.py").write_text("raise ImportError('why')")
    program = (
        "for _ in range(2):\n"
        "    try: import tensorflow\n"
        "    except ImportError as error: print(error)"
    )

    ran = with_tensorflow(tensorflow, program)

    assert (ran.stdout, ran.stderr) == ("why\nwhy\n", "")


@pytest.mark.parametrize(
    "break_it",
    [
        lambda folder: (folder / "popdist" / "__init__.py").write_text("1 / 0"),
        lambda folder: (folder / "popdist" / "tensorflow" / "devices.py").unlink(),
    ],
    ids=["broken", "older"],
)
def test_a_popdist_that_gives_no_devices_is_no_error(
    tensorflow: Path, break_it: Callable[[Path], object]
) -> None:
    break_it(tensorflow)

    ran = with_tensorflow(tensorflow, "import tensorflow; print('program')")

    assert (ran.stdout, ran.stderr) == ("tensorflow\nprogram\n", "")
