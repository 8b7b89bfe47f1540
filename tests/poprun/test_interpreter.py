"""What runs in the Python interpreter of an instance, told by whole interpreters.

Set POPRUN_TEST_PYTHONS to a colon-separated list of other Pythons to try them too.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from python_environments import make_environment

from popdist import environment as env
from popdist.sdk import finder
from poprun.helpers import protocol
from poprun.helpers.channel import process_of
from poprun.interpreter import sitecustomize as hook
from poprun.job.prepare import job_description

OTHERS = os.getenv("POPRUN_TEST_PYTHONS", "")
PYTHONS = [sys.executable, *filter(None, OTHERS.split(":"))]
UNKNOWN, NOTHING = b"0", None

# An MPI that has been initialised and is never finalised.
MPI = """
def Is_initialized(): return True
def Is_finalized(): return False
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


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Make a folder with an mpi4py."""
    package = tmp_path / "packages" / "mpi4py"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "MPI.py").write_text(MPI)
    return package.parent


def run(
    python: str, *words: str, cwd: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words],
        env=job_description.with_interpreter({"PATH": "/usr/bin:/bin", **variables}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def told(listener: socket.socket) -> bytes | None:
    """Return the status that an interpreter has told; None if it has told nothing."""
    try:
        sock, _ = listener.accept()
    except BlockingIOError:
        return None
    with sock:
        [(kind, fields)] = protocol.Decoder().feed(sock.recv(4096))
        assert process_of(sock) > 0
    assert (kind, fields[:3]) == (
        protocol.FINALIZING,
        [b"%d" % protocol.VERSION, b"key", b"7"],
    )
    return fields[3]


def end(
    python: str, listener: socket.socket, packages: Path, *words: str, **variables: str
) -> tuple[int, bytes | None]:
    """Run a program with MPI; return its wait status, and what it told of it."""
    name = listener.getsockname()[1:].decode()
    told_it = {env.CONTROL: f"@{name}/key", env.RANK: "7", "PYTHONPATH": str(packages)}
    told_it["PMI_RANK"] = "7"
    ran = run(python, *words, **{**told_it, **variables})
    code = ran.returncode
    return (code << 8 if code >= 0 else -code), told(listener)


def test_constants_are_those_of_poprun() -> None:
    assert (hook.CONTROL, hook.RANK) == (env.CONTROL, env.RANK)
    assert (hook.VERSION, hook.FINALIZING) == (protocol.VERSION, protocol.FINALIZING)
    assert hook.ALONE_IN_MPI == protocol.ALONE_IN_MPI
    assert hook.SDK == env.SDK
    assert (hook.STAND_INS, hook.WITH_TORCH) == (finder.STAND_INS, finder.WITH_TORCH)
    assert hook.STACKS_SIGNAL == protocol.STACKS_SIGNAL
    assert hook.HERE == job_description.INTERPRETER


# --- What is told of an end.

IMPORT = "import sys; from mpi4py import MPI\n"
HOOK = "def hook(*exception): pass\nsys.excepthook = hook\n"
HOOKS_THAT_LOG = """
import functools, logging, traceback
def hook(again, *exception):
    logging.critical("no", exc_info=exception)
    traceback.print_exception(*exception)
    again(*exception)
sys.excepthook = functools.partial(hook, sys.excepthook)
"""


@pytest.mark.parametrize(
    "ending",
    [
        pytest.param("sys.exit(3)", id="sys.exit"),
        pytest.param("from sys import exit; exit(3)", id="from-sys"),
        pytest.param("exit(3)", id="exit"),
        pytest.param("quit(3)", id="quit"),
        pytest.param("sys.exit('text')", id="text"),
        pytest.param("sys.exit(True)", id="bool"),
        pytest.param("sys.exit(-1)", id="negative"),
        pytest.param("sys.exit(259)", id="beyond-a-byte"),
        pytest.param("sys.exit(1 << 80)", id="beyond-a-long"),
        pytest.param("sys.exit((1, 2))", id="tuple"),
        pytest.param("sys.exit((4,))", id="tuple-of-one"),
        pytest.param("raise ValueError", id="exception"),
        pytest.param("raise KeyboardInterrupt", id="interrupt"),
        pytest.param(HOOK + "1 / 0", id="own-excepthook"),
        pytest.param(HOOK + "hook.__code__ = 0", id="own-excepthook-type-error"),
        pytest.param(HOOKS_THAT_LOG + "1 / 0", id="own-excepthook-that-logs"),
        pytest.param(
            "def hook(*e): raise KeyError\nsys.excepthook = hook\n1 / 0",
            id="own-excepthook-that-fails",
        ),
        pytest.param(
            "def hook(t, v, tb): v.__traceback__ = None\nsys.excepthook = hook\n1 / 0",
            id="own-excepthook-without-traceback",
        ),
        pytest.param("def f(): g()\ndef g(): 1 / 0\nf()", id="deep"),
        pytest.param("try: 1 / 0\nfinally: print()", id="finally"),
        pytest.param("try: 1 / 0\nexcept KeyError: pass", id="other-except"),
        pytest.param("try: 1 / 0\nexcept Exception: print(); raise", id="raised-again"),
        pytest.param("try: 1 / 0\nexcept Exception: sys.exit(5)", id="from-except"),
        pytest.param("with open('/dev/null'): 1 / 0", id="with"),
        pytest.param(
            "sys.excepthook = lambda *e: sys.exit(6)\n1 / 0", id="hook-that-exits"
        ),
        pytest.param(
            "try: sys.exit(3)\nexcept SystemExit as e: e.code = 4; raise", id="code-set"
        ),
        pytest.param(
            "import atexit; atexit.register(lambda: 0); sys.exit(3)", id="atexit"
        ),
    ],
)
def test_a_failure_is_told_with_the_status_that_follows(
    python: str, listener: socket.socket, packages: Path, ending: str
) -> None:
    status, said = end(python, listener, packages, "-c", IMPORT + ending)

    assert status != 0
    assert said == b"%d" % status


@pytest.mark.parametrize("options", [["-m", "program"], ["program.py"], ["folder"]])
def test_every_way_to_run_a_program_is_understood(
    python: str, listener: socket.socket, packages: Path, options: list[str]
) -> None:
    text = IMPORT + "import os\nif 'FAIL' in os.environ: 1 / 0"
    (packages / "program.py").write_text(text)
    (packages / "folder").mkdir()
    (packages / "folder" / "__main__.py").write_text(text)
    words = [str(packages / w) if w not in ("-m", "program") else w for w in options]

    failed = end(python, listener, packages, *words, FAIL="1")
    succeeded = end(python, listener, packages, *words)

    assert failed == (1 << 8, b"256")
    assert succeeded == (0, NOTHING)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("", id="end"),
        pytest.param("sys.exit()", id="sys.exit"),
        pytest.param("sys.exit(256)", id="sys.exit-256"),
        pytest.param("exit()", id="exit"),
        pytest.param("try: sys.exit(3)\nexcept SystemExit: pass", id="caught-exit"),
        pytest.param(
            "try: sys.exit(3)\nexcept SystemExit as e: saved = e; print(e.code)",
            id="saved-exit",
        ),
        pytest.param(
            "from threading import Thread\nt = Thread(target=sys.exit, args=(3,))\n"
            "t.start(); t.join()",
            id="exit-of-a-thread",
        ),
        pytest.param(
            "from threading import Thread\nt = Thread(target=lambda: 1 / 0)\n"
            "t.start(); t.join()",
            id="exception-of-a-thread",
        ),
        pytest.param(
            "import logging\ntry: 1 / 0\nexcept Exception: logging.exception('no')",
            id="logged",
        ),
        pytest.param(
            "class A:\n  def __del__(self): 1 / 0\na = A(); del a", id="unraisable"
        ),
        pytest.param(
            "try: 1 / 0\nexcept Exception:\n"
            "  sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()",
            id="last-traceback-set-by-the-program",
        ),
        pytest.param(
            "import code\ncode.InteractiveInterpreter().runsource('1 / 0')",
            id="interactive-interpreter",
        ),
        pytest.param(
            "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)", id="sigint"
        ),
        pytest.param("print('Traceback (most recent call last):')", id="quote"),
        pytest.param(
            "sys.excepthook = lambda *e: sys.exit(0)\n1 / 0", id="hook-that-exits-0"
        ),
    ],
)
def test_of_a_success_nothing_is_told(
    python: str, listener: socket.socket, packages: Path, program: str
) -> None:
    assert end(python, listener, packages, "-c", IMPORT + program) == (0, NOTHING)


@pytest.mark.parametrize("code", [0, 3])
def test_a_system_exit_raised_by_hand_is_unknown(
    python: str, listener: socket.socket, packages: Path, code: int
) -> None:
    program = f"{IMPORT}raise SystemExit({code})"

    assert end(python, listener, packages, "-c", program) == (code << 8, UNKNOWN)


HOOKS_THAT_EXIT = {
    "function": "def hook(*e): raise SystemExit({code})",
    "deep": "def hook(*e): end()\ndef end(): raise SystemExit({code})",
    "from-context": "def hook(*e):\n  try: 1 / 0\n"
    "  except Exception: raise SystemExit({code})",
    "without-traceback": "def hook(t, v, tb):\n"
    "  v.__traceback__ = None\n  raise SystemExit({code})",
    "from-exception": "def hook(t, v, tb): raise SystemExit({code}) from v",
    "partial": "def end(code, *e): raise SystemExit(code)\n"
    "import functools; hook = functools.partial(end, {code})",
    "method": "class A:\n  def end(self, *e): raise SystemExit({code})\nhook = A().end",
    "callable": "class A:\n  def __call__(self, *e): raise SystemExit({code})\n"
    "hook = A()",
    "subclass": "class A(SystemExit): pass\ndef hook(*e): raise A({code})",
    "exit-functions": "import atexit\ndef hook(*e):\n"
    "  atexit._run_exitfuncs()\n  raise SystemExit({code})",
}


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("hook", HOOKS_THAT_EXIT)
def test_an_own_hook_that_raises_system_exit_by_hand_is_unknown(
    python: str, listener: socket.socket, packages: Path, hook: str, code: int
) -> None:
    text = HOOKS_THAT_EXIT[hook].format(code=code)
    program = f"{IMPORT}{text}\nsys.excepthook = hook\n1 / 0"

    status, said = end(python, listener, packages, "-c", program)

    assert (status, said) == (code << 8, UNKNOWN)


def test_an_interactive_interpreter_is_unknown(
    python: str, listener: socket.socket, packages: Path
) -> None:
    status, said = end(python, listener, packages, "-i", "-c", f"{IMPORT}1 / 0")

    assert (status & 0xFF, said) == (0, UNKNOWN)


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("import sys; sys.exit(3)", id="without-MPI"),
        pytest.param(
            f"{IMPORT}MPI.Is_finalized = lambda: True\nsys.exit(3)", id="finalised"
        ),
        pytest.param(
            f"{IMPORT}MPI.Is_initialized = lambda: False\nsys.exit(3)",
            id="not-initialised",
        ),
        pytest.param(
            f"{IMPORT}import os\npid = os.fork()\nif not pid: sys.exit(3)\n"
            "os.waitpid(pid, 0); os._exit(3)",
            id="forked-child",
        ),
    ],
)
def test_nothing_is_told_where_mpi_is_not_to_be_finalised(
    python: str, listener: socket.socket, packages: Path, program: str
) -> None:
    assert end(python, listener, packages, "-c", program) == (3 << 8, NOTHING)


def test_an_interpreter_without_a_poprun_ends_as_ever(
    python: str, packages: Path
) -> None:
    ran = run(
        python,
        *("-c", IMPORT + "sys.exit(3)"),
        **{env.CONTROL: "@poprun-no-listener/key", "PYTHONPATH": str(packages)},
    )

    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", "")


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


def test_an_exit_is_a_system_exit_in_all_respects(
    python: str, listener: socket.socket
) -> None:
    program = """import pickle, sys
try: sys.exit(3)
except SystemExit as e: exit = e
assert type(exit) == SystemExit and type(exit) in (KeyError, SystemExit)
assert SystemExit == type(exit) and not type(exit) != SystemExit
assert {SystemExit: 1}[type(exit)] == 1 and type(exit) != KeyError
copy = pickle.loads(pickle.dumps(exit))
assert type(copy) is SystemExit and copy.code == exit.code == 3
assert repr(exit) == repr(copy) and exit.args == (3,)
assert type(exit).__module__ == 'builtins' and type(exit).__name__ == 'SystemExit'
for words in ((), (None,), ((),), (('a', 2),)):
    try: sys.exit(*words)
    except SystemExit as e: print(e.code, e.args)
try: sys.exit(SystemExit(4))
except SystemExit as e: print(e.code, e.args)
"""
    name = listener.getsockname()[1:].decode()

    ran = run(python, "-c", program, **{env.CONTROL: f"@{name}/key"})

    assert ran.stderr == ""
    assert ran.stdout == "None ()\nNone ()\nNone ()\n('a', 2) ('a', 2)\n4 (4,)\n"


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
