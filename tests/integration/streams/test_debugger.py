"""--pdb: a prompt on one instance, on a terminal and by a pipe."""

import subprocess
import termios
import time
from contextlib import suppress

import psutil
import pytest
from conftest import POPRUN, Poprun, wait_for

from tests.terminals import Start, Terminal

STOPS = """
import os, sys, time
rank = int(os.environ["RANK"])
value = 40 + rank
if rank == 1:
    breakpoint()
print("value", value)
"""

# Both fail; the debugged one when poprun knows the end of the other.
FAILS = """
import os, time
rank = int(os.environ["RANK"])
if rank == 1:
    while "instance_ended" not in open("events").read():
        time.sleep(0.02)
def divide(number):
    return number // 0
divide(rank)
"""


def job(*words: str, mpirun: str = "local", rank: int = 1) -> list[str]:
    number = ["--num-instances", "2", "--num-replicas", "2"]
    return ["--mpirun", mpirun, *number, "--pdb", str(rank), *words]


def run(poprun: Poprun, commands: str, *words: str) -> tuple[int, str, str]:
    ran = subprocess.run(
        [POPRUN, *words],
        cwd=poprun.directory,
        env=poprun.environ,
        input=commands,
        capture_output=True,
        timeout=200,
        text=True,
    )
    return ran.returncode, ran.stdout, ran.stderr


@pytest.mark.mpi
def test_commands_by_a_pipe_are_those_of_the_instance(
    poprun: Poprun, every_mpirun: str
) -> None:
    script = poprun.script("stops.py", STOPS)

    code, out, err = run(
        poprun,
        "p value\nvalue = 7\nc\n",
        *job("python", script, mpirun=every_mpirun),
    )

    assert (code, err) == (0, "")
    assert "(Pdb) 41\n" in out
    assert "value 40\n" in out
    assert "value 7\n" in out


def test_the_end_of_the_commands_ends_the_instance(poprun: Poprun) -> None:
    script = poprun.script("stops.py", STOPS)

    code, out, err = run(poprun, "p value\n", *job("python", script))

    assert code == 1
    assert "(Pdb) 41\n" in out
    assert "value 41" not in out
    assert "bdb.BdbQuit: the debugger has ended this instance.\n" in err
    assert "Traceback" not in err


def test_an_uncaught_exception_is_looked_at_where_it_was_raised(
    poprun: Poprun,
) -> None:
    script = poprun.script("fails.py", FAILS)

    code, out, err = run(
        poprun,
        "p number + 10\nup\np rank\nq\n",
        *job("--events", "events", "python", script),
    )

    assert code == 1
    assert "(Pdb) 11\n" in out
    assert "(Pdb) 1\n" in out
    # Otherwise it would have been stopped within its grace.
    assert (
        "poprun: warning: Instance 0 has failed with exit code 1. The job "
        "goes on until instance 1 ends, because of --pdb.\n"
    ) in err
    assert err.rstrip().endswith(
        "error: Instance 0 on localhost exited with code 1: ZeroDivisionError: integer "
        "division or modulo by zero"
    )


def test_a_hook_of_the_program_does_not_replace_the_prompt(poprun: Poprun) -> None:
    script = poprun.script(
        "hook.py",
        "import sys\nsys.excepthook = lambda *error: print('own hook')\n"
        "value = 41\n1 // 0\n",
    )

    code, out, _ = run(poprun, "p value\nq\n", *job("python", script, rank=0))

    assert code == 1
    assert out.index("own hook") < out.index("(Pdb) 41\n")


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_an_end_that_the_program_wants_shows_no_prompt(
    poprun: Poprun, end: str
) -> None:
    script = poprun.script(
        "ends.py", f"import os, sys\nif os.environ['RANK']=='1':\n {end}"
    )

    code, out, _ = run(poprun, "", *job("python", script))

    assert (code != 0, out) == (True, "")


def test_why_no_debugger_is_loaded_is_said(poprun: Poprun) -> None:
    poprun.script("cmd.py", "raise RuntimeError('no module of Python')")
    poprun.environ["PYTHONPATH"] = str(poprun.directory)

    code, out, err = run(poprun, "", *job("python", "-c", "print(3)"))

    assert (code, out.splitlines()) == (0, ["3", "3"])
    assert "--pdb finds no debugger here: RuntimeError('no module of Python')" in err


def test_a_program_that_is_no_python_is_told_apart(poprun: Poprun) -> None:
    assert run(poprun, "", *job("true")) == (
        0,
        "",
        "poprun: warning: --pdb 1 had no effect: instance 1 did not run "
        "CPython 3.6 or later with sitecustomize and pdb.\n",
    )


def test_children_of_the_program_have_no_debugger(poprun: Poprun) -> None:
    script = poprun.script(
        "child.py",
        "import subprocess, sys\n"
        "code = 'import os; print(os.environ.get(\"POPDIST_PDB\")); 1 // 0'\n"
        "subprocess.run([sys.executable, '-c', code])\n",
    )

    code, out, err = run(poprun, "q\n", *job("python", script))

    assert (code, out) == (0, "None\nNone\n")
    assert "(Pdb)" not in out
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("--pdb", "2"),
            "--pdb is 2, but the job has only 2 instances. Give a number from 0 to 1.",
        ),
        (
            ("--stdin", "all"),
            "--stdin is all, but --pdb 1 gives the standard input to the debugger of "
            "instance 1. Leave --stdin out.",
        ),
        (
            ("--only-output-from-instance", "first"),
            "--only-output-from-instance hides instance 1, whose debugger "
            "--pdb shows. Add 1 to the instances that it names.",
        ),
        (
            ("--max-restarts", "1"),
            "--max-restarts 1 and --pdb exclude each other: what the debugger has read "
            "in one attempt is not available in the next. Leave one of them out.",
        ),
        (
            ("--output-filename", "logs:nocopy"),
            "--output-filename with :nocopy shows nothing on the terminal, but "
            "--pdb needs it for the debugger of instance 1. Leave :nocopy out.",
        ),
    ],
)
def test_what_contradicts_a_debugger_is_refused(
    poprun: Poprun, words: tuple[str, ...], sentence: str
) -> None:
    ran = poprun(*job(*words, "touch", "started"))

    assert (ran.code, ran.stderr) == (2, f"poprun: error: {sentence}\n")
    assert not (poprun.directory / "started").exists()


# --- On a terminal.

TALKS = """
import os, sys, time
rank = int(os.environ["RANK"])
if rank == 1:
    value = 41
    breakpoint()
    open("goes on", "w").close()
    time.sleep(1000)
number = 0
while not os.path.exists("enough"):
    print("line", number, flush=True)
    number += 1
    time.sleep(0.05)
"""


def shows(terminal: Terminal, text: str) -> None:
    terminal.wait(lambda: text in "\n".join(terminal.lines()), repr(text))


def start(
    poprun: Poprun, on_terminal: Start, *words: str, text: str = TALKS
) -> Terminal:
    script = poprun.script("talks.py", text)
    terminal = on_terminal(POPRUN, *job(*words, "python", script))
    shows(terminal, "\n(Pdb)")
    return terminal


def debugged_instance(poprun: Poprun) -> psutil.Process:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_own = process.cwd() == str(poprun.directory)
            if is_own and "POPDIST_PDB" in process.environ():
                return process
    raise AssertionError("there is no such process")


def test_what_is_typed_is_edited_while_the_others_wait(
    poprun: Poprun, on_terminal: Start
) -> None:
    terminal = start(poprun, on_terminal)
    before = terminal.lines()
    terminal.process.send("p vaxx\x7f\x7flue")
    shows(terminal, "(Pdb) p value")

    # No tag, no line of the other instance, and the cursor where readline has it.
    assert terminal.lines() == [*before[:-1], "(Pdb) p value"]
    assert terminal.screen.cursor.x == len("(Pdb) p value")
    terminal.process.send("\r")
    shows(terminal, "\n41\n(Pdb)")
    terminal.process.send("\x1b[A")  # the command before
    shows(terminal, "\n41\n(Pdb) p value")
    number = terminal.shown.count(b"line ")
    terminal.process.send("\rc\r")
    wait_for((poprun.directory / "goes on").exists, "the instance")
    terminal.wait(lambda: terminal.shown.count(b"line ") > number, "the others' lines")
    (poprun.directory / "enough").touch()


def test_ctrl_c_interrupts_a_command_and_the_program(
    poprun: Poprun, on_terminal: Start
) -> None:
    terminal = start(poprun, on_terminal)
    (poprun.directory / "enough").touch()
    instance = debugged_instance(poprun)

    def sleeps() -> bool:
        """Return whether a signal will interrupt its call, and not come before it."""
        return instance.status() == psutil.STATUS_SLEEPING

    terminal.process.send("p 1 +")
    shows(terminal, "(Pdb) p 1 +")
    wait_for(sleeps, "the prompt to wait for more")
    terminal.process.sendintr()
    shows(terminal, "--KeyboardInterrupt--\n(Pdb)")
    terminal.process.send("c\r")
    wait_for((poprun.directory / "goes on").exists, "the instance")
    terminal.read()
    # In a call that would last for 1000 s.
    wait_for(sleeps, "the instance to sleep")
    terminal.process.sendintr()
    shows(terminal, "-> time.sleep(1000)\n(Pdb)")
    terminal.process.send("q\r")

    assert terminal.end() == 1


def test_ctrl_c_that_no_prompt_answers_stops_the_job_the_second_time(
    poprun: Poprun, on_terminal: Start
) -> None:
    ignores = TALKS.replace("open(", "__import__('signal').signal(2, 1); open(")
    terminal = start(poprun, on_terminal, text=ignores)
    number = terminal.shown.count(b"line ")
    terminal.process.send("c\r")
    wait_for((poprun.directory / "goes on").exists, "the instance")
    # poprun knows, too, that the prompt is over.
    terminal.wait(lambda: terminal.shown.count(b"line ") > number, "the others' lines")
    terminal.process.sendintr()
    terminal.wait(
        lambda: (
            b"SIGINT: passed to the debugger of instance 1; repeat" in terminal.shown
        ),
        "the sentence",
    )
    terminal.process.sendintr()

    assert terminal.end() == 130


def test_the_terminal_is_as_before_when_the_instance_is_killed_at_its_prompt(
    poprun: Poprun, on_terminal: Start
) -> None:
    terminal = on_terminal("sh")
    before = termios.tcgetattr(terminal.process.child_fd)
    script = poprun.script("talks.py", TALKS)
    terminal.process.send(f"{POPRUN} {' '.join(job('python', script))}\r")
    shows(terminal, "\n(Pdb)")

    assert termios.tcgetattr(terminal.process.child_fd) != before
    debugged_instance(poprun).kill()
    shows(terminal, "error: Instance 1 on localhost was killed by SIGKILL")
    terminal.wait(lambda: terminal.lines()[-1] == "#", "the shell's prompt")
    assert termios.tcgetattr(terminal.process.child_fd) == before


def has_prompt(terminal: Terminal) -> Terminal | None:
    """Return a terminal with a prompt, or None if the job has taken too long."""
    terminal.wait(
        lambda: b"(Pdb)" in terminal.shown or b"--timeout" in terminal.shown, "a prompt"
    )
    return terminal if b"--timeout" not in terminal.shown else None


def test_time_at_a_prompt_does_not_count(poprun: Poprun, on_terminal: Start) -> None:
    script = poprun.script("talks.py", TALKS)
    seconds, terminal = 2, None
    # Until a timeout is long enough for this machine to show the first prompt.
    while terminal is None:
        seconds *= 2
        words = job("--timeout", str(seconds), "python", script)
        terminal = has_prompt(on_terminal(POPRUN, *words))
    ends_by = time.monotonic() + seconds + 1
    while time.monotonic() < ends_by:
        terminal.read()
    terminal.process.send("p value\r")
    shows(terminal, "\n41\n(Pdb)")
    terminal.process.send("c\r")

    # And afterwards it does.
    assert terminal.end() == 124
