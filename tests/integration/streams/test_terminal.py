"""On a terminal: what the instances see of it, and what remains to be seen on it."""

import re
import signal
from collections.abc import Callable

import pytest
from conftest import POPRUN, Poprun

from tests.terminals import COLUMNS, Start, Terminal


def job(instances: int) -> list[str]:
    number = str(instances)
    return ["--mpirun", "local", "--num-instances", number, "--num-replicas", number]


ASK = """
import os, sys
def size(number):
    return "%dx%d" % tuple(os.get_terminal_size(number)) if os.isatty(number) else "-"
print(size(1), size(2), os.environ.get("PYTHONUNBUFFERED", "-"))
"""


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        pytest.param("", "60x24 60x24 -", id="terminal"),
        pytest.param("2>/dev/null", "60x24 - -", id="stdout-only"),
        pytest.param("--tty no", "- - 1", id="no"),
        pytest.param("| cat", "- 60x24 1", id="stderr-only"),
        pytest.param("2>/dev/null | cat", "- - 1", id="pipe"),
        pytest.param("--tty yes 2>/dev/null | cat", "80x24 80x24 -", id="yes"),
        pytest.param(
            "--mpi-global-args=--tag-output", "[1,0]<stdout>:46x24 46x24 -", id="tags"
        ),
    ],
)
def test_what_poprun_s_stream_is_is_what_the_instances_see(
    poprun: Poprun, on_terminal: Start, words: str, seen: str
) -> None:
    script = poprun.script("ask.py", ASK)
    options, _, redirection = words.partition("2>" if "2>" in words else "|")
    redirection = words[len(options) :]
    terminal = on_terminal(
        *("sh", "-c", f'"$0" "$@" {options} python {script} {redirection}'),
        *(POPRUN, *job(1)),
    )

    assert (terminal.end(), terminal.lines()) == (0, [seen])


def test_a_caller_s_own_word_on_buffering_counts(poprun: Poprun) -> None:
    script = poprun.script("ask.py", ASK)
    ran = poprun(*job(1), "python", script, environ={"PYTHONUNBUFFERED": ""})

    assert ran.stdout == "- - \n"


def test_a_new_size_reaches_the_instances(poprun: Poprun, on_terminal: Start) -> None:
    script = poprun.script(
        "resize.py",
        "import os, signal\n"
        # It waits until it is taken, whenever it comes.
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])\n"
        "print('ready')\n"
        "while {os.get_terminal_size(n).columns for n in (1, 2)} != {50}:\n"
        "    signal.sigwait([signal.SIGWINCH])\n"
        "print(*os.get_terminal_size(1), *os.get_terminal_size(2))\n",
    )
    terminal = on_terminal(POPRUN, *job(1), "python", script)
    terminal.wait(lambda: b"ready" in terminal.shown, "the program")
    terminal.process.setwinsize(20, 50)

    assert terminal.end() == 0
    assert terminal.lines() == ["ready", "50 20 50 20"]


BARS = """
import os, sys, time
rank = os.environ["RANK"]
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
def draw(percent):
    sys.stderr.write(f"\\r{rank}: {percent:3}% " + "#" * (percent // 10))
    sys.stderr.flush()
"""


@pytest.mark.parametrize(
    ("options", "tag"),
    [
        pytest.param(("--tag-format=none",), "", id="bare"),
        pytest.param((), "R| ", id="short"),
        pytest.param(("--mpi-global-args=--tag-output",), "[1,R]<stderr>:", id="tags"),
    ],
)
def test_bars_of_several_do_not_garble_each_other(
    poprun: Poprun, on_terminal: Start, options: tuple[str, ...], tag: str
) -> None:
    script = poprun.script(
        "bars.py",
        BARS + "for percent in range(0, 101, 5):\n"
        "    draw(percent)\n"
        "    time.sleep(0.02)\n"
        "    if percent == 50: print('half of', rank)\n"
        "sys.stderr.write('\\n')\n",
    )
    terminal = on_terminal(POPRUN, *job(3), *options, "python", script)

    assert terminal.end() == 0
    bars = [tag.replace("R", str(r)) + f"{r}: 100% ##########" for r in range(3)]
    out = tag.replace("stderr", "stdout")
    halves = [out.replace("R", str(rank)) + f"half of {rank}" for rank in range(3)]
    assert sorted(terminal.lines()) == sorted(bars + halves)


WAIT = """
import os, sys, time
def wait(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""
TWO_RUN = "poprun: 2 instances running ("


def status_is_shown(terminal: Terminal, words: str = TWO_RUN) -> Callable[[], bool]:
    return lambda: any(words in line for line in terminal.lines())


def test_a_status_is_shown_while_a_job_runs_and_nothing_of_it_remains(
    poprun: Poprun,
    on_terminal: Start,
) -> None:
    script = poprun.script(
        "work.py",
        WAIT + "print('one of', os.environ['RANK'])\n"
        "wait('two')\n"
        "print('two of', os.environ['RANK'])\n"
        "if os.environ['RANK'] == '0': wait('three')\n"
        "else: wait('four')\n",
    )
    terminal = on_terminal(POPRUN, *job(2), "python", script)

    def shows_status_below(*lines: str) -> bool:
        *above, last = terminal.lines()
        return sorted(above) == sorted(lines) and last.startswith(TWO_RUN)

    first, second = ("0| one of 0", "1| one of 1"), ("0| two of 0", "1| two of 1")
    terminal.wait(lambda: shows_status_below(*first), "the first lines")
    (poprun.directory / "two").touch()
    terminal.wait(lambda: shows_status_below(*first, *second), "the second lines")
    (poprun.directory / "three").touch()
    terminal.wait(
        status_is_shown(terminal, "poprun: 1 instance running, 1 ended ("),
        "the end of one",
    )
    (poprun.directory / "four").touch()

    assert terminal.end() == 0
    assert sorted(terminal.lines()) == [
        "0| one of 0",
        "0| two of 0",
        "1| one of 1",
        "1| two of 1",
    ]
    assert (terminal.screen.cursor.x, terminal.screen.cursor.y) == (0, 4)


def test_there_is_no_status_while_a_line_is_unfinished(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script(
        "ask.py",
        WAIT + "wait('go')\nprint('Name? ', end='', flush=True)\n"
        "wait('answer')\nprint('Ann')\nwait('end')\n",
    )
    terminal = on_terminal(POPRUN, *job(1), "python", script)
    shown = status_is_shown(terminal, "poprun: 1 instance running (")
    terminal.wait(shown, "the status")
    (poprun.directory / "go").touch()
    terminal.wait(lambda: terminal.lines() == ["Name?"], "the question alone")
    (poprun.directory / "answer").touch()
    terminal.wait(shown, "the status again")
    assert terminal.lines()[0] == "Name? Ann"
    (poprun.directory / "end").touch()

    assert (terminal.end(), terminal.lines()) == (0, ["Name? Ann"])


def test_what_is_typed_at_a_prompt_ends_its_line(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script("ask.py", "print('hello', input('Name? '))\n")
    terminal = on_terminal(POPRUN, *job(1), "--stdin", "0", "python", script)
    terminal.wait(lambda: terminal.lines() == ["Name?"], "the question")
    terminal.process.sendline("Ann")

    assert (terminal.end(), terminal.lines()) == (0, ["Name? Ann", "hello Ann"])


@pytest.mark.parametrize(
    ("words", "environ"),
    [
        pytest.param("--progress no", {}, id="no"),
        pytest.param("--quiet", {}, id="quiet"),
        pytest.param("| cat", {}, id="pipe"),
        pytest.param("2>&1 | cat", {}, id="pipes"),
        pytest.param("", {"TERM": "dumb"}, id="dumb"),
        pytest.param("--stdin 0", {}, id="typing"),
        pytest.param("--stdin all", {}, id="typing-for-all"),
    ],
)
def test_there_is_no_status_where_it_would_disturb(
    poprun: Poprun, on_terminal: Start, words: str, environ: dict[str, str]
) -> None:
    at = next((i for i, c in enumerate(words) if c in "|2"), len(words))
    terminal = on_terminal(
        *("sh", "-c", f'"$0" "$@" {words[:at]} sleep 1.5 {words[at:]}'),
        *(POPRUN, *job(1)),
        **environ,
    )

    # What takes long before the start is said all the same.
    assert (terminal.end(), b"running" in terminal.shown) == (0, False)


def test_poprun_s_own_words_leave_nothing_of_the_status(
    poprun: Poprun, on_terminal: Start
) -> None:
    terminal = on_terminal(POPRUN, *job(2), "sleep", "600")
    terminal.wait(status_is_shown(terminal), "the status")
    terminal.process.kill(signal.SIGTERM)

    assert terminal.end() == 143
    assert terminal.lines() == [
        "poprun: SIGTERM: stopping the instances; repeat to kill them",
        ".",
        "poprun: error: Stopped by SIGTERM.",
    ]


def test_a_program_that_draws_its_own_screen_is_left_alone(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script(
        "draw.py",
        WAIT + "print('\\x1b[2J\\x1b[5;3Hx', end='', flush=True)\n"
        "time.sleep(1)\n"
        "print('\\x1b[7;1H')\n",
    )
    terminal = on_terminal(POPRUN, *job(1), "python", script)

    assert terminal.end() == 0
    assert terminal.lines() == ["", "", "", "", "  x"]
    # On a busy machine there is a status before the program draws.
    assert b"running" not in terminal.shown.partition(b"\x1b[2J")[2]


READ = """
import os, sys
open("ready", "w")
print("got", sys.stdin.readline().strip())
"""


@pytest.fixture
def shell(on_terminal: Start) -> Terminal:
    """Start a shell that controls jobs."""
    terminal = on_terminal("bash", "--norc", "--noprofile", "-i", PS1="$ ")
    terminal.wait(lambda: terminal.lines() == ["$"], "a prompt")
    return terminal


def types(terminal: Terminal, line: str) -> None:
    terminal.process.sendline(line)


def says(terminal: Terminal, pattern: str) -> None:
    """Wait for a line; what it was made of does not match it."""
    terminal.wait(
        lambda: any(re.fullmatch(pattern, line) for line in terminal.lines()), pattern
    )


@pytest.mark.parametrize("which", ["0", "all"])
def test_in_the_background_what_is_typed_is_the_shell_s(
    poprun: Poprun, shell: Terminal, which: str
) -> None:
    script = poprun.script("read.py", READ)
    command = f"{POPRUN} {' '.join(job(1))} --stdin {which} python {script}"
    (poprun.directory / "run.sh").write_text(f"exec {command}\n")
    types(shell, "sh run.sh &")
    types(shell, "while jobs -r | grep -q .; do sleep 0.1; done; jobs")
    says(shell, r"\[1\]\+ +Stopped .*")
    types(shell, "echo $((40 + 2))")
    says(shell, "42")
    assert not (poprun.directory / "ready").exists()
    types(shell, "fg")
    shell.wait((poprun.directory / "ready").exists, "the program")
    types(shell, "Ann")

    says(shell, "got Ann")


@pytest.mark.parametrize("which", ["0", "all"])
def test_a_job_that_is_continued_in_the_background_stops_again(
    poprun: Poprun, shell: Terminal, which: str
) -> None:
    script = poprun.script("read.py", READ)
    command = f"{POPRUN} {' '.join(job(1))} --stdin {which} python {script}"
    (poprun.directory / "run.sh").write_text(f"exec {command}\n")
    types(shell, "sh run.sh")
    shell.wait((poprun.directory / "ready").exists, "the program")
    shell.process.sendcontrol("z")
    says(shell, r"\[1\]\+ +Stopped .*")
    types(shell, "bg; while jobs -r | grep -q .; do sleep 0.1; done; echo once more")
    says(shell, "once more")
    types(shell, "echo $((40 + 2))")
    says(shell, "42")
    types(shell, "fg")
    types(shell, "Ann")

    says(shell, "got Ann")


def test_a_stopped_job_that_reads_the_terminal_is_ended_by_kill(
    poprun: Poprun, shell: Terminal
) -> None:
    script = poprun.script("read.py", READ)
    command = f"{POPRUN} {' '.join(job(1))} --stdin 0 python {script}"
    (poprun.directory / "run.sh").write_text(f"exec {command}\n")
    types(shell, "sh run.sh")
    shell.wait((poprun.directory / "ready").exists, "the program")
    shell.process.sendcontrol("z")
    says(shell, r"\[1\]\+ +Stopped .*")
    types(shell, "kill %1; while kill -0 %1; do sleep 0.1; done; jobs; echo over")

    says(shell, "poprun: error: Stopped by SIGTERM.")
    says(shell, r"\[1\][+-] +Exit 143 .*")


def test_poprun_does_not_stop_where_no_shell_could_continue_it(
    poprun: Poprun, shell: Terminal
) -> None:
    script = poprun.script("read.py", READ)
    command = f"{POPRUN} {' '.join(job(1))} --stdin 0 python {script}"
    (poprun.directory / "run.sh").write_text(
        f"(while kill -0 $$; do sleep 0.1; done 2>/dev/null; exec {command}) "
        "< /dev/tty > out 2>&1 &\n"
    )
    # A shell of no jobs, in the background, that has ended when poprun asks.
    types(shell, "sh run.sh & wait; echo $((40 + 2))")
    says(shell, "42")
    out = poprun.directory / "out"
    shell.wait(lambda: out.exists() and bool(out.read_text()), "a word")

    assert out.read_text() == (
        "poprun: error: --stdin would read the terminal, which another job is using, "
        "and no shell could continue poprun when it is free. Run "
        "poprun in the foreground, or give it another input, such as < "
        "/dev/null.\n"
    )


def test_the_same_traceback_of_several_is_shown_once_below_their_tags(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script("fail.py", WAIT + "wait('go')\nraise ValueError('nan')")
    terminal = on_terminal(POPRUN, *job(2), "--keep-going", "python", script)
    (poprun.directory / "go").touch()

    assert terminal.end() == 1
    lines = terminal.lines()
    exceptions = [line for line in lines if line[1:] == "| ValueError: nan"]
    assert len(exceptions) == 1
    assert any("instances 0 and 1" in line.lower() for line in lines)


@pytest.mark.parametrize(
    ("environ", "options", "colored"),
    [
        ({}, (), True),
        ({"NO_COLOR": "1"}, (), False),
        ({}, ("--color=never",), False),
        ({"TERM": "dumb"}, (), False),
        ({"TERM": "dumb"}, ("--color=always",), True),
    ],
)
def test_tags_have_colours_on_a_terminal(
    poprun: Poprun,
    on_terminal: Start,
    environ: dict[str, str],
    options: tuple[str, ...],
    colored: bool,
) -> None:
    words = [POPRUN, *job(2), *options, "echo", "hello"]
    terminal = on_terminal(*words, **environ)

    assert terminal.end() == 0
    assert sorted(terminal.lines()) == ["0| hello", "1| hello"]
    first = terminal.screen.buffer[0]
    assert (first[0].fg != "default") == colored
    assert first[3].fg == "default"


def test_help_is_as_wide_as_the_terminal_behind_a_pipe(
    poprun: Poprun, on_terminal: Start
) -> None:
    # The terminal gets its size when its first program may run already.
    sized = f"until stty size <&2 | grep -q ' {COLUMNS}$'; do sleep 0.1; done"
    words = ["sh", "-c", f"{sized}; {POPRUN} --help | head -20"]
    # The caller's would count more.
    terminal = on_terminal(*words, COLUMNS="")

    assert terminal.end() == 0
    lines = [line for line in terminal.lines() if line]
    assert lines[0] == "Usage: poprun [OPTIONS] PROGRAM [ARGUMENTS]..."
    assert max(map(len, lines)) <= COLUMNS
    # None has gone on in the next row.
    assert len(terminal.lines()) == 20


def test_what_takes_long_before_the_start_is_said(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script(
        "ssh", "#!/bin/sh\nwhile [ ! -e go ]; do sleep 0.1; done\nexit 255"
    )
    (poprun.directory / script).chmod(0o755)
    command = f"--ssh={poprun.directory / script}"
    terminal = on_terminal(POPRUN, "-n", "2", "--host=a,b", command, "true")
    phase = "poprun: connecting to the hosts, 0 of 2 answered ("
    terminal.wait(lambda: terminal.lines()[-1].startswith(phase), "the phase")
    (poprun.directory / "go").touch()

    assert terminal.end() == 125
    assert terminal.lines()[0].startswith("poprun: error: The host a cannot be used: ")
    assert not any("connecting" in line for line in terminal.lines())


def test_a_collective_that_waits_for_long_is_named_in_the_status(
    poprun: Poprun, on_terminal: Start
) -> None:
    script = poprun.script(
        "wait.py",
        WAIT + "import popdist\n"
        "group = popdist.instance_group()\n"
        "group.barrier()\n"
        "if os.environ['RANK'] == '1': wait('go')\n"
        "group.barrier()\n",
    )
    terminal = on_terminal(POPRUN, *job(2), "python", script)
    words = "poprun: barrier waits for instance 1 ("
    terminal.wait(status_is_shown(terminal, words), "the collective")
    (poprun.directory / "go").touch()

    assert terminal.end() == 0
    assert terminal.lines() == [""]
