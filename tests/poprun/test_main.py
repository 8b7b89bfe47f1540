import signal
import subprocess
import sys
from collections.abc import Mapping
from textwrap import dedent

import pytest

STOPPED = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 129,
    signal.SIGQUIT: 131,
    signal.SIGUSR1: 138,
    signal.SIGUSR2: 140,
    signal.SIGXCPU: 152,
}
READ = "early_signals.unblock()\n"


def run(
    body: str, handlers: Mapping[signal.Signals, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the entry point; `body` stands for all that comes after it."""
    # A test's caller may ignore signals, as nohup does.
    given = dict.fromkeys(STOPPED, "SIG_DFL") | dict(handlers or {})
    given[signal.SIGINT] = given[signal.SIGINT].replace(
        "SIG_DFL", "default_int_handler"
    )
    lines = [
        "import atexit, os, signal, sys, types",
        *(f"signal.signal({int(n)}, signal.{how})" for n, how in given.items()),
        "import poprun.__main__ as entry",
        "from poprun import early_signals",
        "def main():",
        *(f"    {line}" for line in dedent(body).strip().splitlines()),
        "sys.modules['poprun.cli'] = types.SimpleNamespace(main=main)",
        "entry.main()",
    ]
    return subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=200,
    )


@pytest.mark.parametrize("number", STOPPED, ids=lambda number: number.name)
def test_a_signal_before_the_job_ends_it_with_the_documented_code_and_a_sentence(
    number: signal.Signals,
) -> None:
    ran = run(f"{READ}os.kill(os.getpid(), {int(number)})\nreturn 0")

    assert ran.stderr == (
        f"poprun: error: Stopped by {number.name} before any instance was started.\n"
    )
    assert ran.returncode == STOPPED[number]


@pytest.mark.parametrize("number", STOPPED, ids=lambda number: number.name)
def test_what_the_caller_ignores_stays_ignored(number: signal.Signals) -> None:
    body = f"{READ}os.kill(os.getpid(), {int(number)})\nreturn 7"
    ran = run(body, {number: "SIG_IGN"})

    assert (ran.returncode, ran.stderr) == (7, "")


@pytest.mark.parametrize("number", STOPPED, ids=lambda number: number.name)
def test_a_signal_waits_until_the_options_are_read(number: signal.Signals) -> None:
    kill = f"os.kill(os.getpid(), {int(number)})\nprint('read', flush=True)\n"
    ran = run(f"{kill}{READ}print('later', flush=True)\nreturn 0")

    assert (ran.returncode, ran.stdout) == (STOPPED[number], "read\n")


def test_options_that_do_not_come_delay_a_signal_for_seconds_only() -> None:
    kill = f"os.kill(os.getpid(), {int(signal.SIGTERM)})"
    ran = run(f"{kill}\nos.read(os.pipe()[0], 1)")

    assert ran.returncode == 143


def test_a_signal_waits_while_slow_imports_delay_the_options() -> None:
    # Longer than two checks, and poprun computes all the time.
    work = "import time\nend = time.monotonic() + 2.5\nwhile time.monotonic() < end: 1"
    kill = f"os.kill(os.getpid(), {int(signal.SIGTERM)})\n"
    ran = run(f"{kill}{work}\nprint('read', flush=True)\n{READ}return 0")

    assert (ran.returncode, ran.stdout) == (143, "read\n")


def test_a_poprun_that_is_stopped_does_not_wait_for_its_options() -> None:
    # It is stopped after the first check, until after the time of the second one.
    body = f"""
    import time
    used, checks = time.process_time, []
    time.process_time = lambda: checks.append(used()) or checks[-1]
    parent = os.getpid()
    if not os.fork():
        while os.getppid() == parent:
            if open(f'/proc/{{parent}}/stat').read().split()[2] == 'T':
                time.sleep(1.5)
                os.kill(parent, signal.SIGCONT)
            time.sleep(0.01)
        os._exit(0)
    os.kill(os.getpid(), {int(signal.SIGTERM)})
    while not checks: 1
    os.kill(os.getpid(), signal.SIGSTOP)
    print('read', flush=True)
    {READ}
    """
    ran = run(body)

    assert (ran.returncode, ran.stdout) == (143, "read\n")


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_the_timer_of_the_options_ends_with_them(handler: str) -> None:
    body = f"{READ}print(*signal.getitimer(signal.ITIMER_REAL))\nreturn 0"
    ran = run(body, {signal.SIGALRM: handler})

    assert ran.stdout == "0.0 0.0\n"


def test_an_alarm_of_the_caller_stays() -> None:
    # One that was set before exec.
    program = (
        "import os, signal; signal.alarm(999)\n"
        "from poprun import early_signals\n"
        "early_signals.block_until_options_are_read(os._exit)\n"
        "early_signals.unblock()\n"
        "print(signal.getitimer(signal.ITIMER_REAL)[0] > 9)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )

    assert ran.stdout == "True\n", ran.stderr


def test_signals_are_the_kernel_s_again_when_an_instance_may_run() -> None:
    kill = "os.kill(os.getpid(), signal.SIGXCPU)"
    ran = run(f"{READ}early_signals.restore_default()\n{kill}\nreturn 0")

    assert (ran.returncode, ran.stderr) == (-signal.SIGXCPU, "")


@pytest.mark.parametrize("number", STOPPED, ids=lambda number: number.name)
def test_a_signal_while_poprun_ends_does_not_replace_the_exit_code(
    number: signal.Signals,
) -> None:
    kill = f"lambda: os.kill(os.getpid(), {int(number)})"
    ran = run(f"sys.stdout = types.SimpleNamespace(flush={kill})\nreturn 7")

    assert (ran.returncode, ran.stderr) == (7, "")


def test_poprun_writes_what_is_unwritten_and_ends_at_once() -> None:
    ran = run("print('text')\natexit.register(print, 'late')\nreturn 7")

    assert (ran.returncode, ran.stdout, ran.stderr) == (7, "text\n", "")


def test_the_entry_point_imports_nothing_that_takes_time() -> None:
    code = (
        "import sys; before = set(sys.modules); import poprun.__main__; "
        "print(*sorted(set(sys.modules) - before))"
    )

    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    # Python has gc built in.
    assert ran.stdout.split() == [
        *("gc", "poprun", "poprun.__main__", "poprun.early_signals"),
    ]
