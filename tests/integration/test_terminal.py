"""On a terminal: what the instances see of it, and what remains to be seen on it."""

from collections.abc import Callable

import pexpect
import pyte
import pytest
from conftest import POPRUN, Poprun, wait_for

ROWS, COLUMNS = 24, 60


def job(instances: int) -> list[str]:
    number = str(instances)
    return ["--mpirun", "local", "--num-instances", number, "--num-replicas", number]


class Terminal:
    """poprun on a terminal that can be read like a page."""

    def __init__(self, poprun: Poprun, *words: str, **environ: str) -> None:
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.shown = b""
        self.process = pexpect.spawn(
            words[0],
            list(words[1:]),
            cwd=str(poprun.directory),
            env={**poprun.environ, "TERM": "xterm", **environ},  # type: ignore[arg-type]
            dimensions=(ROWS, COLUMNS),
            timeout=40,
        )

    def read(self) -> None:
        """Take in what has been written to the terminal."""
        try:
            data = self.process.read_nonblocking(1 << 16, 0.1)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return
        self.shown += data
        self._stream.feed(data)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        def is_so() -> bool:
            self.read()
            return condition()

        wait_for(is_so, what, 40)

    def end(self) -> int:
        """Wait for the end; return the exit code."""
        self.wait(lambda: not self.process.isalive(), "the end")
        before = None
        while before != len(self.shown):
            before = len(self.shown)
            self.read()
        self.process.close()
        code = self.process.exitstatus
        return int(code if code is not None else -self.process.signalstatus)

    def lines(self) -> list[str]:
        """Return what is on the screen, without the empty lines at its end."""
        return (
            "\n".join(line.rstrip() for line in self.screen.display)
            .rstrip()
            .split("\n")
        )


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
    poprun: Poprun, words: str, seen: str
) -> None:
    script = poprun.script("ask.py", ASK)
    options, _, redirection = words.partition("2>" if "2>" in words else "|")
    redirection = words[len(options) :]
    terminal = Terminal(
        poprun,
        *("sh", "-c", f'"$0" "$@" {options} python {script} {redirection}'),
        *(POPRUN, *job(1)),
    )

    assert (terminal.end(), terminal.lines()) == (0, [seen])


def test_a_caller_s_own_word_on_buffering_counts(poprun: Poprun) -> None:
    script = poprun.script("ask.py", ASK)
    ran = poprun(*job(1), "python", script, environ={"PYTHONUNBUFFERED": ""})

    assert ran.stdout == "- - \n"


def test_a_new_size_reaches_the_instances(poprun: Poprun) -> None:
    script = poprun.script(
        "resize.py",
        "import os, signal\n"
        "signal.signal(signal.SIGWINCH, lambda *_: None)\n"
        "print('ready')\n"
        "while os.get_terminal_size(1).columns != 50: signal.pause()\n"
        "print(*os.get_terminal_size(1), *os.get_terminal_size(2))\n",
    )
    terminal = Terminal(poprun, POPRUN, *job(1), "python", script)
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
        pytest.param((), "", id="bare"),
        pytest.param(("--mpi-global-args=--tag-output",), "[1,R]<stderr>:", id="tags"),
    ],
)
def test_bars_of_several_do_not_garble_each_other(
    poprun: Poprun, options: tuple[str, ...], tag: str
) -> None:
    script = poprun.script(
        "bars.py",
        BARS + "for percent in range(0, 101, 5):\n"
        "    draw(percent)\n"
        "    time.sleep(0.02)\n"
        "    if percent == 50: print('half of', rank)\n"
        "sys.stderr.write('\\n')\n",
    )
    terminal = Terminal(poprun, POPRUN, *job(3), *options, "python", script)

    assert terminal.end() == 0
    bars = [tag.replace("R", str(r)) + f"{r}: 100% ##########" for r in range(3)]
    out = tag.replace("stderr", "stdout")
    halves = [out.replace("R", str(rank)) + f"half of {rank}" for rank in range(3)]
    assert sorted(terminal.lines()) == sorted(bars + halves)
