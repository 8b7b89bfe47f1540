"""The last words of a job, whole: the cause comes last."""

import signal
import sys
from dataclasses import replace
from typing import Any

import pytest

from poprun.reach.own_host.out_of_memory import MemoryCounters
from poprun.result import report
from poprun.result.instances import InstanceEnd
from poprun.result.report import exception_line, stderr_lines, traceback_text
from poprun.result.verdict import Verdict

NOT_KILLED = MemoryCounters()
TRACEBACK = b"""\
loading
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ValueError: the loss is nan
"""


def failed(rank: int, status: int) -> InstanceEnd:
    return InstanceEnd(rank=rank, state="failed", status=status, host="n1")


def of(rank: int, status: int, *also: InstanceEnd, sentence: str = "") -> Verdict:
    first = failed(rank, status)
    return Verdict(exit_code=1, first=first, also=also, sentence=sentence)


def render(
    verdict: Verdict,
    memory: MemoryCounters = NOT_KILLED,
    *,
    is_in_sight: bool = False,
    **known: Any,
) -> list[str]:
    """Return the report on a verdict.

    Args:
        known: Fields of the instance that failed first.
    """
    if verdict.first is not None:
        verdict = replace(verdict, first=replace(verdict.first, **known))
    return report.render(verdict, memory, is_in_sight=is_in_sight)


def test_a_job_that_went_well_needs_no_words() -> None:
    assert render(Verdict(exit_code=0, mpirun_text="mpirun is well")) == []


def test_an_instance_without_words_of_its_own_is_named_with_host_and_code() -> None:
    assert render(of(3, 7 << 8)) == ["Instance 3 on n1 exited with code 7."]


def test_a_signal_is_named_and_not_numbered() -> None:
    limited = {"at_cpu_limit": True}
    assert render(of(0, signal.SIGKILL), **limited) == [
        "Instance 0 on n1 was killed by SIGKILL. Its CPU time is limited: see "
        "'ulimit -t'."
    ]
    assert render(of(0, signal.SIGSEGV)) == ["Instance 0 on n1 was killed by SIGSEGV."]


def test_a_traceback_is_quoted_and_its_last_line_is_the_cause() -> None:
    assert render(of(3, 1 << 8), stderr=TRACEBACK) == [
        "the last lines of instance 3's stderr:\n"
        "    loading\n"
        "    Traceback (most recent call last):\n"
        '      File "train.py", line 3, in <module>\n'
        "        step()\n"
        "    ValueError: the loss is nan",
        "Instance 3 on n1 exited with code 1: ValueError: the loss is nan",
    ]


def test_the_cause_is_found_where_the_traceback_is_longer_than_what_is_quoted() -> None:
    deep = b'  File "train.py", line 1, in f\n' * 30
    stderr = b"Traceback (most recent call last):\n" + deep + b"ValueError: nan\n"
    *_, quoted, cause = render(of(3, 1 << 8), stderr=stderr)

    assert len(quoted.splitlines()) == 21
    assert cause == "Instance 3 on n1 exited with code 1: ValueError: nan"


def test_what_has_just_been_shown_is_not_shown_again() -> None:
    assert render(of(3, 1 << 8), stderr=TRACEBACK, is_in_sight=True) == [
        "Instance 3 on n1 exited with code 1: ValueError: the loss is nan"
    ]


def test_colours_are_no_part_of_the_cause() -> None:
    stderr = (
        b'Traceback (most recent call last):\n  File \x1b[35m"a.py"\x1b[0m\n'
        b"\x1b[1;35mKeyError\x1b[0m: \x1b[35m'b'\x1b[0m\n"
    )

    assert render(of(3, 1 << 8), stderr=stderr, is_in_sight=True) == [
        "Instance 3 on n1 exited with code 1: KeyError: 'b'"
    ]


def test_what_the_cause_says_is_not_quoted() -> None:
    stderr = b"python: No module named trian\n"

    assert render(of(3, 1 << 8), stderr=stderr) == [
        "Instance 3 on n1 exited with code 1: python: No module named trian"
    ]


@pytest.mark.parametrize(
    ("status", "stderr", "cause"),
    [
        pytest.param(
            1 << 8,
            b"loading\nconfig missing\n",
            'exited with code 1; its stderr ends with "config missing".',
            id="sys.exit",
        ),
        pytest.param(
            2 << 8,
            b"\x1b[31mno data\x1b[0m\n\x1b[2K\r\x1b[?25h\n \n",
            'exited with code 2; its stderr ends with "no data".',
            id="what-shows-nothing",
        ),
        pytest.param(
            signal.SIGABRT,
            b"terminate called without an active exception\n",
            'was killed by SIGABRT; its stderr ends with "terminate called without an '
            'active exception".',
            id="abort",
        ),
        pytest.param(
            signal.SIGTERM, b"epoch 3\n", "was killed by SIGTERM.", id="another-signal"
        ),
    ],
)
def test_the_last_line_of_stderr_belongs_to_the_cause(
    status: int, stderr: bytes, cause: str
) -> None:
    assert render(of(3, status), stderr=stderr, is_in_sight=True) == [
        f"Instance 3 on n1 {cause}"
    ]


HANDLED = b"Traceback (most recent call last):\n  File\nValueError: handled\n"


@pytest.mark.parametrize(
    ("status", "after", "cause"),
    [
        pytest.param(
            1 << 8,
            b"config missing\n",
            'exited with code 1; its last traceback ends with "ValueError: handled", '
            'and its stderr with "config missing".',
            id="sys.exit",
        ),
        pytest.param(
            1 << 8,
            b"  more of it\n\x1b[0m\n",
            "exited with code 1: ValueError: handled",
            id="indented",
        ),
        pytest.param(signal.SIGKILL, b"", "was killed by SIGKILL.", id="kill"),
        pytest.param(signal.SIGTERM, b"", "was killed by SIGTERM.", id="terminate"),
        pytest.param(signal.SIGSEGV, b"", "was killed by SIGSEGV.", id="fault"),
        pytest.param(
            signal.SIGABRT,
            b"",
            "was killed by SIGABRT: ValueError: handled",
            id="abort",
        ),
    ],
)
def test_a_traceback_that_the_program_may_have_handled_is_not_the_cause(
    status: int, after: bytes, cause: str
) -> None:
    assert render(of(3, status), stderr=HANDLED + after, is_in_sight=True)[
        -1
    ].startswith(f"Instance 3 on n1 {cause}")


def test_an_interrupt_that_python_has_not_handled_is_the_cause() -> None:
    stderr = b"Traceback (most recent call last):\n  File\nKeyboardInterrupt\n"

    assert render(of(3, signal.SIGINT), stderr=stderr, is_in_sight=True) == [
        "Instance 3 on n1 was killed by SIGINT: KeyboardInterrupt"
    ]


def test_a_fault_that_another_process_has_reported_is_no_cause_of_sigkill() -> None:
    assert (
        "Segmentation"
        not in render(of(3, signal.SIGKILL), stderr=FAULT.encode(), is_in_sight=True)[
            -1
        ]
    )


FAULT = """\
loading
Fatal Python error: Segmentation fault

Thread 0x00007f1 (most recent call first):
  File "/lib/threading.py", line 320 in wait

Current thread 0x00007f2 (most recent call first):
  File "/lib/a b.py", line 519 in string_at
  File "train.py", line 2 in <module>
"""


def test_the_report_of_a_fault_is_the_cause_with_the_place() -> None:
    more = "".join(f'  File "m.py", line {number} in f\n' for number in range(20))

    quoted, cause = render(of(3, signal.SIGSEGV), stderr=f"{FAULT}{more}".encode())

    assert cause == (
        "Instance 3 on n1 was killed by SIGSEGV: Fatal Python error: Segmentation "
        "fault in string_at (line 519 of /lib/a b.py)"
    )
    # Its beginning, however long it is.
    assert quoted.splitlines()[1] == "    Fatal Python error: Segmentation fault"
    assert len(quoted.splitlines()) == 21


def test_the_report_of_a_fault_may_have_no_place() -> None:
    stderr = (
        b"Fatal Python error: none_dealloc: deallocating None\n"
        b"Python runtime state: initialized\n\n"
        b"Current thread 0x7f (most recent call first):\n  <no Python frame>\n"
    )

    assert render(of(3, signal.SIGABRT), stderr=stderr, is_in_sight=True) == [
        "Instance 3 on n1 was killed by SIGABRT: Fatal Python error: none_dealloc: "
        "deallocating None"
    ]


def test_the_report_of_a_fault_may_be_cut_off() -> None:
    stderr = FAULT.partition('  File "/lib/a b.py"')[0].encode()

    assert render(of(3, signal.SIGSEGV), stderr=stderr, is_in_sight=True) == [
        "Instance 3 on n1 was killed by SIGSEGV: Fatal Python error: Segmentation fault"
    ]


def test_a_fault_before_a_traceback_is_another_process_s() -> None:
    assert render(
        of(3, 1 << 8), stderr=FAULT.encode() + TRACEBACK, is_in_sight=True
    ) == ["Instance 3 on n1 exited with code 1: ValueError: the loss is nan"]


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_python_without_faulthandler_is_told_of_it(number: int) -> None:
    evidence: dict[str, Any] = {"lacks_faulthandler": True}
    name = signal.Signals(number).name

    assert render(of(3, number), **evidence) == [
        f"Instance 3 on n1 was killed by {name}. Set PYTHONFAULTHANDLER=1 to have "
        "Python show where it was when this happens."
    ]
    # It was enabled in another way.
    shown: dict[str, Any] = dict(evidence, stderr=FAULT.encode(), is_in_sight=True)
    assert "PYTHONFAULTHANDLER" not in render(of(3, number), **shown)[0]


def test_a_program_that_has_left_no_torch_groups_is_told_to_do_so() -> None:
    terminate = b"terminate called without an active exception\n"
    evidence: dict[str, Any] = {
        "stderr": terminate,
        "uses_torch_groups": True,
        "lacks_faulthandler": True,
    }

    [cause] = render(of(3, signal.SIGABRT), **evidence)
    assert cause.endswith(
        'exception". Call torch.distributed.destroy_process_group() before the program '
        "ends: threads of a process group that still exists then may abort it."
    )
    assert "destroy" not in render(of(3, signal.SIGSEGV), **evidence)[-1]
    # abort() in C.
    asserted: dict[str, Any] = dict(
        evidence, stderr=b"a.c:5: f: Assertion `x' failed.\n"
    )
    assert "destroy" not in render(of(3, signal.SIGABRT), **asserted)[-1]


GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "a.py", line 1, in <module>
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in <module>
    | ValueError: a
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "a.py", line 1, in <module>
    | ValueError: b
    +------------------------------------"""
CHAIN = """\
Traceback (most recent call last):
  File "a.py", line 2, in f
KeyError: 1

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 4, in <module>
ValueError: no 1
more of it"""


@pytest.mark.parametrize(
    ("stderr", "text"),
    [
        pytest.param("", "", id="nothing"),
        pytest.param("no data", "", id="no-traceback"),
        pytest.param(f"loading\n{CHAIN}", CHAIN, id="chain"),
        pytest.param(f"{CHAIN}\n{CHAIN}", CHAIN, id="only-the-last"),
        pytest.param(f"{CHAIN}\n{GROUP}", GROUP, id="group"),
        pytest.param(FAULT.strip(), FAULT.strip().partition("\n")[2], id="fault"),
        pytest.param(
            'bad\n  File "a.py", line 1\n    1 +\n       ^\nSyntaxError: invalid',
            '  File "a.py", line 1\n    1 +\n       ^\nSyntaxError: invalid',
            id="syntax-error",
        ),
        pytest.param('  File "a.py", line 1\nother text', "", id="a-frame-alone"),
        # Of what is kept, nothing else is left.
        pytest.param(
            "The above exception was the direct cause of the following exception:\n\n"
            "Traceback (most recent call last):\nValueError: a",
            "Traceback (most recent call last):\nValueError: a",
            id="cut-off",
        ),
    ],
)
def test_the_last_traceback_is_found_with_those_that_led_to_it(
    stderr: str, text: str
) -> None:
    assert traceback_text(stderr_lines(stderr.encode())) == text


def test_others_that_failed_by_themselves_are_listed() -> None:
    outcome = of(1, 7 << 8, failed(0, 3 << 8), failed(12, signal.SIGKILL))

    assert render(outcome) == [
        "also failed: instance 0 (exited with code 3), "
        "instance 12 (was killed by SIGKILL).",
        "Instance 1 on n1 exited with code 7.",
    ]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (256 << 20, "the limit is 256 MiB, it had used 256 MiB"),
        (None, "it had used 256 MiB"),
    ],
)
def test_want_of_memory_is_named_with_the_limit(limit: int | None, words: str) -> None:
    assert render(
        of(0, signal.SIGKILL),
        memory=MemoryCounters(kills=1, limit=limit),
        peak_kib=261_700,
    ) == [f"Instance 0 on n1 was killed by SIGKILL: out of memory ({words})."]


def test_a_cause_that_is_no_instances_is_a_sentence() -> None:
    outcome = Verdict(exit_code=130, sentence="Stopped by SIGINT.", mpirun_text="words")

    assert render(outcome) == ["Stopped by SIGINT."]


def test_mpiruns_words_stand_before_the_cause_that_they_explain() -> None:
    outcome = Verdict(exit_code=125, sentence="mpirun ended.", quote_mpirun=True)
    spoken = replace(outcome, mpirun_text="No slots.\n\nSorry.")
    silent = replace(outcome, mpirun_text=" \n")

    assert render(spoken) == [
        "mpirun printed:\n    No slots.\n\n    Sorry.",
        "mpirun ended.",
    ]
    assert render(silent) == ["mpirun ended."]


def test_the_sentence_of_an_instance_counts_more_than_its_code() -> None:
    outcome = of(1, 42 << 8, sentence="Instance 1 called MPI_Abort.")

    assert render(outcome) == ["Instance 1 called MPI_Abort."]


def test_only_the_last_20_lines_are_quoted_and_long_ones_are_cut() -> None:
    stderr = b"".join(b"%d\n" % number for number in range(100)) + b"x" * 1000

    [quoted, _] = render(of(0, 1 << 8), stderr=stderr)

    assert quoted.splitlines() == [
        "the last lines of instance 0's stderr:",
        *(f"    {number}" for number in range(81, 100)),
        "    " + "x" * 400,
    ]


def test_of_a_progress_bar_the_last_state_is_quoted() -> None:
    stderr = b"\r 10%\r 50%\r100%\ndone \xff\n\n"

    assert render(of(0, 1 << 8), stderr=stderr) == [
        "the last lines of instance 0's stderr:\n    100%\n    done \\xff",
        'Instance 0 on n1 exited with code 1; its stderr ends with "done \\xff".',
    ]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        pytest.param([], "", id="none"),
        pytest.param(["ValueError: x"], "", id="no-traceback"),
        pytest.param(
            ['  File "/a/train.py", line 1', "    1 +", "       ^", "SyntaxError: no"],
            "SyntaxError: no",
            id="syntax-error-of-the-script",
        ),
        pytest.param(
            ['  File "train.py", line 3', "    f()", "TabError: inconsistent use"],
            "TabError: inconsistent use",
            id="tab-error-of-the-script",
        ),
        pytest.param(["SyntaxError: near SELECT"], "", id="another-syntax-error"),
        pytest.param(
            ["/usr/bin/python3: can't open file '/a b/c.py': [Errno 2] No such file"],
            "python3: can't open file '/a b/c.py': [Errno 2] No such file",
            id="no-script",
        ),
        pytest.param(
            ["loading", "python: No module named trian"],
            "python: No module named trian",
            id="no-module",
        ),
        pytest.param(
            ["/a/python3.11: can't find '__main__' module in '/a/b'"],
            "python3.11: can't find '__main__' module in '/a/b'",
            id="no-main",
        ),
        pytest.param(["python: No module named a", "retry"], "", id="not-the-last"),
        pytest.param(
            ["Traceback (most recent call last):", "  File", "KeyboardInterrupt"],
            "KeyboardInterrupt",
            id="without-a-message",
        ),
        pytest.param(
            [
                "Traceback (most recent call last):",
                "  File",
                "E: 1",
                "more",
                "and more",
            ],
            "E: 1",
            id="with-lines-after-it",
        ),
        pytest.param(
            [
                *("Traceback (most recent call last):", "  File", "KeyError: 1"),
                *("During handling of the above exception, another occurred:"),
                *("Traceback (most recent call last):", "  File", "TypeError: 2"),
            ],
            "TypeError: 2",
            id="the-last-of-several",
        ),
        pytest.param(
            ["Traceback (most recent call last):", "  File"], "", id="cut-off"
        ),
        pytest.param(
            [
                "[rank1]: Traceback (most recent call last):",
                '[rank1]:   File "train.py", line 3, in <module>',
                "[rank1]:     step()",
                "[rank1]: ValueError: the loss is nan",
            ],
            "ValueError: the loss is nan",
            id="with-torch's-prefix",
        ),
        pytest.param(
            [
                "[rank1]: Traceback (most recent call last):",
                '[rank1]:   File "train.py", line 3, in <module>',
                "[rank1]: OSError: Caught OSError in DataLoader worker process 0.",
                "[rank1]: Original Traceback (most recent call last):",
                '[rank1]:   File "data.py", line 6, in __getitem__',
                "[rank1]:     read()",
                "[rank1]: OSError: no space",
            ],
            "OSError: no space",
            id="of-a-worker-with-torch's-prefix",
        ),
    ],
)
def test_the_line_that_says_what_was_wrong_is_found(
    lines: list[str], line: str
) -> None:
    assert exception_line(lines) == line


@pytest.mark.parametrize(
    ("line", "is_told"),
    [
        ("python3: can't open file '/a.py': [Errno 2] No such file or directory", True),
        ("python3: can't open file '/a.py': [Errno 13] Permission denied", False),
        ("python3: No module named train", True),
        ("/usr/bin/python3: can't find '__main__' module in '/a'", True),
        ("ImportError: No module named x", False),
    ],
)
def test_a_script_that_another_host_may_lack_is_to_be_copied_there(
    line: str, is_told: bool
) -> None:
    def cause(*, is_elsewhere: bool) -> str:
        return render(
            of(1, 2 << 8), stderr=line.encode(), is_own_host=not is_elsewhere
        )[-1]

    hint = (
        "It must also be on n1: put it in a directory that the hosts "
        "share, or let --sync DIR copy its folder."
    )
    assert cause(is_elsewhere=True).endswith(hint) is is_told
    assert hint not in cause(is_elsewhere=False)


def test_a_python_without_popdist_is_told_of_one_that_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    exception = "ModuleNotFoundError: No module named 'popdist'"
    stderr = f"Traceback (most recent call last):\n  x\n{exception}\n".encode()

    sentences = render(of(3, 1 << 8), stderr=stderr, is_in_sight=True)

    assert sentences == [
        f"Instance 3 on n1 exited with code 1: {exception}. It comes with poprun, "
        "which is installed for /venv/bin/python: run the program with that Python, or "
        "install poprun for the other one."
    ]


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("horovod", "horovod"),
        ("poptorch", "poptorch"),
        ("tensorflow.python.ipu", "tensorflow.python.ipu"),
        ("tensorflow.compiler.plugin", "tensorflow.compiler.plugin"),
        ("horovod.tensorflow", None),
        ("torch", None),
    ],
)
def test_a_program_that_finds_no_stand_in_is_told_how_to_find_it(
    module: str, package: str | None
) -> None:
    exception = f"ModuleNotFoundError: No module named '{module}'"
    stderr = f"Traceback (most recent call last):\n  x\n{exception}\n".encode()

    found = render(of(3, 1 << 8), stderr=stderr, is_in_sight=True)

    advice = (
        f". popdist has a stand-in for {package}, which Python finds unless "
        "--emulate-sdk=no or POPDIST_SDK=no is set. If Python ignores PYTHONPATH, or "
        "another program starts it, enable the stand-ins in its environment: python -m "
        "popdist.sdk enable"
    )
    if package is None:
        advice = (
            ". Install it for the Python that runs the program, or run the "
            f"program with another Python. poprun's own is {sys.executable}."
        )
    [cause] = found
    assert cause.endswith(f"code 1: {exception}{advice}")


@pytest.mark.parametrize(
    "exception",
    [
        "ModuleNotFoundError: No module named 'tensorflow.compiler.plugin.poplar'",
        "ModuleNotFoundError: No module named 'tensorflow.python.ipu.vertex_edsl'",
        "ImportError: cannot import name 'f8_ops' from 'tensorflow.python.ipu.ops' "
        "(/x/popdist/sdk/submodules/tensorflow/python/ipu/ops/__init__.py)",
    ],
)
def test_a_part_of_graphcores_tensorflow_is_not_to_be_installed(exception: str) -> None:
    stderr = f"Traceback (most recent call last):\n  x\n{exception}\n".encode()

    [cause] = render(of(3, 1 << 8), stderr=stderr, is_in_sight=True)

    assert cause.endswith(
        f"code 1: {exception}. It is part of Graphcore's TensorFlow, but "
        "not of popdist's stand-in for it: docs/tensorflow_ipu.md lists "
        "what the stand-in has."
    )


@pytest.mark.parametrize(
    ("exception", "hint"),
    [
        (
            "EOFError: EOF when reading a line",
            "It has no standard input: write --stdin 3.",
        ),
        (
            "bdb.BdbQuit",
            "breakpoint() found no terminal. Add --pdb 3 to give poprun's "
            "terminal to instance 3.",
        ),
    ],
)
@pytest.mark.parametrize("advice", ["3", ""])
def test_a_program_without_an_input_is_told_how_to_get_one(
    exception: str, hint: str, advice: str
) -> None:
    stderr = f"Traceback (most recent call last):\n  x\n{exception}\n".encode()

    cause = f"Instance 3 on n1 exited with code 1: {exception}"
    end = f". {hint}" if advice else ""
    assert render(
        of(3, 1 << 8), stderr=stderr, is_in_sight=True, stdin_advice=advice
    ) == [cause + end]
