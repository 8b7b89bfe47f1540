"""How instances end: poprun exits as the first that failed, and says which, and how."""

import re
import subprocess

import pytest
from conftest import MPIRUNS, Poprun

pytestmark = pytest.mark.mpi

FOREVER = "sleep 600"


def job(mpirun: str, size: int, *options: str) -> list[str]:
    shape = ["--num-instances", str(size), "--num-replicas", str(size)]
    return ["--mpirun", mpirun, *shape, "--grace", "0.5", *options]


def test_the_first_failure_ends_the_job_with_its_code(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *job(every_mpirun, 4),
        *("sh", "-c", f"[ $RANK = 2 ] && exit 3; exec {FOREVER}"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (
        3,
        "",
        "poprun: error: Instance 2 on localhost exited with code 3.\n",
    )


# Each MPI ends the others in its own way after a signal; all MPIs have two of them.
@pytest.mark.parametrize(
    ("name", "code", "every_mpirun"),
    [
        *(("KILL", 137, mpi) for mpi in MPIRUNS),
        *(("TERM", 143, mpi) for mpi in MPIRUNS),
        ("SEGV", 139, "openmpi5"),
        ("ABRT", 134, "openmpi4"),
        ("BUS", 135, "hydra"),
        ("FPE", 136, "openmpi5"),
        ("INT", 130, "openmpi4"),
        ("PIPE", 141, "hydra"),
    ],
    indirect=["every_mpirun"],
)
def test_a_signal_is_named_and_is_128_and_its_number(
    poprun: Poprun, every_mpirun: str, name: str, code: int
) -> None:
    # If not all have started, Open MPI 4.1 may end too late, which is a warning.
    script = (
        f"ulimit -c 0; [ $RANK = 0 ] && : > up && exec {FOREVER}; "
        f"until [ -e up ]; do sleep 0.02; done; kill -{name} $$"
    )

    ran = poprun(*job(every_mpirun, 2), "sh", "-c", script)

    assert (ran.code, ran.stdout) == (code, "")
    # A hint may follow in the same line.
    cause = f"poprun: error: Instance 1 on localhost was killed by SIG{name}."
    assert ran.stderr.startswith(cause)
    assert ran.stderr.count("\n") == 1, ran.stderr


# Each fails when poprun knows the end of the one before it. When that one has been
# reaped, its supervisor may not have looked at the time so far.
ONE_AFTER_ANOTHER = """
before="instance_ended.* \\"instance\\": $((RANK - 1)),"
[ $RANK = 0 ] || until grep -q "$before" events; do sleep 0.02; done
exit $((10 + RANK))
"""


def test_the_first_failure_is_the_first_in_time(
    poprun: Poprun, every_mpirun: str
) -> None:
    poprun.script("fail.sh", ONE_AFTER_ANOTHER)

    ran = poprun(
        *job(every_mpirun, 4, "--keep-going", "--events", "events"), "sh", "fail.sh"
    )

    assert (ran.code, ran.stdout, ran.stderr) == (
        10,
        "",
        "poprun: also failed: instance 1 (exited with code 11), instance 2 (exited "
        "with code 12), instance 3 (exited with code 13).\n"
        "poprun: error: Instance 0 on localhost exited with code 10.\n",
    )


def test_with_keep_going_the_others_come_to_their_own_end(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *job(every_mpirun, 2, "--keep-going"),
        *("sh", "-c", "[ $RANK = 0 ] && exit 7; sleep 0.5; echo done"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (
        7,
        "done\n",
        "poprun: error: Instance 0 on localhost exited with code 7.\n",
    )


def test_all_fail_at_the_same_instant(poprun: Poprun, every_mpirun: str) -> None:
    together = "until [ -e go ]; do :; done; exit $((10 + RANK))"
    ran = poprun(
        *job(every_mpirun, 3),
        *("sh", "-c", f"[ $RANK = 0 ] && sleep 0.3 && touch go; {together}"),
    )

    *more, cause = ran.stderr.splitlines()
    found = re.fullmatch(
        r"poprun: error: Instance (\d) on localhost exited with code (\d+)\.", cause
    )
    assert found
    assert ran.code == int(found[2]) == 10 + int(found[1])
    others = re.findall(r"instance (\d) \(exited with code \d+\)", "".join(more))
    assert found[1] not in others
    assert len(set(others)) == len(others)


@pytest.mark.parametrize(
    ("end", "code", "words", "cause"),
    [
        pytest.param(
            "raise ValueError('no such layer')",
            1,
            r'Traceback \(most recent call last\):\n  File ".*", line 3, in <module>\n'
            r"(    .*\n)*ValueError: no such layer\n",
            "exited with code 1: ValueError: no such layer",
            id="exception",
        ),
        pytest.param(
            "sys.exit('no data')",
            1,
            "no data\n",
            'exited with code 1; its stderr ends with "no data".',
            id="message",
        ),
        pytest.param("os._exit(9)", 9, "", "exited with code 9.", id="at-once"),
    ],
)
def test_python_ends_in_its_own_ways(
    poprun: Poprun, every_mpirun: str, end: str, code: int, words: str, cause: str
) -> None:
    text = f"""import os, sys, time
if os.environ["RANK"] == "1":
    {end}
time.sleep(600)
"""

    ran = poprun(*job(every_mpirun, 2), "python", poprun.script("end.py", text))

    assert (ran.code, ran.stdout) == (code, "")
    assert re.fullmatch(
        words + f"poprun: error: Instance 1 on localhost {re.escape(cause)}\n",
        ran.stderr,
    )


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (["python", "broken.py"], 1, "SyntaxError: invalid syntax"),
        (
            ["python", "/none.py"],
            2,
            "python: can't open file '/none.py': [Errno 2] No such file or directory",
        ),
        (["python", "-m", "no_such_module"], 1, "python: No module named no_such_mod"),
    ],
)
def test_what_python_cannot_start_is_the_cause(
    poprun: Poprun, openmpi5: str, words: list[str], code: int, cause: str
) -> None:
    poprun.script("broken.py", "1 +")

    ran = poprun(*job(openmpi5, 1), *words)

    last = ran.stderr.splitlines()[-1]
    start = f"poprun: error: Instance 0 on localhost exited with code {code}: {cause}"
    assert (ran.code, last.startswith(start)) == (code, True), last


ABORTS = """
#include <assert.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    if (argc > 1) assert(argc == 7);
    char *memory = malloc(64);
    free(memory);
    free(memory);
}
"""


@pytest.mark.parametrize(
    ("words", "last_line"),
    [
        ((), "free(): double free detected in tcache 2"),
        (("x",), "Assertion `argc == 7' failed."),
    ],
)
def test_the_words_of_a_c_program_that_aborts_are_in_the_cause(
    poprun: Poprun, openmpi5: str, words: tuple[str, ...], last_line: str
) -> None:
    source = poprun.script("aborts.c", ABORTS)
    program = str(poprun.directory / "aborts")
    subprocess.run(
        ["cc", "-w", "-o", program, source], cwd=poprun.directory, check=True
    )

    ran = poprun(
        *job(openmpi5, 2), "sh", "-c", 'ulimit -c 0; exec "$@"', "", program, *words
    )

    assert ran.code == 134
    cause = ran.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"poprun: error: Instance \d on localhost was killed by SIGABRT; its stderr "
        rf'ends with ".*{re.escape(last_line)}"\.',
        cause,
    )


@pytest.mark.parametrize(
    ("environ", "cause"),
    [
        (
            {"PYTHONFAULTHANDLER": ""},
            ". Set PYTHONFAULTHANDLER=1 to have Python show where it was when this "
            "happens.",
        ),
        (
            {"PYTHONFAULTHANDLER": "1"},
            ": Fatal Python error: Segmentation fault in crash (line 3 of {})",
        ),
    ],
)
def test_a_python_that_crashes_says_where_or_how_to_learn_it(
    poprun: Poprun, every_mpirun: str, environ: dict[str, str], cause: str
) -> None:
    text = "import os, signal\ndef crash():\n    os.kill(os.getpid(), signal.SIGSEGV)\n"
    script = poprun.script("crash.py", f"{text}crash()\n")

    ran = poprun(*job(every_mpirun, 2), "python", script, environ=environ)

    last = ran.stderr.splitlines()[-1]
    assert ran.code == 139
    assert re.sub(r"Instance \d", "Instance N", last) == (
        "poprun: error: Instance N on localhost was killed by SIGSEGV"
        + cause.format(poprun.directory / script)
    )


def test_a_breakpoint_without_a_terminal_is_told_of_pdb(
    poprun: Poprun, openmpi5: str
) -> None:
    text = (
        "import os, time\nos.environ['RANK'] == '0' or breakpoint()\ntime.sleep(600)\n"
    )

    ran = poprun(*job(openmpi5, 2), "python", poprun.script("stop.py", text))

    assert ran.stderr.splitlines()[-1] == (
        "poprun: error: Instance 1 on localhost exited with code 1: "
        "bdb.BdbQuit. breakpoint() found no terminal. Add --pdb 1 to give "
        "poprun's terminal to instance 1."
    )


def test_a_rank_that_finalizes_and_exits_early_ends_no_other(
    poprun: Poprun, every_mpirun: str
) -> None:
    text = """import time
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.Get_rank() == 1:
    time.sleep(0.7)
    print("done", flush=True)
"""

    ran = poprun(*job(every_mpirun, 2), "python", poprun.script("early.py", text))

    assert (ran.code, ran.stdout, ran.stderr) == (0, "done\n", "")


def test_an_instance_that_exits_early_ends_no_other(
    poprun: Poprun, every_mpirun: str
) -> None:
    ran = poprun(
        *job(every_mpirun, 2),
        *("sh", "-c", "[ $RANK = 0 ] && exit; sleep 0.7; echo done"),
    )

    assert (ran.code, ran.stdout, ran.stderr) == (0, "done\n", "")


# --- In the middle of MPI, where others wait for the one that ends.


AMONG_RANKS = """import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.Get_rank() == 1:
    {}
world.Barrier()
"""


EXCEPTION = "raise ValueError('no such layer')"
RAISED = "ValueError: no such layer"
HOOK = "sys.excepthook = lambda *e: print('no layer', file=sys.stderr); 1 / 0"


@pytest.mark.parametrize(
    ("every_mpirun", "end", "code", "words", "cause"),
    [
        *((mpi, EXCEPTION, 1, f"{RAISED}\n", f": {RAISED}") for mpi in MPIRUNS),
        ("openmpi5", "sys.exit(3)", 3, "", "."),
        ("openmpi4", "raise SystemExit(4)", 4, "", "."),
        (
            "hydra",
            "sys.exit('no data')",
            1,
            "no data\n",
            '; its stderr ends with "no data".',
        ),
        ("openmpi5", HOOK, 1, "no layer\n", '; its stderr ends with "no layer".'),
    ],
    indirect=["every_mpirun"],
)
def test_a_failure_among_mpis_ranks_ends_the_job(
    poprun: Poprun, every_mpirun: str, end: str, code: int, words: str, cause: str
) -> None:
    # On its way out the rank calls MPI_Finalize, and that waits for the barrier.
    script = poprun.script("end.py", AMONG_RANKS.format(end))

    ran = poprun(*job(every_mpirun, 2), "python", script)

    assert (ran.code, ran.stdout) == (code, "")
    assert words in ran.stderr
    failed = "poprun: error: Instance 1 on localhost "
    waited = f"failed with exit code {code} and waited in MPI_Finalize for the others"
    # Now and then Open MPI 5 lets it go, and it ends by itself.
    assert ran.stderr.endswith(
        (f"{failed}{waited}{cause}\n", f"{failed}exited with code {code}{cause}\n")
    )


def test_an_interrupt_among_mpis_ranks_ends_the_job(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("end.py", AMONG_RANKS.format("raise KeyboardInterrupt"))

    ran = poprun(*job(every_mpirun, 2), "python", script)

    assert (ran.code, ran.stdout) == (130, "")
    assert ran.stderr.endswith(
        "poprun: error: Instance 1 on localhost was killed by SIGINT: "
        "KeyboardInterrupt\n"
    )


# The first attempt fails, and the second one ends the program on the same line.
RETRY = """
def attempt(number):
    if number == 0:
        raise ValueError
    raise SystemExit(0)
for number in range(2):
    try:
        attempt(number)
    except ValueError:
        sys.last_type, sys.last_value, sys.last_traceback = sys.exc_info()
"""


LOGGED = "import logging\ntry: 1 / 0\nexcept Exception: logging.exception('no')"
UNRAISABLE = "class A:\n  def __del__(self): 1 / 0\na = A(); del a"
QUOTATION_AND_SIGINT = (
    "import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
    "print('Traceback (most recent call last):', file=sys.stderr)"
)


@pytest.mark.parametrize(
    ("every_mpirun", "text"),
    [
        *((mpi, LOGGED) for mpi in MPIRUNS),
        ("openmpi5", UNRAISABLE),
        ("openmpi4", QUOTATION_AND_SIGINT),
        ("hydra", "raise SystemExit(0)"),
        ("openmpi4", RETRY),
    ],
    indirect=["every_mpirun"],
)
def test_a_rank_that_succeeds_and_waits_in_finalize_ends_nothing(
    poprun: Poprun, every_mpirun: str, text: str
) -> None:
    script = f"""import sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    time.sleep(1.5)
    print("done", flush=True)
    sys.exit()
{text}
"""

    ran = poprun(*job(every_mpirun, 2), "python", poprun.script("early.py", script))

    assert (ran.code, ran.stdout) == (0, "done\n")
    assert "poprun" not in ran.stderr


def test_a_failure_below_a_script_ends_nothing(poprun: Poprun, openmpi5: str) -> None:
    script = """import sys, time
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 1:
    sys.exit(3)
time.sleep(1.5)
"""
    poprun.script("end.py", script)

    ran = poprun(*job(openmpi5, 2), "sh", "-c", "python end.py || true")

    assert (ran.code, ran.stdout, ran.stderr) == (0, "", "")


# What an instance does until poprun has given a warning.
UNTIL_GO = """import os, time
while not os.path.exists("go"):
    time.sleep(0.05)"""


def warned(
    poprun: Poprun, mpirun: str, script: str, *options: str
) -> tuple[str, int, str, str]:
    """Return poprun's first line, its exit code, and the rest of what it says."""
    process = poprun.start(
        *job(mpirun, 2, *options), "python", poprun.script("end.py", script)
    )
    assert process.stderr
    warning = process.stderr.readline()
    (poprun.directory / "go").touch()
    out, err = process.communicate(timeout=200)
    return warning.decode(), process.returncode, out.decode(), err.decode()


def test_with_keep_going_a_failure_in_finalize_lets_the_others_finish(
    poprun: Poprun, openmpi5: str
) -> None:
    script = f"""import sys
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 1:
    sys.exit(3)
{UNTIL_GO}
print("done", flush=True)
"""

    warning, code, out, err = warned(poprun, openmpi5, script, "--keep-going")

    assert warning == (
        "poprun: warning: Instance 1 failed with exit code 3 and waits in "
        "MPI_Finalize for the other instances. If they wait for it, the "
        "job does not end: --keep-going lets them continue.\n"
    )
    assert (code, out) == (3, "done\n")
    assert err == "poprun: error: Instance 1 on localhost exited with code 3.\n"


def test_a_wait_whose_outcome_is_unknown_is_a_warning(
    poprun: Poprun, openmpi5: str
) -> None:
    script = f"""import os
os.environ["MPI4PY_RC_FINALIZE"] = "1"
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 1:
    raise SystemExit(0)
{UNTIL_GO}
"""

    warning, code, out, err = warned(poprun, openmpi5, script)

    assert warning.startswith("poprun: warning: The Python program of instance 1 ")
    assert (code, out, err) == (0, "", "")


@pytest.mark.parametrize(
    ("error", "code", "every_mpirun"),
    [
        *((42, 42, mpi) for mpi in MPIRUNS),
        *((0, 1, mpi) for mpi in MPIRUNS),
        (256, 1, "openmpi4"),
        (300, 44, "openmpi5"),
        (-1, 255, "hydra"),
    ],
    indirect=["every_mpirun"],
)
def test_mpi_abort_ends_the_job_with_its_code(
    poprun: Poprun, every_mpirun: str, error: int, code: int
) -> None:
    text = f"""from mpi4py import MPI
world = MPI.COMM_WORLD
if world.Get_rank() == 1:
    world.Abort({error})
world.Barrier()
"""

    ran = poprun(*job(every_mpirun, 2), "python", poprun.script("abort.py", text))

    *_, cause = ran.stderr.splitlines()
    assert (ran.code, ran.stdout) == (code, "")
    assert cause in (
        f"poprun: error: Instance 1 called MPI_Abort with error code {error}, and "
        "mpirun ended the others.",
        # Now and then Open MPI 4.1 does not say that it was MPI_Abort.
        f"poprun: error: Instance 1 on localhost exited with code {code}."
        if error & 0xFF
        else "poprun: error: mpirun ended with exit code 0 while instances were "
        "running, and they were stopped. It does that when one of them "
        "calls MPI_Abort with error code 0 or a multiple of 256.",
    )


def test_an_end_without_finalize_is_a_warning(poprun: Poprun, openmpi5: str) -> None:
    text = """import os
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
if world.Get_rank() == 1:
    os._exit(0)
"""

    ran = poprun(*job(openmpi5, 2), "python", poprun.script("leave.py", text))

    assert (ran.code, ran.stdout, ran.stderr) == (
        0,
        "",
        "poprun: warning: Instance 1 called MPI_Init and ended without MPI_Finalize.\n",
    )


def test_no_finalize_at_all_is_no_failure(poprun: Poprun, every_mpirun: str) -> None:
    text = """import os
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
os._exit(0)
"""

    ran = poprun(*job(every_mpirun, 2), "python", poprun.script("leave.py", text))

    assert (ran.code, ran.stdout) == (0, "")


def test_a_program_whose_mpi4py_is_of_another_mpi_has_its_ranks(
    poprun: Poprun, every_mpirun: str
) -> None:
    text = """from mpi4py import MPI
print(MPI.COMM_WORLD.Get_size(), flush=True)
"""

    ran = poprun(*job(every_mpirun, 3), "python", poprun.script("size.py", text))

    assert (ran.code, ran.stdout, ran.stderr) == (0, "3\n3\n3\n", "")


@pytest.mark.parametrize("absent", [0, 2])
def test_one_that_ends_before_it_joins_is_known_to_all_others_at_once(
    poprun: Poprun, every_mpirun: str, absent: int
) -> None:
    script = poprun.script(
        "program.py",
        f"""
import sys, popdist
if popdist.getInstanceIndex() == {absent}:
    sys.exit()
try:
    popdist.init()
except popdist.PeerLostError as error:
    print({absent} in error.instances, error)
""",
    )

    ran = poprun(*job(every_mpirun, 3, "--keep-going"), "python", script)

    # One that looks later may find the other one ended, too.
    assert (ran.code, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    named = rf"True Instances? .*\b{absent}\b.* ended before .*"
    assert [line for line in lines if not re.fullmatch(named, line)] == []
    assert any(f"True Instance {absent} ended before " in line for line in lines)
